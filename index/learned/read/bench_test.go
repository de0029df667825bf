package read

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/learned"
	"drtmx/index/learned/model"
	"drtmx/index/learned/train"
	"drtmx/internal/block"
	"drtmx/internal/keysets"
	"drtmx/internal/mem"
	"drtmx/rdma/inproc"
)

const benchSeed = 20201104

// benchKeys is the number of rows; LEARNED_KEYS changes it.
func benchKeys(tb testing.TB, def int) int {
	tb.Helper()
	if v := os.Getenv("LEARNED_KEYS"); v != "" {
		n, err := strconv.Atoi(v)
		if err != nil {
			tb.Fatal(err)
		}
		return n
	}
	return def
}

// grow fills a server with every other key in order and the rest at random, so
// that leaves are split and lie all over the region.
func grown(tb testing.TB, keys []uint64, o learned.Options, co Options, net inproc.Options) *rig {
	tb.Helper()
	g := newRig(tb, o, co, net, false)
	load := func(k uint64) {
		if err := g.s.Load(index.Num(k), g.row(k, k+1), block.Present(g.nextCSN())); err != nil {
			tb.Fatal(err)
		}
	}
	var rest []uint64
	for i, k := range keys {
		if i%2 == 0 {
			load(k)
		} else {
			rest = append(rest, k)
		}
	}
	r := rand.New(rand.NewPCG(benchSeed, 2))
	r.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
	for _, k := range rest {
		load(k)
	}
	g.train()
	g.refresh()
	return g
}

func probes(keys []uint64) []uint64 {
	r := rand.New(rand.NewPCG(benchSeed, 3))
	p := make([]uint64, 1<<18)
	for i := range p {
		p[i] = keys[r.IntN(len(keys))]
	}
	return p
}

var sink uint64

// BenchmarkPredict compares a client's way to a leaf, predict and translate,
// with the descent of the real inner nodes, for random present keys, and says
// what the models are worth. A second client holds its translation tables decoded. The
// three are measured in turns.
func BenchmarkPredict(b *testing.B) {
	n := benchKeys(b, 10_000_000)
	for _, d := range keysets.All {
		for _, family := range []learned.Family{learned.RMI, learned.PLR} {
			keys := d.Draw(rand.New(rand.NewPCG(benchSeed, 1)), n)
			g := grown(b, keys, learned.Options{RowWords: 1, Family: family}, Options{}, inproc.Options{})
			decoded := New(g.s.Root(), g.key, Options{InOrder: g.c.o.InOrder, Cache: Cache{Budget: Decoded}})
			if err := decoded.Maintain(b.Context(), g.conn); err != nil {
				b.Fatal(err)
			}
			p := probes(keys)
			right := 0
			for _, k := range p {
				at := predict(g, g.c, k)
				if at == g.s.Descend(index.Num(k)) {
					right++
				}
				if got := predict(g, decoded, k); got != at {
					b.Fatalf("key %d: leaf at %#x with decoded tables, else at %#x", k, got, at)
				}
			}
			b.Run(fmt.Sprintf("%s/%v", d.Name, family), func(b *testing.B) {
				const turn = 1 << 14
				var model, unpacked, tree time.Duration
				i := 0
				for b.Loop() {
					t0 := time.Now()
					for j := range turn {
						sink += predict(g, g.c, p[(i+j)&(len(p)-1)])
					}
					t1 := time.Now()
					model += t1.Sub(t0)
					for j := range turn {
						sink += predict(g, decoded, p[(i+j)&(len(p)-1)])
					}
					t0 = t1
					t1 = time.Now()
					unpacked += t1.Sub(t0)
					for j := range turn {
						sink += g.s.Descend(index.Num(p[(i+j)&(len(p)-1)]))
					}
					tree += time.Since(t1)
					i += turn
				}
				ops := float64(i)
				st, q, wide := g.s.Stats(), g.c.Stats(), decoded.Stats()
				qual, _ := g.s.Quality()
				b.ReportMetric(float64(model.Nanoseconds())/ops, "ns/predict")
				b.ReportMetric(float64(unpacked.Nanoseconds())/ops, "ns/decoded")
				b.ReportMetric(float64(tree.Nanoseconds())/ops, "ns/descend")
				b.ReportMetric(float64(model)/float64(tree), "predict/descend")
				b.ReportMetric(float64(unpacked)/float64(tree), "decoded/descend")
				b.ReportMetric(100*float64(right)/float64(len(p)), "first-leaf-%")
				b.ReportMetric(float64(qual.ErrorSum)/float64(max(qual.Keys, 1)), "mean-err")
				b.ReportMetric(float64(qual.ErrorMax), "max-err")
				b.ReportMetric(100*float64(q.ModelBytes)/float64(st.InnerBytes), "models-%inner")
				b.ReportMetric(100*float64(q.TTBytes)/float64(st.InnerBytes), "TT-%inner")
				b.ReportMetric(100*float64(wide.TTBytes)/float64(st.InnerBytes), "decoded-%inner")
				b.ReportMetric(float64(st.InnerBytes)/float64(st.Leaves), "inner-B/leaf")
			})
			runtime.GC()
		}
	}
}

