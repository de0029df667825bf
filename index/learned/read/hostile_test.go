package read

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// bounded runs an operation and counts its rounds.
func (d *driver) bounded(t testing.TB, op index.Op) {
	t.Helper()
	const most = 512
	done, next := &d.b[0], &d.b[1]
	done.Reset()
	for range most {
		next.Reset()
		if op.Next(done, next) {
			return
		}
		if next.Len() == 0 || next.Len() > rdma.MaxBatch {
			t.Fatalf("a round of %d work requests", next.Len())
		}
		_ = rdma.Do(context.Background(), d.conn, next)
		done, next = next, done
	}
	t.Fatalf("not over after %d rounds", most)
}

// garbage is a sub-model that begins at start and is wrong everywhere else.
func garbage(tb testing.TB, r *rand.Rand, start uint64) *heldSub {
	tr, err := model.NewTrainer(model.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	fences := []uint64{start}
	for range r.IntN(50) {
		fences = append(fences, start+1+r.Uint64N(^start))
	}
	slices.Sort(fences)
	tr.Begin(start)
	for i, f := range slices.Compact(fences) {
		aln := r.Uint32N(200)
		if r.IntN(4) == 0 {
			aln = r.Uint32()
		}
		_ = i
		tr.Add(f, aln, nil)
	}
	h := &heldSub{header: r.Uint64() >> 2, addr: r.Uint64N(1<<20) &^ 63, high: ^uint32(0)}
	if _, err := tr.Train(&h.model, 1); err != nil {
		tb.Fatal(err)
	}
	return h
}

// TestWrongModels gives the client models that are wrong: every answer is right
// or a fallback, within bounds, and Maintain mends the cache.
func TestWrongModels(t *testing.T) {
	seed := indextest.Seed(t)
	r := rand.New(rand.NewPCG(seed, 1))
	for _, inline := range []learned.Inline{learned.Yes, learned.No} {
		for _, budget := range []Budget{Full, ModelsOnly, RouterOnly, Decoded} {
			g := newRig(t, learned.Options{RowWords: 2, Inline: inline, SlotsPerLeaf: 5, LeavesPerSubModel: 40}, Options{Cache: Cache{Budget: budget}}, inproc.Options{}, false)
			const n = 3000
			for _, k := range r.Perm(n) {
				g.put(uint64(k)*3, uint64(k))
			}
			g.train()
			g.refresh()
			d := driver{conn: g.conn}
			get, scan := g.c.NewGet(), g.c.NewScan()
			answered := 0
			for round := range 300 {
				h := g.c.cur.Load()
				for i := range h.subs {
					switch r.IntN(4) {
					case 0:
						h.held[i].Store(garbage(t, r, h.Start(i).Num))
					case 1:
						h.subs[i].pointer.Store(r.Uint64())
						h.held[i].Store(nil)
					case 2:
						if held := h.held[i].Load(); held != nil {
							low := r.Uint64N(3 * n)
							held.patch.Store(&patch{before: listOf([]*patchLeaf{{index.Num(low), index.Num(low + 1 + r.Uint64N(100)), true, uint64(r.IntN(1 << 18)), r.IntN(40), r.Uint64(), r.IntN(2) == 0}})})
						}
					}
				}
				for range 30 {
					k := r.Uint64N(3 * n)
					get.Start(index.Num(k))
					d.bounded(t, get)
					switch res := get.Result(); res.Status {
					case index.Found:
						if answered++; k%3 != 0 || res.Row[0] != k || res.Row[1] != k/3 {
							t.Fatalf("key %d: %+v", k, res)
						}
					case index.NotFound:
						if answered++; k%3 == 0 {
							t.Fatalf("key %d is reported absent", k)
						}
					case index.Fallback:
					default:
						t.Fatalf("key %d: %+v", k, res)
					}
					scan.Start(index.Num(k), index.Num(k+300), 40)
					d.bounded(t, scan)
					res := scan.Result()
					if res.Status == index.Fallback {
						continue
					}
					if answered++; res.Status != index.Found {
						t.Fatalf("scan %d: %v %v", k, res.Status, res.Err)
					}
					for i, e := range res.Entries {
						if e.Key.Num != (k+2)/3*3+uint64(i)*3 {
							t.Fatalf("scan %d: entry %d is %d", k, i, e.Key.Num)
						}
					}
				}
				if round%10 == 9 {
					g.refresh()
				}
			}
			if answered == 0 {
				t.Error("all fell back")
			}
		}
	}
}

// TestHostileMemory overwrites published memory at random while a client uses
// it: no panic, no endless operation, and errors are typed.
func TestHostileMemory(t *testing.T) {
	seed := indextest.Seed(t)
	r := rand.New(rand.NewPCG(seed, 2))
	rounds := 60
	if testing.Short() {
		rounds = 15
	}
	for range rounds {
		inline := learned.Inline(1 + r.IntN(2))
		budget := Budget(r.IntN(int(budgets)))
		g := newRig(t, learned.Options{RowWords: 1 + r.IntN(4), Inline: inline, SlotsPerLeaf: 4 + r.IntN(6), LeavesPerSubModel: 4 + r.IntN(20)},
			Options{Cache: Cache{Budget: budget, TTBytes: 100}}, inproc.Options{}, false)
		for k := range uint64(600) {
			g.put(k*5, k)
		}
		g.train()
		if r.IntN(3) > 0 {
			g.refresh()
		}
		d := driver{conn: g.conn}
		get, scan := g.c.NewGet(), g.c.NewScan()
		words := int(g.a.Used() / mem.WordBytes)
		for range 100 {
			for range r.IntN(60) {
				at := uint64(512+r.IntN(words-512)) * mem.WordBytes
				s := g.a.Span(at, 1)
				v := s.Load(0)
				switch r.IntN(5) {
				case 0:
					v = r.Uint64()
				case 1:
					v ^= 1 << r.IntN(64)
				case 2:
					v = g.a.Span(uint64(512+r.IntN(words-512))*mem.WordBytes, 1).Load(0)
				case 3:
					v += uint64(r.IntN(5)) - 2
				case 4:
					v &^= uint64(leaf.Free)
				}
				s.Store(0, v)
			}
			get.Start(index.Num(r.Uint64N(3000)))
			d.bounded(t, get)
			lo := r.Uint64N(3000)
			scan.Start(index.Num(lo), index.Num(lo+r.Uint64N(1000)), r.IntN(50))
			d.bounded(t, scan)
			if r.IntN(4) == 0 {
				g.c.doubtful.Store(r.IntN(2) == 0)
				if err := g.c.Maintain(context.Background(), g.conn); err != nil &&
					!errors.Is(err, index.ErrCorrupt) {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestBackFromPatch goes left from a leaf that a patch named, with no entries
// of the TT at hand: the first lookup of an operation must not count on them.
func TestBackFromPatch(t *testing.T) {
	g := newRig(t, learned.Options{RowWords: 1, SlotsPerLeaf: 4}, Options{Cache: Cache{Budget: ModelsOnly}}, inproc.Options{}, false)
	for _, k := range rand.New(rand.NewPCG(1, 1)).Perm(400) {
		g.put(uint64(k), uint64(k))
	}
	g.train()
	g.refresh()
	h := g.c.cur.Load()
	for i := range h.held {
		h.held[i].Load().patch.Store(&patch{before: listOf([]*patchLeaf{{high: index.Num(400), bounded: true, addr: g.s.Descend(index.Num(399))}})})
	}
	d := driver{conn: g.conn}
	for k := range uint64(400) {
		get, scan := g.c.NewGet(), g.c.NewScan()
		get.Start(index.Num(k))
		d.bounded(t, get)
		scan.Start(index.Num(k), index.Num(k+5), 0)
		d.bounded(t, scan)
		if res := get.Result(); res.Status != index.Found || res.Row[0] != k {
			t.Fatalf("key %d: %+v", k, res)
		}
		if res := scan.Result(); res.Status != index.Found || uint64(len(res.Entries)) != min(6, 400-k) {
			t.Fatalf("scan %d: %v, %d rows", k, res.Status, len(res.Entries))
		}
	}
}
