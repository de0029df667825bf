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
	// RowWords is the expected payload of a row; 0 takes what the root says.
	RowWords int
	// Strings says that the keys are byte strings.
	Strings bool
	// Cache is what of the models is kept.
	Cache
}

// Client is the client half: it implements index.Client. It is shared by all
// goroutines of a process; lookups take no lock and change nothing shared but
// counters.
type Client struct {
	root uint64
	rkey rdma.RKey
	o    Options

	cur       atomic.Pointer[cache]
	doubtful  atomic.Bool // the generation may not be the current one
	work      sync.Mutex  // held by the one caller that is in Maintain
	stale     staleList
	nextOp    atomic.Uint32
	counts    [opStripes]counts
	refreshes atomic.Uint64
	clock     int // PartTT's next candidate for eviction
	ttHeld    int // bytes; in Maintain only
}

var _ index.Client = (*Client)(nil)

// New makes the client half of the index whose root block is at root, in
// the region rkey. Nothing is read before the first Maintain; lookups before
// it fall back.
func New(root uint64, rkey rdma.RKey, o Options) *Client {
	return &Client{root: root, rkey: rkey, o: o}
}

// cache is one generation as held. Only the sub-models in it change.
type cache struct {
	root model.Root
	model.Directory
	held []atomic.Pointer[heldSub] // nil where not held; apart from subs to be compact
	subs []cachedSub
}

// cachedSub is what else is known of one sub-model.
type cachedSub struct {
	pointer atomic.Uint64 // as last read
	stale   atomic.Bool   // on the list
	// misses counts what went wrong since the last look; it takes patience of
	// them to look again, which doubles while the server has nothing newer.
	misses   atomic.Uint32
	patience atomic.Uint32
	wanted   atomic.Uint32 // PartTT: lookups that lacked the TT
	used     atomic.Uint32 // PartTT: sampled lookups that had it
}

// heldSub is a sub-model with the block it came from. Only what it learns of
// splits changes: patch, and the place in the tail list.
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
	// usedSample is the share of lookups that count as use, a power of two.
	usedSample = 64
)

// pointerAddr is the address of the pointer of sub-model i.
func (h *cache) pointerAddr(i int) uint64 {
	chunk, word := h.PointerAt(i)
	return chunk.Addr() + uint64(word)*mem.WordBytes
}

// counts are one stripe of the statistics: operations of different goroutines
// mostly use different ones.
type counts struct {
	plain                                              atomic.Uint64 // lookups of one round and one READ
	lookups, rounds, reads, chases, fallbacks, retries atomic.Uint64 // lookups, rounds and reads are those of others
	_                                                  [72]byte
}

// Stale reports whether Maintain has work to do.
func (c *Client) Stale() bool {
	return c.cur.Load() == nil || c.doubtful.Load() || c.stale.n.Load() > 0
}

// Stats returns a snapshot.
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

// Maintain implements index.Client. It loads the models, or fetches again the
// parts that lookups have found stale. It READs through conn, a few rounds at a
// time, at most all that is published. What the server changes meanwhile, again and
// again, is left to the next call.
func (c *Client) Maintain(ctx context.Context, conn rdma.Conn) error {
	if !c.work.TryLock() {
		return nil
	}
	defer c.work.Unlock()
	f := fetcher{c: c, ctx: ctx, conn: conn}
	h := c.cur.Load()
	if h == nil || c.doubtful.Swap(false) {
		return f.load(h)
	}
	return f.refresh(h)
}
