package server

import (
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
)

// TestSequenceNumbersDoNotRepeat: a tick that has no sequence numbers left is
// followed by the next. A partition that has reached the last tick takes no more
// commits; it does not begin again.
func TestSequenceNumbersDoNotRepeat(t *testing.T) {
	s, p, entry := newRig(t)
	putEntries(t, s, entry, 10)
	p.mu.Lock()
	p.arena.CoverCSN(block.NewCSN(block.MaxTick-1, block.MaxSeq>>1))
	p.mu.Unlock()
	write := &wire.Commit{Parts: []wire.Part{{Writes: []wire.Write{writeOf(entry, wire.Update, 10)}}}}
	sh, complete := shareOf(s, write)
	if v := sh.commit(); !complete || !v.ok() {
		t.Fatalf("the last commit: %+v", v)
	}
	if v := sh.commit(); v.code != wire.Unavailable {
		t.Errorf("one more: %+v, want that the partition is unavailable", v)
	}
	if v := sh.commit(); v.code != wire.Conflict {
		t.Errorf("after it was fenced: %+v", v)
	}
	if csn := block.Header(proofsOf(t, p, entry, 10, index.Found)[0].Word).CSN(); csn != block.NewCSN(block.MaxTick, 1) {
		t.Errorf("the row has tick %d, sequence number %d", csn.Tick(), csn.Seq())
	}
}

// TestSharedLocksAreReleasedByOwner: releasing one owner's locks neither looks
// at nor changes those of others, and finds words that have moved.
func TestSharedLocksAreReleasedByOwner(t *testing.T) {
	l := newSharedLocks()
	for o := range index.Owner(1000) {
		for w := range uint64(8) {
			l.add(64*uint64(o)+8*w, o)
			l.add(8*w, o)
		}
	}
	l.Move(0, 1<<20)
	l.Copy(8, 1<<20+8)
	if allocs := testing.AllocsPerRun(10, func() { l.add(1<<30, 5000); l.release(5000) }); allocs > 4 {
		t.Errorf("%v allocations", allocs)
	}
	for o := range index.Owner(1000) {
		if !l.SharedByOther(1<<20, 5000) || !l.SharedByOther(1<<20+8, 5000) {
			t.Fatalf("owner %d and later ones hold words that are free", o)
		}
		l.release(o)
		if l.SharedByOther(64*uint64(o)+1<<30, 5000) {
			t.Fatal("a word nobody added is held")
		}
	}
	if !l.Empty() || len(l.words) != 0 {
		t.Errorf("%d words and %d owners are left", len(l.owners), len(l.words))
	}
}

// TestReleaseCostsNoMoreThanItsLocks: the locks of others are not even looked at,
// however many there are. Words on which the owner has a lock that its list lacks,
// which never happens otherwise, show what a release looks at: it drops such a lock
// if it finds it. And if each of so many releases went over all locks, they would
// take many minutes.
func TestReleaseCostsNoMoreThanItsLocks(t *testing.T) {
	l := newSharedLocks()
	const others, releases, o = 1 << 16, 1 << 20, index.Owner(1 << 20)
	for i := range uint64(others) {
		l.owners[8*i] = []index.Owner{index.Owner(i), o}
		l.words[index.Owner(i)] = []uint64{8 * i}
	}
	l.add(8*others, o)
	l.release(o)
	if n := len(l.owners); n != others {
		t.Errorf("%d words are left, want %d", n, others)
	}
	for i := range uint64(others) {
		if len(l.owners[8*i]) != 2 {
			t.Fatal("a release has looked at words that are not in the owner's list")
		}
	}
	for end, i := time.Now().Add(testseed.Patience()), uint64(0); i < releases; i++ {
		l.add(8*(others+i), o)
		l.release(o)
		if i%64 == 0 && time.Now().After(end) {
			t.Fatalf("%d releases of one lock in %v beside %d others", i, testseed.Patience(), others)
		}
	}
}
