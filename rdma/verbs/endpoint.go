//go:build verbs

package verbs

// #include "native.h"
import "C"

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// listenTimeout bounds the look-up of a name to listen at.
const listenTimeout = 5 * time.Second

// regionsMax bounds the regions of an endpoint.
const regionsMax = 4096

// Reasons of refusals of connections.
const (
	refusedRoom      = iota
	refusedHandshake // malformed, or of another version
	refusedRole      // a data server that did not prove to be one
)

var refusalNames = []string{"no_room", "handshake", "role_not_proved"}

var _ rdma.Auditor = (*endpoint)(nil)

// endpoint is the server side.
type endpoint struct {
	provide.Endpoint
	provide.Audit
	p       *Provider
	opts    rdma.ListenOptions
	trials  *challenger
	cm      *manager
	id      *C.struct_rdma_cm_id
	lim     limits
	pollers []*poller
	clerk   *clerk
	managed sync.WaitGroup // the goroutine that follows connection events
	running sync.WaitGroup // pollers, clerk, reports of disconnects
	release sync.Once
	loop    loopback

	mu struct {
		sync.Mutex
		conns   map[*C.struct_rdma_cm_id]*serverConn
		servers int // of conns: those of data servers
		domains map[[16]byte]*domain
		last    uint32 // number of the last connection
		retired rdma.Counters
	}
}

// Listen opens an endpoint at HOST:PORT, where HOST is an address of an RDMA
// device; without a host that is Options.Device's, and port 0 is any.
func (p *Provider) Listen(addr string, o rdma.ListenOptions) (rdma.Endpoint, error) {
	ctx, cancel := context.WithTimeout(context.Background(), listenTimeout)
	defer cancel()
	at, err := parseAddr(ctx, addr, p.deviceAddr)
	if err != nil {
		return nil, err
	}
	e := &endpoint{p: p, opts: o, trials: newChallenger()}
	_, _ = rand.Read(e.loop.client[:]) // never fails
	e.Count(refusalNames...)
	e.mu.conns = make(map[*C.struct_rdma_cm_id]*serverConn)
	e.mu.domains = make(map[[16]byte]*domain)
	if err := e.open(at); err != nil {
		e.free()
		return nil, fmt.Errorf("verbs: listen at %q: %w", addr, err)
	}
	e.clerk = newClerk(e)
	e.running.Go(e.clerk.run)
	for _, po := range e.pollers {
		e.running.Go(po.run)
	}
	e.managed.Go(e.manage)
	return e, nil
}

func (e *endpoint) open(at netip.AddrPort) (err error) {
	if e.cm, err = newManager(); err != nil {
		return err
	}
	if e.id, err = e.cm.newID(); err != nil {
		return err
	}
	w := toWire(at)
	err = errno("bind", C.vb_cm_bind(e.id, &w.ip[0], w.bytes, w.port, w.scope))
	if err == nil && e.id.verbs == nil {
		err = errors.New("no RDMA device has this address")
	}
	if err == nil {
		err = errno("listen", C.vb_cm_listen(e.id, 0))
	}
	if isErrno(err, syscall.EADDRINUSE) {
		return fmt.Errorf("a server is running there: %w", rdma.ErrAddress)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", rdma.ErrAddress, err)
	}
	e.Init("verbs", netip.AddrPortFrom(at.Addr(), uint16(C.vb_cm_port(e.id))).String(), regionsMax)
	if e.lim, err = deviceLimits(e.id.verbs); err != nil {
		return err
	}
	for range e.p.opts.Pollers {
		po, err := newPoller(e)
		if err != nil {
			return err
		}
		e.pollers = append(e.pollers, po)
	}
	return nil
}

