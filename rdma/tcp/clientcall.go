package tcp

import (
	"context"
	"errors"
	"os"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// StartCall sends the request. If too much is in flight, FinishCall or Wait sends
// it.
func (c *conn) StartCall(ctx context.Context, req []byte) error {
	if !c.usable() {
		return c.linkErr()
	}
	k := &c.call
	if err := provide.CheckCall(k.calling, req); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	k.seq++
	k.calling, k.replied, k.deferred, k.reqBytes = true, false, true, len(req)
	k.request = appendMessage(k.request[:0], kindCall, k.seq, req)
	if n := len(k.request) * mem.WordBytes; c.room(n, false) {
		return c.startSmall()
	} else if c.unanswered > 0 {
		return nil
	}
	return c.startLarge(ctx)
}

func (c *conn) startSmall() error {
	if c.sendCall() != nil {
		c.call.calling = false
		c.fail()
		return c.linkErr()
	}
	return nil
}

// startLarge sends a request. It may have to wait until the server has read a
// part of it.
func (c *conn) startLarge(ctx context.Context) error {
	k := &c.call
	if !c.watch.begin(ctx) {
		k.calling, k.deferred = false, false // nothing was sent
		return ctx.Err()
	}
	err := c.sendCall()
	c.watch.end()
	if err == nil {
		return nil
	}
	k.calling = false
	ended := ctx.Err()
	c.fail()
	if ended != nil && errors.Is(err, os.ErrDeadlineExceeded) {
		return ended
	}
	return c.linkErr()
}

// sendCall sends the request.
func (c *conn) sendCall() error {
	k := &c.call
	k.deferred = false
	if c.unanswered > 0 {
		c.inFlight += len(k.request) * mem.WordBytes
	}
	err := c.write(k.request)
	if cap(k.request) > keepWords {
		k.request = nil
	}
	return err
}

// FinishCall awaits the response.
func (c *conn) FinishCall(ctx context.Context, resp []byte) ([]byte, error) {
	k := &c.call
	if !k.calling {
		if !c.usable() {
			return resp[:0], c.linkErr()
		}
		return resp[:0], provide.ErrNoCall
	}
	if !k.replied {
		if err := c.await(ctx, func() bool { return k.replied }); err != nil {
			return resp[:0], err // the call stays outstanding
		}
	}
	k.calling = false
	if !k.replied {
		return resp[:0], c.linkErr()
	}
	k.replied = false
	resp = append(resp[:0], k.reply...)
	c.ctr.Add(&rdma.Counters{RPCs: 1, RPCBytes: uint64(k.reqBytes + len(resp))})
	if cap(k.reply) > keepWords*mem.WordBytes {
		k.reply = nil
	}
	return resp, nil
}
