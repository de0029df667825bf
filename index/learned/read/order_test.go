package read

import (
	"fmt"
	"testing"

	"drtmx/index"
	"drtmx/index/learned"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma/inproc"
)

// orderKinds are indexes with leaves of six slots.
var orderKinds = map[string]learned.Options{
	"inline":  {RowWords: 2, Inline: learned.Yes, SlotsPerLeaf: 6},
	"apart":   {RowWords: 2, Inline: learned.No, SlotsPerLeaf: 6},
	"strings": {RowWords: 40, Strings: true, SlotsPerLeaf: 6},
}

func newOrderRig(t *testing.T, o learned.Options, co Options) *rig {
	// Readers whose READs are not in order READ whole leaves.
	g := newRig(t, o, co, inproc.Options{Faults: inproc.Faults{Scramble: 1}, Seed: 1}, true)
	if o.Strings {
		g.text = func(k uint64) string { return fmt.Sprintf("%06d", k) }
	}
	for _, k := range []uint64{50, 10, 40, 20, 30} {
		g.put(k, k)
	}
	g.del(20)
	g.train()
	g.refresh()
	return g
}

// TestWrongOrderIsNotBelieved forges the order of a leaf, under a header and a checksum
// that fit: a scan falls back, a lookup finds its row, and a scan of the repaired leaf
// returns the rows in the order of their keys.
func TestWrongOrderIsNotBelieved(t *testing.T) {
	for name, o := range orderKinds {
		t.Run(name, func(t *testing.T) {
			g := newOrderRig(t, o, Options{})
			lay, d := g.s.Layout(), driver{conn: g.conn}
			addr := g.s.First()
			get, scan := g.c.NewGet(), g.c.NewScan()
			right := make([]uint64, lay.OrderWords)
			g.a.Span(addr, lay.LeafWords).Slice(lay.OrderAt, lay.OrderWords).CopyOut(right)
			meta := leaf.Unpack(g.a.Span(addr, lay.LeafWords).Load(leaf.MetaWord))
			if got := mem.Bytes(right)[:6]; string(got) != "\x01\x04\x02\x00\x05\x03" || meta.Live != 4 || meta.Count != 5 {
				t.Fatalf("order %v, %+v", got, meta)
			}
			for _, c := range []struct {
				name  string
				order []byte
				live  int
				ok    bool
			}{
				{"unchanged", []byte{1, 4, 2, 0, 5, 3}, 4, true},
				{"another order of the free slots", []byte{1, 4, 2, 0, 3, 5}, 4, true},
				{"falls", []byte{4, 1, 2, 0, 5, 3}, 4, false},
				{"falls at the end", []byte{1, 4, 0, 2, 5, 3}, 4, false},
				{"slot twice", []byte{1, 4, 4, 0, 5, 3}, 4, false},
				{"slots twice", []byte{1, 1, 0, 0, 5, 3}, 4, false},
				{"a free slot that had a key of its place", []byte{1, 3, 4, 2, 0, 5}, 5, false},
				{"a free slot instead of one in use", []byte{1, 3, 2, 0, 5, 4}, 4, false},
				{"a slot that no row has used", []byte{5, 4, 2, 0, 1, 3}, 4, false},
				{"a slot after the last one", []byte{1, 6, 2, 0, 5, 3}, 4, false},
				{"a slot far behind the leaf", []byte{1, 4, 2, 255, 5, 3}, 4, false},
				{"a row less", []byte{1, 4, 2, 0, 5, 3}, 3, false},
				{"another row less", []byte{4, 2, 0, 1, 5, 3}, 3, false},
				{"no row", []byte{1, 4, 2, 0, 5, 3}, 0, false},
				{"more rows than slots", []byte{1, 4, 2, 0, 5, 3}, 255, false},
			} {
				forged := make([]uint64, lay.OrderWords)
				copy(mem.Bytes(forged), c.order)
				m := meta
				m.Live, m.Last = c.live, true
				e := g.a.Begin(addr, lay.LeafWords)
				e.Write(lay.OrderAt, forged)
				e.Set(leaf.MetaWord, lay.Pack(m))
				e.Commit(block.Header(g.a.NextVersion()))
				for _, limit := range []int{0, 1, 3} {
					scan.Start(g.at(0), g.at(99), limit)
					d.bounded(t, scan)
					res := scan.Result()
					if !c.ok {
						if res.Status != index.Fallback {
							t.Errorf("%s, limit %d: %v", c.name, limit, res.Status)
						}
						continue
					}
					want := []uint64{10, 30, 40, 50}
					if limit > 0 {
						want = want[:limit]
					}
					if res.Status != index.Found || len(res.Entries) != len(want) {
						t.Fatalf("%s, limit %d: %v, %d rows", c.name, limit, res.Status, len(res.Entries))
					}
					for i, e := range res.Entries {
						if e.Key != g.at(want[i]) || e.Row[0] != want[i] {
							t.Errorf("%s, limit %d: row %d is %v of key %v, want key %d", c.name, limit, i, e.Row, e.Key, want[i])
						}
					}
				}
				for _, k := range []uint64{10, 20, 30, 40, 50} {
					get.Start(g.at(k))
					d.bounded(t, get)
					if res := get.Result(); (res.Status == index.Found) != (k != 20) || res.Status == index.Fallback {
						t.Errorf("%s: key %d: %v", c.name, k, res.Status)
					}
				}
			}
		})
	}
}

// TestWordsOfLeaves: a lookup of the present READs a leaf without the order of its
// slots, as far as that has lines of its own, as does a scan of one leaf or two. A scan of
// more leaves READs the order, and a reader of the past READs the whole leaf.
func TestWordsOfLeaves(t *testing.T) {
	o := learned.Options{RowWords: 1, Inline: learned.Yes}
	g := newRig(t, o, Options{}, inproc.Options{}, false)
	const keys = 400
	for k := range uint64(keys) {
		g.put(k, k)
	}
	g.train()
	g.refresh()
	lay, d := g.s.Layout(), driver{conn: g.conn}
	get, scan := g.c.NewGet(), g.c.NewScan()
	count := func(name string, op index.Op, leaves, want int) {
		t.Helper()
		before := g.conn.Counters()
		d.run(op)
		n := g.conn.Counters().Sub(before)
		if n.ReadBytes != n.Reads*uint64(want)*mem.WordBytes || n.Reads < uint64(leaves) {
			t.Errorf("%s: %d bytes by %d READs, want %d words by each of at least %d", name, n.ReadBytes, n.Reads, want, leaves)
		}
	}
	if lay.LookupWords != 128 || lay.PresentWords != 136 || lay.LeafWords != 176 {
		t.Errorf("words of a leaf: %+v", lay)
	}
	get.Start(g.at(3))
	count("a lookup", get, 1, lay.LookupWords)
	scan.Start(g.at(3), g.at(5), 0)
	count("a scan of few rows", scan, 1, lay.LookupWords)
	scan.Start(g.at(3), g.at(keys), 5)
	count("a scan with a low limit", scan, 1, lay.LookupWords)
	scan.Start(g.at(3), g.at(keys), 0)
	count("a scan of many leaves", scan, 5, lay.PresentWords)
	get.StartAt(g.at(3), 1)
	count("a lookup of the past", get, 1, lay.LeafWords)
	scan.StartAt(g.at(3), g.at(5), 0, 1)
	count("a scan of the past", scan, 1, lay.LeafWords)
}
