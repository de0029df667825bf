package shm

import (
	"context"
	"slices"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// writes are the batches of a connection in which the server's agent has a part. The agent
// has requests of one batch at a time, as many as fit their area; Wait sends the rest. The
// goroutine that uses the connection does all the work.
type writes struct {
	verbs, results mem.Span
	seq            uint32        // of the verbs sent last
	queue          []*rdma.Batch // not complete, oldest first
	at             int           // the requests of the first batch before this one are done
	sent           int           // those from at up to here are with the agent; at if there are none
	words          int           // of the verbs sent last
	awaited        bool          // the goroutine waits for results, not for a response
}

// enqueue adds a batch, and sends verbs if the agent has none.
func (c *conn) enqueue(b *rdma.Batch) {
	c.writes.queue = append(c.writes.queue, b)
	if len(c.writes.queue) == 1 {
		c.pump()
	}
}

// awaitAgent returns when no request of b is with the agent, or waits for its turn. What is
// left of b are READs of memory that is not mapped. If ctx ends first, b stays in flight.
func (c *conn) awaitAgent(ctx context.Context, b *rdma.Batch) error {
	w := &c.writes
	for slices.Contains(w.queue, b) {
		if w.sent > w.at {
			w.awaited = true
			err := error(nil)
			if !c.ready() {
				err = c.link.p.hub.await(ctx, c)
			}
			w.awaited = false
			if err != nil {
				return err
			}
			c.takeResults()
		} else if wr := &w.queue[0].WRs[w.at]; wr.Status == rdma.StatusPending {
			if err := c.fetch(ctx, wr); err != nil { // it is a READ
				return err
			}
			c.done(wr)
		}
		c.pump()
	}
	return nil
}

// done accounts for the request at w.at.
func (c *conn) done(wr *rdma.WR) {
	var n rdma.Counters
	n.Count(wr)
	c.ctr.Add(&n)
	c.writes.at++
	c.writes.sent = c.writes.at
}

// pump goes on with the batches until the agent has verbs, a READ needs memory that is not
// mapped, or all is done.
func (c *conn) pump() {
	w := &c.writes
	for len(w.queue) > 0 && w.sent == w.at {
		b := w.queue[0]
		if w.at == len(b.WRs) {
			rest := copy(w.queue, w.queue[1:])
			w.queue[rest] = nil
			w.queue, w.at, w.sent = w.queue[:rest], 0, 0
			continue
		}
		wr := &b.WRs[w.at]
		if wr.Status != rdma.StatusPending || wr.Op == rdma.OpRead && !b.Ordered {
			w.at++
			w.sent = w.at
			continue
		}
		if wr.Status = c.perform(wr); wr.Status != rdma.StatusPending {
			c.done(wr)
			continue
		}
		if wr.Op == rdma.OpRead {
			return
		}
		c.sendVerbs(b)
	}
}

// sendVerbs passes as many requests of b as fit to the agent, from w.at on: those up to the next
// READ if b is ordered.
func (c *conn) sendVerbs(b *rdma.Batch) {
	w := &c.writes
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.released || !c.usable() {
		c.abandon()
		return
	}
	at, i := 0, w.at
	for ; i < len(b.WRs); i++ {
		wr := &b.WRs[i]
		if wr.Op == rdma.OpRead && b.Ordered {
			break
		}
		if wr.Op == rdma.OpRead || wr.Status != rdma.StatusPending {
			continue
		}
		if wr.Status = c.perform(wr); wr.Status != rdma.StatusPending {
			var n rdma.Counters
			n.Count(wr)
			c.ctr.Add(&n)
			continue
		}
		v := verb{op: wr.Op, words: len(wr.Buf), rkey: wr.RKey, addr: wr.Addr, arg: wr.Arg, swap: wr.Swap}
		if at+verbWords+v.bodyWords() > w.verbs.Words() {
			break
		}
		v.encode(w.verbs.Slice(at, verbWords))
		at += verbWords
		if n := v.bodyWords(); n > 0 {
			w.verbs.Slice(at, n).CopyIn(wr.Buf)
			at += n
		}
	}
	w.sent, w.words = i, at
	w.seq++
	c.busy++
	c.request.publishVerbs(w.seq, at)
	c.link.requests.Or(c.word, c.mask)
	c.bell.ring()
}

// takeResults completes the requests that were with the agent, or all if the connection is
// down.
func (c *conn) takeResults() {
	w := &c.writes
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy--
	seq, words := c.response.verbs()
	if c.released || seq != w.seq || words > w.results.Words() {
		c.abandon()
		return
	}
	b, at := w.queue[0], 0
	var n rdma.Counters
	for i := w.at; i < w.sent; i++ {
		wr := &b.WRs[i]
		if wr.Op == rdma.OpRead || wr.Status != rdma.StatusPending {
			continue
		}
		if at+resultWords > words {
			c.abandon()
			return
		}
		r := w.results.Slice(at, resultWords)
		at += resultWords
		switch wr.Status = rdma.Status(r.Load(0)); {
		case wr.Status.Err() == nil && wr.Op != rdma.OpWrite:
			wr.Buf[0] = r.Load(1)
		case wr.Status == rdma.StatusPending:
			wr.Status = rdma.StatusPeerDown // not a server of ours
		}
		if c.link.left.Load() {
			wr.Status = rdma.StatusPeerDown // the server may have cleared the result
		}
		n.Count(wr)
	}
	c.ctr.Add(&n)
	w.at = w.sent
	if w.words*mem.WordBytes > provide.KeepBytes {
		c.idle.Used(c.giveBack)
	}
}

// abandon completes all requests of the queue: the connection is down.
func (c *conn) abandon() {
	w := &c.writes
	var n rdma.Counters
	for _, b := range w.queue {
		for i := range b.WRs {
			if wr := &b.WRs[i]; wr.Status == rdma.StatusPending {
				wr.Status = rdma.StatusPeerDown
				n.Count(wr)
			}
		}
	}
	c.ctr.Add(&n)
	clear(w.queue)
	w.queue, w.at, w.sent = w.queue[:0], 0, 0
}
