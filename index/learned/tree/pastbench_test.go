package tree

import (
	"fmt"
	"testing"

	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
)

// BenchmarkPast reports what it costs to leave versions and graves behind: each
// row is updated, or deleted and inserted, once in some ticks, or all in one tick.
func BenchmarkPast(b *testing.B) {
	for _, kind := range allKinds {
		for _, words := range []int{2, 13, 125} {
			for _, c := range []struct {
				name  string
				keeps bool
				ticks uint64 // a tick lasts for so many changes
			}{{"no history", false, 1 << 40}, {"the same tick", true, 1 << 40}, {"another tick", true, 1 << 12}} {
				if kind == leaf.Inline && words > 100 {
					continue
				}
				b.Run(fmt.Sprintf("%s/%d words/%s", kindName(kind), words, c.name), func(b *testing.B) {
					benchPast(b, kind, words, c.keeps, c.ticks)
				})
			}
		}
	}
}

func benchPast(b *testing.B, kind leaf.Kind, words int, keeps bool, ticks uint64) {
	const n, retain = 1 << 16, 32 // ticks
	w := newPastless(b, kind, leaf.AutoSlots(kind, words), words, false)
	row, h, seq := make([]uint64, words), w.a.History(), uint64(0)
	for k := range n {
		if err := w.t.Load(w.key(k), row, block.Present(block.NewCSN(1, uint64(k+1)))); err != nil {
			b.Fatal(err)
		}
	}
	if keeps {
		h.Keep(retain, 1<<30, w.tick)
	}
	write := func(k int, del bool) {
		held := w.lock(w.key(k))
		if seq++; seq == ticks {
			w.tick, seq = w.tick+1, 1
			h.Close(w.tick - 1)
			w.t.Bury(h.Floor(), 1<<20)
		}
		if csn := block.NewCSN(w.tick, seq); del {
			w.t.PublishDelete(held, block.Absent(csn))
		} else {
			if err := w.t.Reserve(held, words); err != nil {
				b.Fatal(err)
			}
			w.t.Publish(held, row, block.Present(csn))
		}
	}
	b.Run("update", func(b *testing.B) {
		b.ReportAllocs()
		for k := 0; b.Loop(); k = (k + 40503) % n {
			write(k, false)
		}
	})
	b.Run("delete+insert", func(b *testing.B) {
		b.ReportAllocs()
		for k := 0; b.Loop(); k = (k + 40503) % n {
			write(k, true)
			write(k, false)
		}
	})
}
