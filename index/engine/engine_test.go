package engine

import (
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
)

// The halves that NewServer and NewClient make of one definition belong together.
func TestHalvesFit(t *testing.T) {
	for name, d := range map[string]Def{
		"hash": {}, "hash of strings": {Strings: true}, "ordered": {Ordered: true}, "ordered strings": {Ordered: true, Strings: true}, "rolex": {Ordered: true, Rolex: true},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Duration(0)
			tick := func(s index.Server) {
				m, ok := s.(index.Maintainer)
				if ok != d.Ordered {
					t.Errorf("it has background work: %v", ok)
				}
				for range 800 { // the suite has no server to fall back to
					if now += 3 * time.Millisecond; m == nil || !m.Maintain(now, nil) {
						break
					}
				}
			}
			var last index.Server
			eng := indextest.Engine{
				NewServer: func(e *indextest.Env, rowWords int) (s index.Server, err error) {
					d.RowWords = rowWords
					o := ServerOptions{Arena: e.Arena, Locks: e.Locks, SlotsPerLeaf: 8}
					if d.Rolex {
						if err := e.AddLeaves(); err != nil {
							return nil, err
						}
						o.Leaves = LeavesOptions{Region: e.Leaves, Number: 3, Checksums: e.Arena.Checksums()}
					}
					last, err = NewServer(d, o)
					return last, err
				},
				NewClient: func(e *indextest.Env, root uint64, _ int, inOrder bool) (index.Client, error) {
					tick(last)
					o := ClientOptions{InOrder: inOrder, Locations: 16}
					if d.Rolex {
						o.Leaves, o.Number = e.LeavesKey, 3
					}
					return NewClient(d, root, e.RKey, o), nil
				},
				Tick: tick, Strings: d.Strings, Coarse: d.Rolex,
			}
			o := indextest.ModelRun{Variant: indextest.Variants()[0], Seed: indextest.Seed(t), Ops: 2000, Keys: 100, RowWords: 5, Ordered: d.Ordered}
			if d.Strings {
				o.KeyOf, o.RowWords, o.Variable = indextest.StringKeys(100), 25, true
			}
			if err := indextest.CheckModel(eng, o); err != nil {
				t.Error(err)
			}
		})
	}
}
