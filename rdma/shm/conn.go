package shm

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// conn is the client side of a connection. It owns its slot until it sets
// released under mu, and then notifies the server. Every access to the slot
// holds mu and first checks released.
type conn struct {
	link  *link
	id    uint32 // on the link
	slot  int
	word  int // of the doorbells
	mask  uint64
	bell  *serverBell
	state provide.Link
	ctr   rdma.Tally

	request  area
	response area
	seq      uint32 // of the last request
	calling  bool
	reqBytes uint64
	writes   writes

	follows atomic.Bool // listens to wake
	wake    chan struct{}
	place   int // in hub.mu.waiting

	mu       sync.Mutex
	released bool
	busy     int // calls and verbs under way
	idle     provide.Idle
	unref    sync.Once
}

var _ rdma.Conn = (*conn)(nil)

func newConn(l *link, id uint32, slot int) *conn {
	c := &conn{link: l, id: id, slot: slot, wake: make(chan struct{}, 1)}
	var poller int
	poller, c.word, c.mask = bellOf(slot, l.pollers)
	c.bell = &l.bells[poller]
	c.request, c.response = slotAreas(l.seg, slot)
	c.writes.verbs, c.writes.results = slotVerbs(l.seg, slot)
	return c
}

// err returns the error of using the connection in its present state.
func (c *conn) err() error {
	if err := c.state.Err("shm", c.link.addr); err != nil {
		return err
	}
	return c.link.downError()
}

func (c *conn) usable() bool { return c.state.Up() && !c.link.dead.Load() }

// ready reports whether a goroutine that waits for the response, or for results, can
// continue.
func (c *conn) ready() bool {
	at, seq := 0, c.seq
	if c.writes.awaited {
		at, seq = 1, c.writes.seq
	}
	return uint32(c.response.span.Load(at)) == seq || !c.usable()
}

func (c *conn) signal() { provide.Signal(c.wake) }

// InOrder is true: the copy loads words in ascending order.
func (c *conn) InOrder() bool { return true }

// What Post says of a batch in its token.
const (
	tokenDone    = 1 + iota // every request has succeeded
	tokenMixed              // every request is complete
	tokenPending            // Wait has a context under which to ask the server
	tokenAgent              // the server's agent has to do some of it
)

func (c *conn) Post(b *rdma.Batch) error {
	if !c.usable() {
		return c.err()
	}
	if err := provide.CheckBatch(b); err != nil {
		return err
	}
	regions := *c.link.regions.Load()
	if len(b.WRs) > 1 {
		prefetch(regions, b)
	}
	n := rdma.Counters{Rounds: 1}
	b.Token = tokenDone
	held := false // the requests that follow must wait for one before them
	for i := range b.WRs {
		wr := &b.WRs[i]
		if held {
			wr.Status = rdma.StatusPending
			continue
		}
		if at := int(wr.RKey) - 1; wr.Op == rdma.OpRead && uint(at) < uint(len(regions)) && len(wr.Buf) <= readWordsMax {
			if r := regions[at]; r != nil {
				if tail, ok := r.Fetch(wr.Addr, wr.Buf); ok {
					wr.Status, wr.Tail = rdma.StatusOK, tail
					n.Reads++
					n.ReadBytes += uint64(len(wr.Buf)) * mem.WordBytes
					continue
				}
			}
		}
		if wr.Status = c.perform(wr); wr.Status == rdma.StatusPending {
			b.Token = max(b.Token, tokenPending)
			if held = b.Ordered; held || wr.Op != rdma.OpRead {
				b.Token = tokenAgent
			}
			continue
		}
		if wr.Status != rdma.StatusOK {
			b.Token = max(b.Token, tokenMixed)
		}
		n.Count(wr)
	}
	mem.Acquire()
	c.ctr.Add(&n)
	if b.Token == tokenAgent {
		c.enqueue(b)
	}
	return nil
}

func (c *conn) Wait(ctx context.Context, b *rdma.Batch) error {
	if b.Token == tokenDone {
		return nil
	}
	if b.Token == tokenAgent {
		if err := c.awaitAgent(ctx, b); err != nil {
			return err // the batch stays in flight
		}
		b.Token = tokenPending
	}
	if b.Token == tokenPending {
		if err := c.finish(ctx, b); err != nil {
			return err // the batch stays in flight
		}
		b.Token = tokenMixed
	}
	return b.Err()
}

// finish completes the requests on memory that was not mapped yet.
func (c *conn) finish(ctx context.Context, b *rdma.Batch) error {
	var n rdma.Counters
	defer func() { c.ctr.Add(&n) }()
	for i := range b.WRs {
		wr := &b.WRs[i]
		if wr.Status != rdma.StatusPending {
			continue
		}
		if err := c.fetch(ctx, wr); err != nil {
			return err
		}
		n.Count(wr)
	}
	return nil
}

// fetch completes a READ of memory that was not mapped yet, unless ctx ends first.
func (c *conn) fetch(ctx context.Context, wr *rdma.WR) error {
	err := c.link.fetch(ctx, wr)
	if err != nil && ctx.Err() != nil && c.usable() {
		return ctx.Err()
	}
	if err != nil {
		wr.Status = rdma.StatusPeerDown
	}
	return nil
}

