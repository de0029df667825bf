package learned

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/rdma"
)

// Budget is how much of the models a client keeps, XStore's trade-off of
// memory against rounds (§5.1). What is not kept is fetched by READ.
type Budget uint8

// Budgets.
const (
	// Full keeps models and translation tables: a GET is one round.
	Full Budget = iota
	// PartTT keeps models and the translation tables that fit ClientOptions.TTBytes.
	PartTT
	// ModelsOnly keeps models; a few TT entries are fetched first: one round more.
	ModelsOnly
	// RouterOnly keeps the router; the sub-model is fetched first: one round more, of more bytes.
	RouterOnly
)

// ClientOptions configure the client half of an index.
type ClientOptions struct {
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
	o    ClientOptions

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

// NewClient makes the client half of the index whose root block is at root, in
// the region rkey. Nothing is read before the first Maintain; lookups before
// it fall back.
func NewClient(root uint64, rkey rdma.RKey, o ClientOptions) *Client {
	return &Client{root: root, rkey: rkey, o: o}
}

// cache is one generation as held. Only the sub-models in it change.
type cache struct {
	root rootBlock
	directory
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

// heldSub is a sub-model with the block it came from. Immutable.
type heldSub struct {
	model     model.SubModel
	addr      uint64 // of the block
	words     int    // of the block
	header    uint64 // of the block
	low, high uint32 // ALNs
	patch     atomic.Pointer[patch]

	at       int    // where the encoding begins in the block, in words
	prefix   string // of string keys
	strPatch atomic.Pointer[strPatch]
}

const (
	patienceMax = 64
	staleMax    = 64 // sub-models looked at in one Maintain
	opStripes   = 8
	// usedSample is the share of lookups that count as use, a power of two.
	usedSample = 64
)

// staleList names the sub-models to look at again.
type staleList struct {
	n  atomic.Int32
	mu struct {
		sync.Mutex
		of   *cache
		subs []int
	}
}

func (l *staleList) add(of *cache, i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.of != of {
		l.mu.of, l.mu.subs = of, l.mu.subs[:0]
	}
	l.mu.subs = append(l.mu.subs, i)
	l.n.Store(int32(len(l.mu.subs)))
}

// take removes at most limit sub-models of the given cache.
func (l *staleList) take(of *cache, limit int, dst []int) []int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.mu.of != of {
		l.mu.subs = l.mu.subs[:0]
	}
	n := min(limit, len(l.mu.subs))
	dst = append(dst, l.mu.subs[:n]...)
	l.mu.subs = append(l.mu.subs[:0], l.mu.subs[n:]...)
	l.n.Store(int32(len(l.mu.subs)))
	return dst
}

// missed records that sub-model i of a cache led to a wrong leaf.
func (c *Client) missed(of *cache, i int) {
	if of == nil || !of.trained() {
		c.doubtful.Store(true)
		return
	}
	s := &of.subs[i]
	if s.misses.Add(1) >= s.patience.Load() && c.cur.Load() == of && s.stale.CompareAndSwap(false, true) {
		c.stale.add(of, i)
	}
}

// counts are one stripe of the statistics: operations of different goroutines
// mostly use different ones.
type counts struct {
	lookups, rounds, reads, chases, fallbacks, retries atomic.Uint64
	_                                                  [80]byte
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
		s.Lookups += n.lookups.Load()
		s.Rounds += n.rounds.Load()
		s.Reads += n.reads.Load()
		s.Chases += n.chases.Load()
		s.Fallbacks += n.fallbacks.Load()
		s.Retries += n.retries.Load()
	}
	s.Refreshes = c.refreshes.Load()
	if h := c.cur.Load(); h != nil && h.trained() {
		s.ModelBytes = uint64(h.routerBytes()) + 8*uint64(len(h.subs))
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
	return h.root.lay, true
}

// Maintain implements index.Client. It loads the models, or fetches again the
// parts that lookups have found stale. It READs through conn, a few rounds at a
// time, at most all that is published.
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

// fetcher is the state of one Maintain.
type fetcher struct {
	c    *Client
	ctx  context.Context
	conn rdma.Conn
	b    rdma.Batch
	buf  []uint64
}

// Bounds of Maintain.
const (
	fetchTries      = 64 // of a block that is being changed
	loadTries       = 8  // of a generation that is being replaced
	fetchBatch      = 32
	fetchBatchWords = 64 << 10
)

var errChanging = errors.New("learned: published models keep changing")

// do posts the batch. A READ that the fabric refuses is not an error here: the
// caller checks its status, and a wrong address only shows that a hint is
// stale.
func (f *fetcher) do() error {
	err := rdma.Do(f.ctx, f.conn, &f.b)
	if err == nil || errors.Is(err, rdma.ErrAccess) {
		return nil
	}
	return err
}

// block READs one whole block until it is accepted; nil if it never is.
func (f *fetcher) block(addr uint64, words int) ([]uint64, error) {
	buf := make([]uint64, words)
	for range fetchTries {
		f.b.Reset()
		f.b.Read(f.c.rkey, addr, buf)
		if err := f.do(); err != nil {
			return nil, err
		}
		if f.b.WRs[0].Status != rdma.StatusOK {
			return nil, nil
		}
		if accepted(&f.b.WRs[0], f.c.o.InOrder) == 0 {
			return buf, nil
		}
	}
	return nil, nil
}

// load reads root, generation and directory, and the sub-models that the
// budget allows, and makes them current. old lends what is the same.
func (f *fetcher) load(old *cache) error {
	for range loadTries {
		b, err := f.block(f.c.root, rootWords)
		if err != nil {
			return err
		}
		if b == nil {
			continue
		}
		root, err := decodeRoot(f.c.root, b)
		if err != nil {
			return err
		}
		if w := f.c.o.RowWords; w != 0 && w != root.lay.RowWords {
			return fmt.Errorf("%w: rows of %d words, want %d", index.ErrCorrupt, root.lay.RowWords, w)
		}
		if root.strings() != f.c.o.Strings {
			return fmt.Errorf("%w: string keys: %v, want %v", index.ErrCorrupt, root.strings(), f.c.o.Strings)
		}
		if old != nil && old.root.number == root.number {
			return f.refresh(old)
		}
		h := &cache{root: root}
		if root.gen != 0 {
			ok, err := f.directory(h)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			if err := f.subModels(h, old); err != nil {
				return err
			}
		}
		f.c.refreshes.Add(1)
		f.c.cur.Store(h)
		return nil
	}
	f.c.doubtful.Store(true)
	if old != nil {
		return nil // it still serves
	}
	return errChanging
}

// directory reads generation and chunks; false if they are gone by now.
func (f *fetcher) directory(h *cache) (bool, error) {
	b, err := f.block(h.root.gen, h.root.genWords)
	if b == nil || err != nil {
		return false, err
	}
	if h.gen, err = decodeGen(&h.root, b); err != nil {
		return false, f.unlessReplaced(h, err)
	}
	gone := errors.New("gone")
	h.directory, err = newDirectory(&h.root, &h.gen, func(c chunkBlock) ([]uint64, error) {
		b, err := f.block(c.addr, c.words)
		if b == nil && err == nil {
			err = gone
		}
		return b, err
	})
	switch {
	case errors.Is(err, index.ErrCorrupt):
		return false, f.unlessReplaced(h, err)
	case err == gone:
		return false, nil
	case err != nil:
		return false, err
	}
	h.subs, h.held = make([]cachedSub, h.gen.subs), make([]atomic.Pointer[heldSub], h.gen.subs)
	for i, p := range h.pointers {
		h.subs[i].pointer.Store(p)
		h.subs[i].patience.Store(1)
	}
	h.pointers = nil
	return true, nil
}

// unlessReplaced is err, or nil if the root names another generation by now:
// then what could not be decoded was the memory of the old one.
func (f *fetcher) unlessReplaced(h *cache, err error) error {
	b, rerr := f.block(f.c.root, rootWords)
	if rerr != nil || b == nil {
		return rerr
	}
	root, rerr := decodeRoot(f.c.root, b)
	if rerr != nil {
		return rerr
	}
	if root.number != h.root.number {
		return nil
	}
	return err
}
