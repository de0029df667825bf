package read

import (
	"context"
	"math/rand/v2"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// pastKinds are the places of rows.
var pastKinds = map[string]learned.Options{
	"inline": {RowWords: 3, SlotsPerLeaf: 8}, "apart": {RowWords: 3, SlotsPerLeaf: 8, Inline: learned.No},
	"strings": {RowWords: 40, SlotsPerLeaf: 8, Strings: true},
}

// newPastRig is a rig that keeps versions from tick 1 on.
func newPastRig(tb testing.TB, o learned.Options) *rig {
	g := newRig(tb, o, Options{}, inproc.Options{}, false)
	if o.Strings {
		g.text = func(k uint64) string { return string(index.AppendNum(nil, k)) }
	}
	g.a.History().Keep(1000, 1<<30, 1)
	return g
}

func (g *rig) putAt(key, v uint64, at clock.Tick) {
	g.tb.Helper()
	h, err := g.s.LockWrite(1, g.at(key), 0)
	if err != nil {
		g.tb.Fatal(err)
	}
	row := g.row(key, v)
	if err := g.s.Reserve(h, len(row)); err != nil {
		g.tb.Fatal(err)
	}
	g.a.CoverCSN(block.NewCSN(at, 0))
	g.s.Publish(h, row, block.Present(g.a.CSNAt(at)))
}

func (g *rig) delAt(key uint64, at clock.Tick) {
	g.tb.Helper()
	h, err := g.s.LockWrite(1, g.at(key), 0)
	if err != nil {
		g.tb.Fatal(err)
	}
	g.a.CoverCSN(block.NewCSN(at, 0))
	g.s.PublishDelete(h, block.Absent(g.a.CSNAt(at)))
}

// TestLateReadOfARow deletes a key, and inserts it again, in the tick of its last
// write, after a reader of the past has READ the leaf and before it READs the
// row's block: the row of its tick is still found.
func TestLateReadOfARow(t *testing.T) {
	for name, o := range pastKinds {
		t.Run(name, func(t *testing.T) {
			g := newPastRig(t, o)
			for k := range uint64(5) {
				g.putAt(k, 7, 2)
			}
			g.train()
			g.refresh()
			g.putAt(3, 8, 4)
			op := g.c.NewGet().(*getOp)
			op.StartAt(g.at(3), 3)
			var b [2]rdma.Batch
			done, next := &b[0], &b[1]
			for late := false; !op.Next(done, next); done, next = next, done {
				if op.state == getRows && !late {
					late = true
					g.delAt(3, 4)
					g.putAt(3, 9, 4)
				}
				if err := rdma.Do(context.Background(), g.conn, next); err != nil {
					t.Fatal(err)
				}
				done.Reset()
			}
			if r := op.Result(); r.Status != index.Found || r.Row[1] != 7 || r.Header.CSN().Tick() != 2 {
				t.Errorf("%v, row %v of %v", r.Status, r.Row, r.Header)
			}
		})
	}
}

// fillPast makes a past of 600 keys: of each third one is updated, and one deleted,
// at ticks up to 6.
func fillPast(g *rig, r *rand.Rand) {
	for k := range uint64(600) {
		g.putAt(k, 1, 2)
	}
	for at := clock.Tick(3); at <= 6; at++ {
		for range 300 {
			switch k := r.Uint64N(600); k % 3 {
			case 0:
				g.putAt(k, uint64(at), at)
			case 1:
				g.delAt(k, at)
				if r.IntN(2) == 0 {
					g.putAt(k, uint64(at), at)
				}
			}
		}
	}
	g.train()
	g.refresh()
}

// TestPastDoesNotAllocate: lookups and scans of the past use their memory again.
func TestPastDoesNotAllocate(t *testing.T) {
	for name, o := range pastKinds {
		t.Run(name, func(t *testing.T) {
			g := newPastRig(t, o)
			fillPast(g, rand.New(rand.NewPCG(1, 2)))
			d := driver{conn: g.conn}
			get, scan := g.c.NewGet(), g.c.NewScan()
			keys := make([]index.Key, 60)
			for i := range keys {
				keys[i] = g.at(uint64(i) * 10)
			}
			asks := func() {
				for i, k := range keys[:50] {
					at := clock.Tick(2 + i%5)
					get.StartAt(k, at)
					d.run(get)
					scan.StartAt(k, keys[i+5], 20, at)
					d.run(scan)
					if g, s := get.Result().Status, scan.Result().Status; g != index.Found && g != index.NotFound || s != index.Found {
						t.Fatalf("%v, %v", g, s)
					}
				}
			}
			asks()
			if n := testing.AllocsPerRun(20, asks); n != 0 {
				t.Errorf("%v allocations", n)
			}
		})
	}
}

// TestHostilePast overwrites published memory at random while a client asks for
// the past: no panic and no endless operation.
func TestHostilePast(t *testing.T) {
	seed := indextest.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	rounds := 12
	if testing.Short() {
		rounds = 4
	}
	for range rounds {
		for _, o := range pastKinds {
			g := newPastRig(t, o)
			fillPast(g, r)
			d := driver{conn: g.conn}
			get, scan := g.c.NewGet(), g.c.NewScan()
			words := int(g.a.Used() / mem.WordBytes)
			for range 100 {
				for range r.IntN(60) {
					s := g.a.Span(uint64(512+r.IntN(words-512))*mem.WordBytes, 1)
					v := s.Load(0)
					switch r.IntN(4) {
					case 0:
						v = r.Uint64()
					case 1:
						v ^= 1 << r.IntN(64)
					case 2:
						v = g.a.Span(uint64(512+r.IntN(words-512))*mem.WordBytes, 1).Load(0)
					case 3:
						v += uint64(r.IntN(5)) - 2
					}
					s.Store(0, v)
				}
				at := clock.Tick(1 + r.IntN(6))
				get.StartAt(g.at(r.Uint64N(600)), at)
				d.bounded(t, get)
				lo := r.Uint64N(600)
				scan.StartAt(g.at(lo), g.at(lo+r.Uint64N(300)), r.IntN(50), at)
				d.bounded(t, scan)
			}
		}
	}
}

// TestTornRowOfThePast: a lock alone does not keep a reader of the past from a
// row, and a change of it between the first word and the last does.
func TestTornRowOfThePast(t *testing.T) {
	old, fresh := block.Present(block.NewCSN(2, 1)), block.Present(block.NewCSN(4, 1))
	for _, c := range []struct {
		first, last block.Header
		want        rowVerdict
	}{
		{old, old, rowPast},
		{old.Lock(), old.Lock(), rowPast},
		{old, old.Lock(), rowPast},
		{old.Lock(), fresh.Lock(), rowTorn},
		{old, fresh, rowTorn},
	} {
		wr := rdma.WR{Status: rdma.StatusOK, Buf: []uint64{uint64(c.first), 0, 1, 2, 0, 3, 4, 5}, Tail: uint64(c.last)}
		if got := judgePast(&wr, true); got != c.want {
			t.Errorf("header %v before the body and %v after it: %v, want %v, torn or not", c.first, c.last, got, c.want)
		}
	}
}
