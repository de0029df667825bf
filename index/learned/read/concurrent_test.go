package read

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned"
	"drtmx/internal/block"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// stable keys are those divisible by stableStep: loaded, updated, never deleted.
const stableStep = 4

// TestReadersBesideEverything has GETs and SCANs run while one goroutine
// inserts, updates and deletes in waves, so that leaves split, run empty and
// are freed, and another trains: retraining, expansion, shrinking. A stable key
// is never absent, rows are whole, scans are complete and in order.
func TestReadersBesideEverything(t *testing.T) {
	seed := indextest.Seed(t)
	for _, v := range []struct {
		name   string
		faults inproc.Faults
		sums   bool
	}{
		{"in order", inproc.Faults{}, false},
		{"in order, pauses", inproc.Faults{Pause: 0.02, Reorder: 0.5, Defer: 0.3}, false},
		{"scrambled", inproc.Faults{Scramble: 1, Pause: 0.02, Reorder: 0.5}, true},
	} {
		for _, inline := range []learned.Inline{learned.Yes, learned.No} {
			for _, budget := range []Budget{Full, PartTT, ModelsOnly, RouterOnly, Decoded, Tree, PartTree} {
				if (testing.Short() || indextest.Scale > 1) && budget != Full && budget != PartTree {
					continue
				}
				t.Run(fmt.Sprintf("%s/inline=%v/budget=%d", v.name, inline == learned.Yes, budget), func(t *testing.T) {
					o := learned.Options{RowWords: 3, Inline: inline, SlotsPerLeaf: 6, LeavesPerSubModel: 12, Quarantine: 30 * time.Millisecond}
					bytes := 200
					if budget == PartTree {
						bytes = 5 << 10 // room for a few nodes
					}
					g := newRig(t, o, Options{Cache: Cache{Budget: budget, TTBytes: bytes}}, inproc.Options{Faults: v.faults, Seed: seed}, v.sums)
					runBeside(t, g, seed)
				})
			}
		}
	}
}

// TestReadersBesideStrings is the same for string keys, and rows that grow and
// shrink: of eight bytes, behind 200 bytes that all share, and with digests that tie.
func TestReadersBesideStrings(t *testing.T) {
	seed := indextest.Seed(t)
	number := func(prefix string) func(k uint64) string {
		return func(k uint64) string { return string(index.AppendNum([]byte(prefix), k)) }
	}
	for i, v := range []struct {
		name   string
		text   func(k uint64) string
		faults inproc.Faults
		sums   bool
	}{
		{"numbers", number(""), inproc.Faults{Pause: 0.02, Reorder: 0.5, Defer: 0.3}, false},
		{"prefix of 200", number(strings.Repeat("p", 200)), inproc.Faults{}, false},
		{"ties", func(k uint64) string { return fmt.Sprintf("%c alike for long %06d", 'a'+k/700, k) }, inproc.Faults{Scramble: 1, Pause: 0.02, Reorder: 0.5}, true},
	} {
		t.Run(v.name, func(t *testing.T) {
			o := learned.Options{Strings: true, RowWords: 40, SlotsPerLeaf: 6, LeavesPerSubModel: 12}
			g := newRig(t, o, Options{Cache: Cache{Budget: Budget(i), TTBytes: 200}}, inproc.Options{Faults: v.faults, Seed: seed}, v.sums)
			g.text = v.text
			runBeside(t, g, seed)
			if g.s.Stats().Moves == 0 {
				t.Error("no row moved")
			}
		})
	}
}

type beside struct {
	*rig
	keys int
	mu   sync.Mutex // the executor's
	stop atomic.Bool
	gets atomic.Uint64
	fell atomic.Uint64
}

