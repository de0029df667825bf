package finestore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
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

// benchServer is what the benchmarks use of an engine's data server.
type benchServer interface {
	Load(key index.Key, row []uint64, h block.Header) error
	LockWrite(o index.Owner, key index.Key, hint uint64) (*index.Held, error)
	Reserve(held *index.Held, words int) error
	Publish(held *index.Held, row []uint64, h block.Header)
	Lookup(key index.Key, res *index.GetResult)
	Scan(lo, hi index.Key, limit int, res *index.ScanResult, buf []uint64) []uint64
	Maintain(now time.Duration, lock sync.Locker) (worked bool)
	MaintainAll(now time.Duration, lock sync.Locker) (worked bool)
}

// benchRivals are the engines with delta buffers that are benchmarked beside xstore and finestore.
// delta is LI+Δ. Where the name has no more, each array has a buffer for as many rows as it may have
// keys: FineStore merges an array at the same number. With 256 a buffer has XIndex's default size.
// With model, 64 arrays share such a buffer: a model of XIndex has some thousand keys. With one, all
// arrays share a buffer that is never merged, as in the paper's figures 12b to 12d.
var benchRivals = []struct {
	name string
	o    bufferedOptions
}{
	{"delta", bufferedOptions{}},
	{"xindex", bufferedOptions{Background: true}},
	{"delta-256", bufferedOptions{Limit: 256}},
	{"delta-model", bufferedOptions{Limit: 256, Arrays: 64}},
	{"xindex-model", bufferedOptions{Limit: 256, Arrays: 64, Background: true}},
	{"delta-one", bufferedOptions{Limit: 1 << 40, Arrays: 1 << 40}},
}

// benched is an index of an engine, with a client of it if others can read it.
type benched struct {
	b    *testing.B
	e    *indextest.Env
	s    benchServer
	c    *read.Client
	conn rdma.Conn
	r    *rand.Rand
	csn  block.CSN
	row  []uint64
	now  time.Duration
	keys []uint64
	ops  [2]rdma.Batch
	// merged returns how many rows merges have copied so far, and for how long inserts have merged and
	// trained. It is nil for an engine without merges. It does not count what divisions of bins, or of
	// nodes of buffers, have copied.
	merged func() (copied uint64, blocked time.Duration)
}

// newServer makes an empty index.
func (g *benched) newServer(name string) error {
	a, o := g.e.Arena, Options{RowWords: len(g.row), Locks: g.e.Locks}
	switch name {
	case "xstore":
		s, err := learned.NewServer(a, learned.Options{RowWords: o.RowWords, Locks: o.Locks})
		g.s = s
		return err
	case "finestore":
		s, err := NewServer(a, o)
		if err != nil {
			return err
		}
		copied := uint64(0)
		s.atStep = func(step string) {
			if step == "bins dead" {
				copied += uint64(len(s.scr.rows))
			}
		}
		g.s, g.merged = s, func() (uint64, time.Duration) { return copied, 0 }
		return nil
	}
	for _, r := range benchRivals {
		if r.name == name {
			r.o.Options = o
			s, err := newBuffered(a, r.o)
			g.s, g.merged = s, func() (uint64, time.Duration) { return s.copied, s.blocked }
			return err
		}
	}
	return fmt.Errorf("no engine %q", name)
}

