package read

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/keysets"
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
	s    *learned.Server
	key  rdma.RKey
	ep   rdma.Endpoint
	conn rdma.Conn
	c    *Client
	now  time.Duration
	csn  uint64
	text func(k uint64) string // the string key of a number, if keys are strings
}

// at is the key of number k.
func (g *rig) at(k uint64) index.Key {
	if g.text != nil {
		return index.Str(g.text(k))
	}
	return index.Num(k)
}

func newRig(tb testing.TB, o learned.Options, co Options, net inproc.Options, checksums bool) *rig {
	tb.Helper()
	r, err := mem.New(mem.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	g := &rig{tb: tb, r: r, a: block.NewArena(r, block.ArenaOptions{Checksums: checksums, Tick: 1}), net: inproc.New(net)}
	o.PublishInner = co.Budget.Inner()
	if g.s, err = learned.NewServer(g.a, o); err != nil {
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
	co.InOrder, co.Strings = g.conn.InOrder(), o.Strings
	g.c = New(g.s.Root(), g.key, co)
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
	words := 3 + int((key*7+v*11)%30)
	if g.text == nil {
		words = g.s.Layout().RowWords
	}
	row := make([]uint64, words)
	for i := range row {
		row[i] = v
	}
	row[0] = key
	return row
}

func (g *rig) put(key, v uint64) {
	g.tb.Helper()
	h, err := g.s.LockWrite(1, g.at(key), 0)
	if err != nil {
		g.tb.Fatal(err)
	}
	row := g.row(key, v)
	if err := g.s.Reserve(h, len(row)); err != nil {
		g.tb.Fatal(err)
	}
	g.s.Publish(h, row, block.Present(g.nextCSN()))
}

func (g *rig) del(key uint64) {
	g.tb.Helper()
	h, err := g.s.LockWrite(1, g.at(key), 0)
	if err != nil {
		g.tb.Fatal(err)
	}
	g.s.PublishDelete(h, block.Absent(g.nextCSN()))
}

// train runs Maintain until there is nothing to do.
func (g *rig) train() {
	for i, idle := 0, 0; idle < 2; i++ {
		g.now += 10 * time.Millisecond
		idle++
		if g.s.Maintain(g.now, nil) {
			idle = 0
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

// TestRounds counts the rounds of GETs and SCANs under every budget, on a tree
// loaded in order: 1 with everything held, 1 more without TT or sub-model, 1
// more for rows apart. A scan of 100 rows takes as many as a GET, unless it
// crosses from one sub-model to the next and has only one of their TTs.
func TestRounds(t *testing.T) {
	for _, inline := range []learned.Inline{learned.Yes, learned.No} {
		for _, scrambled := range []bool{false, true} {
			var faults inproc.Faults
			if scrambled {
				faults.Scramble = 0.5
			}
			for budget := Full; budget < PartTree; budget++ {
				t.Run(fmt.Sprintf("inline=%v/scrambled=%v/budget=%d", inline == learned.Yes, scrambled, budget), func(t *testing.T) {
					o := learned.Options{RowWords: 3, Inline: inline, LeavesPerSubModel: 64}
					countRounds(t, newRig(t, o, Options{Cache: Cache{Budget: budget, TTBytes: 500}}, inproc.Options{Faults: faults, Seed: 1}, scrambled))
				})
			}
		}
	}
}

func countRounds(t *testing.T, g *rig) {
	const n = 50000 / indextest.Scale
	key := func(i uint64) uint64 { return i*7 + i%5 }
	for i := range uint64(n) {
		if err := g.s.Load(index.Num(key(i)), g.row(key(i), i), block.Present(1)); err != nil {
			t.Fatal(err)
		}
	}
	g.train()
	g.refresh()
	d := driver{conn: g.conn}
	get, scan := g.c.NewGet(), g.c.NewScan()
	s0 := g.c.Stats()
	for i := uint64(0); i < n; i += 13 {
		get.Start(index.Num(key(i)))
		d.run(get)
		if r := get.Result(); r.Status != index.Found || r.Row[1] != i {
			t.Fatalf("key %d: %+v", key(i), r)
		}
	}
	s1 := g.c.Stats()
	for i := uint64(0); i < n; i += 13 {
		get.Start(index.Num(key(i) + 1))
		d.run(get)
		if r := get.Result(); r.Status != index.NotFound {
			t.Fatalf("key %d: %+v", key(i)+1, r)
		}
	}
	s2 := g.c.Stats()
	for i := uint64(0); i+200 < n; i += 991 {
		scan.Start(index.Num(i*7), index.Num(^uint64(0)), 100)
		d.run(scan)
		r := scan.Result()
		if r.Status != index.Found || len(r.Entries) != 100 || !r.More {
			t.Fatalf("scan %d: %v, %d rows, more %v", i*7, r.Status, len(r.Entries), r.More)
		}
		for j, e := range r.Entries {
			if k := i + uint64(j); e.Key.Num != key(k) || e.Row[1] != k {
				t.Fatalf("scan %d: entry %d is %d", i*7, j, e.Key.Num)
			}
		}
	}
	s3 := g.c.Stats()
	want := 1.0
	if b := g.c.o.Budget; b != Full && b != Decoded && b != Tree {
		want++
	}
	absent := want
	if g.s.Layout().Kind != leaf.Inline {
		want++
	}
	per := func(a, b index.ClientStats) float64 { return float64(b.Rounds-a.Rounds) / float64(b.Lookups-a.Lookups) }
	present, missing, scans := per(s0, s1), per(s1, s2), per(s2, s3)
	t.Logf("rounds: %.3f for a row, %.3f for no row, %.3f for a scan; %d chases; cache %d bytes", present, missing, scans, s3.Chases, s3.CacheBytes)
	if slack := 0.1; present > want+slack || missing > absent+slack || scans > want+2*slack {
		t.Errorf("rounds: %.3f for a row, %.3f for no row, %.3f for a scan; want %.0f, %.0f, %.0f", present, missing, scans, want, absent, want)
	}
	if err := g.s.Check(); err != nil {
		t.Fatal(err)
	}
}

// TestDeadLeavesForward: a client whose models are of before a merge finds every
// row through the dead leaves, which say where their keys went: no lookup and no
// scan falls back to the server.
func TestDeadLeavesForward(t *testing.T) {
	for name, o := range map[string]learned.Options{
		"inline": {RowWords: 1, SlotsPerLeaf: 8}, "apart": {RowWords: 1, SlotsPerLeaf: 8, Inline: learned.No},
		"strings": {RowWords: 300, SlotsPerLeaf: 8, Strings: true},
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, o, Options{}, inproc.Options{}, false)
			if o.Strings {
				g.text = func(k uint64) string { return string(index.AppendNum(nil, k)) }
			}
			const n = 800
			for k := range uint64(n) {
				g.put(k*7919%n, 1)
			}
			g.train()
			g.refresh()
			scans := *g // of a client that has to learn by itself what lookups learn
			scans.c = New(g.s.Root(), g.key, Options{InOrder: g.conn.InOrder(), Strings: o.Strings})
			scans.refresh()
			for k := range uint64(n) {
				if k%5 != 0 {
					g.del(k)
				}
			}
			for g.s.Tidy(1 << 20) {
			}
			if merges := g.s.Stats().Merges; merges < n/100 {
				t.Fatalf("%d merges", merges)
			}
			d := driver{conn: g.conn}
			get, scan := g.c.NewGet(), scans.c.NewScan()
			for k := range uint64(n) {
				get.Start(g.at(k))
				d.bounded(t, get)
				if s := get.Result().Status; s != index.Found && s != index.NotFound || (s == index.Found) != (k%5 == 0) {
					t.Fatalf("key %d: %v", k, s)
				}
			}
			for k := uint64(n); k > 0; { // no scan begins where another has been
				k--
				scan.Start(g.at(k), g.at(k+20), 3)
				d.bounded(t, scan)
				if res := scan.Result(); res.Status != index.Found || k+20 < n && len(res.Entries) != 3 {
					t.Fatalf("scan from %d: %v, %d rows", k, res.Status, len(res.Entries))
				}
			}
			for what, c := range map[string]*Client{"lookups": g.c, "scans": scans.c} {
				if s := c.Stats(); s.Chases == 0 || s.Fallbacks > 0 {
					t.Errorf("%s: %d chases, %d fallbacks", what, s.Chases, s.Fallbacks)
				}
			}
		})
	}
}

// TestDecodedTablesReadTheSame: a client with decoded translation tables READs the same
// bytes in the same rounds as one with packed ones, for rows, for no rows and for scans,
// while the models are of now and after further inserts.
func TestDecodedTablesReadTheSame(t *testing.T) {
	const n = 40000 / indextest.Scale
	var keys, later []uint64
	for i, k := range keysets.Clustered(rand.New(rand.NewPCG(indextest.Seed(t), 1)), n) {
		if i%8 == 7 {
			later = append(later, k)
		} else {
			keys = append(keys, k)
		}
	}
	for _, family := range []learned.Family{learned.RMI, learned.PLR} {
		g := grown(t, keys, learned.Options{RowWords: 2, Family: family, LeavesPerSubModel: 128}, Options{}, inproc.Options{})
		decoded := New(g.s.Root(), g.key, Options{InOrder: g.c.o.InOrder, Cache: Cache{Budget: Decoded}})
		if err := decoded.Maintain(t.Context(), g.conn); err != nil {
			t.Fatal(err)
		}
		d := driver{conn: g.conn}
		cost := func(c *Client) rdma.Counters {
			get, scan, c0 := c.NewGet(), c.NewScan(), g.conn.Counters()
			for i, k := range slices.Concat(keys, later) {
				get.Start(index.Num(k + uint64(i&1)))
				d.run(get)
				if i%16 == 0 {
					scan.Start(index.Num(k), index.Num(^uint64(0)), 40)
					d.run(scan)
				}
			}
			return g.conn.Counters().Sub(c0)
		}
		same := func(when string) {
			t.Helper()
			if got, want := cost(decoded), cost(g.c); got.Rounds != want.Rounds || got.Reads != want.Reads || got.ReadBytes != want.ReadBytes {
				t.Errorf("%v, %s: %d rounds, %d READs, %d bytes with decoded tables; %d, %d, %d without", family, when,
					got.Rounds, got.Reads, got.ReadBytes, want.Rounds, want.Reads, want.ReadBytes)
			}
		}
		same("trained")
		st := g.s.Stats()
		if got, least := decoded.Stats().TTBytes, uint64(8*st.Leaves); got < least || got > least*9/8 {
			t.Errorf("%v: decoded tables have %d bytes for %d leaves", family, got, st.Leaves)
		}
		for _, k := range later {
			g.put(k, k)
		}
		same("with leaves that the models do not have")
	}
}
