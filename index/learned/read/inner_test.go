package read

import (
	"errors"
	"math/rand/v2"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned"
	"drtmx/index/learned/inner"
	"drtmx/internal/block"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// innerRig has a tree of three levels of inner nodes, and a client that caches them, all or
// as many as fit so many bytes.
func innerRig(t *testing.T, bytes int) (g *rig, keys uint64) {
	t.Helper()
	co := Options{Cache: Cache{Budget: Tree}}
	if bytes > 0 {
		co.Cache = Cache{Budget: PartTree, TTBytes: bytes}
	}
	g = newRig(t, learned.Options{RowWords: 1, SlotsPerLeaf: 4}, co, inproc.Options{}, false)
	keys = 4 * inner.Fanout * inner.Fanout * 5 / 4
	for k := range keys {
		if err := g.s.Load(index.Num(k*10), g.row(k*10, k), block.Present(1)); err != nil {
			t.Fatal(err)
		}
	}
	g.refresh()
	return g, keys
}

// get looks a key up and returns what it costs.
func (g *rig) get(d *driver, op index.GetOp, key uint64, want index.Status) (cost rdma.Counters) {
	g.tb.Helper()
	c0 := d.conn.Counters()
	op.Start(index.Num(key))
	d.bounded(g.tb, op)
	if r := op.Result(); r.Status != want {
		g.tb.Fatalf("key %d: %v, want %v", key, r.Status, want)
	}
	return d.conn.Counters().Sub(c0)
}

// scan reads a number of rows from a key on, which must be there, and returns what it costs.
func (g *rig) scan(d *driver, op index.ScanOp, from uint64, rows int) (cost rdma.Counters) {
	g.tb.Helper()
	c0 := d.conn.Counters()
	op.Start(index.Num(from), index.Num(^uint64(0)), rows)
	d.bounded(g.tb, op)
	if r := op.Result(); r.Status != index.Found || len(r.Entries) != rows {
		g.tb.Fatalf("scan from %d: %v, %d rows, want %d", from, r.Status, len(r.Entries), rows)
	}
	return d.conn.Counters().Sub(c0)
}

// TestInnerNodesCostExactRounds: with all nodes cached, a lookup or a short scan is one round.
// Without any, it is one round more for each level, and READs exactly the nodes of one path.
func TestInnerNodesCostExactRounds(t *testing.T) {
	for _, v := range []struct{ bytes, levels int }{{0, 0}, {1, 3}} {
		g, n := innerRig(t, v.bytes)
		d := &driver{conn: g.conn}
		get, scan := g.c.NewGet(), g.c.NewScan()
		for k := uint64(0); k < n; k += 37 {
			cost := g.get(d, get, k*10, index.Found)
			leafBytes := uint64(g.s.Layout().LookupWords) * 8
			want := rdma.Counters{Rounds: uint64(1 + v.levels), Reads: uint64(1 + v.levels), ReadBytes: leafBytes + uint64(v.levels)*inner.Words*8}
			if cost.Rounds != want.Rounds || cost.Reads != want.Reads || cost.ReadBytes != want.ReadBytes {
				t.Fatalf("%d bytes, key %d: %d rounds, %d READs, %d bytes; want %d, %d, %d", v.bytes, k*10,
					cost.Rounds, cost.Reads, cost.ReadBytes, want.Rounds, want.Reads, want.ReadBytes)
			}
			if cost = g.get(d, get, k*10+1, index.NotFound); cost.Rounds != want.Rounds {
				t.Fatalf("%d bytes, key %d: %d rounds, want %d", v.bytes, k*10+1, cost.Rounds, want.Rounds)
			}
		}
		rounds, scans := uint64(0), uint64(0)
		for k := uint64(0); k+40 < n; k += 97 {
			rounds += g.scan(d, scan, k*10, 40).Rounds
			scans++
		}
		// Ten leaves or eleven: more than the first guess of how full leaves are in a few, and a
		// search of the next bottom node in ten of 64.
		if per := float64(rounds) / float64(scans); per < float64(1+v.levels) || per > float64(1+v.levels)*1.35 {
			t.Errorf("%d bytes: %.2f rounds a scan of 40 rows", v.bytes, per)
		}
		if s := g.c.Stats(); s.Fallbacks > 0 || s.Chases > 0 {
			t.Errorf("%d bytes: %d fallbacks, %d chases in a tree that does not change", v.bytes, s.Fallbacks, s.Chases)
		}
	}
}

// TestTreeCacheIsBounded: the nodes held never take more bytes than the bound. Those above the
// bottom stay, so that a lookup is at most two rounds once they fit, and keys that are looked
// up often are one round.
func TestTreeCacheIsBounded(t *testing.T) {
	const bytes = 24 << 10 // of 84 bottom nodes, some 12
	g, n := innerRig(t, bytes)
	d := &driver{conn: g.conn}
	get := g.c.NewGet()
	r := rand.New(rand.NewPCG(indextest.Seed(t), 1))
	for range 2000 {
		g.get(d, get, r.Uint64N(n)*10, index.Found)
		if s := g.c.Stats(); s.CacheBytes > bytes {
			t.Fatalf("%d bytes held, want at most %d", s.CacheBytes, bytes)
		}
	}
	for range 2000 {
		if cost := g.get(d, get, r.Uint64N(n)*10, index.Found); cost.Rounds > 2 {
			t.Fatalf("%d rounds: a node above the bottom is not held", cost.Rounds)
		}
	}
	hot, rounds := uint64(0), uint64(0)
	for range 4000 {
		if r.IntN(8) == 0 {
			g.get(d, get, r.Uint64N(n)*10, index.Found)
			continue
		}
		hot++
		rounds += g.get(d, get, r.Uint64N(n/40)*10, index.Found).Rounds // of two or three bottom nodes
	}
	if per := float64(rounds) / float64(hot); per > 1.2 {
		t.Errorf("%.2f rounds for hot keys", per)
	}
	if s := g.c.Stats(); s.Fallbacks > 0 || s.CacheBytes < bytes*3/4 {
		t.Errorf("%d fallbacks; %d of %d bytes used", s.Fallbacks, s.CacheBytes, bytes)
	}
}

// TestInnerNodesFollowTheTree: a client finds all keys by itself after leaves and inner nodes
// have split, merged and left, and the tree has become higher or lower: with no fallback, and
// in one round once it has met each change.
func TestInnerNodesFollowTheTree(t *testing.T) {
	for _, bytes := range []int{0, 1, 6 << 10} {
		co := Options{Cache: Cache{Budget: Tree}}
		if bytes > 0 {
			co.Cache = Cache{Budget: PartTree, TTBytes: bytes}
		}
		g := newRig(t, learned.Options{RowWords: 1, SlotsPerLeaf: 4}, co, inproc.Options{}, false)
		g.refresh()
		r := rand.New(rand.NewPCG(indextest.Seed(t), 2))
		const n = 20000 / indextest.Scale
		present := map[uint64]bool{}
		d := &driver{conn: g.conn}
		get, scan := g.c.NewGet(), g.c.NewScan()
		pass := func(step int) (rounds float64) {
			t.Helper()
			var all, count uint64
			for k := uint64(0); k < n; k += uint64(step) {
				want := index.NotFound
				if present[k] {
					want = index.Found
				}
				all += g.get(d, get, k, want).Rounds
				count++
			}
			return float64(all) / float64(count)
		}
		for phase := range 6 {
			switch phase {
			case 1, 4: // shrink, the second time to nearly nothing
				keep := 10 - phase*2
				for k := range present {
					if r.IntN(100) >= keep {
						g.del(k)
						delete(present, k)
					}
				}
				for g.s.Tidy(1 << 20) {
				}
			default:
				for range n / 2 {
					k := r.Uint64N(n)
					g.put(k, k)
					present[k] = true
				}
			}
			if err := g.s.Check(); err != nil {
				t.Fatal(err)
			}
			for from := uint64(0); from < n; from += 501 { // scans meet the changes first
				scan.Start(index.Num(from), index.Num(from+500), 0)
				d.bounded(t, scan)
				rows := 0
				for k := from; k <= from+500; k++ {
					if present[k] {
						rows++
					}
				}
				if res := scan.Result(); res.Status != index.Found || len(res.Entries) != rows {
					t.Fatalf("%d bytes, phase %d: scan from %d: %v, %d rows, want %d", bytes, phase, from, res.Status, len(res.Entries), rows)
				}
			}
			first := pass(1)
			second := pass(7)
			if bytes == 0 && second != 1 {
				t.Errorf("phase %d: %.3f rounds when all nodes were READ again, %.3f before", phase, second, first)
			}
		}
		if s := g.c.Stats(); s.Fallbacks > 0 {
			t.Errorf("%d bytes: %d fallbacks", bytes, s.Fallbacks)
		}
	}
}

// TestWrongNodes gives the client nodes that are wrong: every answer is right or a fallback, within
// bounds, and the client mends the nodes that led it to a wrong leaf.
func TestWrongNodes(t *testing.T) {
	r := rand.New(rand.NewPCG(indextest.Seed(t), 3))
	for _, bytes := range []int{0, 6 << 10} {
		co := Options{Cache: Cache{Budget: Tree}}
		if bytes > 0 {
			co.Cache = Cache{Budget: PartTree, TTBytes: bytes}
		}
		g := newRig(t, learned.Options{RowWords: 1, SlotsPerLeaf: 4}, co, inproc.Options{}, false)
		const n = 6000
		for _, k := range r.Perm(n) {
			g.put(uint64(k)*3, uint64(k))
		}
		g.refresh()
		d := &driver{conn: g.conn}
		get, scan := g.c.NewGet(), g.c.NewScan()
		answered, asked := 0, 0
		for range 300 {
			for range r.IntN(4) {
				spoil(r, g.c.nodes, uint64(g.a.Used()))
			}
			for range 20 {
				k := r.Uint64N(3 * n)
				get.Start(index.Num(k))
				d.bounded(t, get)
				asked++
				switch res := get.Result(); res.Status {
				case index.Found:
					if answered++; k%3 != 0 || res.Row[0] != k {
						t.Fatalf("key %d: %+v", k, res)
					}
				case index.NotFound:
					if answered++; k%3 == 0 {
						t.Fatalf("key %d is not found", k)
					}
				}
			}
			lo := r.Uint64N(3 * n)
			scan.Start(index.Num(lo), index.Num(lo+299), 0)
			d.bounded(t, scan)
			if res := scan.Result(); res.Status == index.Found && len(res.Entries) != rowsOf(lo, lo+299, n) {
				t.Fatalf("scan from %d: %d rows, want %d", lo, len(res.Entries), rowsOf(lo, lo+299, n))
			}
		}
		if answered < asked*9/10 {
			t.Errorf("%d bytes: %d of %d lookups answered", bytes, answered, asked)
		}
		for k := range uint64(3 * n) {
			get.Start(index.Num(k))
			d.bounded(t, get)
		}
		f0 := g.c.Stats().Fallbacks
		for k := range uint64(3 * n) {
			get.Start(index.Num(k))
			d.bounded(t, get)
		}
		if f := g.c.Stats().Fallbacks - f0; f > 0 {
			t.Errorf("%d bytes: %d fallbacks after all keys were looked up", bytes, f)
		}
	}
}

// rowsOf is the number of multiples of 3 below 3n in a range.
func rowsOf(lo, hi, n uint64) int {
	hi = min(hi, 3*n-1)
	if lo > hi {
		return 0
	}
	return int(hi/3 - (lo+2)/3 + 1)
}

// spoil changes a node that a client holds.
func spoil(r *rand.Rand, c *nodeCache, used uint64) {
	if len(c.all) == 0 {
		return
	}
	nd := c.all[r.IntN(len(c.all))]
	i := r.IntN(len(nd.Children))
	switch r.IntN(5) {
	case 0:
		nd.Children[i] = r.Uint64N(used) &^ 63
	case 1:
		nd.Children[i] = c.all[r.IntN(len(c.all))].addr
	case 2:
		other := c.all[r.IntN(len(c.all))]
		nd.Children[i] = other.Children[r.IntN(len(other.Children))]
	case 3:
		nd.Lows[i] = r.Uint64N(20000)
	case 4:
		nd.High, nd.Bounded = r.Uint64N(20000), r.IntN(2) == 0
	}
}

// TestNoInnerNodes: a client that is to cache inner nodes, of a server that does not publish
// them, gets an error that says so, and its lookups go to the server.
func TestNoInnerNodes(t *testing.T) {
	g := newRig(t, learned.Options{RowWords: 1}, Options{}, inproc.Options{}, false)
	g.put(1, 1)
	c := New(g.s.Root(), g.key, Options{InOrder: g.conn.InOrder(), Cache: Cache{Budget: Tree}})
	if err := c.Maintain(t.Context(), g.conn); !errors.Is(err, ErrNoInner) {
		t.Fatalf("Maintain: %v, want %v", err, ErrNoInner)
	}
	d := &driver{conn: g.conn}
	get := c.NewGet()
	get.Start(index.Num(1))
	d.bounded(t, get)
	if s := get.Result().Status; s != index.Fallback {
		t.Errorf("a lookup ends as %v, want %v", s, index.Fallback)
	}
}
