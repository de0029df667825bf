package tcp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// Reasons of refusals: of connections, and of verbs by the first reason.
const (
	refusedRoom       = iota
	refusedHandshake  // broken off, malformed or too slow
	refusedAuth       // no certificate, or one that is not trusted
	refusedRole       // a data server that did not prove to be one
	refusedProtocol   // a connection was ended for a malformed frame
	refusedStalled    // a connection was ended because the peer did not read
	refusedCapability // a verb with a capability that the connection does not hold
	refusedRight      // a verb that its capability does not allow
	refusedBounds     // a verb outside its region
	refusedVerb       // a verb that does not exist
)

var refusalNames = []string{"no_room", "handshake", "authentication", "role_not_proved", "protocol", "stalled", "capability", "right", "bounds", "verb"}

var _ rdma.Auditor = (*endpoint)(nil)

// endpoint is the server side.
type endpoint struct {
	provide.Endpoint
	provide.Audit
	provide.AgentClock
	p        *Provider
	opts     rdma.ListenOptions
	listener *net.TCPListener
	pollers  []*poller
	running  sync.WaitGroup // pollers, accept loop, agents
	lobby    provide.Lobby  // handshakes under way

	mu struct {
		sync.Mutex
		conns    map[rdma.PeerID]*serverConn
		clients  int // of conns
		servers  int // of conns
		lastPeer rdma.PeerID
		retired  rdma.Counters
	}
}

// Listen opens an endpoint at host:port; "" means a free port of the loopback
// address. It fails with rdma.ErrAddress for an address in use or of another
// host, and with ErrInsecure for an address beyond loopback without TLS.
func (p *Provider) Listen(addr string, o rdma.ListenOptions) (rdma.Endpoint, error) {
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("tcp: listen at %q: %w: %w", addr, rdma.ErrAddress, err)
	}
	e := &endpoint{p: p, opts: o, listener: l.(*net.TCPListener)}
	e.Init("tcp", l.Addr().String(), MaxRegions)
	e.Count(refusalNames...)
	if err := p.mayTalk(l.Addr()); err != nil {
		l.Close()
		return nil, fmt.Errorf("tcp: listen at %q: %w", addr, err)
	}
	e.mu.conns = make(map[rdma.PeerID]*serverConn)
	for range p.opts.Pollers {
		e.pollers = append(e.pollers, newPoller(e))
	}
	e.running.Go(e.accept)
	return e, nil
}

// mayTalk refuses plain text with other machines.
func (p *Provider) mayTalk(a net.Addr) error {
	if p.server != nil || p.opts.Insecure {
		return nil
	}
	if t, ok := a.(*net.TCPAddr); ok && t.IP.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%w: %v is not a loopback address", ErrInsecure, a)
}

// Grant implements rdma.Endpoint.
func (e *endpoint) Grant(peer rdma.PeerID, k rdma.RKey, a rdma.Access) error {
	c := e.connOf(peer)
	up := false
	if c != nil {
		c.mu.Lock() // it has not ended yet, so OnDisconnect comes later
		defer c.mu.Unlock()
		up = !c.mu.ended
	}
	if err := e.CheckGrant(peer, up, up && a&^c.rights == 0, k); err != nil {
		return err
	}
	c.extra.Add(k, a)
	return nil
}

// Revoke implements rdma.Endpoint.
func (e *endpoint) Revoke(peer rdma.PeerID) {
	if c := e.connOf(peer); c != nil {
		c.out.t.Close()
		<-c.served
	}
}

// connOf returns the connection of a peer, nil if it is not connected.
func (e *endpoint) connOf(peer rdma.PeerID) *serverConn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.mu.conns[peer]
}

// Serve starts the pollers. RPCs that arrived before are handled now.
func (e *endpoint) Serve(h rdma.Handler) error {
	return e.Start(h, func() {
		for _, p := range e.pollers {
			e.running.Go(func() { p.run(h) })
		}
	})
}

// Counters returns the sum over the connections, with the one-sided verbs, which
// the agents perform.
func (e *endpoint) Counters() rdma.Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	sum := e.mu.retired
	for _, c := range e.mu.conns {
		sum = sum.Add(c.counters())
	}
	return sum
}

