package read

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned"
	"drtmx/index/learned/model"
	"drtmx/internal/mem"
	"drtmx/rdma/inproc"
)

// tailRig is an index whose upper end is hot: it has split too often between two
// trainings. Rows have the keys of 0 to n-1.
func tailRig(t *testing.T, o learned.Options, co Options) (g *rig, n uint64) {
	g = newTailedRig(t, o, co, 1000)
	g.train()
	for n = 1000; n < 1400; n++ {
		g.put(n, n)
	}
	g.train()
	g.refresh()
	return g, n
}

// newTailedRig is an index that is not trained, whose rows have the keys of 0 to n-1.
func newTailedRig(t *testing.T, o learned.Options, co Options, n uint64) *rig {
	g := newRig(t, o, co, inproc.Options{}, false)
	if o.Strings {
		g.text = func(k uint64) string { return strings.Repeat("user", 20) + fmt.Sprintf("%08d", k) }
	}
	for k := range n {
		g.put(k, k)
	}
	return g
}

// eachTail runs f for both kinds of key.
func eachTail(t *testing.T, f func(t *testing.T, o learned.Options)) {
	for name, o := range map[string]learned.Options{
		"inline": {RowWords: 2, SlotsPerLeaf: 8, LeavesPerSubModel: 64}, "apart": {RowWords: 2, SlotsPerLeaf: 8, LeavesPerSubModel: 64, Inline: learned.No},
		"strings": {RowWords: 40, SlotsPerLeaf: 8, LeavesPerSubModel: 64, Strings: true},
	} {
		t.Run(name, func(t *testing.T) { f(t, o) })
	}
}

// TestTailListLeadsToFreshRows: a client finds rows in leaves that are newer than
// its models by far, with one right link for all of them.
func TestTailListLeadsToFreshRows(t *testing.T) {
	eachTail(t, func(t *testing.T, o learned.Options) {
		for budget := Full; budget <= ModelsOnly; budget++ {
			g, n := tailRig(t, o, Options{Cache: Cache{Budget: budget, TTBytes: 1 << 20}})
			d, get, scan := driver{conn: g.conn}, g.c.NewGet(), g.c.NewScan()
			fresh := n
			for ; n < fresh+230; n++ { // some 30 to 60 leaves
				g.put(n, n)
			}
			before := g.c.Stats()
			for _, k := range []uint64{n - 1, fresh + 100, fresh + 57} {
				get.Start(g.at(k))
				d.run(get)
				if res := get.Result(); res.Status != index.Found || res.Row[1] != k {
					t.Fatalf("budget %d: key %d: %v %v", budget, k, res.Status, res.Row)
				}
			}
			s := g.c.Stats()
			if chases := s.Chases - before.Chases; chases == 0 || chases > 3 || s.Fallbacks > 0 {
				t.Errorf("budget %d: %d right links, %d fallbacks for three rows of the fresh leaves", budget, chases, s.Fallbacks)
			}
			before = s
			scan.Start(g.at(fresh-5), g.at(n+5), 0)
			d.run(scan)
			if res := scan.Result(); res.Status != index.Found || uint64(len(res.Entries)) != n-fresh+5 {
				t.Fatalf("budget %d: %v, %d rows", budget, res.Status, len(res.Entries))
			}
			s = g.c.Stats()
			most := uint64(3) // leaves, in rounds of up to 32
			if o.Strings || o.Inline == learned.No {
				most++
			}
			if budget != Full {
				most += 2
			}
			if rounds := s.Rounds - before.Rounds; budget != ModelsOnly && rounds > most {
				t.Errorf("budget %d: a scan of fresh rows took %d rounds, %d READs, %d right links", budget, rounds, s.Reads-before.Reads, s.Chases-before.Chases)
			}
		}
	})
}

// TestTailListsAreOfHotSubModels: where leaves rarely split there is no list, and a
// reader that follows no right link READs what it would without.
func TestTailListsAreOfHotSubModels(t *testing.T) {
	g, n := tailRig(t, learned.Options{RowWords: 2, SlotsPerLeaf: 8, LeavesPerSubModel: 16}, Options{})
	h, lists := g.c.cur.Load(), 0
	for i := range h.held {
		if h.held[i].Load().tail != nil {
			lists++
		}
	}
	if lists == 0 || lists > len(h.held)/2 {
		t.Errorf("%d of %d sub-models have a tail list", lists, len(h.held))
	}
	d, get := driver{conn: g.conn}, g.c.NewGet()
	before := g.c.Stats()
	for k := range n {
		get.Start(g.at(k))
		d.run(get)
	}
	s := g.c.Stats()
	if reads := s.Reads - before.Reads; s.Chases == before.Chases && get.(*getOp).news != nil || reads > n+n/20 {
		t.Errorf("%d READs and %d right links for %d rows that the models know", reads, s.Chases-before.Chases, n)
	}
}

