package learned

import (
	"context"
	"fmt"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned/read"
	"drtmx/internal/clock"
	"drtmx/rdma"
)

// byServer is a client half that asks the server half, in the same process.
type byServer struct{ s *Server }

type getByServer struct {
	s   *Server
	key index.Key
	at  clock.Tick
	res index.GetResult
}

type scanByServer struct {
	s      *Server
	lo, hi index.Key
	limit  int
	at     clock.Tick
	res    index.ScanResult
	buf    []uint64
}

func (b *byServer) Maintain(context.Context, rdma.Conn) error { return nil }
func (b *byServer) Stale() bool                               { return false }
func (b *byServer) NewGet() index.GetOp                       { return &getByServer{s: b.s} }
func (b *byServer) NewScan() index.ScanOp                     { return &scanByServer{s: b.s} }
func (b *byServer) Stats() index.ClientStats                  { return index.ClientStats{} }

func (g *getByServer) Start(key index.Key)                  { g.StartAt(key, 0) }
func (g *getByServer) StartAt(key index.Key, at clock.Tick) { g.key, g.at = key, at }
func (g *getByServer) Result() *index.GetResult             { return &g.res }
func (g *getByServer) Next(_, _ *rdma.Batch) bool {
	if g.at == 0 {
		g.s.Lookup(g.key, &g.res)
	} else {
		for g.res.Status = index.Locked; g.res.Status == index.Locked; {
			g.s.LookupAt(g.key, g.at, &g.res)
		}
	}
	return true
}

func (g *scanByServer) Start(lo, hi index.Key, limit int) { g.StartAt(lo, hi, limit, 0) }
func (g *scanByServer) StartAt(lo, hi index.Key, limit int, at clock.Tick) {
	g.lo, g.hi, g.limit, g.at = lo, hi, limit, at
}
func (g *scanByServer) Result() *index.ScanResult { return &g.res }
func (g *scanByServer) Next(_, _ *rdma.Batch) bool {
	if g.at == 0 {
		g.buf = g.s.Scan(g.lo, g.hi, g.limit, &g.res, g.buf)
	} else {
		for g.res.Status = index.Locked; g.res.Status == index.Locked; {
			g.buf = g.s.ScanAt(g.lo, g.hi, g.limit, g.at, &g.res, g.buf)
		}
	}
	return true
}

// TestPastOnServer: the server half answers about any retained tick as the model
// of all versions does, between the operations of a mutator and beside one.
func TestPastOnServer(t *testing.T) {
	seed := indextest.Seed(t)
	v := indextest.Variants()[0]
	for i, o := range []Options{{Inline: Yes}, {Inline: No}, {Strings: true}} {
		o.SlotsPerLeaf, o.LeavesPerSubModel, o.Quarantine = 8, 16, 50*time.Millisecond
		eng := engine(o, read.Options{})
		var last *Server
		newServer := eng.NewServer
		eng.NewServer = func(e *indextest.Env, rowWords int) (s index.Server, err error) {
			if s, err = newServer(e, rowWords); err == nil {
				last = s.(*Server)
			}
			return s, err
		}
		eng.NewClient = func(*indextest.Env, uint64, int, bool) (index.Client, error) { return &byServer{last}, nil }
		for _, sums := range []bool{false, true} {
			for _, readers := range []int{0, 2} {
				t.Run(fmt.Sprintf("%s/sums=%v/readers=%d", [...]string{"apart", "inline", "strings"}[o.kind()], sums, readers), func(t *testing.T) {
					v.Checksums = sums
					run := indextest.PastRun{
						Variant: v, Seed: seed + uint64(i), Ops: indextest.Length(12000), Readers: readers,
						Keys: 300, RowWords: 1 + 3*readers, Variable: o.Strings, Ordered: true,
					}
					if o.Strings {
						run.KeyOf = indextest.KeySpaces()[0].Of(run.Keys)
					}
					if readers == 0 {
						run.Bytes = 20 << 10
					}
					stats, err := indextest.CheckPast(eng, run)
					if err != nil {
						t.Error(err)
					}
					t.Logf("%+v", stats)
				})
			}
		}
	}
}
