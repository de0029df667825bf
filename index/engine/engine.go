// Package engine makes the two halves of an index. It alone knows which engine that is: data
// servers and their clients see the contract of package index.
package engine

import (
	"time"

	"drtmx/index"
	"drtmx/index/finestore"
	"drtmx/index/hash"
	"drtmx/index/learned"
	"drtmx/index/learned/read"
	"drtmx/index/rolex"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Def is what both halves of an index must know of it.
type Def struct {
	Ordered  bool // it has range scans
	Strings  bool // its keys are byte strings, and its rows have any size up to RowWords
	RowWords int
	// Rolex says that leaves are in a region of their own, which clients may write (package
	// rolex). The index is ordered then, with number keys.
	Rolex bool
	// FineStore says that keys which come after models were trained go to bins (package
	// finestore). The index is ordered then, with number keys.
	FineStore bool
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

	// Of an index with leaves in a region of their own:
	Leaves LeavesOptions
}

// LeavesOptions are about a region with the leaves of one index.
type LeavesOptions struct {
	// Region is the empty region; an index that needs it has no other use for it.
	Region *mem.Region
	// Number is that of the region in proofs; see index.Proof.
	Number uint16
	// Revoke takes a peer's access to the region, as rdma.Endpoint's Revoke does.
	Revoke func(rdma.PeerID)
	// Settled is told of writers that were settled: see rolex.ServerOptions.
	Settled func(o Owner, committed uint64)
	// Lease is how long a writer may hold a leaf that others wait for; 0 means the default.
	Lease time.Duration
	// Checksums are for readers over a fabric that does not read in order.
	Checksums bool
	// Swap changes headers of leaves: see rolex.ServerOptions.
	Swap func(addr, from, to uint64) bool
}

// NewServer makes the server half of an empty index. If it has background work, it is an
// index.Maintainer.
func NewServer(d Def, o ServerOptions) (index.Server, error) {
	if d.Rolex {
		l := &o.Leaves
		return rolex.NewServer(rolex.ServerOptions{
			Options: rolex.Options{RowWords: d.RowWords, SlotsPerLeaf: o.SlotsPerLeaf, Checksums: l.Checksums},
			Leaves:  l.Region, Arena: o.Arena, Revoke: l.Revoke, Settled: l.Settled, Lease: l.Lease, Swap: l.Swap, Region: l.Number, Locks: o.Locks, Clock: o.Clock, Family: o.Family,
		})
	}
	if d.FineStore {
		return finestore.NewServer(o.Arena, finestore.Options{
			RowWords: d.RowWords, KeysPerArray: o.SlotsPerLeaf, LoadFill: o.LoadFill, Locks: o.Locks, Family: o.Family,
		})
	}
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
	// Cache says what clients of ordered indexes keep. Clients of an index without inner nodes
	// keep its models instead.
	Cache read.Cache
	// Leaves is the key of the region that has the leaves, if that is not the one of the root
	// block, and Number its number in proofs.
	Leaves rdma.RKey
	Number uint16
	// Locations bounds the rows of an index without order whose places are remembered; 0 means
	// none.
	Locations int
}

// NewClient makes the client half of the index whose root block is at root, in a region.
func NewClient(d Def, root uint64, region rdma.RKey, o ClientOptions) index.Client {
	if !d.Ordered {
		return hash.NewClient(root, region, hash.ClientOptions{InOrder: o.InOrder, LocationCacheEntries: o.Locations})
	}
	if (d.Rolex || d.FineStore) && o.Cache.Budget.Inner() {
		o.Cache = read.Cache{} // there are no inner nodes
	}
	return read.New(root, region, read.Options{
		InOrder: o.InOrder, RowWords: d.RowWords, Strings: d.Strings, Cache: o.Cache, Leaves: o.Leaves, Region: o.Number,
	})
}
