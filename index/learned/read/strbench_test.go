package read

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/learned"
	"drtmx/internal/block"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

const (
	benchRows     = 200000
	benchRowWords = 13 // 104 bytes
)

// benchSpaces are the key sets that string keys are measured with.
func benchSpaces() map[string]func(i int) index.Key {
	r := rand.New(rand.NewPCG(1, 2))
	random := make([]string, benchRows)
	for i := range random {
		random[i] = fmt.Sprintf("%08x%08x%08x", r.Uint32(), r.Uint32(), r.Uint32())
	}
	scattered := func(i int) uint64 { return uint64(i) * 0x9e3779b97f4a7c15 }
	return map[string]func(i int) index.Key{
		"native":   func(i int) index.Key { return index.Num(scattered(i)) },
		"apart":    func(i int) index.Key { return index.Num(scattered(i)) },
		"8 bytes":  func(i int) index.Key { return index.Str(string(index.AppendNum(nil, scattered(i)))) },
		"24 bytes": func(i int) index.Key { return index.Str(random[i]) },
		"user":     func(i int) index.Key { return index.Str(fmt.Sprintf("user%d", scattered(i))) },
		"prefix200": func(i int) index.Key {
			return index.Str(fmt.Sprintf("%s%016x", strings.Repeat("p", 200), scattered(i)))
		},
	}
}

// counted runs operations and counts what they READ.
type counted struct {
	g                    *rig
	b                    [2]rdma.Batch
	rounds, reads, bytes int
}

func (c *counted) run(op index.Op) {
	for done, next := &c.b[0], &c.b[1]; ; done, next = next, done {
		next.Reset()
		if op.Next(done, next) {
			return
		}
		c.rounds, c.reads = c.rounds+1, c.reads+next.Len()
		for i := range next.WRs {
			c.bytes += 8 * len(next.WRs[i].Buf)
		}
		if err := rdma.Do(context.Background(), c.g.conn, next); err != nil {
			c.g.tb.Fatal(err)
		}
	}
}

func (c *counted) report(b *testing.B) {
	n := float64(b.N)
	b.ReportMetric(float64(c.rounds)/n, "rounds/op")
	b.ReportMetric(float64(c.reads)/n, "READs/op")
	b.ReportMetric(float64(c.bytes)/n, "READ-B/op")
}

// BenchmarkStrings compares string keys with native ones, rows inline and
// apart, all of 104 bytes: GET, SCAN of 100 rows, insert, and training.
func BenchmarkStrings(b *testing.B) {
	spaces := benchSpaces()
	for _, name := range []string{"native", "apart", "8 bytes", "24 bytes", "user", "prefix200"} {
		key := spaces[name]
		o := learned.Options{RowWords: benchRowWords, Strings: key(0).Str != "" || key(1).Str != ""}
		if o.Inline = learned.Yes; o.Strings || name == "apart" {
			o.Inline = learned.No
		}
		g := newRig(b, o, Options{}, inproc.Options{}, false)
		row := make([]uint64, benchRowWords)
		for i := range benchRows / 2 {
			if err := g.s.Load(key(2*i), row, block.Present(g.nextCSN())); err != nil {
				b.Fatal(err)
			}
		}
		began := time.Now()
		g.train()
		perKey := float64(time.Since(began).Nanoseconds()) / (benchRows / 2)
		g.refresh()
		b.Run(name+"/GET", func(b *testing.B) { benchGet(b, g, key, perKey) })
		b.Run(name+"/SCAN100", func(b *testing.B) { benchScan(b, g, key) })
		b.Run(name+"/insert", func(b *testing.B) { benchInsert(b, g, key, row) })
	}
}