// newBenched loads an index with random keys. Rows of 16 words have their own blocks in all engines.
func newBenched(b *testing.B, name string) *benched {
	b.Helper()
	e, err := indextest.NewEnv(indextest.Variants()[0], 1, 8<<30)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(e.Close)
	const words = 16
	g := &benched{b: b, e: e, r: rand.New(rand.NewPCG(1, 1)), csn: block.NewCSN(1, 0), row: make([]uint64, words)}
	if err := g.newServer(name); err != nil {
		b.Fatal(err)
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
	s, ok := g.s.(index.Server)
	if !ok {
		return g
	}
	g.c = read.New(s.Root(), e.RKey, read.Options{InOrder: e.InOrder, RowWords: words})
	if g.conn, err = e.Dial(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { g.conn.Close() })
	g.fetch()
	return g
}

func (g *benched) train() {
	for g.now += time.Second; g.s.MaintainAll(g.now, nil); {
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

// insertMany inserts keys, and lets the server merge and train now and then. It reports how long that
// took, and how many rows merges have copied.
func (g *benched) insertMany(next func(i int) uint64) {
	trained, copied, blocked := time.Duration(0), uint64(0), time.Duration(0)
	if g.merged != nil {
		copied, blocked = g.merged()
	}
	n := g.b.N
	g.b.ResetTimer()
	for i := range n {
		if g.insert(next(i)); i%64 == 63 {
			start := time.Now()
			g.now += time.Millisecond
			g.s.Maintain(g.now, nil)
			trained += time.Since(start)
		}
	}
	if g.merged != nil {
		now, spent := g.merged()
		trained += spent - blocked
		g.b.ReportMetric(float64(now-copied)/float64(n), "copied/op")
	}
	g.b.ReportMetric(float64(trained.Nanoseconds())/float64(n), "ns-training/op")
}

// lookups looks keys up at the server.
func (g *benched) lookups(keys []uint64) {
	var res index.GetResult
	g.b.ResetTimer()
	for range g.b.N {
		if g.s.Lookup(index.Num(keys[g.r.IntN(len(keys))]), &res); res.Status != index.Found {
			g.b.Fatal(res.Status)
		}
	}
}

// scans scans 100 rows at the server.
func (g *benched) scans() {
	var res index.ScanResult
	var buf []uint64
	keys := g.keys[:len(g.keys)-100] // no scan ends at the end
	g.b.ResetTimer()
	for range g.b.N {
		buf = g.s.Scan(index.Num(keys[g.r.IntN(len(keys))]), index.Num(^uint64(0)), 100, &res, buf)
		if res.Status != index.Found || len(res.Entries) != 100 {
			g.b.Fatal(res.Status, len(res.Entries))
		}
	}
}

// read drives an operation of the client again and again, and reports its rounds and bytes. Status
// is that of its result.
func (g *benched) read(op index.Op, start func(), status func() index.Status) {
	rounds, bytes, gaveUp := 0, 0, 0
	g.b.ResetTimer()
	for range g.b.N {
		start()
		n, m := g.run(op)
		if rounds, bytes = rounds+n, bytes+m; status() == index.Fallback {
			gaveUp++
		}
		g.fetch()
	}
	n := float64(g.b.N)
	g.b.ReportMetric(float64(rounds)/n, "rounds/op")
	g.b.ReportMetric(float64(bytes)/n, "bytes/op")
	g.b.ReportMetric(float64(gaveUp)/n, "fallbacks/op")
}

// BenchmarkEngines compares FineStore's data server and its readers with those of XStore, and its
// data server with learned indexes that have delta buffers (bufferedIndex), in one process: inserts
// of random and of ascending keys with the merges and the training that they cause; lookups of loaded
// keys; lookups of keys that came later, and scans. The index has half as many keys more for the last
// ones and for the readers, of which the client learns by its own lookups.
func BenchmarkEngines(b *testing.B) {
	names := []string{"xstore", "finestore"}
	for _, r := range benchRivals {
		names = append(names, r.name)
	}
	for _, name := range names {
		b.Run(name+"/insert=random", func(b *testing.B) {
			g := newBenched(b, name)
			g.insertMany(func(int) uint64 { return g.r.Uint64() })
		})
		b.Run(name+"/insert=ascending", func(b *testing.B) {
			g := newBenched(b, name)
			last := g.keys[len(g.keys)-1]
			step := max((^uint64(0)-last)/uint64(b.N+1), 1)
			g.insertMany(func(i int) uint64 { return last + uint64(i+1)*step })
		})
		b.Run(name+"/get=server", func(b *testing.B) {
			g := newBenched(b, name)
			g.lookups(g.keys)
		})
		benchGrown(b, name)
	}
}

// benchGrown has the benchmarks of an index with half as many keys more. They share it.
func benchGrown(all *testing.B, name string) {
	var g *benched
	var later []uint64
	run := func(what string, f func()) {
		all.Run(name+"/"+what, func(b *testing.B) {
			if g == nil {
				g = newBenched(all, name) // closed at the end of all
				for i := range benchKeys / 2 {
					later = append(later, g.r.Uint64())
					if g.insert(later[i]); i%64 == 63 {
						g.now += time.Millisecond
						g.s.Maintain(g.now, nil)
					}
				}
			}
			g.b = b
			f()
		})
	}
	run("get=server-later", func() { g.lookups(later) })
	run("scan=server", func() { g.scans() })
	if name != "xstore" && name != "finestore" {
		return // nobody else reads it
	}
	get := func(keys *[]uint64) {
		op := g.c.NewGet()
		g.read(op, func() { op.Start(index.Num((*keys)[g.r.IntN(len(*keys))])) }, func() index.Status { return op.Result().Status })
	}
	run("get=loaded", func() { get(&g.keys) })
	run("get=later", func() { get(&later) })
	run("scan=100", func() {
		op := g.c.NewScan()
		g.read(op, func() {
			op.Start(index.Num(g.keys[g.r.IntN(len(g.keys))]), index.Num(^uint64(0)), 100)
		}, func() index.Status { return op.Result().Status })
	})
}
