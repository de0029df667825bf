package hash_test

import (
	"maps"
	"regexp"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/index/hash"
	"drtmx/index/indextest"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/invariants"
	"drtmx/rdma"
)

// Bugs are planted here by decorating a half of the index: the conformance
// suite must catch each. A suite that cannot fail proves nothing.

// crowded gives keys that all hash to the same few buckets, and of which
// every four share their fingerprint: long chains, overflow buckets, false
// matches and splits that move nothing.
func crowded(i int) index.Key {
	fingerprint, low := uint64(i/4)<<48, uint64(i%3)
	return index.Num(hash.Unhash(fingerprint | uint64(i)<<24 | low))
}

func TestCrowdedChains(t *testing.T) {
	seed := indextest.Seed(t)
	for _, v := range indextest.Variants() {
		for _, cache := range []int{0, 64} {
			for i := range 4 {
				o := indextest.ModelRun{
					Variant: v, Seed: seed + uint64(i), Ops: 4000 / indextest.Scale, Keys: 90, RowWords: 3, KeyOf: crowded, RowsStay: true,
				}
				if err := indextest.CheckModel(engine(cache), o); err != nil {
					t.Fatalf("%s: %v", v.Name, err)
				}
			}
			stats, err := indextest.CheckConcurrent(engine(cache), crowdedRun(v, seed))
			if err != nil {
				t.Fatalf("%s: %v", v.Name, err)
			}
			t.Logf("%s: %+v", v.Name, stats)
		}
	}
}

func crowdedRun(v indextest.Variant, seed uint64) indextest.ConcurrentRun {
	return indextest.ConcurrentRun{
		Variant: v, Seed: seed, Ops: 60000 / indextest.Scale, Readers: 3, Keys: 90, RowWords: 12, KeyOf: crowded,
	}
}

// badClient decorates the operations of a client half.
type badClient struct {
	index.Client
	patch func(op *badOp, wr *rdma.WR)
}

func (c badClient) NewGet() index.GetOp { return &badOp{GetOp: c.Client.NewGet(), patch: c.patch} }

// badOp changes what READs brought before the operation sees it.
type badOp struct {
	index.GetOp
	key   index.Key
	patch func(op *badOp, wr *rdma.WR)
}

func (o *badOp) Start(key index.Key) { o.StartAt(key, 0) }

func (o *badOp) StartAt(key index.Key, at clock.Tick) {
	o.key = key
	o.GetOp.StartAt(key, at)
}

func (o *badOp) Next(done, next *rdma.Batch) bool {
	for i := range done.WRs {
		o.patch(o, &done.WRs[i])
	}
	return o.GetOp.Next(done, next)
}

// badServer decorates the server half: absence is proved by a word that inserts
// do not change.
type badServer struct {
	*hash.Server
	e *indextest.Env
}

func (s badServer) LockWrite(o index.Owner, key index.Key, hint uint64) (*index.Held, error) {
	var gap *index.Proof
	if res := s.Server.Get(key, nil); res.Status == index.NotFound {
		gap = &res.Proofs[0]
	}
	held, err := s.Server.LockWrite(o, key, hint)
	if gap != nil && err == nil {
		s.e.Arena.Span(gap.Addr, 1).Store(0, gap.Word)
	}
	return held, err
}

func (s badServer) Check() error { return nil } // the readers are to notice

func withClient(patch func(*badOp, *rdma.WR)) indextest.Engine { return spoiled(engine(0), patch) }

func spoiled(eng indextest.Engine, patch func(*badOp, *rdma.WR)) indextest.Engine {
	sound := eng.NewClient
	eng.NewClient = func(e *indextest.Env, root uint64, words int, inOrder bool) (index.Client, error) {
		c, err := sound(e, root, words, inOrder)
		return badClient{c, patch}, err
	}
	return eng
}

