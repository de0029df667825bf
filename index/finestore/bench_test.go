package finestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned"
	"drtmx/index/learned/read"
	"drtmx/internal/block"
	"drtmx/rdma"
)

const benchKeys = 200_000

// benched is an index of one of two engines, with a client of it.
type benched struct {
	b    *testing.B
	e    *indextest.Env
	s    index.OrderedServer
	m    index.Maintainer
	c    *read.Client
	conn rdma.Conn
	r    *rand.Rand
	csn  block.CSN
	row  []uint64
	now  time.Duration
	keys []uint64
	ops  [2]rdma.Batch
}

// newBenched loads an index with random keys. Rows of 16 words have their own blocks in both.
func newBenched(b *testing.B, name string) *benched {
	b.Helper()
	e, err := indextest.NewEnv(indextest.Variants()[0], 1, 8<<30)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(e.Close)
	const words = 16
	g := &benched{b: b, e: e, r: rand.New(rand.NewPCG(1, 1)), csn: block.NewCSN(1, 0), row: make([]uint64, words)}
	if name == "xstore" {
		s, err := learned.NewServer(e.Arena, learned.Options{RowWords: words, Locks: e.Locks})
		if err != nil {
			b.Fatal(err)
		}
		g.s, g.m = s, s
	} else {
		s, err := NewServer(e.Arena, Options{RowWords: words, Locks: e.Locks})
		if err != nil {
			b.Fatal(err)
		}
		g.s, g.m = s, s
	}
	for range benchKeys {
		g.keys = append(g.keys, g.r.Uint64())
	}
	slices.Sort(g.keys)
	for _, k := range g.keys {
		g.csn++
		if err := g.s.Load(index.Num(k), g.row, block.Present(g.csn)); err != nil {
			b.Fatal(err)
		}
	}
	g.train()
	g.c = read.New(g.s.Root(), e.RKey, read.Options{InOrder: e.InOrder, RowWords: words})
	if g.conn, err = e.Dial(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { g.conn.Close() })
	g.fetch()
	return g
}

func (g *benched) train() {
	for g.now += time.Second; g.m.MaintainAll(g.now, nil); {
		g.now += time.Second
	}
}

func (g *benched) fetch() {
	for g.c.Stale() {
		if err := g.c.Maintain(context.Background(), g.conn); err != nil {
			g.b.Fatal(err)
		}
	}
}

func (g *benched) insert(k uint64) {
	h, err := g.s.LockWrite(1, index.Num(k), 0)
	if err != nil {
		g.b.Fatal(err)
	}
	if err := g.s.Reserve(h, len(g.row)); err != nil {
		g.b.Fatal(err)
	}
	g.csn++
	g.s.Publish(h, g.row, block.Present(g.csn))
}

// run drives an operation of the client, and returns its rounds and bytes.
func (g *benched) run(op index.Op) (rounds, bytes int) {
	done, next := &g.ops[0], &g.ops[1]
	done.Reset()
	for {
		next.Reset()
		if op.Next(done, next) {
			return rounds, bytes
		}
		rounds++
		for i := range next.WRs {
			bytes += 8 * len(next.WRs[i].Buf)
		}
		if err := rdma.Do(context.Background(), g.conn, next); err != nil {
			g.b.Fatal(err)
		}
		done, next = next, done
	}
}

// BenchmarkEngines compares FineStore's data server and its readers with those of XStore, in one
// process: inserts of random and of ascending keys with the training that they cause, lookups of
// loaded keys, of keys that came later, and scans. The index has half as many keys more when the
// readers run, of which the client learns by its own lookups.
func BenchmarkEngines(b *testing.B) {
	all := b // what the readers share is closed at the end of all
	for _, name := range []string{"xstore", "finestore"} {
		b.Run(name+"/insert=random", func(b *testing.B) {
			g := newBenched(b, name)
			trained := time.Duration(0)
			b.ResetTimer()
			for i := range b.N {
				if g.insert(g.r.Uint64()); i%64 == 63 {
					start := time.Now()
					g.now += time.Millisecond
					g.m.Maintain(g.now, nil)
					trained += time.Since(start)
				}
			}
			b.ReportMetric(float64(trained.Nanoseconds())/float64(b.N), "ns-training/op")
		})
		b.Run(name+"/insert=ascending", func(b *testing.B) {
			g := newBenched(b, name)
			last := g.keys[len(g.keys)-1]
			step := (^uint64(0) - last) / uint64(b.N+1)
			b.ResetTimer()
			for i := range uint64(b.N) {
				if g.insert(last + (i+1)*max(step, 1)); i%64 == 63 {
					g.now += time.Millisecond
					g.m.Maintain(g.now, nil)
				}
			}
		})
		b.Run(name+"/get=server", func(b *testing.B) {
			g := newBenched(b, name)
			var res index.GetResult
			b.ResetTimer()
			for range b.N {
				if g.s.Lookup(index.Num(g.keys[g.r.IntN(len(g.keys))]), &res); res.Status != index.Found {
					b.Fatal(res.Status)
				}
			}
		})
		g := (*benched)(nil)
		var later []uint64
		grown := func(b *testing.B) {
			if g == nil {
				g = newBenched(all, name)
				for i := range benchKeys / 2 {
					later = append(later, g.r.Uint64())
					if g.insert(later[i]); i%64 == 63 {
						g.now += time.Millisecond
						g.m.Maintain(g.now, nil)
					}
				}
			}
			g.b = b
		}
		for _, which := range []string{"loaded", "later"} {
			b.Run(fmt.Sprintf("%s/get=%s", name, which), func(b *testing.B) {
				grown(b)
				keys := map[string][]uint64{"loaded": g.keys, "later": later}[which]
				op, rounds, bytes, gaveUp := g.c.NewGet(), 0, 0, 0
				b.ResetTimer()
				for range b.N {
					op.Start(index.Num(keys[g.r.IntN(len(keys))]))
					n, m := g.run(op)
					if rounds, bytes = rounds+n, bytes+m; op.Result().Status == index.Fallback {
						gaveUp++
					}
					g.fetch()
				}
				b.ReportMetric(float64(rounds)/float64(b.N), "rounds/op")
				b.ReportMetric(float64(bytes)/float64(b.N), "bytes/op")
				b.ReportMetric(float64(gaveUp)/float64(b.N), "fallbacks/op")
			})
		}
		b.Run(name+"/scan=100", func(b *testing.B) {
			grown(b)
			op, rounds, bytes, gaveUp := g.c.NewScan(), 0, 0, 0
			b.ResetTimer()
			for range b.N {
				op.Start(index.Num(g.keys[g.r.IntN(len(g.keys))]), index.Num(^uint64(0)), 100)
				n, m := g.run(op)
				if rounds, bytes = rounds+n, bytes+m; op.Result().Status == index.Fallback {
					gaveUp++
				}
				g.fetch()
			}
			b.ReportMetric(float64(rounds)/float64(b.N), "rounds/op")
			b.ReportMetric(float64(bytes)/float64(b.N), "bytes/op")
			b.ReportMetric(float64(gaveUp)/float64(b.N), "fallbacks/op")
		})
	}
}
