//go:build verbs

package verbs

// #include "native.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"drtmx/rdma"
)

// resolveTimeout bounds each step of finding the way to a server, before the
// request for a connection. If it passes, the server is unreachable.
const resolveTimeout = 3 * time.Second

// challengeTries bounds the answers to challenges of one Dial.
const challengeTries = 4

// rejectedNobody is the connection manager's status of a refusal because no
// server listens (invalid service ID).
const rejectedNobody = 8

// Dial connects to an endpoint at HOST:PORT, as a client that may do all that
// clients may.
func (p *Provider) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	return p.dial(ctx, addr, rdma.RoleLoader)
}

func (p *Provider) dial(ctx context.Context, addr string, role rdma.Role) (rdma.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	to, err := parseAddr(ctx, addr, p.deviceAddr)
	if err != nil {
		return nil, err
	}
	h := hello{version: wireVersion, client: p.client, role: role}
	c, err := p.connect(ctx, addr, toWire(to), &h)
	var asked *challenged
	// A process that was paused between the two requests is asked again.
	for tries := 0; errors.As(err, &asked) && role == rdma.RoleServer && tries < challengeTries; tries++ {
		h.stamp = asked.stamp
		proof := p.secret.Proof(p.Name(), asked.nonce[:])
		copy(h.proof[:], proof[:])
		c, err = p.connect(ctx, addr, toWire(to), &h)
	}
	if err != nil {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
			if errors.Is(err, e) {
				err = fmt.Errorf("%w: %w", rdma.ErrExhausted, err)
				break
			}
		}
		return nil, fmt.Errorf("verbs: dial %q: %w", addr, err)
	}
	c.managed = make(chan struct{})
	go c.manage()
	return c, nil
}

// challenged is the error of a request that was refused with a challenge.
type challenged struct{ answer }

func (c *challenged) Error() string { return c.reason.err().Error() }

// connect sends one request for a connection.
func (p *Provider) connect(ctx context.Context, addr string, to wireAddress, h *hello) (c *conn, err error) {
	c = &conn{p: p, addr: addr, qp: new(C.struct_vb_qp), regions: make(map[rdma.RKey]*remoteRegion)}
	c.spin.Init(p.opts.Spin)
	if c.cm, err = newManager(); err != nil {
		return nil, rdma.DialError(err)
	}
	if err := c.connect(ctx, to, h); err != nil {
		c.release()
		return nil, err
	}
	return c, nil
}

// connect takes the steps of the connection manager one after the other.
func (c *conn) connect(ctx context.Context, to wireAddress, h *hello) (err error) {
	if c.id, err = c.cm.newID(); err != nil {
		return err
	}
	if err := setAckTimeout(c.id); err != nil {
		return err
	}
	ms := C.int(resolveTimeout.Milliseconds())
	if err := errno("resolve address", C.vb_cm_resolve(c.id, &to.ip[0], to.bytes, to.port, to.scope, ms)); err != nil {
		return rdma.DialError(err)
	}
	if err := c.expect(ctx, C.RDMA_CM_EVENT_ADDR_RESOLVED); err != nil {
		return err
	}
	if err := errno("resolve route", C.vb_cm_route(c.id, ms)); err != nil {
		return rdma.DialError(err)
	}
	if err := c.expect(ctx, C.RDMA_CM_EVENT_ROUTE_RESOLVED); err != nil {
		return err
	}
	lim, err := deviceLimits(c.id.verbs)
	if err != nil {
		return err
	}
	if err := c.open(lim); err != nil {
		return err
	}
	b := h.encode()
	// This side answers no READs, but some devices refuse a limit of 0.
	if err := errno("connect", C.vb_cm_connect(c.id, cbytes(b[:]), helloBytes, C.int(lim.reads), 1)); err != nil {
		return err
	}
	if err := c.expect(ctx, C.RDMA_CM_EVENT_ESTABLISHED); err != nil {
		return err
	}
	a, err := decodeAnswer(c.cm.data())
	if err == nil && a.version != wireVersion {
		err = reasonVersion.err()
	}
	return err
}