// Close stops serving and waits for running handlers, so a handler must not
// call it.
func (e *endpoint) Close() error {
	e.stop()
	e.running.Wait()
	return nil
}

// stop is Close without the waiting. Peers see ErrPeerDown.
func (e *endpoint) stop() {
	e.mu.Lock()
	e.Shut()
	for _, c := range e.mu.conns {
		c.out.t.Close()
	}
	e.lobby.Close()
	e.mu.Unlock()
	e.listener.Close() // harmless if it is closed
	for _, p := range e.pollers {
		p.kick()
	}
}

func (e *endpoint) accept() {
	provide.Accept(e.listener.AcceptTCP, func(nc *net.TCPConn) {
		if g, ok := e.lobby.Enter(nc, sourceOf(nc)); ok {
			e.running.Go(func() { e.serve(nc, g) })
		} else {
			nc.Close()
		}
	})
}

// sourceOf returns the network address of a peer, without its port.
func sourceOf(nc *net.TCPConn) string {
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		return string(a.IP)
	}
	return ""
}

// serve is the goroutine of one connection.
func (e *endpoint) serve(nc *net.TCPConn, g *provide.Guest) {
	defer nc.Close()
	c, err := e.greet(nc, g)
	e.lobby.Leave(g)
	if err != nil {
		e.noteRefusal(err)
	} else {
		c.run()
	}
	if c == nil {
		return
	}
	close(c.served)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.mu.retired = e.mu.retired.Add(c.counters())
	delete(e.mu.conns, c.peer)
	*e.room(c)--
}

// room returns the number of connections that share a bound with c. Data servers
// have a bound of their own, so that clients that hold all their connections do
// not keep a server from resolving transactions in doubt. The caller holds the
// lock.
func (e *endpoint) room(c *serverConn) *int {
	if c.id.Role == rdma.RoleServer {
		return &e.mu.servers
	}
	return &e.mu.clients
}

// enlist records a connection, if there is room, and grants it the present
// regions.
func (e *endpoint) enlist(c *serverConn) reason {
	e.mu.Lock()
	defer e.mu.Unlock()
	place := e.room(c)
	if *place >= e.p.opts.MaxConnections {
		return reasonFull
	}
	*place++
	e.mu.lastPeer++
	c.peer = e.mu.lastPeer
	c.poller = e.pollers[uint64(c.peer)%uint64(len(e.pollers))]
	e.mu.conns[c.peer] = c
	if e.Closed() {
		c.out.t.Close()
	}
	for _, g := range e.Grants() {
		c.agent.grants = append(c.agent.grants, grant{
			cap: newCapability(), region: g.Region, access: g.Access & c.rights,
		})
	}
	return reasonNone
}

// greet performs the handshake, TLS included, within Options.HandshakeTimeout. A
// connection that it returns is recorded, even if the handshake failed.
func (e *endpoint) greet(nc *net.TCPConn, g *provide.Guest) (*serverConn, error) {
	deadline := time.Now().Add(e.p.opts.HandshakeTimeout)
	if err := nc.SetDeadline(deadline); err != nil {
		return nil, err
	}
	if err := tune(nc, &e.p.opts); err != nil {
		return nil, err
	}
	t, err := newTransport(nc, e.p.opts.StallTimeout)
	if err != nil {
		return nil, err
	}
	t.guest = g
	c := &serverConn{e: e, conn: t, id: Identity{Addr: nc.RemoteAddr().String()}, served: make(chan struct{})}
	if e.p.server != nil {
		if err := c.authenticate(e.p.server, t, deadline); err != nil {
			linger(nc)
			return nil, err
		}
	}
	h, err := readHello(c.conn)
	if err != nil {
		if errors.Is(err, errSpeaksTLS) {
			refuse(c.conn, t, reasonPlain)
			linger(nc)
		}
		return nil, err
	}
	why := h.check()
	if why == reasonNone && e.p.server == nil {
		if why, err = c.admit(t, h.role); err != nil {
			return nil, err
		}
	}
	if why == reasonNone {
		c.prepare(t)
		why = e.enlist(c)
	}
	if why != reasonNone {
		refuse(c.conn, t, why)
		linger(nc)
		return nil, why.err()
	}
	if err := c.welcome(); err != nil {
		return c, err
	}
	return c, nil
}

