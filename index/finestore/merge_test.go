package finestore

import (
	"errors"
	"slices"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
)

// merge merges the array that covers a key with its bins.
func (w *world) merge(key uint64) {
	w.t.Helper()
	w.s.mu.Lock()
	defer w.s.mu.Unlock()
	if err := w.s.rebuild(w.s.arrayOf(key)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) check() {
	w.t.Helper()
	if err := w.s.Check(); err != nil {
		w.t.Fatal(err)
	}
}

// TestProofsEndWithMerges: a merge that divides an array ends what its gap word proves of the keys
// that go to another array.
func TestProofsEndWithMerges(t *testing.T) {
	w := newWorld(t, indextest.Variants()[0], Options{KeysPerArray: 8})
	for k := uint64(10); k <= 80; k += 10 {
		w.write(k, false)
	}
	w.merge(10)
	for _, k := range []uint64{11, 21, 31, 41} {
		w.write(k, false)
	}
	absent := slices.Clone(w.s.Get(index.Num(75), nil).Proofs)
	if !w.holds(absent) || w.s.Shape().Arrays != 1 {
		t.Fatal("no proof in one array")
	}
	w.merge(10)
	if sh := w.s.Shape(); sh.Arrays != 2 || sh.Bins != 0 {
		t.Fatalf("%+v", sh)
	}
	w.write(75, false)
	if w.holds(absent) {
		t.Error("it is proved that a key is absent which is there")
	}
	w.check()
}

// ascending makes a world in which a bin of the only interval is full, and so is the one on its right.
func ascending(t *testing.T, n int) (w *world, key func(i int) uint64) {
	w = newWorld(t, indextest.Variants()[0], Options{KeysPerArray: 40})
	key = func(i int) uint64 { return 1000 * uint64(i+1) }
	for i := range n {
		w.write(key(i), false)
	}
	return w, key
}

// TestGivenRowsAreShared: who shares that a key is absent shares it in the bin that takes the rows
// around it.
func TestGivenRowsAreShared(t *testing.T) {
	w, key := ascending(t, 32)
	for i := range 4 {
		w.write(key(i), true)
	}
	const reader, other = 1, 2
	k := key(16) + 1
	for _, p := range w.s.Get(index.Num(k), nil).Proofs {
		w.e.Locks.Share(p.Addr, reader)
	}
	before := w.s.find(k, 0).bin
	w.write(key(20)+1, false)
	if p := w.s.find(k, 0); p.bin == before || p.bin == 0 {
		t.Fatalf("the key is in %+v, and was in bin %#x", p, before)
	}
	if _, err := w.s.LockWrite(other, index.Num(k), 0); !errors.Is(err, index.ErrLocked) {
		t.Errorf("another locks the key: %v", err)
	}
	w.check()
}

// TestAscendingKeysFillBins: keys that ascend fill bins and arrays, and merges leave no gaps in them.
func TestAscendingKeysFillBins(t *testing.T) {
	w, key := ascending(t, 33)
	if sh := w.s.Shape(); sh.Bins != 3 || sh.Roots != 1 || sh.Binned != 33 {
		t.Errorf("%+v after 33 keys", sh)
	}
	for i := 33; i < 4000; i++ {
		w.write(key(i), false)
	}
	w.check()
	sh := w.s.Shape()
	if full := sh.Keys / sh.Arrays; full < 39 {
		t.Errorf("arrays have %d keys in the mean: %+v", full, sh)
	}
	w.maintain(200)
	w.fetch()
	for i := range 4000 {
		if st, err := w.look(key(i)); err != nil || st != index.Found {
			t.Fatalf("key %d: %v, %v", i, st, err)
		}
	}
}

// TestQueue: where keys are appended and the oldest ones removed, the index stays as large as what is
// in it.
func TestQueue(t *testing.T) {
	w := newWorld(t, indextest.Variants()[0], Options{KeysPerArray: 16})
	for i := range uint64(20000) {
		if w.write(i, false); i >= 500 {
			w.write(i-500, true)
		}
		if i%16 == 0 {
			w.maintain(1)
		}
	}
	if sh := w.s.Shape(); sh.Arrays > 120 || sh.Bins > 60 {
		t.Errorf("500 rows: %+v", sh)
	}
	w.check()
}

// TestBinsWithoutRowsAreMerged: writes that are refused, and rows that are deleted, leave few bins, in
// one interval or in many. The bins of an array weigh less than it may have keys once the trainer has
// had its turn, and without it less than inserts allow, but for the bins of the last interval.
func TestBinsWithoutRowsAreMerged(t *testing.T) {
	for _, c := range []struct {
		name           string
		keys, interval int // of an array, and rows of each interval
		maintained     bool
	}{
		{"refused writes", 8, 0, true},
		{"refused writes, the trainer lags", 8, 0, false},
		{"rows of several bins", 39, 38, true},
		{"rows of several bins, the trainer lags", 39, 38, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, indextest.Variants()[0], Options{KeysPerArray: c.keys})
			for k := uint64(1); k <= 64; k++ {
				w.loadKey(1000 * k)
			}
			w.maintain(100)
			arrays := w.s.Shape().Arrays
			most := (c.keys - 1) / emptyBinRows // bins of an array
			if !c.maintained {
				most = crowdedArrays*c.keys/emptyBinRows + 4
			}
			for pass := range 2 {
				for k := uint64(1); k <= 64; k++ {
					low := 1000*k + 100*uint64(pass)
					if c.interval == 0 {
						w.refuse(low + 1)
					}
					for i := range c.interval {
						w.write(low+1+uint64(i), false)
					}
					for i := range c.interval {
						w.write(low+1+uint64(i), true)
					}
					if c.maintained {
						w.maintain(1)
					}
					w.check()
					if sh := w.s.Shape(); sh.Bins > uint64(most)*sh.Arrays || sh.Roots > sh.Bins/2 || c.maintained && sh.Arrays != arrays {
						t.Fatalf("pass %d, after interval %d: %+v, want %d bins for each array at most", pass, k, sh, most)
					}
				}
			}
			if sh := w.s.Shape(); sh.Merges == 0 || sh.Keys != 64 {
				t.Errorf("%+v", sh)
			}
			w.maintain(20)
			w.check()
			if sh := w.s.Shape(); len(w.s.due) > 0 || sh.Bins > uint64((c.keys-1)/emptyBinRows)*sh.Arrays {
				t.Errorf("%d arrays are due after the trainer's turns: %+v", len(w.s.due), sh)
			}
		})
	}
}

