package inproc

import (
	"context"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// conn is the client side of a connection. Except for what call documents,
// only the goroutine that uses the connection touches it.
type conn struct {
	e    *endpoint
	peer rdma.PeerID
	link provide.Link
	ctr  *rdma.Tally
	call call
	req  rdma.Request // what the handler sees; one call is outstanding at a time
	adv  *adversary   // nil without latency and faults

	reads  bool // the peer may use regions
	extra  provide.Extra
	summed bool // into the endpoint's closed counters; under its lock
	poller *poller
	callEv provide.Node[event]
	goneEv provide.Node[event]
}

var _ rdma.Conn = (*conn)(nil)

func newConn(e *endpoint, peer rdma.PeerID, who *rdma.Identity, p *poller) *conn {
	c := &conn{e: e, peer: peer, poller: p, ctr: new(rdma.Tally), reads: who.MayRead()}
	c.call.parker = newParker()
	c.callEv.Value = event{c, eventCall}
	c.goneEv.Value = event{c, eventGone}
	c.req = rdma.Request{Peer: peer, From: who, Replier: (*replier)(c)}
	return c
}

// linkErr returns the error of using the connection in its present state.
func (c *conn) linkErr() error {
	if c.link.Up() {
		return nil
	}
	return c.link.Err("inproc", c.e.Addr())
}

// leave moves the connection down to state to. The first caller notifies the
// server.
func (c *conn) leave(to provide.Health) {
	from, moved := c.link.Move(to)
	if !moved {
		return
	}
	c.call.wake()
	if from == provide.Up && c.e.noteBroken(c) {
		c.poller.push(&c.goneEv)
	}
	if to == provide.Closed {
		c.e.forget(c)
	}
}

func (c *conn) Close() error {
	c.leave(provide.Closed)
	return nil
}

func (c *conn) InOrder() bool { return !c.e.net.Unordered() }

// What Post says of a batch in its token, unless there is latency or faults.
const (
	tokenDone  = 1 + iota // every request has succeeded
	tokenMixed            // every request is complete

	tokenBits = 2 // above them: when a batch of a modelled machine is complete
)

func (c *conn) Post(b *rdma.Batch) error {
	if err := c.linkErr(); err != nil {
		return err
	}
	if err := provide.CheckBatch(b); err != nil {
		return err
	}
	if c.adv != nil {
		c.postSlow(b)
		return nil
	}
	n := rdma.Counters{Rounds: 1}
	b.Token = tokenDone
	for i := range b.WRs {
		wr := &b.WRs[i]
		switch {
		case !c.link.Up():
			wr.Status = rdma.StatusPeerDown
		case wr.Op == rdma.OpRead && c.read(wr):
			n.Reads++
			n.ReadBytes += uint64(len(wr.Buf)) * mem.WordBytes
			continue
		default:
			wr.Status = c.perform(wr)
		}
		if wr.Status != rdma.StatusOK {
			b.Token = tokenMixed
		}
		n.Count(wr)
	}
	mem.Acquire()
	c.ctr.Add(&n)
	if m := c.e.node.Load(); m != nil {
		b.Token |= uint64(m.batch(b)) << tokenBits
	}
	return nil
}

// read performs a READ, unless there is anything wrong with it.
func (c *conn) read(wr *rdma.WR) (ok bool) {
	grants, i := c.e.Grants(), int(wr.RKey)-1
	if uint(i) >= uint(len(grants)) || len(wr.Buf) > rdma.MaxReadBytes/mem.WordBytes || !c.reads {
		return false
	}
	wr.Status = rdma.StatusOK
	wr.Tail, ok = grants[i].Region.Fetch(wr.Addr, wr.Buf)
	return ok
}

// Wait returns at once, because Post has done the work, unless there is latency
// or faults.
func (c *conn) Wait(ctx context.Context, b *rdma.Batch) error {
	if c.adv != nil {
		return c.waitSlow(ctx, b)
	}
	if b.Token == tokenDone {
		return nil
	}
	if due := time.Duration(b.Token >> tokenBits); due > 0 {
		if m := c.e.node.Load(); m != nil {
			if err := m.sleepUntil(ctx, c, due); err != nil {
				return err // if ctx has ended, another Wait sleeps for the rest
			}
		}
		b.Token &= 1<<tokenBits - 1
	}
	return b.Err()
}

// perform performs one work request, as the server's NIC would.
func (c *conn) perform(wr *rdma.WR) rdma.Status {
	s, status := c.span(wr)
	switch {
	case status != rdma.StatusOK:
	case wr.Op != rdma.OpRead:
		status = c.change(s, wr)
	case c.adv != nil:
		c.adv.read(s, wr)
	default:
		s.CopyOut(wr.Buf)
		wr.Tail = s.Load(0)
	}
	return status
}

// change performs a WRITE or an atomic, unless the peer was revoked.
func (c *conn) change(s mem.Span, wr *rdma.WR) rdma.Status {
	e := c.e
	e.effects.RLock()
	defer e.effects.RUnlock()
	if e.revoked[c.peer] {
		return rdma.StatusPeerDown
	}
	if wr.Op != rdma.OpWrite && e.device != nil {
		wr.Buf[0] = e.device.perform(s, wr)
		return rdma.StatusOK
	}
	switch wr.Op {
	case rdma.OpWrite:
		s.CopyIn(wr.Buf)
	case rdma.OpCAS:
		wr.Buf[0] = provide.CompareAndSwap(s, wr.Arg, wr.Swap)
	case rdma.OpFAA:
		wr.Buf[0] = s.Add(0, wr.Arg) - wr.Arg
	}
	return rdma.StatusOK
}

// span checks a work request against its grant and the bounds.
func (c *conn) span(wr *rdma.WR) (mem.Span, rdma.Status) {
	need, words := provide.Need(wr.Op, len(wr.Buf))
	if need == 0 {
		return mem.Span{}, rdma.StatusUnsupported
	}
	g, ok := c.e.Region(wr.RKey)
	if !ok || words == 0 || (g.Access|c.extra.Of(wr.RKey))&need == 0 || !c.reads {
		return mem.Span{}, rdma.StatusAccess
	}
	s, ok := g.Region.Span(wr.Addr, uint64(words)*mem.WordBytes)
	if !ok {
		return mem.Span{}, rdma.StatusAccess
	}
	return s, rdma.StatusOK
}

func (c *conn) Counters() rdma.Counters { return c.ctr.Snapshot() }