// predict is what getOp.Next does before its READ, with translation tables held.
func predict(g *rig, c *Client, key uint64) uint64 {
	h := c.cur.Load()
	held := h.held[h.Route(index.Num(key))].Load()
	return h.root.Layout.LeafAddr(held.model.Predict(key).ALN)
}

// BenchmarkClient times whole operations over the in-process fabric, with
// budgets, and reports rounds and READ bytes for each.
func BenchmarkClient(b *testing.B) {
	n := benchKeys(b, 1_000_000)
	keys := keysets.Uniform(rand.New(rand.NewPCG(benchSeed, 1)), n)
	p := probes(keys)
	for _, inline := range []learned.Inline{learned.Yes, learned.No} {
		for budget := Full; budget < budgets; budget++ {
			g := grown(b, keys, learned.Options{RowWords: 4, Inline: inline}, Options{Cache: Cache{Budget: budget, TTBytes: 20 << 10}}, inproc.Options{})
			d := driver{conn: g.conn}
			name := fmt.Sprintf("inline=%v/budget=%d", inline == learned.Yes, budget)
			get, scan := g.c.NewGet(), g.c.NewScan()
			measure := func(b *testing.B, op index.Op, start func(k uint64)) {
				b.ReportAllocs()
				c0 := g.conn.Counters()
				i := 0
				for b.Loop() {
					start(p[i&(len(p)-1)])
					d.run(op)
					if i++; i%64 == 0 && g.c.Stale() {
						_ = g.c.Maintain(context.Background(), g.conn)
					}
				}
				c := g.conn.Counters().Sub(c0)
				b.ReportMetric(float64(c.Rounds)/float64(i), "rounds/op")
				b.ReportMetric(float64(c.ReadBytes)/float64(i), "B/op-read")
			}
			b.Run("get/"+name, func(b *testing.B) { measure(b, get, func(k uint64) { get.Start(index.Num(k)) }) })
			b.Run("scan100/"+name, func(b *testing.B) {
				measure(b, scan, func(k uint64) { scan.Start(index.Num(k), index.Num(^uint64(0)), 100) })
			})
		}
	}
}

