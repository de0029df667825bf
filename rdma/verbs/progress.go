//go:build verbs

package verbs

// #include "native.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

const (
	// glance bounds how late the end of a context is noticed.
	glance = 10 * time.Millisecond
	// pingAfter is how long to wait in silence before asking whether the peer
	// is there.
	pingAfter = time.Second
)

// progress waits for completions and deals with them. It fails if the
// connection is down or closed, or ctx ended.
func (c *conn) progress(ctx context.Context) error {
	if err := c.usable(); err != nil {
		return err
	}
	n := c.cq.spin(&c.spin)
	if n == 0 {
		var err error
		if n, err = c.sleep(ctx); err != nil {
			return err
		}
	}
	for n > 0 {
		for i := range n {
			c.dispatch(&c.cq.wcs[i])
		}
		if n == len(c.cq.wcs) {
			n = c.cq.poll(1)
		} else {
			n = 0
		}
	}
	if c.down == nil {
		if err := c.mail.settle(); err != nil {
			c.fail(err)
		}
	}
	return c.usable()
}

// sleep parks the goroutine until there are completions.
func (c *conn) sleep(ctx context.Context) (int, error) {
	start := time.Now()
	for now := start; ; now = time.Now() {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if c.closed.Load() {
			return 0, c.usable()
		}
		if c.query.late(now) { // and there is no completion that could be the answer
			c.fail(errUnanswered)
			return 0, c.usable()
		}
		if now.Sub(start) > pingAfter {
			start = now
			if err := c.mail.sendPing(); err != nil {
				c.fail(err)
				return 0, c.usable()
			}
		}
		if err := c.cq.arm(); err != nil {
			c.fail(err)
			return 0, c.usable()
		}
		if n := c.cq.poll(1); n > 0 {
			return n, nil
		}
		err := c.cq.w.wait(now.Add(glance))
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			c.fail(err)
			return 0, c.usable()
		}
		if n := c.cq.poll(1); n > 0 {
			return n, nil
		}
	}
}

// dispatch deals with one completion.
func (c *conn) dispatch(wc *C.struct_vb_wc) {
	if c.down != nil {
		return
	}
	c.mail.lost = 0
	id, status := uint64(wc.id), wcStatus(wc.status)
	switch id & idKindMask {
	case idOneSided:
		c.complete(id&idLowMask, status)
		return
	case idSend:
		c.mail.freeTo(id & idLowMask)
	case idPing:
		c.mail.ping = false
	case idReceive:
		if status == wcSuccess {
			c.received(uint32(id&idLowMask), uint32(wc.bytes))
			return
		}
	}
	if status != wcSuccess {
		c.fail(errors.New(status.String()))
	}
}

// received deals with a fragment from the server.
func (c *conn) received(slot, n uint32) {
	h, payload, err := c.mail.take(slot, n)
	if err == nil {
		switch h.kind {
		case fragCredit:
		case fragResponse, fragMore:
			err = c.calls.take(h, payload)
		case fragSegments:
			err = c.learn(h, payload)
		default:
			err = fmt.Errorf("%w: fragment of kind %d from a server", errWire, h.kind)
		}
	}
	if err != nil {
		c.fail(err)
	}
}