// Register lets peers use r, which must be mapped memory: mem.Shared or
// mem.Private. Atomics are refused with rdma.ErrUnsupported if the device has
// none. Segments are registered with the device when a client first asks for
// them, and stay resident from then on.
func (e *endpoint) Register(r *mem.Region, a rdma.Access) (rdma.RKey, error) {
	if _, ok := r.Address(0); !ok {
		return 0, fmt.Errorf("verbs: register at %q: the region is on the Go heap, which no device may see: %w", e.Addr(), rdma.ErrUnsupported)
	}
	if a&rdma.AccessAtomic != 0 && !e.lim.atomics {
		return 0, fmt.Errorf("verbs: register at %q: the device has no atomics: %w", e.Addr(), rdma.ErrUnsupported)
	}
	return e.Endpoint.Register(r, a)
}

// Grant implements rdma.Endpoint. The peer asks for other keys when it first needs them.
func (e *endpoint) Grant(peer rdma.PeerID, k rdma.RKey, a rdma.Access) error {
	c := e.connOf(peer)
	up := false
	if c != nil {
		c.mu.Lock() // it has not ended yet, so OnDisconnect comes later
		defer c.mu.Unlock()
		up = !c.ended
	}
	if err := e.CheckGrant(peer, up, up && c.who.MayRead(), k); err != nil {
		return err
	}
	if a&rdma.AccessAtomic != 0 && !e.lim.atomics {
		return fmt.Errorf("verbs: grant to peer %d of %q: the device has no atomics: %w", peer, e.Addr(), rdma.ErrUnsupported)
	}
	c.extra.Add(k, a)
	return nil
}

// AtomicsApart implements rdma.ApartAtomics: few devices promise more.
func (e *endpoint) AtomicsApart(rdma.PeerID) bool { return true }

// Revoke implements rdma.Endpoint. A device takes nothing for a queue pair that is
// destroyed.
func (e *endpoint) Revoke(peer rdma.PeerID) {
	if c := e.connOf(peer); c != nil {
		c.end()
		c.cut()
	}
}

// connOf returns the connection of a peer, nil if it is not connected.
func (e *endpoint) connOf(peer rdma.PeerID) *serverConn {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.mu.conns {
		if rdma.PeerID(c.number) == peer {
			return c
		}
	}
	return nil
}

// Serve starts to handle RPCs; those that arrived before are handled now.
func (e *endpoint) Serve(h rdma.Handler) error {
	return e.Start(h, e.kickPollers)
}

func (e *endpoint) kickPollers() {
	for _, po := range e.pollers {
		po.kick()
	}
}

// Counters counts RPCs. The server does not see one-sided verbs, which cost it
// nothing.
func (e *endpoint) Counters() rdma.Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	sum := e.mu.retired
	for _, c := range e.mu.conns {
		sum = sum.Add(c.ctr.Snapshot())
	}
	return sum
}

// Close stops serving and waits for running handlers, so a handler must not
// call it.
func (e *endpoint) Close() error {
	e.stop()
	e.loop.close()
	e.managed.Wait()
	e.running.Wait()
	e.release.Do(e.free)
	return nil
}

// stop is Close without the waiting. Peers see ErrPeerDown.
func (e *endpoint) stop() {
	e.mu.Lock() // see background
	first := e.Shut()
	e.mu.Unlock()
	if !first {
		return
	}
	e.cm.w.close()
	e.managed.Wait() // no connection is added any more
	for _, c := range e.all() {
		c.end()
	}
	e.kickPollers()
	e.clerk.stop()
}

// background runs f in a goroutine for which Close waits, unless the endpoint is closed.
func (e *endpoint) background(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.Closed() {
		e.running.Go(f)
	}
}

func (e *endpoint) all() []*serverConn {
	e.mu.Lock()
	defer e.mu.Unlock()
	var all []*serverConn
	for _, c := range e.mu.conns {
		all = append(all, c)
	}
	return all
}

// free frees the objects of the device, after all goroutines have ended.
func (e *endpoint) free() {
	for _, c := range e.all() {
		c.free()
	}
	for _, po := range e.pollers {
		po.cq.close()
	}
	if e.id != nil {
		C.rdma_destroy_id(e.id)
	}
	if e.cm != nil {
		e.cm.close()
	}
}

