package finestore

import (
	"fmt"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned/read"
)

// engine enrols the package.
func engine(o Options, co read.Options) indextest.Engine {
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
			o := o
			o.RowWords, o.Locks = rowWords, e.Locks
			s, err := NewServer(e.Arena, o)
			last = s
			return s, err
		},
		NewClient: func(e *indextest.Env, root uint64, rowWords int, inOrder bool) (index.Client, error) {
			for range 100 { // the suite has no server to fall back to: what was loaded must be trained
				tick(last)
			}
			co := co
			co.InOrder, co.RowWords = inOrder, rowWords
			return indextest.WithServer(read.New(root, e.RKey, co), last), nil
		},
		Tick: tick,
	}
}

// TestConformance runs the suite of ordered indexes: with small arrays, which merge often, and with
// large ones, whose intervals get roots. Rows do not move.
func TestConformance(t *testing.T) {
	for _, keys := range []int{8, 64} {
		t.Run(fmt.Sprintf("arrays of %d", keys), func(t *testing.T) {
			indextest.RunOrdered(t, engine(Options{KeysPerArray: keys, LeavesPerSubModel: 16}, read.Options{}), true)
		})
	}
	t.Run("models only", func(t *testing.T) {
		indextest.RunOrdered(t, engine(Options{KeysPerArray: 8, LeavesPerSubModel: 16}, read.Options{Cache: read.Cache{Budget: read.ModelsOnly}}), true)
	})
}
