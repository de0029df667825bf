package hash

import (
	"context"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// bench is one index with a client half over a plain in-process fabric.
type bench struct {
	arena  *block.Arena
	s      *Server
	c      *Client
	conn   rdma.Conn
	op     index.GetOp
	b      [2]rdma.Batch
	region *mem.Region
}

func newBench(tb testing.TB, o Options, co ClientOptions, checksums bool) *bench {
	tb.Helper()
	return newBenchAt(tb, o, co, checksums, nil)
}

// newBenchAt is newBench with a clock of the memory's.
func newBenchAt(tb testing.TB, o Options, co ClientOptions, checksums bool, now clock.Source) *bench {
	tb.Helper()
	r, err := mem.New(mem.Options{MaxBytes: 1 << 30})
	if err != nil {
		tb.Fatal(err)
	}
	x := &bench{arena: block.NewArena(r, block.ArenaOptions{Checksums: checksums, Tick: 1, Clock: now}), region: r}
	if x.s, err = NewServer(x.arena, o); err != nil {
		tb.Fatal(err)
	}
	n := inproc.New(inproc.Options{})
	e, err := n.Listen("s", rdma.ListenOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { e.Close() })
	key, err := e.Register(r, rdma.AccessRead)
	if err != nil {
		tb.Fatal(err)
	}
	if x.conn, err = n.Dial(context.Background(), "s"); err != nil {
		tb.Fatal(err)
	}
	co.InOrder = x.conn.InOrder() && !checksums
	x.c = NewClient(x.s.Root(), key, co)
	if err := x.c.Maintain(context.Background(), x.conn); err != nil {
		tb.Fatal(err)
	}
	x.op = x.c.NewGet()
	return x
}

// get runs one lookup and returns its result and rounds.
func (x *bench) get(tb testing.TB, key uint64) (*index.GetResult, int) {
	return x.getKey(tb, index.Num(key))
}

func (x *bench) getKey(tb testing.TB, key index.Key) (*index.GetResult, int) {
	x.op.Start(key)
	return x.finish(tb)
}

// finish runs the lookup started.
func (x *bench) finish(tb testing.TB) (*index.GetResult, int) {
	x.b[0].Reset()
	for rounds := 0; ; rounds++ {
		done, next := &x.b[rounds&1], &x.b[rounds&1^1]
		next.Reset()
		if x.op.Next(done, next) {
			return x.op.Result(), rounds
		}
		if err := x.do(next); err != nil {
			tb.Fatal(err)
		}
	}
}

func (x *bench) do(b *rdma.Batch) error { return rdma.Do(context.Background(), x.conn, b) }

func TestRoundsOfAGet(t *testing.T) {
	for _, checksums := range []bool{false, true} {
		x := newBench(t, Options{RowWords: 4}, ClientOptions{LocationCacheEntries: 1 << 16}, checksums)
		const n = 20000
		for k := range uint64(n) {
			if err := x.s.Load(index.Num(k), []uint64{k, k + 1, k + 2, k + 3}, block.Present(block.NewCSN(1, k+1))); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.s.Check(); err != nil {
			t.Fatal(err)
		}
		if !x.c.Stale() {
			x.get(t, 1)
		}
		if err := x.c.Maintain(context.Background(), x.conn); err != nil {
			t.Fatal(err)
		}
		for pass := range 2 {
			total := 0
			for k := range uint64(n) {
				res, rounds := x.get(t, k)
				if res.Status != index.Found || res.Row[3] != k+3 {
					t.Fatalf("key %d: %v %v", k, res.Status, res.Row)
				}
				total += rounds
			}
			if mean := float64(total) / n; pass == 0 && mean > 2.1 || pass == 1 && mean > 1.01 {
				t.Errorf("%.3f rounds per GET in pass %d", mean, pass)
			}
			t.Logf("checksums %v pass %d: %.3f rounds per GET, %+v", checksums, pass, float64(total)/n, x.c.Stats())
		}
		for k := uint64(n); k < 2*n; k++ {
			res, rounds := x.get(t, k)
			if res.Status != index.NotFound || len(res.Proofs) != 1 || rounds > 3 {
				t.Fatalf("key %d: %v in %d rounds", k, res.Status, rounds)
			}
		}
	}
}

func TestGetAllocatesNothing(t *testing.T) {
	x := newBench(t, Options{RowWords: 8}, ClientOptions{LocationCacheEntries: 1 << 10}, false)
	for k := range uint64(5000) {
		if err := x.s.Load(index.Num(k), make([]uint64, 8), block.Present(block.NewCSN(1, k+1))); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.c.Maintain(context.Background(), x.conn); err != nil {
		t.Fatal(err)
	}
	k := uint64(0)
	if n := testing.AllocsPerRun(2000, func() { x.get(t, k%6000); k += 7 }); n != 0 {
		t.Fatalf("%v allocations per GET", n)
	}
}