func benchGet(b *testing.B, g *rig, key func(i int) index.Key, perKey float64) {
	c := counted{g: g}
	keys := make([]index.Key, 1<<14)
	r := rand.New(rand.NewPCG(3, 4))
	for i := range keys {
		keys[i] = key(2 * r.IntN(benchRows/2))
	}
	op := g.c.NewGet()
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		op.Start(keys[i%len(keys)])
		if c.run(op); op.Result().Status != index.Found {
			b.Fatalf("%v: %v", keys[i%len(keys)], op.Result().Status)
		}
	}
	c.report(b)
	b.ReportMetric(perKey, "train-ns/key")
}

func benchScan(b *testing.B, g *rig, key func(i int) index.Key) {
	c := counted{g: g}
	hi := index.Num(^uint64(0))
	if key(1).Str != "" {
		hi = index.Str("\xff\xff\xff\xff\xff\xff\xff\xff")
	}
	r := rand.New(rand.NewPCG(3, 5))
	op := g.c.NewScan()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		op.Start(key(2*r.IntN(benchRows/2)), hi, 100)
		if c.run(op); op.Result().Status != index.Found {
			b.Fatal(op.Result().Status)
		}
	}
	c.report(b)
}

func benchInsert(b *testing.B, g *rig, key func(i int) index.Key, row []uint64) {
	keys := make([]index.Key, benchRows/2)
	for i := range keys {
		keys[i] = key(2*i + 1)
	}
	rand.New(rand.NewPCG(6, 7)).Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		k := keys[i%len(keys)]
		h, err := g.s.LockWrite(1, k, 0)
		if err != nil {
			b.Fatal(err)
		}
		if err := g.s.Reserve(h, len(row)); err != nil {
			b.Fatal(err)
		}
		g.s.Publish(h, row, block.Present(g.nextCSN()))
	}
}

// BenchmarkLatestStrings has YCSB D's shape: one insert at the end for every 19
// GETs among the latest rows, with a step of the trainer and of the client's
// Maintain for every 256 operations. It reports what a million GETs chase and
// give up.
func BenchmarkLatestStrings(b *testing.B) {
	for name, key := range map[string]func(i int) index.Key{
		"native":    func(i int) index.Key { return index.Num(uint64(i)) },
		"8 bytes":   func(i int) index.Key { return index.Str(string(index.AppendNum(nil, uint64(i)))) },
		"user":      func(i int) index.Key { return index.Str(fmt.Sprintf("user%012d", i)) },
		"prefix200": func(i int) index.Key { return index.Str(fmt.Sprintf("%s%012d", strings.Repeat("p", 200), i)) },
	} {
		b.Run(name, func(b *testing.B) {
			g := newRig(b, learned.Options{RowWords: benchRowWords, Strings: key(1).Str != ""}, Options{}, inproc.Options{}, false)
			row := make([]uint64, benchRowWords)
			n := 20000
			for i := range n {
				if err := g.s.Load(key(i), row, block.Present(g.nextCSN())); err != nil {
					b.Fatal(err)
				}
			}
			g.train()
			g.refresh()
			c, op, r := counted{g: g}, g.c.NewGet(), rand.New(rand.NewPCG(8, 9))
			began := g.c.Stats()
			for i := range b.N {
				if i%20 == 0 {
					if err := g.s.Load(key(n), row, block.Present(g.nextCSN())); err != nil {
						b.Fatal(err)
					}
					n++
				}
				op.Start(key(n - 1 - int(min(r.ExpFloat64()*200, 10000))))
				c.run(op)
				if i%256 == 0 {
					g.now += 3 * time.Millisecond
					g.s.Maintain(g.now, nil)
					if err := g.c.Maintain(context.Background(), g.conn); err != nil {
						b.Fatal(err)
					}
				}
			}
			st := g.c.Stats()
			c.report(b)
			b.ReportMetric(1e6*float64(st.Chases-began.Chases)/float64(b.N), "chases/M")
			b.ReportMetric(1e6*float64(st.Fallbacks-began.Fallbacks)/float64(b.N), "fallbacks/M")
		})
	}
}
