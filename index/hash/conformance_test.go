package hash_test

import (
	"testing"

	"drtmx/index"
	"drtmx/index/hash"
	"drtmx/index/indextest"
)

// engine enrols the package. cache is the size of the location cache.
func engine(cache int) indextest.Engine {
	return indextest.Engine{
		NewServer: func(e *indextest.Env, rowWords int) (index.Server, error) {
			return hash.NewServer(e.Arena, hash.Options{RowWords: rowWords, Locks: e.Locks})
		},
		NewClient: func(e *indextest.Env, root uint64, _ int, inOrder bool) (index.Client, error) {
			return hash.NewClient(root, e.RKey, hash.ClientOptions{InOrder: inOrder, LocationCacheEntries: cache}), nil
		},
	}
}

// stringEngine is the one of string keys and rows that vary in size.
func stringEngine(cache int) indextest.Engine {
	eng := engine(cache)
	eng.Strings = true
	eng.NewServer = func(e *indextest.Env, rowWords int) (index.Server, error) {
		return hash.NewServer(e.Arena, hash.Options{Strings: true, RowWords: rowWords, Locks: e.Locks})
	}
	return eng
}

func TestConformance(t *testing.T) {
	t.Run("no location cache", func(t *testing.T) { indextest.RunPoint(t, engine(0), true) })
	t.Run("location cache", func(t *testing.T) { indextest.RunPoint(t, engine(256), true) })
	t.Run("strings", func(t *testing.T) { indextest.RunPoint(t, stringEngine(0), true) })
	t.Run("strings, location cache", func(t *testing.T) { indextest.RunPoint(t, stringEngine(256), true) })
}