func runBeside(t *testing.T, g *rig, seed uint64) {
	b := &beside{rig: g, keys: 3000}
	if indextest.Scale > 1 && !testseed.Soaking() { // the race detector looks at each word
		b.keys = 1000
	}
	for k := 0; k < b.keys; k += stableStep {
		g.put(uint64(k), 1)
	}
	g.train()
	g.refresh()
	var wg sync.WaitGroup
	errs := make(chan error, 8)
	start := func(f func() error) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := f(); err != nil {
				b.stop.Store(true)
				errs <- err
			}
		}()
	}
	for i := range 2 {
		conn := g.dial()
		start(func() error { return b.read(conn, rand.New(rand.NewPCG(seed, uint64(i)))) })
	}
	conn := g.dial()
	start(func() error { return b.maintain(conn) })
	start(b.trainer)
	waves := 4
	switch {
	case testing.Short():
		waves = 2
	case os.Getenv("DRTMX_LONG") != "":
		waves = 60
	}
	for w := range waves {
		b.wave(rand.New(rand.NewPCG(seed, uint64(100+w))), w)
	}
	b.stop.Store(true)
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	g.now += time.Hour
	g.train()
	if err := g.s.Check(); err != nil {
		t.Error(err)
	}
	_, gens := g.s.Quality()
	t.Logf("%d answers, %d fallbacks, client %+v, server %+v, %d generations", b.gets.Load(), b.fell.Load(), g.c.Stats(), g.s.Stats(), gens)
	if gens < 2 {
		t.Error("no new generation was made")
	}
}

// wave grows the tree to all keys and shrinks it to the stable ones.
func (b *beside) wave(r *rand.Rand, w int) {
	for _, k := range r.Perm(b.keys) {
		if b.stop.Load() {
			return
		}
		b.mu.Lock()
		b.put(uint64(k), uint64(w+2))
		b.mu.Unlock()
	}
	for w == 0 && b.s.Stats().Generations < 2 && !b.stop.Load() { // or the trainer may never see the tree at its largest
		time.Sleep(100 * time.Microsecond)
	}
	for k := range b.keys { // in order, so that leaves run empty between two stable keys
		if k%stableStep == 0 {
			continue
		}
		b.mu.Lock()
		b.del(uint64(k))
		b.mu.Unlock()
	}
	for k := b.keys; k < 3*b.keys; k++ { // a queue at the end
		b.mu.Lock()
		b.put(uint64(k), 1)
		if k >= b.keys+50 {
			b.del(uint64(k - 50))
		}
		b.mu.Unlock()
	}
	for k := 3*b.keys - 50; k < 3*b.keys; k++ {
		b.mu.Lock()
		b.del(uint64(k))
		b.mu.Unlock()
	}
}

func (b *beside) trainer() error {
	for now := b.now; !b.stop.Load(); now += time.Millisecond {
		if !b.s.Maintain(now, &b.mu) {
			time.Sleep(100 * time.Microsecond)
		}
	}
	return nil
}

func (b *beside) maintain(conn rdma.Conn) error {
	for !b.stop.Load() {
		if b.c.Stale() {
			if err := b.c.Maintain(context.Background(), conn); err != nil {
				return err
			}
		}
		time.Sleep(200 * time.Microsecond)
	}
	return nil
}

func (b *beside) read(conn rdma.Conn, r *rand.Rand) error {
	d := driver{conn: conn}
	get, scan := b.c.NewGet(), b.c.NewScan()
	for !b.stop.Load() {
		if r.IntN(4) > 0 {
			k := uint64(r.IntN(b.keys/stableStep) * stableStep)
			if r.IntN(4) == 0 {
				k += uint64(r.IntN(stableStep))
			}
			get.Start(b.at(k))
			d.run(get)
			if err := b.judgeGet(k, get.Result()); err != nil {
				return err
			}
			continue
		}
		lo := uint64(r.IntN(b.keys))
		hi := lo + uint64(r.IntN(200))
		limit := r.IntN(60)
		scan.Start(b.at(lo), b.at(hi), limit)
		d.run(scan)
		if err := b.judgeScan(lo, hi, limit, scan.Result()); err != nil {
			return fmt.Errorf("scan [%d, %d] limit %d: %w", lo, hi, limit, err)
		}
	}
	return nil
}

func whole(key uint64, row []uint64) error {
	if len(row) < 3 || row[0] != key || row[1] != row[2] || row[1] != row[len(row)-1] {
		return fmt.Errorf("key %d: torn row %v", key, row)
	}
	return nil
}

