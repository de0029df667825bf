package learned

import (
	"context"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// rig is a server, a fabric and a client.
type rig struct {
	tb   testing.TB
	net  *inproc.Network
	r    *mem.Region
	a    *block.Arena
	s    *Server
	key  rdma.RKey
	ep   rdma.Endpoint
	conn rdma.Conn
	c    *Client
	now  time.Duration
	csn  uint64
}

func newRig(tb testing.TB, o Options, co ClientOptions, net inproc.Options, checksums bool) *rig {
	tb.Helper()
	r, err := mem.New(mem.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	g := &rig{tb: tb, r: r, a: block.NewArena(r, block.ArenaOptions{Checksums: checksums, Epoch: 1}), net: inproc.New(net)}
	if g.s, err = NewServer(g.a, o); err != nil {
		tb.Fatal(err)
	}
	if g.ep, err = g.net.Listen("s", rdma.ListenOptions{}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { g.ep.Close() })
	if g.key, err = g.ep.Register(r, rdma.AccessRead); err != nil {
		tb.Fatal(err)
	}
	if err := g.ep.Serve(func(q *rdma.Request) { _ = q.Reply(nil) }); err != nil {
		tb.Fatal(err)
	}
	g.conn = g.dial()
	co.InOrder = g.conn.InOrder()
	g.c = NewClient(g.s.Root(), g.key, co)
	return g
}

func (g *rig) dial() rdma.Conn {
	g.tb.Helper()
	c, err := g.net.Dial(context.Background(), "s")
	if err != nil {
		g.tb.Fatal(err)
	}
	g.tb.Cleanup(func() { c.Close() })
	return c
}

func (g *rig) nextCSN() block.CSN {
	g.csn++
	return block.NewCSN(1, g.csn)
}

func (g *rig) row(key, v uint64) []uint64 {
	row := make([]uint64, g.s.Layout().RowWords)
	for i := range row {
		row[i] = v
	}
	row[0] = key
	return row
}

func (g *rig) put(key, v uint64) {
	g.tb.Helper()
	h, err := g.s.LockWrite(1, key, 0)
	if err != nil {
		g.tb.Fatal(err)
	}
	g.s.Publish(h, g.row(key, v), block.Present(g.nextCSN()))
}

func (g *rig) del(key uint64) {
	g.tb.Helper()
	h, err := g.s.LockWrite(1, key, 0)
	if err != nil {
		g.tb.Fatal(err)
	}
	g.s.PublishDelete(h, block.Absent(g.nextCSN()))
}

// train runs Maintain until there is nothing to do.
func (g *rig) train() {
	for i := 0; ; i++ {
		g.now += 10 * time.Millisecond
		if !g.s.Maintain(g.now, nil) && !g.s.Maintain(g.now, nil) {
			return
		}
		if i > 1<<20 {
			g.tb.Fatal("Maintain never ends")
		}
	}
}

func (g *rig) refresh() {
	g.tb.Helper()
	for range 4 {
		if err := g.c.Maintain(context.Background(), g.conn); err != nil {
			g.tb.Fatal(err)
		}
	}
}

// drive runs one operation over a connection.
type driver struct {
	conn rdma.Conn
	b    [2]rdma.Batch
}

func (d *driver) run(op index.Op) {
	done, next := &d.b[0], &d.b[1]
	done.Reset()
	for {
		next.Reset()
		if op.Next(done, next) {
			return
		}
		_ = rdma.Do(context.Background(), d.conn, next)
		done, next = next, done
	}
}

func TestFirstSlice(t *testing.T) {
	for _, inline := range []Inline{Yes, No} {
		for _, sums := range []bool{false, true} {
			var faults inproc.Faults
			if sums {
				faults.Scramble = 0.5
			}
			for budget := Full; budget <= RouterOnly; budget++ {
				g := newRig(t, Options{RowWords: 3, Inline: inline, LeavesPerSubModel: 64}, ClientOptions{Budget: budget, TTBytes: 500}, inproc.Options{Faults: faults, Seed: 1}, sums)
				const n = 50000
				for k := uint64(0); k < n; k++ {
					if err := g.s.Load(k*7+k%5, g.row(k*7+k%5, k), block.Present(1)); err != nil {
						t.Fatal(err)
					}
				}
				g.train()
				g.refresh()
				d := driver{conn: g.conn}
				get, scan := g.c.NewGet(), g.c.NewScan()
				for k := uint64(0); k < n; k += 13 {
					get.Start(k*7 + k%5)
					d.run(get)
					if r := get.Result(); r.Status != index.Found || r.Row[1] != k {
						t.Fatalf("key %d: %+v", k, r)
					}
					get.Start(k*7 + k%5 + 1)
					d.run(get)
					if r := get.Result(); r.Status != index.NotFound {
						t.Fatalf("key %d: %+v", k, r)
					}
				}
				s0 := g.c.Stats()
				for k := uint64(0); k+200 < n; k += 991 {
					scan.Start(k*7, ^uint64(0), 100)
					d.run(scan)
					r := scan.Result()
					if r.Status != index.Found || len(r.Entries) != 100 || !r.More {
						t.Fatalf("scan %d: %v %d %v", k, r.Status, len(r.Entries), r.More)
					}
					for i, e := range r.Entries {
						kk := k + uint64(i)
						if e.Key != kk*7+kk%5 || e.Row[1] != kk {
							t.Fatalf("scan %d: entry %d %+v", k, i, e)
						}
					}
				}
				s1 := g.c.Stats()
				t.Logf("%v %v %v: get %+v; scans: rounds %d reads %d of %d; server %+v", inline, sums, budget, s0,
					s1.Rounds-s0.Rounds, s1.Reads-s0.Reads, s1.Lookups-s0.Lookups, g.s.Stats())
				if err := g.s.Check(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}
