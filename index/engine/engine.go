// Package engine makes the two halves of an index. It alone knows which engine that is: data
// servers and their clients see the contract of package index.
package engine

import (
	"drtmx/index"
	"drtmx/index/hash"
	"drtmx/index/learned"
	"drtmx/index/learned/read"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/rdma"
)

// Def is what both halves of an index must know of it.
type Def struct {
	Ordered  bool // it has range scans
	Strings  bool // its keys are byte strings, and its rows have any size up to RowWords
	RowWords int
}

// ServerOptions configure server halves. Arena is required.
type ServerOptions struct {
	Arena *block.Arena
	// Locks are the partition's shared locks.
	Locks index.SharedLocks
	// Clock measures how long freed memory rests.
	Clock clock.Source
	// Family of the models of ordered indexes; 0 means PLR.
	Family learned.Family
	// SlotsPerLeaf is the number of rows in a leaf of an ordered index; 0 chooses it.
	SlotsPerLeaf int
	// PublishInner publishes the inner nodes of ordered indexes, for clients that cache them.
	PublishInner bool
	// LoadFill is how full loading makes leaves, in percent; 0 means 100.
	LoadFill int
}

// NewServer makes the server half of an empty index. If it has background work, it is an
// index.Maintainer.
func NewServer(d Def, o ServerOptions) (index.Server, error) {
	if !d.Ordered {
		return hash.NewServer(o.Arena, hash.Options{Strings: d.Strings, RowWords: d.RowWords, Locks: o.Locks})
	}
	return learned.NewServer(o.Arena, learned.Options{
		Strings: d.Strings, RowWords: d.RowWords, Locks: o.Locks, Family: o.Family, Clock: o.Clock, SlotsPerLeaf: o.SlotsPerLeaf,
		PublishInner: o.PublishInner, LoadFill: o.LoadFill,
	})
}

// ClientOptions configure client halves.
type ClientOptions struct {
	// InOrder says that the connections used report InOrder.
	InOrder bool
	// Cache says what clients of ordered indexes keep.
	Cache read.Cache
	// Locations bounds the rows of an index without order whose places are remembered; 0 means
	// none.
	Locations int
}

// NewClient makes the client half of the index whose root block is at root, in a region.
func NewClient(d Def, root uint64, region rdma.RKey, o ClientOptions) index.Client {
	if !d.Ordered {
		return hash.NewClient(root, region, hash.ClientOptions{InOrder: o.InOrder, LocationCacheEntries: o.Locations})
	}
	return read.New(root, region, read.Options{InOrder: o.InOrder, RowWords: d.RowWords, Strings: d.Strings, Cache: o.Cache})
}