func withServer() indextest.Engine {
	eng := engine(0)
	eng.NewServer = func(e *indextest.Env, rowWords int) (index.Server, error) {
		s, err := hash.NewServer(e.Arena, hash.Options{RowWords: rowWords, Locks: e.Locks})
		return badServer{s, e}, err
	}
	return eng
}

// gapFinding is what finds a gap word that an insert left: the server's own
// assertion, where it is compiled in, else concurrent readers. The model may find it
// first, as a key that is locked although no write holds it.
func gapFinding() string {
	if invariants.Enabled {
		return "invariant broken"
	}
	return "holds although|get says locked"
}

func isRow(wr *rdma.WR) bool      { return len(wr.Buf) == 16 }
func isOverflow(wr *rdma.WR) bool { return len(wr.Buf) == 8 && wr.Buf[7]>>56 == 0xb2 }

func TestPlantedBugsAreCaught(t *testing.T) {
	seed := indextest.Seed(t)
	v := indextest.Variants()[1]
	for _, c := range []struct {
		name, want string // expression for the error
		spread     int    // so many keys, not crowded ones
		eng        indextest.Engine
	}{
		{"the key of a row is not checked again", "never inserted", 0, withClient(func(o *badOp, wr *rdma.WR) {
			if isRow(wr) {
				wr.Buf[3] = o.key.Num
			}
		})},
		{"the header of a row is not checked after the body", "row", 0, withClient(func(_ *badOp, wr *rdma.WR) {
			if isRow(wr) {
				wr.Tail = wr.Buf[0]
			}
		})},
		{"a locked row is taken", "key", 0, withClient(func(_ *badOp, wr *rdma.WR) {
			if isRow(wr) {
				wr.Buf[0] &^= uint64(block.LockBit | block.AbsentBit)
				wr.Tail = wr.Buf[0]
			}
		})},
		{"an overflow bucket is taken as of any version", "key", 0, withClient(func(_ *badOp, wr *rdma.WR) {
			if isOverflow(wr) {
				wr.Buf[0], wr.Tail = 1, 1
			}
		})},
		{"a bucket's level is not checked", "key", 3000, withClient(func(o *badOp, wr *rdma.WR) {
			if len(wr.Buf) == 8 && wr.Buf[7]>>56 == 0xb1 {
				wr.Buf[7] = wr.Buf[7]&^(0xff<<48) | uint64(hash.LevelWanted(o.GetOp))<<48
			}
		})},
		{"an insert leaves the gap word", gapFinding(), 300, withServer()},
	} {
		t.Run(c.name, func(t *testing.T) {
			untilCaught(t, seed, c.want, func(seed uint64) error {
				o := crowdedRun(v, seed)
				if c.spread > 0 {
					o.KeyOf, o.Keys = nil, c.spread
				}
				if _, err := indextest.CheckConcurrent(c.eng, o); err != nil {
					return err
				}
				return indextest.CheckModel(c.eng, indextest.ModelRun{
					Variant: v, Seed: seed, Ops: 4000, Keys: o.Keys, RowWords: 12, KeyOf: o.KeyOf,
				})
			})
		})
	}
}

// plantedRuns bounds the random runs in which a planted bug is to show. Most show in the
// first.
const plantedRuns = 1000

// untilCaught makes random runs with a planted bug until one of them fails for its
// reason. How many that takes depends on how goroutines take turns. A bug may leave a
// lock that nobody holds, for which the readers of a run wait: there it is soon given up.
func untilCaught(t *testing.T, seed uint64, want string, run func(seed uint64) error) {
	t.Helper()
	t.Setenv("DRTMX_PATIENCE", "100ms")
	others, reason := map[string]bool{}, regexp.MustCompile(want)
	for i := range uint64(plantedRuns) {
		err := run(seed + i)
		if err == nil {
			continue
		}
		if reason.MatchString(err.Error()) {
			t.Logf("run %d: %v", i, err)
			return
		}
		others[err.Error()] = true
	}
	t.Errorf("not caught in %d runs, or not for its reason: %v", plantedRuns, slices.Sorted(maps.Keys(others)))
}