// manage follows the events of the connection manager.
func (e *endpoint) manage() {
	for {
		if err := e.cm.next(time.Time{}); err != nil {
			return // closed
		}
		id, kind := e.cm.ev.id, e.cm.ev.kind
		if kind == C.RDMA_CM_EVENT_CONNECT_REQUEST {
			e.admit(id)
			continue
		}
		switch kind {
		case C.RDMA_CM_EVENT_DISCONNECTED, C.RDMA_CM_EVENT_CONNECT_ERROR, C.RDMA_CM_EVENT_UNREACHABLE,
			C.RDMA_CM_EVENT_REJECTED, C.RDMA_CM_EVENT_DEVICE_REMOVAL:
			e.mu.Lock()
			c := e.mu.conns[id]
			e.mu.Unlock()
			if c != nil {
				c.end()
			}
		}
	}
}

// admit accepts a connection request or refuses it with a reason.
func (e *endpoint) admit(id *C.struct_rdma_cm_id) {
	a := answer{version: wireVersion}
	h, err := decodeHello(e.cm.data())
	role := rdma.RoleNone
	if err != nil || h.version != wireVersion {
		a.reason = reasonVersion
	} else {
		role = e.authenticate(&h, &a)
	}
	if a.reason == reasonNone {
		c, err := e.newConn(id, h.client, role)
		if err == nil {
			if c.accept(&e.cm.ev) != nil {
				c.end() // and its identifier with it
			}
			return
		}
		a.reason = reasonFull
	}
	switch a.reason {
	case reasonFull:
		e.Refuse(refusedRoom)
	case reasonVersion:
		e.Refuse(refusedHandshake)
	case reasonRole:
		e.Refuse(refusedRole)
	}
	b := a.encode()
	C.vb_cm_reject(id, cbytes(b[:]), answerBytes)
	C.rdma_destroy_id(id)
}

// authenticate returns the role of the peer that sent a request, or sets why it is
// refused: a data server must know the secret of the cluster.
func (e *endpoint) authenticate(h *hello, a *answer) rdma.Role {
	most := e.p.opts.PeerRole
	switch {
	case h.client == e.loop.client:
		return h.role
	case h.role < rdma.RoleServer || most == rdma.RoleServer:
		return min(h.role, most)
	case !e.trials.open(h.stamp):
		a.reason = reasonProve
		a.stamp, a.nonce = e.trials.challenge(h.client)
	default:
		nonce := e.trials.nonce(h.client, h.stamp)
		if e.p.secret.Proves(h.proof[:], e.p.Name(), nonce[:]) {
			return h.role
		}
		a.reason = reasonRole
	}
	return rdma.RoleNone
}

// domain is the protection domain of one client, with the segments registered
// in it. The endpoint's lock guards refs; only the clerk touches the segments.
type domain struct {
	client   [16]byte
	pd       *C.struct_ibv_pd
	refs     int
	segments map[registered][]*C.struct_ibv_mr
}

// registered names the segments of a region, registered with some access. Connections
// of one client with different grants have different keys to the same memory.
type registered struct {
	key    rdma.RKey
	access rdma.Access
}

// enter returns the domain of a client, which it creates if there is none.
func (e *endpoint) enter(client [16]byte, v *C.struct_ibv_context) (*domain, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := e.mu.domains[client]
	if d == nil {
		pd, err := newDomain(v)
		if err != nil {
			return nil, err
		}
		d = &domain{client: client, pd: pd, segments: make(map[registered][]*C.struct_ibv_mr)}
		e.mu.domains[client] = d
	}
	d.refs++
	return d, nil
}

// leave removes a connection from a domain, and with the last one withdraws the
// domain's memory.
func (e *endpoint) leave(d *domain) {
	e.mu.Lock()
	d.refs--
	last := d.refs == 0
	if last {
		delete(e.mu.domains, d.client)
	}
	e.mu.Unlock()
	if !last {
		return
	}
	for _, mrs := range d.segments {
		for _, mr := range mrs {
			C.ibv_dereg_mr(mr)
		}
	}
	C.ibv_dealloc_pd(d.pd)
}