// admit gives a peer in plain text its role, which a data server must prove.
func (c *serverConn) admit(t *transport, role rdma.Role) (reason, error) {
	if most := c.e.p.opts.PlainRole; role < rdma.RoleServer || most == rdma.RoleServer {
		c.id.Role = min(role, most)
		return reasonNone, nil
	}
	h := ourHello()
	h.reason = reasonProve
	_, _ = rand.Read(h.nonce[:]) // never fails
	if _, err := c.conn.Write(h.encode()); err != nil {
		return reasonNone, err
	}
	if err := t.drain(); err != nil {
		return reasonNone, err
	}
	var proof [provide.ProofBytes]byte
	if _, err := io.ReadFull(c.conn, proof[:]); err != nil {
		return reasonNone, err
	}
	if !c.e.p.secret.Proves(proof[:], c.e.p.Name(), h.nonce[:]) {
		return reasonRole, nil
	}
	c.id.Role = role
	return reasonNone, nil
}

// prepare makes what a connection needs whose peer is known.
func (c *serverConn) prepare(t *transport) {
	switch o := &c.e.p.opts; {
	case !c.id.MayRead():
		c.rights = 0
	case o.Rights != nil:
		c.rights = o.Rights(c.id) | rdma.AccessRead
	default:
		c.rights = rdma.AccessRead | rdma.AccessWrite | rdma.AccessAtomic
	}
	c.out = newOutbox(c.conn, t, c.abort)
	c.agent = newAgent(c, &c.extra, &c.e.Audit, &c.tally)
	c.callEv.Value, c.goneEv.Value = event{conn: c}, event{conn: c, gone: true}
}

// refuse sends a client the reason of its refusal.
func refuse(w io.Writer, t *transport, why reason) {
	h := ourHello()
	h.reason = why
	_, _ = w.Write(h.encode())
	_ = t.drain()
}

// welcome sends the client its capabilities.
func (c *serverConn) welcome() error {
	h := ourHello()
	h.grants = uint32(len(c.agent.grants))
	if _, err := c.conn.Write(h.encode()); err != nil {
		return err
	}
	if err := c.out.t.drain(); err != nil {
		return err
	}
	for i := range c.agent.grants {
		c.agent.answerGrant(rdma.RKey(i + 1))
		if err := c.agent.flushIfFull(0); err != nil {
			return err
		}
	}
	if err := c.agent.flush(); err != nil {
		return err
	}
	return c.out.t.SetDeadline(time.Time{})
}

// noteRefusal counts why a handshake failed.
func (e *endpoint) noteRefusal(err error) {
	switch {
	case e.Closed():
	case errors.Is(err, rdma.ErrTooLarge):
		e.Refuse(refusedRoom)
	case errors.Is(err, ErrAuth):
		e.Refuse(refusedAuth)
	case errors.Is(err, rdma.ErrRole):
		e.Refuse(refusedRole)
	default:
		e.Refuse(refusedHandshake)
	}
	if e.opts.OnRefuse != nil && !e.Closed() {
		e.opts.OnRefuse(err)
	}
}

// linger reads for a while what a refused client has sent. If a socket is closed
// with unread data, the kernel discards the refusal too.
func linger(nc *net.TCPConn) {
	_ = nc.CloseWrite()
	_ = nc.SetReadDeadline(time.Now().Add(lingerTimeout))
	var b [512]byte
	for n := 0; n < lingerBytes; {
		k, err := nc.Read(b[:])
		if n += k; err != nil {
			return
		}
	}
}

const (
	lingerTimeout = time.Second
	lingerBytes   = 64 << 10
)

// tune configures the detection of peers that have vanished.
func tune(nc *net.TCPConn, o *Options) error {
	err := nc.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: o.KeepAlive, Interval: max(o.KeepAlive/3, time.Second), Count: 3})
	if err != nil {
		return err
	}
	raw, err := nc.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Control(func(fd uintptr) { serr = setUserTimeout(int(fd), 2*o.KeepAlive) })
	return errors.Join(err, serr)
}
