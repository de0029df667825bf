package learned

import (
	"fmt"
	"os"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned/read"
)

// engine enrols the package.
func engine(o Options, co read.Options) indextest.Engine {
	now := time.Duration(0)
	o.PublishInner = co.Budget.Inner()
	var last *Server
	tick := func(s index.Server) {
		for range 8 {
			now += 3 * time.Millisecond
			s.(*Server).Maintain(now, nil)
		}
	}
	return indextest.Engine{
		NewServer: func(e *indextest.Env, rowWords int) (index.Server, error) {
			o := o
			o.RowWords, o.Locks = rowWords, e.Locks
			s, err := NewServer(e.Arena, o)
			last = s
			return s, err
		},
		NewClient: func(e *indextest.Env, root uint64, rowWords int, inOrder bool) (index.Client, error) {
			// The suite has no server to fall back to: what was loaded must be trained.
			for range 100 {
				tick(last)
			}
			co := co
			co.InOrder, co.RowWords, co.Strings = inOrder, rowWords, o.Strings
			return indextest.WithServer(read.New(root, e.RKey, co), last), nil
		},
		Tick: tick, Strings: o.Strings,
	}
}

// TestConformance runs the suite for rows inline and everything cached, a short
// form of it for rows apart and models only, and for inner nodes, and all of it for all
// combinations if DRTMX_LONG is set.
func TestConformance(t *testing.T) {
	long := os.Getenv("DRTMX_LONG") != ""
	bytes := map[read.Budget]int{read.PartTT: 64, read.PartTree: 4 << 10}
	for _, inline := range []Inline{Yes, No} {
		for budget := read.Full; budget.Valid(); budget++ {
			o := Options{Inline: inline, SlotsPerLeaf: 8, LeavesPerSubModel: 16, Quarantine: 50 * time.Millisecond}
			eng := engine(o, read.Options{Cache: read.Cache{Budget: budget, TTBytes: bytes[budget]}})
			name := fmt.Sprintf("inline=%v/budget=%d", inline == Yes, budget)
			switch {
			case long || inline == Yes && budget == read.Full:
				t.Run(name, func(t *testing.T) { indextest.RunOrdered(t, eng, inline == No) })
			case inline == No && (budget == read.ModelsOnly || budget == read.PartTree), inline == Yes && budget == read.Tree:
				t.Run(name, func(t *testing.T) { briefly(t, eng, inline == No) })
			}
		}
	}
}

// TestConformanceOfStrings runs the suite for string keys and rows that vary in
// size, and a short form of it for each budget and each hard set of keys.
func TestConformanceOfStrings(t *testing.T) {
	o := Options{Strings: true, SlotsPerLeaf: 8, LeavesPerSubModel: 16}
	seed := indextest.Seed(t)
	if os.Getenv("DRTMX_LONG") != "" {
		t.Run("suite", func(t *testing.T) { indextest.RunOrdered(t, engine(o, read.Options{}), false) })
	}
	for _, v := range indextest.Variants() {
		if err := indextest.CheckVisit(engine(o, read.Options{}), v, seed); err != nil {
			t.Error(err)
		}
		if err := indextest.CheckBounded(engine(o, read.Options{}), v, seed); err != nil {
			t.Error(err)
		}
		if err := indextest.CheckFull(engine(o, read.Options{}), v, seed); err != nil {
			t.Error(err)
		}
	}
	for i, space := range indextest.KeySpaces() {
		budget := read.Budget(i % 5)
		t.Run(fmt.Sprintf("%s/budget=%d", space.Name, budget), func(t *testing.T) {
			eng := engine(o, read.Options{Cache: read.Cache{Budget: budget, TTBytes: 64}})
			vs := indextest.Variants()
			v := vs[i%len(vs)]
			m := indextest.ModelRun{
				Variant: v, Seed: seed, Ops: 1500 / indextest.Scale, Keys: 500, RowWords: 40, Variable: true, Ordered: true,
				KeyOf: space.Of(500),
			}
			if err := indextest.CheckModel(eng, m); err != nil {
				t.Error(err)
			}
			c := indextest.ConcurrentRun{
				Variant: v, Seed: seed, Ops: indextest.Length(15000), Readers: 2, Keys: 900, RowWords: 40, Variable: true, Ordered: true,
				KeyOf: space.Of(900),
			}
			stats, err := indextest.CheckConcurrent(eng, c)
			if err != nil {
				t.Error(err)
			}
			t.Logf("%+v", stats)
		})
	}
}

// briefly is the suite in short runs.
func briefly(t *testing.T, eng indextest.Engine, rowsStay bool) {
	seed := indextest.Seed(t)
	for _, v := range indextest.Variants() {
		t.Run(v.Name, func(t *testing.T) {
			if err := indextest.CheckVisit(eng, v, seed); err != nil {
				t.Error(err)
			}
			for _, keys := range []int{60, 400} {
				o := indextest.ModelRun{Variant: v, Seed: seed, Ops: 1500 / indextest.Scale, Keys: keys, RowWords: 5, Ordered: true, RowsStay: rowsStay}
				if err := indextest.CheckModel(eng, o); err != nil {
					t.Error(err)
				}
				c := indextest.ConcurrentRun{Variant: v, Seed: seed, Ops: indextest.Length(20000), Readers: 2, Keys: keys, RowWords: 5, Ordered: true}
				if _, err := indextest.CheckConcurrent(eng, c); err != nil {
					t.Error(err)
				}
			}
		})
	}
}