// TestTailListsOutliveTheirGeneration: a client that does not know yet of a new generation
// learns of new leaves from the lists of the old one.
func TestTailListsOutliveTheirGeneration(t *testing.T) {
	eachTail(t, func(t *testing.T, o learned.Options) {
		g, n := tailRig(t, o, Options{})
		d, get, scan := driver{conn: g.conn}, g.c.NewGet(), g.c.NewScan()
		for old := g.s.Stats().Generations; g.s.Stats().Generations == old; {
			for range 50 {
				g.put(n, n)
				n++
			}
			g.train()
		}
		for range 3 { // each round splits some 30 to 60 leaves
			fresh := n
			for ; n < fresh+230; n++ {
				g.put(n, n)
			}
			before := g.c.Stats()
			get.Start(g.at(n - 1))
			d.run(get)
			if res := get.Result(); res.Status != index.Found || res.Row[1] != n-1 {
				t.Fatalf("key %d: %v %v", n-1, res.Status, res.Row)
			}
			scan.Start(g.at(n-20), g.at(n+5), 0)
			d.run(scan)
			if res := scan.Result(); res.Status != index.Found || len(res.Entries) != 20 {
				t.Fatalf("%v, %d rows", res.Status, len(res.Entries))
			}
			if s := g.c.Stats(); s.Fallbacks > before.Fallbacks || s.Chases > before.Chases+3 {
				t.Errorf("%d right links, %d fallbacks", s.Chases-before.Chases, s.Fallbacks-before.Fallbacks)
			}
		}
	})
}

// TestHotSubModelsGetListsAtOnce: a sub-model that has become hot gets its tail list before
// it is trained again, which may take long. The leaves that a client had found by right
// links before stay known.
func TestHotSubModelsGetListsAtOnce(t *testing.T) {
	eachTail(t, func(t *testing.T, o learned.Options) {
		o.RetrainInterval = time.Hour
		g := newTailedRig(t, o, Options{}, 1000)
		g.train()
		g.refresh()
		d, get := driver{conn: g.conn}, g.c.NewGet()
		find := func(k uint64) (chases uint64) {
			t.Helper()
			before := g.c.Stats()
			get.Start(g.at(k))
			d.run(get)
			if res := get.Result(); res.Status != index.Found || res.Row[1] != k {
				t.Fatalf("key %d: %v %v", k, res.Status, res.Row)
			}
			return g.c.Stats().Chases - before.Chases
		}
		n := uint64(1000)
		more := func(rows uint64) {
			for end := n + rows; n < end; n++ {
				g.put(n, n)
			}
		}
		more(90) // 12 leaves or more
		if find(n-1) == 0 {
			t.Error("the models know leaves that were split off after the training")
		}
		more(90)
		before := g.s.Stats()
		for range 10 {
			g.s.MaintainLazily(g.now, nil)
		}
		if s := g.s.Stats(); s.Retrains > before.Retrains || s.Generations > before.Generations {
			t.Fatalf("%d sub-models trained again, %d generations", s.Retrains-before.Retrains, s.Generations-before.Generations)
		}
		g.refresh()
		if chases := find(1089); chases > 1 {
			t.Errorf("%d right links to a leaf that was known", chases)
		}
		more(230)
		if chases := find(n - 1); chases > 3 {
			t.Errorf("%d right links to a leaf in the tail list", chases)
		}
	})
}

// TestLongChainsTakeFewRounds: a client whose models lack dozens of leaves, and that has no
// tail list, READs several leaves of ascending keys in a round. The keys rise at the end of
// the index, or in the middle of a sub-model.
func TestLongChainsTakeFewRounds(t *testing.T) {
	for _, end := range []bool{true, false} {
		g := newRig(t, learned.Options{RowWords: 2, SlotsPerLeaf: 8, LeavesPerSubModel: 1024}, Options{}, inproc.Options{}, false)
		n := uint64(0)
		for ; n < 1000; n++ {
			g.put(n, n)
			if !end {
				g.put(1<<40+n, n)
			}
		}
		g.train()
		g.refresh()
		for ; n < 1400; n++ { // 50 leaves
			g.put(n, n)
		}
		d, scan := driver{conn: g.conn}, g.c.NewScan()
		before := g.c.Stats()
		scan.Start(g.at(n-5), g.at(n+5), 3)
		d.run(scan)
		if res := scan.Result(); res.Status != index.Found || len(res.Entries) != 3 {
			t.Fatalf("%v, %d rows", res.Status, len(res.Entries))
		}
		s := g.c.Stats()
		if links, rounds := s.Chases-before.Chases, s.Rounds-before.Rounds; links < 40 || rounds > 12 {
			t.Errorf("%d rounds for %d right links", rounds, links)
		}
		t.Logf("%d rounds, %d READs, %d right links", s.Rounds-before.Rounds, s.Reads-before.Reads, s.Chases-before.Chases)
	}
}

