package xtree

import (
	"testing"
	"time"

	"drtmx/internal/block"
)

// TestQuarantineCountsFromTheFreeing: the partition was idle for longer than
// the quarantine before leaves were freed. Proofs of a View that began just
// before must not come to hold for rows that move to those leaves, although
// nobody has told the tree the time meanwhile.
func TestQuarantineCountsFromTheFreeing(t *testing.T) {
	w, tick := newTimedWorld(t, 30*time.Second)
	w.csn = 1
	const leaves = 2*emptyMax + 2
	for k := range uint64(leaves * 4) { // full leaves, all of one commit
		if err := w.t.Load(k*10, []uint64{1}, block.Present(block.NewCSN(1, 1))); err != nil {
			t.Fatal(err)
		}
		w.rows[k*10] = 1
	}
	tick(0)
	w.t.Tidy(100)
	tick(40 * time.Second) // idle
	for k := uint64(8); k < leaves*4; k++ {
		w.look(k * 10) // a View reads
	}
	for k := uint64(8); k < leaves*4; k++ {
		w.del(k * 10) // leaves run empty, and are freed as they do
	}
	tick(3 * time.Millisecond)
	w.t.Tidy(100)
	for i, k := range []uint64{1, 2, 3, 4, 5, 6, 7, 41, 42, 43, 44, 45} { // the first leaves split: their rows move
		w.put(k)
		if err := w.judge(); err != nil {
			t.Fatalf("3 ms after the freeing, insert %d: %v", i, err)
		}
	}
	if w.t.freed.len() < leaves/2 {
		t.Fatalf("%d leaves are in quarantine: the test tells nothing", w.t.freed.len())
	}
	used := w.t.leafs.Stats().Used
	tick(30*time.Second + time.Millisecond)
	w.watch = nil
	for k := range uint64(9) {
		w.put(k*10 + 8)
	}
	if now := w.t.leafs.Stats().Used; now != used {
		t.Errorf("%d leaves after the quarantine, %d before: none is used again", now, used)
	}
	if err := w.t.Check(); err != nil {
		t.Fatal(err)
	}
}
