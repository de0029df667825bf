package inproc

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

var errEmptyBatch = errors.New("inproc: empty batch")

// linkState is the health of a connection. It only moves down this list.
type linkState = uint32

const (
	linkUp linkState = iota
	linkPeerDown
	linkClosed
)

// conn is the client side of a connection. Except for what call documents,
// only the goroutine that uses the connection touches it.
type conn struct {
	e    *endpoint
	peer rdma.PeerID
	link atomic.Uint32
	ctr  *rdma.Tally
	call call
	req  rdma.Request // what the handler sees; one call is outstanding at a time
	adv  *adversary   // nil without latency and faults

	reads  bool // the peer may use regions
	summed bool // into the endpoint's closed counters; under its lock
	poller *poller
	callEv event
	goneEv event
}

var _ rdma.Conn = (*conn)(nil)

func newConn(e *endpoint, peer rdma.PeerID, who *rdma.Identity, p *poller) *conn {
	c := &conn{e: e, peer: peer, poller: p, ctr: new(rdma.Tally), reads: who.MayRead()}
	c.call.parker = newParker()
	c.callEv = event{conn: c, kind: eventCall}
	c.goneEv = event{conn: c, kind: eventGone}
	c.req = rdma.Request{Peer: peer, From: who, Replier: (*replier)(c)}
	return c
}

// linkErr returns the error of using the connection in its present state.
func (c *conn) linkErr() error {
	switch c.link.Load() {
	case linkUp:
		return nil
	case linkClosed:
		return fmt.Errorf("inproc: connection to %q: %w", c.e.addr, rdma.ErrClosed)
	}
	return fmt.Errorf("inproc: connection to %q: %w", c.e.addr, rdma.ErrPeerDown)
}

// leave moves the connection down to state to. The first caller notifies the
// server.
func (c *conn) leave(to linkState) {
	for {
		old := c.link.Load()
		if old >= to {
			return
		}
		if !c.link.CompareAndSwap(old, to) {
			continue
		}
		c.call.wake()
		if old == linkUp && c.e.left(c) {
			c.poller.push(&c.goneEv)
		}
		if to == linkClosed {
			c.e.closed(c)
		}
		return
	}
}

func (c *conn) Close() error {
	c.leave(linkClosed)
	return nil
}

func (c *conn) InOrder() bool { return c.e.net.opts.Faults.Scramble == 0 }

func (c *conn) Post(b *rdma.Batch) error {
	if err := c.linkErr(); err != nil {
		return err
	}
	if len(b.WRs) == 0 {
		return errEmptyBatch
	}
	if len(b.WRs) > rdma.MaxBatch {
		return fmt.Errorf("inproc: batch of %d work requests: %w", len(b.WRs), rdma.ErrTooLarge)
	}
	if c.adv != nil {
		c.postSlow(b)
		return nil
	}
	n := rdma.Counters{Rounds: 1}
	for i := range b.WRs {
		wr := &b.WRs[i]
		if c.link.Load() == linkUp {
			wr.Status = c.perform(wr)
		} else {
			wr.Status = rdma.StatusPeerDown
		}
		n.Count(wr)
	}
	c.ctr.Add(&n)
	return nil
}

// Wait returns at once, because Post has done the work, unless there is latency
// or faults.
func (c *conn) Wait(ctx context.Context, b *rdma.Batch) error {
	if c.adv != nil {
		return c.waitSlow(ctx, b)
	}
	return b.Err()
}

// perform performs one work request, as the server's NIC would.
func (c *conn) perform(wr *rdma.WR) rdma.Status {
	if wr.Op < rdma.OpRead || wr.Op > rdma.OpFAA {
		return rdma.StatusUnsupported
	}
	s, ok := c.span(wr)
	if !ok {
		return rdma.StatusAccess
	}
	switch wr.Op {
	case rdma.OpRead:
		if c.adv != nil {
			c.adv.read(s, wr)
			break
		}
		s.CopyOut(wr.Buf)
		wr.Tail = s.Load(0)
	case rdma.OpWrite:
		s.CopyIn(wr.Buf)
	case rdma.OpCAS:
		wr.Buf[0] = compareAndSwap(s, wr.Arg, wr.Swap)
	case rdma.OpFAA:
		wr.Buf[0] = s.Add(0, wr.Arg) - wr.Arg
	}
	return rdma.StatusOK
}

// span checks a work request against its grant and the bounds.
func (c *conn) span(wr *rdma.WR) (mem.Span, bool) {
	grants := *c.e.grants.Load()
	i := int(wr.RKey) - 1
	if i < 0 || i >= len(grants) || len(wr.Buf) == 0 || len(wr.Buf) > rdma.MaxReadBytes/mem.WordBytes {
		return mem.Span{}, false
	}
	words, need := len(wr.Buf), rdma.AccessRead
	switch wr.Op {
	case rdma.OpWrite:
		need = rdma.AccessWrite
	case rdma.OpCAS, rdma.OpFAA:
		words, need = 1, rdma.AccessAtomic
	}
	if grants[i].access&need == 0 || !c.reads {
		return mem.Span{}, false
	}
	return grants[i].region.Span(wr.Addr, uint64(words)*mem.WordBytes)
}

// compareAndSwap returns the old value, which mem.Span's does not.
func compareAndSwap(s mem.Span, expect, swap uint64) uint64 {
	for {
		old := s.Load(0)
		if old != expect || s.CompareAndSwap(0, expect, swap) {
			return old
		}
	}
}

func (c *conn) Counters() rdma.Counters { return c.ctr.Snapshot() }
