package read

import (
	"context"
	"sync"
	"sync/atomic"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Options configure the client half of an index.
type Options struct {
	// InOrder says that the connections used report InOrder.
	InOrder bool
	// RowWords is the expected size of a row's payload; 0 takes that of the root
	// block.
	RowWords int
	// Strings says that the keys are byte strings.
	Strings bool
	// Leaves is the key of the region that has the leaves, if that is not the one that has
	// the models.
	Leaves rdma.RKey
	// Region is the number of that region in proofs; see index.Proof.
	Region uint16
	// Cache says which part of the models is kept.
	Cache
}

// Client is the client half: it implements index.Client. All goroutines of a process
// may share it. Lookups take no lock, and of shared memory they change only counters
// and what they learn of splits.
type Client struct {
	root uint64
	rkey rdma.RKey
	o    Options

	cur       atomic.Pointer[cache]
	doubtful  atomic.Bool // the generation may not be the current one
	outdated  atomic.Bool // and none of its sub-models is
	work      sync.Mutex  // held during Maintain
	stale     staleList
	nextOp    atomic.Uint32
	counts    [opStripes]counts
	refreshes atomic.Uint64
	clock     int        // PartTT's next candidate for eviction
	ttHeld    int        // bytes of TTs held; used in Maintain only
	nodes     *nodeCache // nil unless the client caches inner nodes
}

var (
	_ index.Client    = (*Client)(nil)
	_ index.Outdating = (*Client)(nil)
)

// New makes the client half of the index whose root block is at root, in the region
// rkey. It reads nothing: lookups fall back to the server until the first Maintain.
func New(root uint64, rkey rdma.RKey, o Options) *Client {
	c := &Client{root: root, rkey: rkey, o: o}
	if c.o.Leaves == 0 {
		c.o.Leaves = rkey
	}
	switch o.Budget {
	case Tree:
		c.nodes = new(nodeCache)
	case PartTree:
		c.nodes = &nodeCache{bound: max(o.TTBytes, 1)}
	}
	return c
}

// begins makes a finder for operations of one goroutine.
func (f *finder) begins(c *Client) {
	f.c, f.n = c, &c.counts[c.nextOp.Add(1)%opStripes]
	if c.nodes != nil {
		f.way = new(walk)
	}
}

// cache is a generation as the client holds it. Only its sub-models change.
type cache struct {
	root model.Root
	model.Directory
	held []atomic.Pointer[heldSub] // nil where not held; separate from subs to be compact
	subs []cachedSub
}

// cachedSub has the other data about a sub-model.
type cachedSub struct {
	pointer atomic.Uint64 // as last read
	stale   atomic.Bool   // on the list Client.stale
	// misses counts wrong predictions since the last check. At patience of them the
	// sub-model is checked again; patience doubles while the server has nothing
	// newer.
	misses   atomic.Uint32
	patience atomic.Uint32
	wanted   atomic.Uint32 // PartTT: lookups that lacked the TT
	used     atomic.Uint32 // PartTT: sampled lookups that had it
}

// heldSub is a sub-model and the block from which it came. It is immutable except for
// what it learns of splits: patch, and the position in the tail list.
type heldSub struct {
	model     model.SubModel
	addr      uint64 // of the block
	header    uint64 // of the block
	low, high uint32 // ALNs
	patch     atomic.Pointer[patch]
	tail      *tailList // nil if there is none
	at        int       // where the encoding begins in the block, in words
	prefix    string    // of string keys
}

const (
	patienceMax = 64
	opStripes   = 8
	// usedSample is such that one of usedSample lookups counts as use; a power of
	// two.
	usedSample = 64
)

// pointerAddr is the address of the pointer of sub-model i.
func (h *cache) pointerAddr(i int) uint64 {
	chunk, word := h.PointerAt(i)
	return chunk.Addr() + uint64(word)*mem.WordBytes
}

// counts is one stripe of the statistics. Operations of different goroutines mostly
// use different stripes.
type counts struct {
	plain                                              atomic.Uint64 // lookups of one round and one READ
	lookups, rounds, reads, chases, fallbacks, retries atomic.Uint64 // lookups, rounds and reads do not include plain ones
	_                                                  [72]byte
}

// Stale reports whether Maintain has work to do.
func (c *Client) Stale() bool {
	return c.cur.Load() == nil || c.doubtful.Load() || c.stale.n.Load() > 0
}

// Outdate implements index.Outdating. Without it, lookups have to miss before a sub-model that
// was trained again is fetched. Inner nodes are checked by each lookup, and need no such thing.
func (c *Client) Outdate() bool {
	if c.cur.Load() == nil || c.nodes != nil {
		return false
	}
	c.outdated.Store(true)
	c.doubtful.Store(true)
	return true
}

// Stats returns a snapshot of the statistics.
func (c *Client) Stats() index.ClientStats {
	var s index.ClientStats
	for i := range c.counts {
		n := &c.counts[i]
		plain := n.plain.Load()
		s.Lookups += plain + n.lookups.Load()
		s.Rounds += plain + n.rounds.Load()
		s.Reads += plain + n.reads.Load()
		s.Chases += n.chases.Load()
		s.Fallbacks += n.fallbacks.Load()
		s.Retries += n.retries.Load()
	}
	s.Refreshes = c.refreshes.Load()
	if h := c.cur.Load(); h != nil && h.Trained() {
		s.ModelBytes = uint64(h.Bytes()) + 8*uint64(len(h.subs))
		for i := range h.subs {
			if m := h.held[i].Load(); m != nil {
				s.ModelBytes += uint64(m.model.ModelBytes())
				if m.model.HasTT() {
					s.TTBytes += uint64(m.model.TTBytes())
				} else {
					s.TTBytes += uint64(m.model.HeadTTBytes())
				}
			}
		}
	}
	s.CacheBytes = s.ModelBytes + s.TTBytes
	if c.nodes != nil {
		s.CacheBytes = uint64(c.nodes.bytes.Load())
	}
	return s
}

// Layout returns the geometry of the index, after Maintain has read the root.
func (c *Client) Layout() (leaf.Layout, bool) {
	h := c.cur.Load()
	if h == nil {
		return leaf.Layout{}, false
	}
	return h.root.Layout, true
}

// Maintain implements index.Client. It loads the models, or fetches again the parts
// that lookups have found stale. It READs over conn, in a few rounds, at most
// everything that is published. Parts that the server keeps changing meanwhile are
// left to the next call.
func (c *Client) Maintain(ctx context.Context, conn rdma.Conn) error {
	if !c.work.TryLock() {
		return nil
	}
	defer c.work.Unlock()
	f := fetcher{c: c, ctx: ctx, conn: conn}
	h := c.cur.Load()
	switch again := c.doubtful.Swap(false); {
	case c.nodes != nil:
		return f.loadNodes(h)
	case c.outdated.Swap(false):
		err := f.load(nil)
		if err != nil {
			c.Outdate()
		}
		return err
	case h == nil || again:
		return f.load(h)
	}
	return f.refresh(h)
}
