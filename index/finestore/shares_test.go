package finestore

import (
	"errors"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
)

// TestSharesFollow: who shares that a key is absent keeps others from inserting it, whatever bins are
// made and divided and whatever arrays are merged meanwhile.
func TestSharesFollow(t *testing.T) {
	for _, keysPerArray := range []int{4, 40} {
		w := newWorld(t, indextest.Variants()[0], Options{KeysPerArray: keysPerArray, LeavesPerSubModel: 16})
		const keys, reader, other = 100000, 1, 2 // the writer of this world is the reader, too
		w.load(keys, 10000)
		for round := range 40 {
			var shared []uint64
			for range 6 {
				k := w.r.Uint64N(keys)
				if _, there := w.rows[k]; there {
					continue
				}
				for _, p := range w.s.Get(index.Num(k), nil).Proofs {
					w.e.Locks.Share(p.Addr, reader)
				}
				shared = append(shared, k)
			}
			for i := range 400 {
				key := w.r.Uint64N(keys)
				if len(shared) > 0 && w.r.IntN(2) == 0 { // near one that is shared, perhaps that one
					key = min(shared[w.r.IntN(len(shared))]+w.r.Uint64N(3000), keys)
				}
				if w.write(key, w.r.IntN(5) == 0); i%200 == 0 {
					w.maintain(1)
				}
				if i%10 != 0 {
					continue
				}
				for _, k := range shared {
					if _, there := w.rows[k]; there {
						continue // the reader has inserted it
					}
					if h, err := w.s.LockWrite(other, index.Num(k), 0); !errors.Is(err, index.ErrLocked) {
						t.Fatalf("round %d: that key %d is absent is shared, and another locks it: %v, %v", round, k, h, err)
					}
				}
			}
			w.e.Locks.Drop(reader)
			if !w.e.Locks.Empty() {
				t.Fatal("shared locks stay after their owner's end")
			}
		}
		if sh := w.s.Shape(); sh.Merges == 0 || keysPerArray > 16 && sh.BinSplits == 0 {
			t.Errorf("%+v", sh)
		}
		if err := w.s.Check(); err != nil {
			t.Fatal(err)
		}
	}
}