// prefetch starts to load the cache lines that the READs of a batch will copy,
// so that all of them arrive together, as over a network.
func prefetch(regions []*mem.Region, b *rdma.Batch) {
	for i := range b.WRs {
		wr := &b.WRs[i]
		if at := int(wr.RKey) - 1; uint(at) < uint(len(regions)) && regions[at] != nil {
			if s, ok := regions[at].Span(wr.Addr, uint64(len(wr.Buf))*mem.WordBytes); ok {
				s.Prefetch()
			}
		}
	}
}

// readWordsMax bounds one READ.
const readWordsMax = rdma.MaxReadBytes / mem.WordBytes

// perform performs one work request. It leaves pending what is the agent's, and a READ of
// memory that is not mapped yet.
func (c *conn) perform(wr *rdma.WR) rdma.Status {
	switch need, words := provide.Need(wr.Op, len(wr.Buf)); {
	case need == 0:
		return rdma.StatusUnsupported
	case words == 0:
		return rdma.StatusAccess
	case wr.Op != rdma.OpRead:
		return rdma.StatusPending
	}
	r := c.link.region(wr.RKey)
	if r == nil {
		return rdma.StatusPending
	}
	return read(r, wr)
}

// read performs a READ, or leaves it pending if the region may have grown since
// its files were last fetched.
func read(r *mem.Region, wr *rdma.WR) rdma.Status {
	n := uint64(len(wr.Buf)) * mem.WordBytes
	s, ok := r.Span(wr.Addr, n)
	if !ok {
		if wr.Addr >= r.MaxBytes() || wr.Addr+n <= r.Size() {
			return rdma.StatusAccess
		}
		return rdma.StatusPending
	}
	s.CopyOut(wr.Buf)
	wr.Tail = s.Load(0)
	return rdma.StatusOK
}

func (c *conn) StartCall(ctx context.Context, req []byte) error {
	if !c.usable() {
		return c.err()
	}
	if err := provide.CheckCall(c.calling, req); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released {
		return c.err()
	}
	c.seq++
	c.calling = true
	c.busy++
	c.reqBytes = uint64(len(req))
	c.request.publish(c.seq, req)
	c.link.requests.Or(c.word, c.mask)
	c.bell.ring()
	return nil
}

func (c *conn) FinishCall(ctx context.Context, resp []byte) ([]byte, error) {
	if !c.calling {
		if !c.usable() {
			return resp[:0], c.err()
		}
		return resp[:0], provide.ErrNoCall
	}
	if !c.ready() {
		if err := c.link.p.hub.await(ctx, c); err != nil {
			return resp[:0], err // the call stays outstanding
		}
	}
	c.calling = false
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy--
	seq, n := c.response.header()
	if c.released || seq != c.seq {
		return resp[:0], c.err()
	}
	if n > rdma.MaxMessageBytes {
		return resp[:0], fmt.Errorf("shm: response claims %d bytes: %w", n, rdma.ErrPeerDown)
	}
	resp = slices.Grow(resp[:0], int(n))[:n]
	c.response.body().CopyBytesOut(resp)
	if c.link.left.Load() {
		return resp[:0], c.err() // the server may have cleared what was being copied
	}
	c.ctr.Add(&rdma.Counters{RPCs: 1, RPCBytes: c.reqBytes + n})
	if max(c.reqBytes, n) > provide.KeepBytes {
		c.idle.Used(c.giveBack)
	}
	return resp, nil
}

// giveBack frees the pages that large messages and verbs have filled. Neither side reads
// them between two calls.
func (c *conn) giveBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released || !c.idle.Over(c.busy > 0) {
		return
	}
	off := uint64(slotsOffset + c.slot*slotBytes)
	for _, n := range []uint64{areaBytes, areaBytes, verbsBytes} {
		c.link.seg.Discard(off+provide.KeepBytes, n-provide.KeepBytes)
		off += n
	}
}

// fail breaks the connection and gives its slot back.
func (c *conn) fail() {
	c.state.Move(provide.Broken)
	c.release()
}

// release gives the slot back, once.
func (c *conn) release() {
	c.mu.Lock()
	first := !c.released
	c.released = true
	c.idle.Stop()
	c.mu.Unlock()
	c.link.p.hub.nudge(c)
	if !first {
		return
	}
	c.link.conns[c.slot].CompareAndSwap(c, nil)
	if !c.link.dead.Load() {
		// If this fails the link is dead, or soon will be.
		_ = c.link.sock.send(&message{kind: msgClose, slot: uint32(c.slot)})
	}
}

// Close releases the connection; a call in flight returns rdma.ErrClosed.
func (c *conn) Close() error {
	c.state.Move(provide.Closed)
	c.release()
	c.unref.Do(func() { c.link.p.unref(c.link) })
	return nil
}

func (c *conn) Counters() rdma.Counters { return c.ctr.Snapshot() }
