package read

import (
	"errors"
	"fmt"
	"testing"

	"drtmx/index"
	"drtmx/index/learned"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// between is a connection of which a round, the one that turn counts down to,
// has something happen first, and another one gap rounds later.
type between struct {
	rdma.Conn
	turn, gap int
	happen    func() error
}

func (b *between) Post(batch *rdma.Batch) error {
	if b.turn--; b.turn == 0 || b.turn == -b.gap {
		if err := b.happen(); err != nil {
			return err
		}
	}
	return b.Conn.Post(batch)
}

// TestModelsChangeWhileTheyAreRead: whatever round of a load or a refresh it is that
// the server trains models before, or that fails, the client ends up with all
// models after the next rounds.
func TestModelsChangeWhileTheyAreRead(t *testing.T) {
	lost := errors.New("lost")
	for kind := range 32 {
		loaded, fails, gap, more := kind&1 > 0, kind&2 > 0, kind>>3, uint64(8) // in the same generation
		if kind&4 > 0 {
			more = 200
		}
		for turn, last := 1, false; !last; turn++ {
			g := newRig(t, learned.Options{RowWords: 2, SlotsPerLeaf: 8, LeavesPerSubModel: 16}, Options{}, inproc.Options{}, false)
			n := uint64(0)
			grow := func(rows uint64) {
				for range rows {
					g.put(n*7919%10_000, n)
					n++
				}
				g.train()
			}
			grow(200)
			scan, d := g.c.NewScan(), driver{conn: g.conn}
			all := func() {
				scan.Start(g.at(0), g.at(10_000), 1<<20)
				d.run(scan)
				if res := scan.Result(); res.Status == index.Found && uint64(len(res.Entries)) != n {
					t.Fatalf("%d rows, want %d", len(res.Entries), n)
				}
			}
			if loaded {
				g.refresh()
				grow(more)
				all() // finds out
			}
			c := &between{Conn: g.conn, turn: turn, gap: gap, happen: func() error {
				if fails {
					return lost
				}
				grow(more)
				return nil
			}}
			for range 3 {
				if err := g.c.Maintain(t.Context(), c); err != nil && !errors.Is(err, lost) {
					t.Fatal(err)
				}
			}
			last = c.turn > 0
			for range 8 {
				all()
				g.refresh()
			}
			fresh := New(g.s.Root(), g.key, Options{InOrder: g.conn.InOrder()})
			if err := fresh.Maintain(t.Context(), g.conn); err != nil {
				t.Fatal(err)
			}
			has, want := g.c.cur.Load(), fresh.cur.Load()
			what := fmt.Sprintf("loaded %v, fails %v, %d rows before round %d, gap %d", loaded, fails, more, turn, gap)
			if has.root.Number != want.root.Number {
				t.Fatalf("%s: generation %d, want %d", what, has.root.Number, want.root.Number)
			}
			for i := range has.held {
				if held := has.held[i].Load(); held == nil || has.subs[i].stale.Load() {
					t.Errorf("%s: sub-model %d is held: %v, and stale for good: %v", what, i, held != nil, has.subs[i].stale.Load())
				}
			}
		}
	}
}