func (b *beside) judgeGet(k uint64, res *index.GetResult) error {
	b.gets.Add(1)
	switch res.Status {
	case index.Found:
		return whole(k, res.Row)
	case index.NotFound:
		if k%stableStep == 0 {
			return fmt.Errorf("key %d is always there and was reported absent, proofs %v", k, res.Proofs)
		}
	case index.Fallback:
		b.fell.Add(1)
	case index.Failed:
		return res.Err
	}
	return nil
}

func (b *beside) judgeScan(lo, hi uint64, limit int, res *index.ScanResult) error {
	b.gets.Add(1)
	switch res.Status {
	case index.Failed:
		return res.Err
	case index.Fallback:
		b.fell.Add(1)
		return nil
	case index.Locked:
		return nil
	}
	next := (lo + stableStep - 1) / stableStep * stableStep
	for i, e := range res.Entries {
		k := e.Key.Num
		if b.text != nil { // the row has the number
			if len(e.Row) < 3 || b.text(e.Row[0]) != e.Key.Str {
				return fmt.Errorf("key %q: row %v", e.Key.Str, e.Row)
			}
			k = e.Row[0]
		}
		if i > 0 && e.Key.Compare(res.Entries[i-1].Key) <= 0 || k < lo || k > hi {
			return fmt.Errorf("key %d out of order or range", k)
		}
		if err := whole(k, e.Row); err != nil {
			return err
		}
		if k > next && next < uint64(b.keys) {
			return fmt.Errorf("key %d is missing before %d", next, k)
		}
		if k == next {
			next += stableStep
		}
	}
	if limit > 0 && len(res.Entries) > limit {
		return errors.New("more rows than the limit")
	}
	if (limit == 0 || len(res.Entries) < limit) && next <= hi && next < uint64(b.keys) {
		return fmt.Errorf("key %d is missing at the end", next)
	}
	return nil
}

// TestGenerations grows and shrinks an index and expects new partitions, and
// memory that comes back.
func TestGenerations(t *testing.T) {
	g := newRig(t, learned.Options{RowWords: 1, SlotsPerLeaf: 8, LeavesPerSubModel: 32, Quarantine: time.Millisecond}, Options{}, inproc.Options{}, true)
	var used [6]uint64
	for round := range used {
		for k := range uint64(20000) {
			g.put(k*17, k)
			if k%500 == 0 {
				g.train()
			}
		}
		g.train()
		grown := g.s.Stats()
		for k := range uint64(20000) {
			g.del(k * 17)
			if k%500 == 0 {
				g.train()
			}
		}
		g.train()
		shrunk := g.s.Stats()
		if grown.SubModels < 40 || shrunk.SubModels > 8 || grown.Pending+shrunk.Pending > 0 {
			t.Errorf("round %d: %d sub-models grown, %d shrunk; pending %d, %d", round, grown.SubModels, shrunk.SubModels, grown.Pending, shrunk.Pending)
		}
		used[round] = g.a.Used()
		if err := g.s.Check(); err != nil {
			t.Fatal(err)
		}
	}
	if used[5] > used[1]+128<<10 {
		t.Errorf("memory grows: %v", used)
	}
	if _, gens := g.s.Quality(); gens < 12 {
		t.Errorf("%d generations", gens)
	}
}

// TestScanProvesTheNextLeaf inserts behind the last row of a scan's answer, in
// the leaf that bounds the gap there: the proofs must fail.
func TestScanProvesTheNextLeaf(t *testing.T) {
	g := newRig(t, learned.Options{RowWords: 1, SlotsPerLeaf: 4}, Options{}, inproc.Options{}, false)
	for k := range uint64(16) {
		g.put(k*10, k)
	}
	g.train()
	g.refresh()
	d := driver{conn: g.conn}
	scan := g.c.NewScan()
	for first := uint64(40); first < 160; first += 40 {
		// The range ends in a leaf, between its low fence and its first row.
		g.del(first)
		hi := first + 2
		scan.Start(index.Num(0), index.Num(first+5), 0)
		d.run(scan)
		res := scan.Result()
		if res.Status != index.Found {
			t.Fatalf("%+v", res)
		}
		g.put(hi, 1)
		for name, proofs := range map[string][]index.Proof{"quick": res.Quick, "exact": res.Gaps} {
			holds := true
			for _, p := range proofs {
				holds = holds && g.a.Span(p.Addr, 1).Load(0) == p.Word
			}
			if holds {
				t.Errorf("the %s proofs of a scan to %d hold after the insert of %d", name, first+5, hi)
			}
		}
	}
}