// open creates the queue pair, its completion queue and its memory.
func (c *conn) open(lim limits) (err error) {
	c.window = min(c.p.opts.QueueDepth, lim.sendQueue-sendSlots-1)
	c.entries = make([]entry, c.window)
	c.cmds = make([]C.struct_vb_wr, c.window)
	c.pd, err = newDomain(c.id.verbs)
	if err != nil {
		return err
	}
	sends := c.window + sendSlots + 1
	if c.cq, err = newCompletions(c.id.verbs, min(sends+receiveSlots, lim.completions)); err != nil {
		return err
	}
	if err := errno("create queue pair", C.vb_qp_open(c.id, c.pd, c.cq.c.cq, C.uint32_t(sends), receiveSlots, c.qp)); err != nil {
		return err
	}
	if err := c.mail.open(c.pd, c.qp, 0); err != nil {
		return err
	}
	c.stage.mem, err = pin(c.pd, "verbs-staging", stagingBytesMin)
	return err
}

func newDomain(v *C.struct_ibv_context) (*C.struct_ibv_pd, error) {
	var pd *C.struct_ibv_pd
	return pd, errno("allocate protection domain", C.vb_pd_open(v, &pd))
}

// expect waits for an event, and returns an error for any other one.
func (c *conn) expect(ctx context.Context, kind C.int) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := c.cm.next(time.Now().Add(glance))
		if err == nil {
			break
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	switch got := c.cm.ev.kind; got {
	case kind:
		return nil
	case C.RDMA_CM_EVENT_ADDR_ERROR, C.RDMA_CM_EVENT_ROUTE_ERROR:
		return fmt.Errorf("no way there over an RDMA device (%w): %w", syscall.Errno(-c.cm.ev.status), rdma.ErrUnreachable)
	case C.RDMA_CM_EVENT_REJECTED:
		a, err := decodeAnswer(c.cm.data())
		switch {
		case err != nil || a.reason == reasonNone:
		case a.version != wireVersion:
			return reasonVersion.err()
		case a.reason == reasonProve:
			return &challenged{a}
		default:
			return a.reason.err()
		}
		if c.cm.ev.status == rejectedNobody {
			return rdma.ErrRefused
		}
		return fmt.Errorf("refused (status %d): %w", int(c.cm.ev.status), rdma.ErrUnreachable)
	case C.RDMA_CM_EVENT_UNREACHABLE:
		// The kernel has repeated the request for about a minute. The bound is its own.
		return rdma.ErrTimeout
	default:
		return fmt.Errorf("connection event %d (status %d): %w", int(got), int(c.cm.ev.status), rdma.ErrPeerDown)
	}
}

// manage follows the events of an established connection: when the peer is
// gone it moves the queue pair to its error state, which completes all that is
// outstanding.
func (c *conn) manage() {
	defer close(c.managed)
	for {
		if err := c.cm.next(time.Time{}); err != nil {
			return // closed
		}
		switch c.cm.ev.kind {
		case C.RDMA_CM_EVENT_DISCONNECTED, C.RDMA_CM_EVENT_DEVICE_REMOVAL:
			c.disconnect()
		}
	}
}

// disconnect notifies the peer and completes all outstanding requests with an
// error. It may be called from any goroutine, at any time.
func (c *conn) disconnect() {
	c.life.Lock()
	defer c.life.Unlock()
	if c.qp.qp != nil {
		C.vb_cm_disconnect(c.id) // fails if the peer was faster
	}
}

// release frees everything, in the order of its use.
func (c *conn) release() {
	if c.managed != nil {
		c.cm.w.close()
		<-c.managed
	}
	c.life.Lock()
	defer c.life.Unlock()
	C.vb_qp_close(c.qp)
	if c.cq != nil {
		c.cq.close()
	}
	c.mail.close()
	c.stage.mem.close()
	if c.id != nil {
		C.rdma_destroy_id(c.id)
	}
	if c.pd != nil {
		C.ibv_dealloc_pd(c.pd)
	}
	c.cm.close()
}
