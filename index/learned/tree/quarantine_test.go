package tree

import (
	"testing"
	"time"

	"drtmx/index/learned/leaf"
)

// newTimed has inline rows and a quarantine as long as the product's.
func newTimed(t *testing.T) *world {
	w := simple(t, leaf.Inline)
	w.quarantine, w.t.freed.quarantine = 30*time.Second, 30*time.Second
	return w
}

// TestQuarantineCountsFromTheFreeing: the partition was idle for longer than
// the quarantine before leaves were freed. Proofs of a View that began just
// before must not come to hold for rows that move to those leaves.
func TestQuarantineCountsFromTheFreeing(t *testing.T) {
	w := newTimed(t)
	w.csn = 1
	const leaves = 2*untidyMax + 2
	for k := range uint64(leaves * 4) { // full leaves, all of one commit
		w.putSame(w.key(k*10), 1)
	}
	w.t.Tidy(100)
	w.clock.Advance(40 * time.Second) // idle
	for k := uint64(8); k < leaves*4; k++ {
		if err := w.look(w.key(k * 10)); err != nil { // a View reads
			t.Fatal(err)
		}
	}
	for k := uint64(8); k < leaves*4; k++ {
		w.del(w.key(k * 10)) // leaves run empty, and are freed as they do
	}
	w.clock.Advance(3 * time.Millisecond)
	w.t.Tidy(100)
	for i, k := range []uint64{1, 2, 3, 4, 5, 6, 7, 41, 42, 43, 44, 45} { // the first leaves split: their rows move
		w.put(w.key(k), 1)
		if err := w.judge(); err != nil {
			t.Fatalf("3 ms after the freeing, insert %d: %v", i, err)
		}
	}
	if w.t.freed.len() < leaves/2 {
		t.Fatalf("%d leaves are in quarantine: the test tells nothing", w.t.freed.len())
	}
	used := w.t.leafSlab.Stats().Used
	w.clock.Advance(30*time.Second + time.Millisecond)
	for k := range uint64(9) {
		w.put(w.key(k*10+8), 1)
	}
	if now := w.t.leafSlab.Stats().Used; now != used {
		t.Errorf("%d leaves after the quarantine, %d before: none is used again", now, used)
	}
	if err := w.t.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestMovedRowsAvoidRecentMemory: rows of one commit, of which splits and merges
// move some to leaves where others had lived. Within the quarantine no header
// repeats at an address; the test shows that it would without.
func TestMovedRowsAvoidRecentMemory(t *testing.T) {
	for _, quarantine := range []time.Duration{0, time.Hour} {
		w := simple(t, leaf.Inline)
		w.t.freed.quarantine = quarantine
		w.quarantine = time.Hour // of the judge
		w.csn = 1
		for k := range uint64(48) { // full leaves, all of one commit
			w.putSame(w.key(k*10), 1)
		}
		for k := range uint64(48) {
			if err := w.look(w.key(k * 10)); err != nil {
				t.Fatal(err)
			}
		}
		var err error
		for k := uint64(4); k < 48; k++ { // leaves run empty, and sparse, and merge
			if k < 12 || k%4 != 1 {
				w.del(w.key(k * 10))
				w.t.Tidy(1)
				if err == nil {
					err = w.judge()
				}
			}
		}
		for k := range uint64(40) { // leaves split
			w.put(w.key(k*10+5), 1)
			if err == nil {
				err = w.judge()
			}
		}
		if merges := w.t.merges.Load(); (err != nil) != (quarantine == 0) || merges == 0 {
			t.Errorf("quarantine %v, %d merges: %v", quarantine, merges, err)
		}
		if err := w.t.Check(); err != nil {
			t.Fatal(err)
		}
	}
}