// TestTailListIsAHint forges entries of tail lists, with checks that fit: of other
// leaves, of dead ones, of addresses without a leaf. Entries are torn, too. Every
// answer is right or a fallback, and every operation ends.
func TestTailListIsAHint(t *testing.T) {
	eachTail(t, func(t *testing.T, o learned.Options) {
		r := rand.New(rand.NewPCG(indextest.Seed(t), 3))
		forged, answered := 0, 0
		for range 4 {
			g, n := tailRig(t, o, Options{Cache: Cache{Budget: Budget(r.IntN(3)), TTBytes: 1 << 20}})
			for k := uint64(300); k < 700; k++ { // leaves die
				if k%8 != 0 {
					g.del(k)
				}
			}
			for g.s.Tidy(1 << 20) {
			}
			d, get, scan := driver{conn: g.conn}, g.c.NewGet(), g.c.NewScan()
			for range 60 {
				for range 10 {
					g.put(n, n)
					n++
				}
				forged += forge(g, r, n)
				for range 20 {
					k := r.Uint64N(n + 3)
					if r.IntN(2) == 0 {
						k = n + 2 - min(n+2, r.Uint64N(60))
					}
					there := k < n && (k < 300 || k >= 700 || k%8 == 0)
					get.Start(g.at(k))
					d.bounded(t, get)
					if res := get.Result(); res.Status != index.Fallback {
						if answered++; res.Status != index.Found && res.Status != index.NotFound || (res.Status == index.Found) != there || there && res.Row[1] != k {
							t.Fatalf("key %d is there: %v, and said to be %v %v", k, there, res.Status, res.Row)
						}
					}
					lo := max(k, 700)
					scan.Start(g.at(lo), g.at(lo+50), 30)
					d.bounded(t, scan)
					if res := scan.Result(); res.Status != index.Fallback {
						if answered++; res.Status != index.Found || uint64(len(res.Entries)) != min(30, n-min(n, lo)) {
							t.Fatalf("scan from %d of %d: %v, %d rows", lo, n, res.Status, len(res.Entries))
						}
					}
				}
				if r.IntN(10) == 0 {
					g.train()
					g.refresh()
				}
			}
		}
		if forged == 0 || answered == 0 {
			t.Errorf("%d entries forged, %d answers", forged, answered)
		}
	})
}

// forge writes entries into the tail lists that the client knows, where it READs next.
func forge(g *rig, r *rand.Rand, n uint64) (forged int) {
	h := g.c.cur.Load()
	for i := range h.held {
		held := h.held[i].Load()
		if held == nil || held.tail == nil {
			continue
		}
		number := held.tail.next.Load()
		for range 1 + r.IntN(4) {
			low := r.Uint64N(n)
			e := model.TailEntry{Low: g.at(low), High: g.at(low + 1 + r.Uint64N(100)), Bounded: r.IntN(3) > 0, Rising: r.IntN(2) == 0}
			switch r.IntN(4) {
			case 0:
				e.Leaf = g.s.Descend(g.at(r.Uint64N(n)))
			case 1:
				e.Leaf = r.Uint64N(g.a.Used()) &^ (mem.LineBytes - 1)
			case 2:
				e.Leaf = r.Uint64() >> 16 &^ (mem.LineBytes - 1)
			default:
				e.Leaf = h.root.Layout.LeafAddr(held.low + r.Uint32N(held.high-held.low+1))
			}
			words, ok := h.root.AppendTailEntry(nil, held.tail.addr, number, held.prefix, &e)
			if !ok {
				continue
			}
			if r.IntN(8) == 0 {
				words[r.IntN(len(words))] = r.Uint64()
			}
			g.a.Span(h.root.TailSlot(held.tail.addr, number), len(words)).CopyIn(words)
			number += 1 + uint64(r.IntN(2))*h.root.TailEntries()
			forged++
		}
	}
	return forged
}
