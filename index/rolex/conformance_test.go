package rolex

import (
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned/read"
)

// engine enrols the package. There are no writers but the data server.
func engine() indextest.Engine {
	now := time.Duration(0)
	var last *Server
	tick := func(s index.Server) {
		for range 8 {
			now += 3 * time.Millisecond
			s.(*Server).Maintain(now, nil)
		}
	}
	return indextest.Engine{
		NewServer: func(e *indextest.Env, rowWords int) (index.Server, error) {
			if err := e.AddLeaves(); err != nil {
				return nil, err
			}
			s, err := NewServer(ServerOptions{
				Options: Options{RowWords: rowWords, SlotsPerLeaf: 8, Writers: 4, Checksums: e.Arena.Checksums()},
				Leaves:  e.Leaves, Region: 3, Arena: e.Arena, Locks: e.Locks, LeavesPerSubModel: 16,
			})
			last = s
			return s, err
		},
		NewClient: func(e *indextest.Env, root uint64, rowWords int, inOrder bool) (index.Client, error) {
			for range 100 { // the suite has no server to fall back to: what was loaded must be trained
				tick(last)
			}
			o := read.Options{InOrder: inOrder, RowWords: rowWords, Leaves: e.LeavesKey, Region: 3}
			return indextest.WithServer(read.New(root, e.RKey, o), last), nil
		},
		Tick: tick, Coarse: true,
	}
}

// TestConformance runs the suite of ordered indexes for the data server's own transactions.
func TestConformance(t *testing.T) { indextest.RunOrdered(t, engine(), false) }