// TestTidyGoesOn: arrays that are due and cannot be joined do not keep those behind them from being
// joined.
func TestTidyGoesOn(t *testing.T) {
	w := newWorld(t, indextest.Variants()[0], Options{KeysPerArray: 16})
	for k := range uint64(16 * 26) {
		w.loadKey(k)
	}
	w.maintain(200)
	const alone = 12 // arrays with few rows, between full ones
	for i := range uint64(alone) {
		for k := range uint64(12) {
			w.write(16*(2*i+1)+k, true)
		}
	}
	for k := range uint64(16) {
		w.write(16*25+k, true)
	}
	if sh := w.s.Shape(); len(w.s.due) != alone+1 || sh.Arrays != 26 {
		t.Fatalf("%d arrays are due of %+v", len(w.s.due), sh)
	}
	turns := 0
	for w.s.MaintainAll(w.now, nil) {
		w.now += 3 * time.Millisecond
		if turns++; turns > 1000 {
			t.Fatal("the trainer's work does not end")
		}
	}
	if sh := w.s.Shape(); len(w.s.due) != 0 || sh.Arrays != 25 {
		t.Errorf("after %d turns %d arrays are due, of %+v", turns, len(w.s.due), sh)
	}
	w.check()
}

// TestEmptyArraysAreJoined: an array without rows goes, also between neighbours that are full.
func TestEmptyArraysAreJoined(t *testing.T) {
	w := newWorld(t, indextest.Variants()[0], Options{KeysPerArray: 16})
	for k := range uint64(160) {
		w.loadKey(k)
	}
	w.maintain(100)
	w.fetch()
	for k := uint64(64); k < 80; k++ {
		w.write(k, true)
	}
	w.maintain(10)
	if sh := w.s.Shape(); sh.Arrays != 9 || sh.Keys != 144 {
		t.Errorf("%+v", sh)
	}
	for k := range uint64(160) {
		want := index.Found
		if k >= 64 && k < 80 {
			want = index.NotFound
		}
		if st, err := w.look(k); err != nil || st != want {
			t.Errorf("key %d: %v, %v", k, st, err)
		}
		if w.c.Stale() {
			w.fetch()
		}
	}
	if _, err := w.list(0, 200, 0); err != nil {
		t.Error(err)
	}
	w.check()
}

// TestMergesThatFail: if there is no memory for a merge, nothing has changed, and all rows are there.
func TestMergesThatFail(t *testing.T) {
	e, err := indextest.NewEnv(indextest.Variants()[0], 1, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	s, err := NewServer(e.Arena, Options{RowWords: 1, Locks: e.Locks})
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, e: e, s: s, rows: nil}
	n := uint64(0)
	for ; ; n++ {
		h, err := s.LockWrite(1, index.Num(n*n), 0)
		if errors.Is(err, index.ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		s.Release(h)
		if h, err = s.LockWrite(1, index.Num(n*n), 0); err != nil {
			t.Fatal(err)
		}
		w.csn++
		s.Publish(h, []uint64{n}, 0x100+1)
	}
	before := s.Shape()
	for range 100 {
		w.maintain(1)
	}
	w.check()
	for k := range n {
		if res := s.Get(index.Num(k*k), nil); res.Status != index.Found || res.Row[0] != k {
			t.Fatalf("key %d: %v %v", k*k, res.Status, res.Row)
		}
	}
	t.Logf("%d rows; %+v, then %+v", n, before, s.Shape())
}
