//go:build verbs

package verbs

import (
	"context"
	"fmt"

	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// assembly puts the fragments of one message together.
type assembly struct {
	buf   []byte
	total int
	busy  bool // begun and not complete
}

// begin stores the first fragment, and reports whether the message is complete.
func (a *assembly) begin(h header, payload []byte) bool {
	a.buf, a.total = append(a.buf[:0], payload...), int(h.total)
	a.busy = len(a.buf) < a.total
	return !a.busy
}

// more stores a further fragment.
func (a *assembly) more(h header, payload []byte) (complete bool, err error) {
	if !a.busy || int(h.total) != a.total || len(payload) == 0 || len(a.buf)+len(payload) > a.total {
		return false, fmt.Errorf("%w: fragment of %d bytes after %d of %d", errWire, len(payload), len(a.buf), a.total)
	}
	a.buf = append(a.buf, payload...)
	a.busy = len(a.buf) < a.total
	return !a.busy, nil
}

// giveBack drops a buffer that is too large to be kept between messages.
func (a *assembly) giveBack() {
	if !a.busy && cap(a.buf) > provide.KeepBytes {
		a.buf = nil
	}
}

// caller is the state of the call on a connection.
type caller struct {
	seq      uint32
	calling  bool // between StartCall and FinishCall
	reqBytes int
	in       assembly
	answered bool
}

// take stores a fragment of a response.
func (s *caller) take(h header, payload []byte) (err error) {
	if !s.calling || s.answered || h.seq != s.seq || h.kind == fragResponse && s.in.busy {
		return fmt.Errorf("%w: response %d without a call", errWire, h.seq)
	}
	if h.kind == fragResponse {
		s.answered = s.in.begin(h, payload)
	} else {
		s.answered, err = s.in.more(h, payload)
	}
	return err
}

// StartCall sends the request. A long request waits until the server has received
// a part.
func (c *conn) StartCall(ctx context.Context, req []byte) error {
	err := c.use()
	defer c.mu.Unlock()
	if err != nil {
		return err
	}
	if err := provide.CheckCall(c.calls.calling, req); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	c.calls.seq++
	c.calls.calling, c.calls.answered, c.calls.reqBytes = true, false, len(req)
	for at := -1; ; {
		if at, err = c.mail.sendMessage(fragRequest, c.calls.seq, req, at); err != nil {
			c.fail(err)
			err = c.down
		}
		if err == nil && at < len(req) {
			if err = c.progress(ctx); err != nil && at >= 0 {
				c.fail(err) // the server has a part of the request
			}
		}
		if err != nil {
			c.calls.calling = false
			return err
		}
		if at == len(req) {
			return nil
		}
	}
}

// FinishCall waits for the response.
func (c *conn) FinishCall(ctx context.Context, resp []byte) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	resp = resp[:0]
	if !c.calls.calling {
		if err := c.usable(); err != nil {
			return resp, err
		}
		return resp, provide.ErrNoCall
	}
	for !c.calls.answered {
		if err := c.progress(ctx); err != nil && !c.calls.answered {
			c.calls.calling = c.usable() == nil // then ctx ended, and the call stays outstanding
			return resp, err
		}
		c.pump() // batches in flight go on meanwhile, and queries of theirs
	}
	c.calls.calling = false
	resp = append(resp, c.calls.in.buf...)
	c.calls.in.giveBack()
	c.ctr.Add(&rdma.Counters{RPCs: 1, RPCBytes: uint64(c.calls.reqBytes + len(resp))})
	return resp, nil
}
