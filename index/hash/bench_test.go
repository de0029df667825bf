package hash

import (
	"context"
	"fmt"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
)

func benchTable(b *testing.B, n uint64, cache int, checksums bool) *bench {
	x := newBench(b, Options{RowWords: 12}, ClientOptions{LocationCacheEntries: cache}, checksums)
	row := make([]uint64, 12)
	for k := range n {
		if err := x.s.Load(index.Num(k), row, block.Present(block.NewCSN(1, k+1))); err != nil {
			b.Fatal(err)
		}
	}
	if err := x.c.Maintain(context.Background(), x.conn); err != nil {
		b.Fatal(err)
	}
	return x
}

func BenchmarkGet(b *testing.B) {
	const n = 1 << 20
	for _, c := range []struct {
		name      string
		cache     int
		checksums bool
		keys      uint64
	}{
		{"two rounds", 0, false, n},
		{"two rounds, checksums", 0, true, n},
		{"location cache", 2 * n, false, n},
		{"location cache, 1024 hot keys", 1 << 14, false, 1024},
	} {
		b.Run(c.name, func(b *testing.B) {
			x := benchTable(b, n, c.cache, c.checksums)
			for k := range uint64(n) {
				x.get(b, k)
			}
			before := x.c.Stats()
			b.ReportAllocs()
			k := uint64(0)
			for b.Loop() {
				k = (k + 0x9e3779b1) % c.keys
				if res, _ := x.get(b, k); res.Status != index.Found {
					b.Fatal(res.Status)
				}
			}
			after := x.c.Stats()
			b.ReportMetric(float64(after.Rounds-before.Rounds)/float64(b.N), "rounds/op")
		})
	}
}

func BenchmarkServer(b *testing.B) {
	b.Run("Load", func(b *testing.B) {
		x := newBench(b, Options{RowWords: 12}, ClientOptions{}, false)
		row := make([]uint64, 12)
		k := uint64(0)
		for b.Loop() {
			if err := x.s.Load(index.Num(k), row, block.Present(block.NewCSN(1, k+1))); err != nil {
				b.Skip(err) // the region is full
			}
			k++
		}
		st := x.s.Stats()
		b.ReportMetric(float64(st.IndexBytes)/float64(st.Rows), "index-B/row")
	})
	x := benchTable(b, 1<<20, 0, false)
	row := make([]uint64, 12)
	b.Run("Get", func(b *testing.B) {
		b.ReportAllocs()
		for k := uint64(0); b.Loop(); k = (k + 0x9e3779b1) % (1 << 20) {
			if res := x.s.Get(index.Num(k), row); res.Status != index.Found {
				b.Fatal(res.Status)
			}
		}
	})
	b.Run("LockWrite+Publish", func(b *testing.B) {
		b.ReportAllocs()
		csn := uint64(1 << 24)
		for k := uint64(0); b.Loop(); k = (k + 0x9e3779b1) % (1 << 20) {
			held, err := x.s.LockWrite(1, index.Num(k), 0)
			if err != nil {
				b.Fatal(err)
			}
			csn++
			x.s.Publish(held, row, block.Present(block.NewCSN(1, csn)))
		}
	})
}

// BenchmarkPast reports what it costs to leave versions behind: each row is
// updated once in some ticks, or all in one tick.
func BenchmarkPast(b *testing.B) {
	const n, retain = 1 << 17, 64
	for _, words := range []int{3, 12, 43} {
		for _, c := range []struct {
			name  string
			keeps bool
			ticks uint64 // a tick lasts for so many updates
		}{{"no history", false, 1 << 40}, {"the same tick", true, 1 << 40}, {"another tick", true, 1 << 12}} {
			b.Run(fmt.Sprintf("%d words/%s", words, c.name), func(b *testing.B) {
				x := newBench(b, Options{RowWords: words}, ClientOptions{}, false)
				row := make([]uint64, words)
				for k := range uint64(n) {
					if err := x.s.Load(index.Num(k), row, block.Present(block.NewCSN(1, k+1))); err != nil {
						b.Fatal(err)
					}
				}
				h, tick, seq := x.arena.History(), clock.Tick(2), uint64(0)
				if c.keeps {
					h.Keep(retain, 1<<30, tick)
				}
				write := func(k uint64, del bool) {
					held, err := x.s.LockWrite(1, index.Num(k), 0)
					if err != nil {
						b.Fatal(err)
					}
					if seq++; seq == c.ticks {
						tick, seq = tick+1, 1
						h.Close(tick - 1)
						x.s.Bury(h.Floor(), 1<<20)
					}
					if csn := block.NewCSN(tick, seq); del {
						x.s.PublishDelete(held, block.Absent(csn))
					} else {
						x.s.Publish(held, row, block.Present(csn))
					}
				}
				b.Run("update", func(b *testing.B) {
					b.ReportAllocs()
					for k := uint64(0); b.Loop(); k = (k + 0x9e3779b1) % n {
						write(k, false)
					}
				})
				b.Run("delete+insert", func(b *testing.B) {
					b.ReportAllocs()
					for k := uint64(0); b.Loop(); k = (k + 0x9e3779b1) % n {
						write(k, true)
						write(k, false)
					}
				})
			})
		}
	}
}