// TestAllocations: a GET and a scan allocate nothing in steady state.
func TestAllocations(t *testing.T) {
	for _, inline := range []learned.Inline{learned.Yes, learned.No} {
		for _, budget := range []Budget{Full, ModelsOnly, RouterOnly, Decoded} {
			g := newRig(t, learned.Options{RowWords: 2, Inline: inline}, Options{Cache: Cache{Budget: budget}}, inproc.Options{}, false)
			for k := range uint64(20000) {
				g.put(k*3, k)
			}
			g.train()
			g.refresh()
			d := driver{conn: g.conn}
			get, scan := g.c.NewGet(), g.c.NewScan()
			k := uint64(0)
			run := func() {
				k = (k + 7919*3) % 60000
				get.Start(index.Num(k))
				d.run(get)
				get.Start(index.Num(k + 1))
				d.run(get)
				scan.Start(index.Num(k), index.Num(^uint64(0)), 50)
				d.run(scan)
			}
			for range 2000 / indextest.Scale {
				run()
			}
			if n := testing.AllocsPerRun(500/indextest.Scale, run); n != 0 {
				t.Errorf("inline %v, budget %d: %v allocations", inline == learned.Yes, budget, n)
			}
			var res index.GetResult
			var sr index.ScanResult
			var buf []uint64
			server := func() {
				k = (k + 7919*3) % 60000
				g.s.Lookup(index.Num(k), &res)
				buf = g.s.Scan(index.Num(k), index.Num(^uint64(0)), 50, &sr, buf)
			}
			for range 100 {
				server()
			}
			if n := testing.AllocsPerRun(500/indextest.Scale, server); n != 0 {
				t.Errorf("inline %v: server half: %v allocations", inline == learned.Yes, n)
			}
		}
	}
}

// TestWholeRange works at both ends of the key space.
func TestWholeRange(t *testing.T) {
	const top = ^uint64(0)
	for _, inline := range []learned.Inline{learned.Yes, learned.No} {
		g := newRig(t, learned.Options{RowWords: 1, Inline: inline, SlotsPerLeaf: 4, LeavesPerSubModel: 4}, Options{}, inproc.Options{}, true)
		var keys []uint64
		for i := range uint64(100) {
			keys = append(keys, i, top-i)
		}
		for _, k := range keys {
			if err := g.s.Load(index.Num(k), []uint64{k}, block.Present(g.nextCSN())); err != nil {
				t.Fatal(err)
			}
		}
		g.train()
		g.refresh()
		d := driver{conn: g.conn}
		get, scan := g.c.NewGet(), g.c.NewScan()
		for _, k := range keys {
			get.Start(index.Num(k))
			d.run(get)
			if r := get.Result(); r.Status != index.Found || r.Row[0] != k {
				t.Errorf("key %d: %+v", k, r)
			}
		}
		for _, r := range [][3]uint64{{0, top, 200}, {0, 99, 100}, {top - 99, top, 100}, {top, top, 1}, {0, 0, 1}, {100, top - 100, 0}, {5, 4, 0}} {
			scan.Start(index.Num(r[0]), index.Num(r[1]), 0)
			d.run(scan)
			if res := scan.Result(); res.Status != index.Found || uint64(len(res.Entries)) != r[2] || res.More {
				t.Errorf("scan %v: %v, %d rows", r, res.Status, len(res.Entries))
			}
		}
		if err := g.s.Check(); err != nil {
			t.Fatal(err)
		}
	}
}
