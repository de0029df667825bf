package xtree

import (
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"

	"pgregory.net/rapid"
)

// fataler is a test, or a run of a property.
type fataler interface{ Fatal(args ...any) }

func newTree(t fataler, rowWords, slots int, inline, checksums bool) *Tree {
	r, err := mem.New(mem.Options{Kind: mem.Heap, SegmentBytes: 1 << 18, MaxBytes: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	a := block.NewArena(r, block.ArenaOptions{Checksums: checksums, Epoch: 1})
	lay, err := NewLayout(7, rowWords, slots, inline)
	if err != nil {
		t.Fatal(err)
	}
	tr, err := New(a, Options{Layout: lay})
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestSmoke(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		inline := rapid.Bool().Draw(rt, "inline")
		tr := newTree(t, 2, rapid.IntRange(4, 12).Draw(rt, "slots"), inline, rapid.Bool().Draw(rt, "sums"))
		naive := map[uint64]uint64{}
		csn := uint64(1)
		keys := rapid.OneOf(rapid.Uint64Range(0, 200), rapid.Uint64Range(^uint64(0)-20, ^uint64(0)), rapid.Uint64())
		n := rapid.IntRange(1, 400).Draw(rt, "n")
		var res index.GetResult
		for range n {
			k := keys.Draw(rt, "k")
			csn++
			switch rapid.IntRange(0, 3).Draw(rt, "op") {
			case 0, 1:
				h, err := tr.LockWrite(1, k, 0)
				if err != nil {
					rt.Fatal(err)
				}
				tr.Publish(h, []uint64{k, csn}, block.Present(block.NewCSN(1, csn)))
				naive[k] = csn
			case 2:
				h, err := tr.LockWrite(1, k, 0)
				if err != nil {
					rt.Fatal(err)
				}
				tr.PublishDelete(h, block.Absent(block.NewCSN(1, csn)))
				delete(naive, k)
			case 3:
				tr.Tidy(3)
			}
			tr.Get(k, &res)
			if v, ok := naive[k]; ok != (res.Status == index.Found) || ok && (res.Row[0] != k || res.Row[1] != v) {
				rt.Fatalf("key %d: %v %v, want %v %v", k, res.Status, res.Row, ok, v)
			}
		}
		if err := tr.Check(); err != nil {
			rt.Fatal(err)
		}
		var sr index.ScanResult
		tr.Scan(0, ^uint64(0), 0, &sr, nil)
		if sr.Status != index.Found || len(sr.Entries) != len(naive) {
			rt.Fatalf("scan %v of %d, want %d", sr.Status, len(sr.Entries), len(naive))
		}
		for i, e := range sr.Entries {
			if i > 0 && e.Key.Num <= sr.Entries[i-1].Key.Num || naive[e.Key.Num] != e.Row[1] {
				rt.Fatalf("entry %v", e)
			}
		}
	})
}
