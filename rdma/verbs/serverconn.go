//go:build verbs

package verbs

// #include "native.h"
import "C"

import (
	"fmt"
	"sync"

	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// serverConn is the server's side of a connection. Its poller assembles and
// handles requests; any goroutine that holds mu may send.
type serverConn struct {
	e      *endpoint
	poller *poller
	number uint32
	who    rdma.Identity // the peer
	domain *domain
	ctr    rdma.Tally // added to under mu
	extra  provide.Extra

	in       assembly // touched by the poller only, as are these
	handed   []byte   // the request before: its handler may still read it after its reply
	req      rdma.Request
	touched  bool
	handling sync.Mutex // held while the handler runs
	buried   bool       // no request is handled any more; under handling

	mu       sync.Mutex
	id       *C.struct_rdma_cm_id
	qp       *C.struct_vb_qp
	mail     mailbox
	up       bool // accepted, and nothing wrong
	ended    bool
	pending  bool   // a request waits for its reply
	asking   bool   // a query waits for its answer
	seq      uint32 // of the request
	out      []byte // the response being sent
	outAt    int    // how far; len(out) if nothing is to be sent
	answer   []byte // to a query, not yet sent
	querySeq uint32
}

// newConn creates the connection of a request. If it fails, the caller keeps the
// identifier.
//
// Data servers have a bound of their own, so that clients that hold all their
// connections do not keep a server from resolving transactions in doubt.
func (e *endpoint) newConn(id *C.struct_rdma_cm_id, client [16]byte, role rdma.Role) (*serverConn, error) {
	e.mu.Lock()
	n := len(e.mu.conns) - e.mu.servers
	if role == rdma.RoleServer {
		n = e.mu.servers
	}
	e.mu.last++
	number := e.mu.last
	e.mu.Unlock()
	if n >= MaxConns && client != e.loop.client {
		return nil, fmt.Errorf("verbs: %d connections: %w", n, rdma.ErrTooLarge)
	}
	c := &serverConn{e: e, number: number, who: rdma.Identity{Role: role}, qp: new(C.struct_vb_qp), poller: e.pollers[int(number)%len(e.pollers)]}
	if err := c.poller.add(c); err != nil {
		return nil, err
	}
	if err := c.open(id, client); err != nil {
		c.poller.remove(c)
		c.free()
		return nil, err
	}
	c.id = id
	e.mu.Lock()
	e.mu.conns[id] = c
	if role == rdma.RoleServer {
		e.mu.servers++
	}
	e.mu.Unlock()
	return c, nil
}

func (c *serverConn) open(id *C.struct_rdma_cm_id, client [16]byte) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.domain, err = c.e.enter(client, id.verbs); err != nil {
		return err
	}
	e := C.vb_qp_open(id, c.domain.pd, c.poller.cq.c.cq, sendSlots+1, receiveSlots, c.qp)
	if err := errno("create queue pair", e); err != nil {
		return err
	}
	return c.mail.open(c.domain.pd, c.qp, c.number)
}

// accept completes the handshake.
func (c *serverConn) accept(ev *C.struct_vb_event) error {
	a := answer{version: wireVersion}
	b := a.encode()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := setAckTimeout(c.id); err != nil {
		return err
	}
	c.up = true
	reads := min(int(ev.responder_resources), c.e.lim.reads)
	return errno("accept", C.vb_cm_accept(c.id, cbytes(b[:]), answerBytes, 1, C.int(reads)))
}

// end begins to end the connection, once: it notifies the peer, nothing is sent
// any more, and the clerk frees the rest.
func (c *serverConn) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.endLocked()
}

func (c *serverConn) endLocked() {
	if c.ended {
		return
	}
	c.ended, c.up = true, false
	if c.id != nil {
		C.vb_cm_disconnect(c.id) // fails if the peer was faster
	}
	c.e.clerk.do(c.bury)
}

// cut destroys the queue pair: no request of the peer that has not taken effect will.
func (c *serverConn) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.up = false
	C.vb_qp_close(c.qp)
}

// bury frees the connection. It runs at the clerk, and leaves report to another goroutine. Report
// waits for a handler and calls OnDisconnect. Both may wait for an answer of the clerk: they may use
// connections to this endpoint, such as its own.
func (c *serverConn) bury() {
	c.cut() // before Revoke can no longer find it
	c.poller.remove(c)
	e := c.e
	e.mu.Lock()
	delete(e.mu.conns, c.id)
	if c.who.Role == rdma.RoleServer {
		e.mu.servers--
	}
	e.mu.retired = e.mu.retired.Add(c.ctr.Snapshot())
	e.mu.Unlock()
	c.free()
	e.background(c.report)
}

// report calls OnDisconnect, after the handler has returned from the last request of the peer. It is
// called once.
func (c *serverConn) report() {
	c.handling.Lock()
	c.buried = true
	// OnDisconnect runs without the lock: a poller that finds a request of the peer takes it, and must
	// not wait for OnDisconnect.
	c.handling.Unlock()
	if e := c.e; e.opts.OnDisconnect != nil && e.Handler() != nil && !e.Closed() {
		e.opts.OnDisconnect(rdma.PeerID(c.number))
	}
}

// free frees the objects of the device.
func (c *serverConn) free() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended, c.up = true, false
	C.vb_qp_close(c.qp)
	c.mail.close()
	c.mail.mem = nil
	if c.id != nil {
		C.rdma_destroy_id(c.id)
		c.id = nil
	}
	if c.domain != nil {
		c.e.leave(c.domain)
		c.domain = nil
	}
}

