package hash

import (
	"context"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// maintainAttempts bounds the times Maintain reads the root block again.
const maintainAttempts = 1 << 10

// ClientOptions configure the client half.
type ClientOptions struct {
	// InOrder means that all connections load READs in order
	// (rdma.Conn.InOrder). Otherwise the server's arena must keep checksums:
	// without them the client accepts no copy.
	InOrder bool
	// LocationCacheEntries is the size of the location cache, rounded up to a
	// power of two. An entry has 8 bytes and names the place where a row was
	// last seen, which saves a round. 0 means no location cache.
	LocationCacheEntries int
}

// Client is the client half of a hash index in one partition. It implements
// index.Client.
type Client struct {
	root    uint64
	rkey    rdma.RKey
	inOrder bool

	view    atomic.Pointer[view]
	buckets atomic.Uint64 // how many buckets there are at least: a hint
	stale   atomic.Bool
	cache   locations

	maintain sync.Mutex
	nextOp   atomic.Uint64
	counters [stripes]counters
}

var _ index.Client = (*Client)(nil)

// view is a client's copy of the directory. It is immutable and replaced as a
// whole.
type view struct {
	strings  bool
	rowWords int // at most, if rows vary
	rowBlock int // words, of the largest if rows vary
	tag      uint32
	geo      geometry
	chunks   []uint64
}

// newView is a view without any chunk.
func newView(root rootInfo, addr uint64) *view {
	v := &view{strings: root.strings, rowWords: root.rowWords, rowBlock: rowBlockWords(root.rowWords), geo: root.geo, tag: strTag(addr)}
	if v.strings {
		v.rowBlock = largestStrBlock(root.rowWords)
	}
	return v
}

// bucketAddr is the address of bucket b, if its chunk is known.
func (v *view) bucketAddr(b uint64) (uint64, bool) {
	chunk, place := v.geo.locate(b)
	if chunk >= uint64(len(v.chunks)) {
		return 0, false
	}
	return v.chunks[chunk] + place*bucketBytes, true
}

// stripes spread the counters, so that goroutines seldom share a line.
const stripes = 16

type counters struct {
	lookups, rounds, reads, chases, fallbacks, retries, refreshes atomic.Uint64
	_                                                             [mem.LineBytes - 7*8]byte
}

// NewClient returns a client half for the index whose root block is at root, in
// the region of rkey. It reads nothing: until the first Maintain its lookups
// end in Fallback.
func NewClient(root uint64, rkey rdma.RKey, o ClientOptions) *Client {
	c := &Client{root: root, rkey: rkey, inOrder: o.InOrder}
	c.cache.init(o.LocationCacheEntries)
	return c
}

// Stale implements index.Client.
func (c *Client) Stale() bool { return c.stale.Load() || c.view.Load() == nil }

// NewScan implements index.Client. It returns nil: a hash index has no order to
// scan in.
func (c *Client) NewScan() index.ScanOp { return nil }

// NewGet implements index.Client.
func (c *Client) NewGet() index.GetOp {
	return &getOp{c: c, counters: &c.counters[c.nextOp.Add(1)%stripes]}
}

// Stats implements index.Client.
func (c *Client) Stats() index.ClientStats {
	var s index.ClientStats
	for i := range c.counters {
		n := &c.counters[i]
		s.Lookups += n.lookups.Load()
		s.Rounds += n.rounds.Load()
		s.Reads += n.reads.Load()
		s.Chases += n.chases.Load()
		s.Fallbacks += n.fallbacks.Load()
		s.Retries += n.retries.Load()
		s.Refreshes += n.refreshes.Load()
	}
	s.CacheBytes = uint64(len(c.cache.words)) * mem.WordBytes
	if v := c.view.Load(); v != nil {
		s.CacheBytes += uint64(len(v.chunks)) * mem.WordBytes
	}
	return s
}

// Maintain implements index.Client. It reads the root block and the directory
// words that the client does not have yet.
func (c *Client) Maintain(ctx context.Context, conn rdma.Conn) error {
	if !c.maintain.TryLock() {
		return nil
	}
	defer c.maintain.Unlock()
	// Clear this first: an operation that finds stale data from now on needs
	// another Maintain.
	c.stale.Store(false)
	if err := c.refresh(ctx, conn); err != nil {
		c.stale.Store(true)
		return err
	}
	c.counters[0].refreshes.Add(1)
	return nil
}

func (c *Client) refresh(ctx context.Context, conn rdma.Conn) error {
	if c.inOrder && !conn.InOrder() {
		return fmt.Errorf("hash: in-order reading over a connection that does not read in order: %w", rdma.ErrUnsupported)
	}
	root, err := c.readRoot(ctx, conn)
	if err != nil {
		return err
	}
	next := newView(root, c.root)
	if old := c.view.Load(); old != nil {
		if old.strings != root.strings || old.rowWords != root.rowWords || old.geo != root.geo || uint64(len(old.chunks)) > root.chunks {
			return fmt.Errorf("%w: the root of the index at %#x has changed", index.ErrCorrupt, c.root)
		}
		next.chunks = old.chunks
	}
	have := uint64(len(next.chunks))
	next.chunks = append(make([]uint64, 0, root.chunks), next.chunks...)
	next.chunks = next.chunks[:root.chunks]
	var b rdma.Batch
	for at := have; at < root.chunks; {
		n := min(root.chunks-at, rdma.MaxReadBytes/mem.WordBytes)
		b.Read(c.rkey, root.dirEntry(at), next.chunks[at:at+n])
		at += n
	}
	if b.Len() > 0 {
		c.counters[0].reads.Add(uint64(b.Len()))
		if err := rdma.Do(ctx, conn, &b); err != nil {
			return fmt.Errorf("hash: read directory: %w", err)
		}
	}
	for i, addr := range next.chunks[have:] {
		if !goodAddr(addr, bucketBytes) {
			return fmt.Errorf("%w: chunk %d at %#x", index.ErrCorrupt, have+uint64(i), addr)
		}
	}
	c.view.Store(next)
	c.sawBuckets(root.buckets)
	return nil
}

func (c *Client) readRoot(ctx context.Context, conn rdma.Conn) (rootInfo, error) {
	buf := make([]uint64, rootWords)
	var b rdma.Batch
	for range maintainAttempts {
		b.Reset()
		b.Read(c.rkey, c.root, buf)
		c.counters[0].reads.Add(1)
		if err := rdma.Do(ctx, conn, &b); err != nil {
			return rootInfo{}, fmt.Errorf("hash: read root: %w", err)
		}
		if block.Accept(buf, b.WRs[0].Tail, c.root, c.inOrder) == block.OK {
			return decodeRoot(buf)
		}
		runtime.Gosched()
	}
	return rootInfo{}, fmt.Errorf("%w: the root block at %#x is never at rest", index.ErrCorrupt, c.root)
}

// sawBuckets raises the assumed number of buckets.
func (c *Client) sawBuckets(n uint64) {
	for {
		old := c.buckets.Load()
		if n <= old || c.buckets.CompareAndSwap(old, n) {
			return
		}
	}
}

// locations is the location cache: a table of slot words, each read and
// replaced whole, so that it needs no lock. The words of one line are a set. An
// entry only says where to look first; the row found there proves itself.
type locations struct {
	words []atomic.Uint64
}

// ways is the size of a set.
const ways = mem.LineBytes / mem.WordBytes

func (l *locations) init(entries int) {
	if entries > 0 {
		l.words = make([]atomic.Uint64, 1<<bits.Len(uint(max(entries, ways)-1)))
	}
}

// set is where a key with this hash may be noted.
func (l *locations) set(hash uint64) []atomic.Uint64 {
	if len(l.words) == 0 {
		return nil
	}
	i := hash & uint64(len(l.words)-1) &^ (ways - 1)
	return l.words[i : i+ways]
}

// get returns the reference to where the row of a key with this hash may be, or 0.
func (l *locations) get(hash uint64) uint64 {
	set := l.set(hash)
	for i := range set {
		if w := set[i].Load(); slotMatches(w, hash) {
			return slotRef(w)
		}
	}
	return 0
}

// put notes a row, in an empty place of its set or in one that depends on all
// that the set holds, so that no two rows evict each other for ever.
func (l *locations) put(hash, ref uint64) {
	set := l.set(hash)
	if set == nil {
		return
	}
	w, empty := makeSlot(hash, ref), -1
	sum := w
	for i := range set {
		old := set[i].Load()
		switch {
		case old == w:
			return
		case slotMatches(old, hash):
			set[i].Store(w)
			return
		case old == 0:
			empty = i
		}
		sum = bits.RotateLeft64(sum, 7) ^ old
	}
	if empty < 0 {
		empty = int(hashKey(sum) % ways)
	}
	set[empty].Store(w)
}

// drop removes the entry that the row is at ref, unless the entry has changed.
func (l *locations) drop(hash, ref uint64) {
	set := l.set(hash)
	w := makeSlot(hash, ref)
	for i := range set {
		set[i].CompareAndSwap(w, 0)
	}
}
