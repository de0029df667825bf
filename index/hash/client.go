package hash

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// maintainAttempts bounds how often Maintain READs a root block that is being written.
// Most often the server is done at once. If the machine runs something else in the middle
// of a change, it takes milliseconds, so Maintain sleeps after maintainSpins of them.
const (
	maintainAttempts = 1 << 9
	maintainSpins    = 1 << 6
	maintainPause    = 100 * time.Microsecond
)

// ClientOptions configure the client half.
type ClientOptions struct {
	// InOrder means that all connections load READs in order
	// (rdma.Conn.InOrder). Otherwise the server's arena must keep checksums:
	// without them the client accepts no copy.
	InOrder bool
	// LocationCacheEntries is the size of the location cache, rounded up to a power
	// of two. An entry has 8 bytes and holds the place where a row was last seen,
	// which saves a round. 0 means no location cache.
	LocationCacheEntries int
	// Clock measures the age of the location cache; nil means clock.Fast.
	Clock clock.Source
}

// Client is the client half of a hash index in one partition. It implements
// index.Client.
type Client struct {
	root    uint64
	rkey    rdma.RKey
	inOrder bool

	view    atomic.Pointer[view]
	buckets atomic.Uint64 // lower bound on the number of buckets: a hint
	stale   atomic.Bool
	entries int // of the location cache
	cache   atomic.Pointer[locations]
	clock   clock.Source

	maintain sync.Mutex
	nextOp   atomic.Uint64
	counters [stripes]counters
}

var _ index.Client = (*Client)(nil)

// view is a client's copy of the directory. It is immutable and replaced as a
// whole.
type view struct {
	strings  bool
	rowWords int // with rows of variable size, the maximum
	rowBlock int // words; with rows of variable size, of the largest
	tag      uint32
	geo      geometry
	chunks   []uint64
}

// newView returns a view without any chunk.
func newView(root rootInfo, addr uint64) *view {
	v := &view{strings: root.strings, rowWords: root.rowWords, rowBlock: rowBlockWords(root.rowWords), geo: root.geo, tag: strTag(addr)}
	if v.strings {
		v.rowBlock = largestStrBlock(root.rowWords)
	}
	return v
}

// bucketAddr returns the address of bucket b, or false if its chunk is not known.
func (v *view) bucketAddr(b uint64) (uint64, bool) {
	chunk, place := v.geo.locate(b)
	if chunk >= uint64(len(v.chunks)) {
		return 0, false
	}
	return v.chunks[chunk] + place*bucketBytes, true
}

// stripes spread the counters, so that goroutines seldom share a line.
const stripes = 16

// counters fill a line.
type counters struct {
	plain atomic.Uint64 // lookups of one READ; the other counters do not include them

	lookups, rounds, reads, chases, fallbacks, retries, refreshes atomic.Uint64
}

// NewClient returns a client half for the index whose root block is at root, in
// the region of rkey. It reads nothing: until the first Maintain its lookups
// end in Fallback.
func NewClient(root uint64, rkey rdma.RKey, o ClientOptions) *Client {
	c := &Client{root: root, rkey: rkey, inOrder: o.InOrder, entries: o.LocationCacheEntries, clock: o.Clock.Or(clock.Fast)}
	c.cache.Store(&locations{})
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
		plain := n.plain.Load()
		s.Lookups += plain + n.lookups.Load()
		s.Rounds += plain + n.rounds.Load()
		s.Reads += plain + n.reads.Load()
		s.Chases += n.chases.Load()
		s.Fallbacks += n.fallbacks.Load()
		s.Retries += n.retries.Load()
		s.Refreshes += n.refreshes.Load()
	}
	s.CacheBytes = uint64(len(c.cache.Load().words)) * mem.WordBytes
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
	before := c.clock()
	root, turn, err := c.readRoot(ctx, conn)
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
	c.sawTurn(turn, before)
	return nil
}

// readRoot READs the root block and the turn of the partition.
func (c *Client) readRoot(ctx context.Context, conn rdma.Conn) (rootInfo, uint64, error) {
	buf, turn := make([]uint64, rootWords), make([]uint64, 1)
	var b rdma.Batch
	for n := range maintainAttempts {
		if err := ctx.Err(); err != nil {
			return rootInfo{}, 0, fmt.Errorf("hash: read root: %w", err)
		}
		b.Reset()
		b.Read(c.rkey, c.root, buf)
		b.Read(c.rkey, block.TurnAddr, turn)
		c.counters[0].reads.Add(2)
		if err := rdma.Do(ctx, conn, &b); err != nil {
			return rootInfo{}, 0, fmt.Errorf("hash: read root: %w", err)
		}
		if block.Accept(buf, b.WRs[0].Tail, c.root, c.inOrder) == block.OK {
			root, err := decodeRoot(buf)
			return root, turn[0], err
		}
		if n < maintainSpins {
			runtime.Gosched()
		} else {
			time.Sleep(maintainPause)
		}
	}
	return rootInfo{}, 0, fmt.Errorf("%w: the root block at %#x is never at rest", index.ErrCorrupt, c.root)
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
