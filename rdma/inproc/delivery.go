package inproc

import (
	"context"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

const (
	// copiesAfterMax bounds how many requests a second delivery lags behind.
	copiesAfterMax = 8
	// copyTick replaces one request if no request arrives.
	copyTick = 50 * time.Microsecond
)

// callPlan has the adversary's faults for one call. StartCall draws it before
// the poller can see the call.
type callPlan struct {
	dropAfter bool
	duplicate bool
	after     int           // requests handled before the second delivery
	delay     time.Duration // of the response
	ready     time.Duration // when the response may be seen; set by the replier
}

// sendSlow sends the request of the call just prepared, or loses it.
func (c *conn) sendSlow() {
	a, f := c.adv, &c.adv.o.Faults
	k := &c.call
	before, during := a.rng.Bool(f.DropBefore), a.rng.Bool(f.DropDuring)
	k.plan = callPlan{
		dropAfter: a.rng.Bool(f.DropAfter),
		duplicate: a.rng.Bool(f.Duplicate),
		after:     a.rng.Intn(copiesAfterMax + 1),
	}
	if a.rng.Bool(f.Delay) {
		k.plan.delay = time.Duration(a.rng.Uint64n(uint64(f.MaxDelay) + 1))
	}
	n := len(k.body())
	k.plan.delay += a.o.Latency.RPC + time.Duration(float64(n)*a.o.Latency.ByteNs)
	if before {
		c.leave(provide.Broken)
		return
	}
	c.poller.push(&c.callEv)
	if during {
		c.leave(provide.Broken)
	}
}

// carryBack puts the response onto the link; it reports false if the link
// broke.
func (c *conn) carryBack() bool {
	p := &c.call.plan
	if p.dropAfter {
		c.leave(provide.Broken)
		return false
	}
	o := c.adv.o
	p.ready = o.Clock.Now() + p.delay + time.Duration(float64(len(c.call.response))*o.Latency.ByteNs)
	return true
}

// holdResponse delays the client for both directions at once: the server
// handles the request early, and the client sees the answer at the right time.
func (c *conn) holdResponse(ctx context.Context) error {
	if err := c.sleepUntil(ctx, c.call.plan.ready); err != nil {
		return err
	}
	return c.linkErr()
}

// delivery is one delivery of a request to the handler, with its own copies: of
// two deliveries, the later may still be in the handler when the client,
// answered by the first, is several calls ahead.
type delivery struct {
	rdma.Request
	c     *conn
	seq   uint64
	after int
}

// Reply answers the call unless the other delivery has done so.
func (d *delivery) Reply(body []byte) error {
	_, err := d.c.answer(d.seq, body)
	return err
}

func newDelivery(c *conn, seq uint64, body []byte) *delivery {
	d := &delivery{c: c, seq: seq}
	d.Request = rdma.Request{Body: append([]byte(nil), body...), Peer: c.peer, From: c.req.From, Replier: d}
	return d
}

// deliverTwice delivers the connection's request to the handler, and keeps a
// copy for later if the plan requires one.
func (p *poller) deliverTwice(c *conn, h rdma.Handler) {
	if c.adv.o.Faults.Duplicate == 0 {
		c.req.Body = c.call.body()
		h(&c.req)
		return
	}
	seq, body, plan := c.call.phase.Load()>>phaseBits, c.call.body(), c.call.plan
	if plan.duplicate {
		d := newDelivery(c, seq, body)
		d.after = plan.after
		p.copies = append(p.copies, d)
	}
	h(&newDelivery(c, seq, body).Request)
	p.deliverCopies()
}

// deliverCopies counts one request, or the time of one, and delivers the
// copies that are due.
func (p *poller) deliverCopies() {
	h := p.e.Handler()
	rest := p.copies[:0]
	for _, d := range p.copies {
		if d.after--; d.after >= 0 {
			rest = append(rest, d)
		} else if !p.e.Closed() {
			h(&d.Request)
		}
	}
	clear(p.copies[len(rest):])
	p.copies = rest
}