// dispatch deals with one completion and reports whether a request is
// complete.
func (c *serverConn) dispatch(id uint64, status wcStatus, n uint32) (request bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.up {
		return false
	}
	if status != wcSuccess {
		c.endLocked()
		return false
	}
	c.mail.lost = 0
	switch id & idKindMask {
	case idSend:
		c.mail.freeTo(id & idLowMask)
	case idPing:
		c.mail.ping = false
	case idReceive:
		h, payload, err := c.mail.take(uint32(id&idLowMask), n)
		if err == nil {
			request, err = c.received(h, payload)
		}
		if err != nil {
			c.endLocked()
			return false
		}
	}
	return request
}

// received deals with a fragment from the client.
func (c *serverConn) received(h header, payload []byte) (request bool, err error) {
	switch h.kind {
	case fragCredit:
		return false, nil
	case fragRequest, fragMore:
		// The client has the whole response before it calls again.
		if c.pending || c.outAt < len(c.out) || h.kind == fragRequest && c.in.busy {
			return false, fmt.Errorf("%w: request %d before the answer to %d", errWire, h.seq, c.seq)
		}
		if h.kind == fragRequest {
			c.seq = h.seq
			c.in.buf, c.handed = c.handed, c.in.buf
			request = c.in.begin(h, payload)
		} else if request, err = c.in.more(h, payload); err != nil {
			return false, err
		}
		c.pending = request
		return request, nil
	case fragQuery:
		a, err := decodeQuery(payload)
		if err != nil || c.asking {
			return false, fmt.Errorf("%w: query %d", errWire, h.seq)
		}
		c.asking, c.querySeq = true, h.seq
		c.e.clerk.do(func() { c.answerQuery(a) })
		return false, nil
	}
	return false, fmt.Errorf("%w: fragment of kind %d from a client", errWire, h.kind)
}

// ping lets the device detect a client that is gone.
func (c *serverConn) ping() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.up && c.mail.sendPing() != nil {
		c.endLocked()
	}
}

// giveBack drops large buffers while no request is under way.
func (c *serverConn) giveBack() {
	if !c.handling.TryLock() {
		return // the handler may be reading
	}
	defer c.handling.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pending || c.outAt < len(c.out) {
		return
	}
	c.in.giveBack()
	if cap(c.handed) > provide.KeepBytes {
		c.handed = nil
	}
	if cap(c.out) > provide.KeepBytes {
		c.out, c.outAt = nil, 0
	}
}

// settle posts receives again and sends what could not be sent before.
func (c *serverConn) settle() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.push()
}

// push sends as much as can be sent now.
func (c *serverConn) push() {
	if !c.up {
		return
	}
	err := c.mail.settle()
	if err == nil && c.answer != nil && c.mail.ready() {
		err = c.mail.send(fragSegments, len(c.answer), c.querySeq, c.answer)
		c.answer, c.asking = nil, false
	}
	if err == nil && c.outAt < len(c.out) {
		c.outAt, err = c.mail.sendMessage(fragResponse, c.seq, c.out, c.outAt)
	}
	if err != nil {
		c.endLocked()
	}
}

// Reply sends as much of the response as there are credits for. The poller sends
// the rest.
func (c *serverConn) Reply(body []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := provide.CheckReply(rdma.PeerID(c.number), c.up, c.pending, body); err != nil {
		return err
	}
	c.pending = false
	// Counted first: a client that has its answer may look.
	c.ctr.Add(&rdma.Counters{RPCs: 1, RPCBytes: uint64(c.in.total + len(body))})
	at, err := c.mail.sendMessage(fragResponse, c.seq, body, -1)
	if err != nil {
		c.endLocked()
		return fmt.Errorf("verbs: reply to peer %d: %w: %w", c.number, rdma.ErrPeerDown, err)
	}
	c.out, c.outAt = c.out[:0], 0
	if at < len(body) {
		c.out, c.outAt = append(c.out, body...), at
	}
	return nil
}

// answerQuery answers a query about a region, registering what is new of it in
// the client's domain. It runs at the clerk.
func (c *serverConn) answerQuery(a segmentQuery) {
	c.mu.Lock()
	d, up := c.domain, c.up
	c.mu.Unlock()
	if !up {
		return
	}
	t := segmentList{key: a.key, first: a.first, reason: reasonNoRegion}
	if c.who.MayRead() {
		t = c.e.describe(d, a, c.extra.Of(a.key))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answer = t.encode(nil)
	c.push()
}

// describe returns the segments of a region, for a connection that has some access beyond
// what all have.
func (e *endpoint) describe(d *domain, a segmentQuery, extra rdma.Access) segmentList {
	t := segmentList{key: a.key, first: a.first}
	g, ok := e.Region(a.key)
	if !ok {
		t.reason = reasonNoRegion
		return t
	}
	t.access, t.segment, t.max = g.Access|extra, g.Region.SegmentBytes(), g.Region.MaxBytes()
	of := registered{a.key, t.access}
	have := d.segments[of]
	segments := min(int(g.Region.Size()/t.segment), int(a.first)+segmentKeysMax)
	for len(have) < segments {
		mr, _, err := registerMemory(d.pd, g.Region, uint64(len(have))*t.segment, t.segment, remoteAccess(t.access))
		if err != nil {
			t.reason = reasonMemory
			break
		}
		have = append(have, mr)
		d.segments[of] = have
	}
	for i := int(a.first); i < min(len(have), segments); i++ {
		t.keys = append(t.keys, uint32(have[i].rkey))
	}
	return t
}