// BenchmarkLatest is YCSB D's shape: one goroutine appends, for every 19 GETs
// of another among the latest rows, with the trainer and the client's Maintain
// running beside. It reports chases and fallbacks for a million GETs.
func BenchmarkLatest(b *testing.B) {
	n := benchKeys(b, 1_000_000)
	g := newRig(b, learned.Options{RowWords: 4}, Options{}, inproc.Options{}, false)
	var mu sync.Mutex
	var top atomic.Uint64
	insert := func() {
		k := top.Load()
		mu.Lock()
		if err := g.s.Load(index.Num(k*8), g.row(k*8, k), block.Present(g.nextCSN())); err != nil {
			b.Error(err)
		}
		mu.Unlock()
		top.Store(k + 1)
	}
	for range n {
		insert()
	}
	g.train()
	g.refresh()
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Add(1)
	go func() { // the server's trainer
		defer wg.Done()
		t0 := time.Now()
		for !stop.Load() {
			if !g.s.Maintain(g.now+time.Since(t0), &mu) {
				time.Sleep(200 * time.Microsecond)
			}
		}
	}()
	wg.Add(1)
	go func() { // the client's
		defer wg.Done()
		conn := g.dial()
		for !stop.Load() {
			if g.c.Stale() {
				_ = g.c.Maintain(context.Background(), conn)
			}
			time.Sleep(200 * time.Microsecond)
		}
	}()
	d := driver{conn: g.conn}
	get := g.c.NewGet()
	zipf := rand.NewZipf(rand.New(rand.NewPCG(benchSeed, 4)), 1.1, 10, uint64(n-1))
	s0 := g.c.Stats()
	gets := 0
	for b.Loop() {
		if gets++; gets%20 == 0 {
			insert()
		}
		k := top.Load() - 1 - zipf.Uint64()
		get.Start(index.Num(k * 8))
		d.run(get)
		if st := get.Result().Status; st != index.Found && st != index.Fallback && st != index.Locked {
			b.Fatalf("key %d: %v", k*8, st)
		}
	}
	stop.Store(true)
	wg.Wait()
	s := g.c.Stats()
	b.ReportMetric(float64(s.Chases-s0.Chases)*1e6/float64(gets), "chases/M")
	b.ReportMetric(float64(s.Fallbacks-s0.Fallbacks)*1e6/float64(gets), "fallbacks/M")
	b.ReportMetric(float64(s.Refreshes-s0.Refreshes)*1e6/float64(gets), "refreshes/M")
	b.ReportMetric(float64(g.s.Stats().Retrains), "retrains")
}

// BenchmarkExpansion compares the rate of GETs before and while a new
// generation of all models is trained and published again and again.
func BenchmarkExpansion(b *testing.B) {
	n := benchKeys(b, 1_000_000)
	keys := keysets.Uniform(rand.New(rand.NewPCG(benchSeed, 1)), n)
	g := grown(b, keys, learned.Options{RowWords: 4}, Options{}, inproc.Options{})
	p := probes(keys)
	d := driver{conn: g.conn}
	get := g.c.NewGet()
	const turn = 1 << 14
	round := func() {
		for j := range turn {
			get.Start(index.Num(p[j]))
			d.run(get)
		}
	}
	var mu sync.Mutex
	var calm, busy time.Duration
	tr, made := newTrainer(b, g), 0
	for b.Loop() {
		t0 := time.Now()
		round()
		calm += time.Since(t0)
		var stop atomic.Bool
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			var st index.ServerStats
			for !stop.Load() {
				t0 := time.Now()
				if tr.Stats(&st); st.Generations > 0 { // it has published: begin again
					tr = newTrainer(b, g)
					made++
				}
				tr.Maintain(g.now, &mu)
				// A driver paces the trainer: here, at most a fifth of a core.
				time.Sleep(4 * time.Since(t0))
			}
		}()
		t0 = time.Now()
		round()
		busy += time.Since(t0)
		stop.Store(true)
		wg.Wait()
		g.refresh()
	}
	b.ReportMetric(float64(calm)/float64(busy), "rate-during/before")
	b.ReportMetric(float64(made), "generations")
}

// newTrainer makes another trainer of the tree, with a root that no client
// reads: it trains all models.
func newTrainer(b *testing.B, g *rig) *train.Trainer {
	b.Helper()
	blocks := g.a.NewSized()
	root, err := blocks.Alloc(model.RootWords * mem.WordBytes)
	if err != nil {
		b.Fatal(err)
	}
	t, err := train.New(train.Options{
		Arena: g.a, Mem: blocks, Root: root, Tree: g.s.Tree, LeavesPerSubModel: 512, RetrainInterval: time.Second,
	})
	if err != nil {
		b.Fatal(err)
	}
	return t
}

