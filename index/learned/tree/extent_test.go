package tree

import (
	"errors"
	"math/rand/v2"
	"testing"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// TestExtents grows a tree at random, empties it and grows it again: what
// extents hold ready stays within its share, and is neither lost nor leaked.
func TestExtents(t *testing.T) {
	tr := newTree(t, leaf.Inline, 1, 8, false, Options{Mirror: true})
	r := rand.New(rand.NewPCG(11, 1))
	var keys []uint64
	for range 30000 {
		keys = append(keys, r.Uint64())
	}
	check := func(when string) {
		t.Helper()
		if err := tr.Check(); err != nil {
			t.Fatal(when, err)
		}
	}
	most := uint64(0)
	for round := range 2 {
		for i, k := range keys {
			if err := tr.Load(index.Num(k), []uint64{k}, block.Present(block.NewCSN(1, uint64(i+1)))); err != nil {
				t.Fatal(err)
			}
			most = max(most, tr.reserve)
			if round == 0 && tr.reserve*reserveShare > tr.leaves.Load() {
				t.Fatalf("%d leaves held ready for %d", tr.reserve, tr.leaves.Load())
			}
		}
		check("grown")
		for _, k := range keys {
			h, err := tr.LockWrite(1, index.Num(k), 0)
			if err != nil {
				t.Fatal(err)
			}
			tr.PublishDelete(h, block.Absent(block.NewCSN(1, 1<<25)))
		}
		for tr.Tidy(1000) || tr.untidy.len() > 0 {
		}
		check("emptied")
		if tr.reserve > extentLeaves {
			t.Errorf("%d leaves held ready for %d", tr.reserve, tr.leaves.Load())
		}
	}
	if most < 4*extentLeaves {
		t.Errorf("no extents used: %d leaves held ready", most)
	}
}

// TestExtentsGiveAll: when memory is out, leaves held ready are used.
func TestExtentsGiveAll(t *testing.T) {
	reg, err := mem.New(mem.Options{Kind: mem.Heap, SegmentBytes: 1 << 18, MaxBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	lay, err := leaf.NewLayout(7, leaf.Inline, 1, 8)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(block.NewArena(reg, block.ArenaOptions{Tick: 1}), Options{Layout: lay, Mirror: true})
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(11, 2))
	most := uint64(0)
	for i := uint64(1); ; i++ {
		k := r.Uint64()
		err := tr.Load(index.Num(k), []uint64{k}, block.Present(block.NewCSN(1, i)))
		if most = max(most, tr.reserve); err == nil {
			continue
		}
		if !errors.Is(err, index.ErrFull) || tr.reserve != 0 || most == 0 {
			t.Fatalf("%v, %d leaves held ready, %d at most", err, tr.reserve, most)
		}
		break
	}
	if err := tr.Check(); err != nil {
		t.Fatal(err)
	}
}
