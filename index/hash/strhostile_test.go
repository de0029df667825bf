package hash_test

import (
	"testing"

	"drtmx/index"
	"drtmx/index/hash"
	"drtmx/index/indextest"
	"drtmx/internal/block"
	"drtmx/rdma"
)

// tied gives string keys that all hash to the same three buckets and have one
// of three fingerprints, so that rows of other keys are met all the time.
func tied(i int) index.Key {
	return index.Str(hash.UnhashStr(uint64(i/30)<<48 | uint64(i)<<24 | uint64(i%3)))
}

func TestTiedStrings(t *testing.T) {
	seed := indextest.Seed(t)
	for _, v := range indextest.Variants() {
		for _, cache := range []int{0, 64} {
			for i := range 2 {
				o := indextest.ModelRun{
					Variant: v, Seed: seed + uint64(i), Ops: 3000 / indextest.Scale, Keys: 90, RowWords: 60, Variable: true, KeyOf: tied, RowsStay: true,
				}
				if err := indextest.CheckModel(stringEngine(cache), o); err != nil {
					t.Fatalf("%s: %v", v.Name, err)
				}
			}
			stats, err := indextest.CheckConcurrent(stringEngine(cache), indextest.ConcurrentRun{
				Variant: v, Seed: seed, Ops: 30000 / indextest.Scale, Readers: 3, Keys: 90, RowWords: 60, Variable: true, KeyOf: tied,
			})
			if err != nil {
				t.Fatalf("%s: %v", v.Name, err)
			}
			t.Logf("%s: %+v", v.Name, stats)
		}
	}
}

// TestStringKeySpaces: sets of one kind of hard keys each, where
// TestConformance mixes them.
func TestStringKeySpaces(t *testing.T) {
	seed := indextest.Seed(t)
	for _, space := range indextest.KeySpaces() {
		t.Run(space.Name, func(t *testing.T) {
			const n = 150
			for _, v := range indextest.Variants() {
				o := indextest.ModelRun{
					Variant: v, Seed: seed, Ops: 1500 / indextest.Scale, Keys: n, RowWords: 20, Variable: true, KeyOf: space.Of(n), RowsStay: true,
				}
				if err := indextest.CheckModel(stringEngine(128), o); err != nil {
					t.Fatalf("%s: %v", v.Name, err)
				}
			}
		})
	}
}

// TestGrowingRowsBesideReaders: rows of up to 64 KiB change their size with
// every update, and so move, while readers use remembered locations and chains.
func TestGrowingRowsBesideReaders(t *testing.T) {
	seed := indextest.Seed(t)
	for i, v := range indextest.Variants() {
		ops := 2000
		if v.Checksums { // reads take longer
			ops = 12000
		}
		stats, err := indextest.CheckConcurrent(stringEngine(64), indextest.ConcurrentRun{
			Variant: v, Seed: seed + uint64(i), Ops: ops / indextest.Scale, Readers: 2, Keys: 12,
			RowWords: hash.MaxStringRowWords, Variable: true, KeyOf: indextest.StringKeys(12),
		})
		if err != nil {
			t.Fatalf("%s: %v", v.Name, err)
		}
		t.Logf("%s: %+v", v.Name, stats)
	}
}

// TestPlantedBugsInStringsAreCaught: TestPlantedBugsAreCaught, for string keys.
func TestPlantedBugsInStringsAreCaught(t *testing.T) {
	seed := indextest.Seed(t)
	v := indextest.Variants()[1]
	isStrRow := func(wr *rdma.WR) bool { return len(wr.Buf) > 8 }
	server := func() indextest.Engine {
		eng := stringEngine(0)
		eng.NewServer = func(e *indextest.Env, rowWords int) (index.Server, error) {
			s, err := hash.NewServer(e.Arena, hash.Options{Strings: true, RowWords: rowWords, Locks: e.Locks})
			return badServer{s, e}, err
		}
		return eng
	}
	// Where fingerprints tie, absence is confirmed, and that alone would catch a mixed chain.
	apart := func(i int) index.Key { return index.Str(hash.UnhashStr(uint64(i)<<48 | uint64(i%3))) }
	spread := indextest.StringKeys(300)
	for _, c := range []struct {
		name, want string // expression for the error
		keys       int
		keyOf      func(i int) index.Key
		eng        indextest.Engine
	}{
		{"the header of a row is not checked after the body", "row", 90, tied, spoiled(stringEngine(0), func(_ *badOp, wr *rdma.WR) {
			if isStrRow(wr) {
				wr.Tail = wr.Buf[0]
			}
		})},
		{"a locked row is taken", "key", 90, tied, spoiled(stringEngine(64), func(_ *badOp, wr *rdma.WR) {
			if isStrRow(wr) {
				wr.Buf[0] &^= uint64(block.LockBit | block.AbsentBit)
				wr.Tail = wr.Buf[0]
			}
		})},
		{"an overflow bucket is taken as of any version", "key", 90, apart, spoiled(stringEngine(0), func(_ *badOp, wr *rdma.WR) {
			if isOverflow(wr) {
				wr.Buf[0], wr.Tail = 1, 1
			}
		})},
		{"an insert leaves the gap word", gapFinding(), 300, spread, server()},
	} {
		t.Run(c.name, func(t *testing.T) {
			untilCaught(t, seed, c.want, func(seed uint64) error {
				if _, err := indextest.CheckConcurrent(c.eng, indextest.ConcurrentRun{
					Variant: v, Seed: seed, Ops: 30000 / indextest.Scale, Readers: 3, Keys: c.keys, RowWords: 60, Variable: true, KeyOf: c.keyOf,
				}); err != nil {
					return err
				}
				return indextest.CheckModel(c.eng, indextest.ModelRun{
					Variant: v, Seed: seed, Ops: 4000, Keys: c.keys, RowWords: 60, Variable: true, KeyOf: c.keyOf,
				})
			})
		})
	}
}
