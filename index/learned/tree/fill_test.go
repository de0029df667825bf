package tree

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Loading and restoring ascending keys fill leaves up to LoadSlots, wherever in the tree they
// are. Other rows fill them up.
func TestLoadSlots(t *testing.T) {
	const slots, fill, rows = 8, 6, 600
	for _, kind := range allKinds {
		for _, restore := range []bool{false, true} {
			w := newWorld(t, kind, slots, true, 1)
			w.t.loadSlots = fill
			load := w.t.Load
			if restore {
				load = w.t.Restore
			}
			put := func(n uint64) {
				w.csn++
				if err := load(w.key(n), []uint64{n}, block.Present(block.NewCSN(1, w.csn))); err != nil {
					t.Fatal(err)
				}
			}
			// The upper half first, then the lower, which is not at the end of the tree.
			for i := range uint64(rows) {
				put(2 * ((i + rows/2) % rows))
			}
			few := 0
			for addr := w.t.First(); addr != 0; addr = w.t.rightOf(addr) {
				switch n := w.t.liveOf(addr); {
				case n > fill:
					t.Errorf("%s, restore %v: a leaf has %d rows, want at most %d", kindName(kind), restore, n, fill)
				case n < fill:
					few++
				}
				if leaf.IsLast(w.t.span(addr).Load(leaf.MetaWord)) {
					break
				}
			}
			if few > 3 { // the first one, and the last of each half
				t.Errorf("%s, restore %v: %d leaves with fewer than %d rows", kindName(kind), restore, few, fill)
			}
			before := w.t.Leaves()
			for i := uint64(1); i < 2*rows; i += fill * 2 {
				put(i) // one for each leaf
			}
			if n := w.t.Leaves() - before; n > 3 {
				t.Errorf("%s, restore %v: a row more in each leaf made %d leaves", kindName(kind), restore, n)
			}
			if err := w.t.Check(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// BenchmarkLoadSlots loads ascending keys into leaves that are filled to a part, then
// inserts random keys: a hundredth, a tenth and half as many. It reports the bytes a
// key, and the times of inserts and of scans of 100 rows, after each.
func BenchmarkLoadSlots(b *testing.B) {
	n := benchKeys(b)
	r := rand.New(rand.NewPCG(benchSeed, 2))
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = r.Uint64()
	}
	slices.Sort(keys)
	extra := make([]uint64, n/2)
	for i := range extra {
		extra[i] = r.Uint64()
	}
	lay, err := leaf.NewLayout(7, leaf.Inline, 1, leaf.AutoSlots(leaf.Inline, 1))
	if err != nil {
		b.Fatal(err)
	}
	for _, percent := range []int{100, 95, 90, 85, 80, 70} {
		b.Run(fmt.Sprintf("percent=%d", percent), func(b *testing.B) {
			for range b.N {
				mr, err := mem.New(mem.Options{})
				if err != nil {
					b.Fatal(err)
				}
				t, err := New(block.NewArena(mr, block.ArenaOptions{Tick: 1}), Options{Layout: lay, LoadSlots: (lay.Slots*percent + 50) / 100})
				if err != nil {
					b.Fatal(err)
				}
				s := &xStore{t: t}
				begin := time.Now()
				for _, k := range keys {
					s.insert(k, 1)
				}
				report := func(when string, count int) {
					var st index.ServerStats
					t.Stats(&st)
					b.ReportMetric(float64(st.RowBytes+st.InnerBytes)/float64(count), "B/key_"+when)
					rd := &xReader{xStore: s}
					begin := time.Now()
					for range 20000 {
						rows := 0
						rd.scan(keys[r.IntN(n)], 100, func(_, _ uint64) { rows++ })
					}
					b.ReportMetric(float64(time.Since(begin).Nanoseconds())/20000, "ns/scan_"+when)
				}
				b.ReportMetric(float64(time.Since(begin).Nanoseconds())/float64(n), "ns/load")
				report("0", n)
				at := 0
				for _, share := range []int{1, 10, 50} {
					to := n * share / 100
					begin := time.Now()
					for _, k := range extra[at:to] {
						s.insert(k, 1)
					}
					b.ReportMetric(float64(time.Since(begin).Nanoseconds())/float64(to-at), fmt.Sprintf("ns/insert_%d", share))
					report(fmt.Sprint(share), n+to)
					at = to
				}
			}
		})
	}
}