// BenchmarkFresh has the shape of TPC-C's orders: districts in which keys rise, and
// scans of the lines of one of the latest 3000 orders of a district, nine for each
// order added. The server trains one sub-model after so many orders. All counts are
// exact and the same in each run of so many iterations.
func BenchmarkFresh(b *testing.B) {
	for _, every := range []int{20, 200, 1000} {
		b.Run(fmt.Sprintf("train=%d", every), func(b *testing.B) { benchFresh(b, every) })
	}
}

func benchFresh(b *testing.B, every int) {
	const districts, orders, reads = 10, 3000, 9
	g := newRig(b, learned.Options{RowWords: 10}, Options{}, inproc.Options{}, false)
	r := rand.New(rand.NewPCG(benchSeed, 7))
	key := func(d, o, line uint64) uint64 { return 1<<36 | d<<32 | o<<4 | line }
	var last [districts]uint64
	add := func(d uint64, lines uint64) {
		last[d]++
		for l := range lines {
			k := key(d, last[d], l+1)
			if err := g.s.Load(index.Num(k), g.row(k, k), block.Present(g.nextCSN())); err != nil {
				b.Fatal(err)
			}
		}
	}
	for d := range uint64(districts) {
		for range orders {
			add(d, 5+r.Uint64N(11))
		}
	}
	g.train()
	g.refresh()
	d, scan := driver{conn: g.conn}, g.c.NewScan()
	s0, c0 := g.c.Stats(), g.conn.Counters()
	var spent time.Duration
	var mem0, mem1 runtime.MemStats
	n, added, allocs, bytes := 0, 0, uint64(0), uint64(0)
	b.ResetTimer()
	for range b.N {
		add(r.Uint64N(districts), 5+r.Uint64N(11))
		if added++; added%every == 0 {
			g.now += 10 * time.Millisecond
			for range 4 {
				g.s.Maintain(g.now, nil)
			}
		}
		if added%64 == 0 {
			runtime.ReadMemStats(&mem0)
		}
		t0 := time.Now()
		for range reads {
			if g.c.Stale() {
				_ = g.c.Maintain(context.Background(), g.conn)
			}
			at := r.Uint64N(districts)
			o := last[at] - r.Uint64N(orders)
			scan.Start(index.Num(key(at, o, 0)), index.Num(key(at, o, 15)), 15)
			d.run(scan)
			if st := scan.Result().Status; st != index.Found && st != index.Fallback {
				b.Fatalf("order %d of district %d: %v", o, at, st)
			}
			n++
		}
		spent += time.Since(t0)
		if added%64 == 0 {
			runtime.ReadMemStats(&mem1)
			allocs += mem1.Mallocs - mem0.Mallocs
			bytes += mem1.TotalAlloc - mem0.TotalAlloc
		}
	}
	b.StopTimer()
	s, c := g.c.Stats(), g.conn.Counters().Sub(c0)
	per := func(v uint64) float64 { return float64(v) / float64(n) }
	b.ReportMetric(float64(spent.Nanoseconds())/float64(n), "ns/scan")
	b.ReportMetric(per(s.Chases-s0.Chases), "links/scan")
	b.ReportMetric(per(s.Fallbacks-s0.Fallbacks)*1e6, "fallbacks/M")
	b.ReportMetric(per(s.Refreshes-s0.Refreshes)*1e6, "refreshes/M")
	b.ReportMetric(per(s.Rounds-s0.Rounds), "rounds/scan")
	b.ReportMetric(per(s.Reads-s0.Reads), "READs/scan")
	b.ReportMetric(per(c.ReadBytes), "B/scan")
	b.ReportMetric(per(64*allocs), "allocs/scan")
	b.ReportMetric(per(64*bytes), "allocB/scan")
	b.ReportMetric(float64(g.s.Stats().Retrains), "retrains")
}
