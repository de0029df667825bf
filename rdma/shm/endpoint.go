package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// endpoint is the server side.
type endpoint struct {
	provide.Endpoint
	provide.Audit
	provide.AgentClock
	p        *Provider
	opts     rdma.ListenOptions
	maxLinks int
	listener *net.UnixListener
	pollers  []*poller
	page     *mem.Region // announces which pollers sleep; clients map it read-only
	lastPeer atomic.Uint64
	running  sync.WaitGroup // pollers, accept loop, links
	corked   atomic.Int32
	release  sync.Once
	lobby    provide.Lobby // handshakes in progress

	mu struct {
		sync.Mutex
		peers   map[*net.UnixConn]*serverLink // nil until greeted
		links   map[bool]int                  // greeted; of data servers (true) and of clients
		retired rdma.Counters
	}
}

// Listen opens an endpoint at a socket path, or @ and an abstract name. It
// replaces the socket of a dead server, and fails with rdma.ErrAddress for the
// socket of a living one.
func (p *Provider) Listen(addr string, o rdma.ListenOptions) (rdma.Endpoint, error) {
	e := &endpoint{p: p, opts: o, maxLinks: MaxLinks}
	e.Init("shm", addr, regionsMax)
	e.Count(refusalNames...)
	e.mu.links = make(map[bool]int)
	e.mu.peers = make(map[*net.UnixConn]*serverLink)
	var err error
	if e.listener, err = listen(addr); err != nil {
		return nil, err
	}
	e.page, err = mem.New(mem.Options{Name: "pollers", Kind: mem.Shared, SegmentBytes: pageBytes, MaxBytes: pageBytes})
	if err != nil {
		e.listener.Close()
		return nil, fmt.Errorf("shm: listen at %q: %w", addr, err)
	}
	for i := range p.opts.Pollers {
		po, err := newPoller(e, i, p.opts)
		if err != nil {
			e.listener.Close()
			e.closePollers()
			return nil, fmt.Errorf("shm: listen at %q: %w", addr, err)
		}
		e.pollers = append(e.pollers, po)
	}
	e.running.Go(e.accept)
	return e, nil
}

const _ uint = pageBytes - MaxPollers*mem.LineBytes

// Register lets peers use r, which must be mem.Shared.
func (e *endpoint) Register(r *mem.Region, a rdma.Access) (rdma.RKey, error) {
	if r.Kind() != mem.Shared {
		return 0, fmt.Errorf("shm: register at %q: the region is not shared memory: %w", e.Addr(), rdma.ErrUnsupported)
	}
	return e.Endpoint.Register(r, a)
}

// Serve starts the pollers. RPCs that arrived before are handled now.
func (e *endpoint) Serve(h rdma.Handler) error {
	return e.Start(h, func() {
		for _, p := range e.pollers {
			e.running.Go(func() { p.run(h) })
		}
	})
}

// Cork implements rdma.Corker: a reply rings its bell, and the client is woken
// later, or after every wakeEvery replies.
func (e *endpoint) Cork() { e.corked.Add(1) }

// Uncork wakes the clients that Cork has kept waiting.
func (e *endpoint) Uncork() {
	if e.corked.Add(-1) > 0 {
		return
	}
	links := *e.pollers[0].links.Load()
	defer runtime.KeepAlive(links) // and their memory, if one ends meanwhile
	for _, l := range links {
		if l.unwoken.Load() > 0 && l.unwoken.Swap(0) > 0 {
			wakeClient(l.peerSleep)
		}
	}
}

// Counters counts RPCs, and the WRITEs and atomics that the agent performs. The server does
// not see READs, which cost it nothing.
func (e *endpoint) Counters() rdma.Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	sum := e.mu.retired
	for _, l := range e.mu.peers {
		if l == nil {
			continue
		}
		for i := range l.conns {
			if c := l.conns[i].Load(); c != nil {
				sum = sum.Add(c.counters())
			}
		}
	}
	return sum
}

// Close stops serving and waits for running handlers, so a handler must not
// call it.
func (e *endpoint) Close() error {
	e.stop()
	e.running.Wait()
	e.release.Do(e.closePollers)
	return nil
}

// stop is Close without the waiting. Peers see ErrPeerDown.
func (e *endpoint) stop() {
	e.mu.Lock()
	e.Shut()
	e.lobby.Close()
	for s := range e.mu.peers {
		s.Close()
	}
	e.mu.Unlock()
	e.listener.Close() // harmless if it is closed
	for _, p := range e.pollers {
		p.kick()
	}
}

// background runs f in a goroutine for which Close waits, unless the endpoint is closed.
func (e *endpoint) background(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.Closed() {
		e.running.Go(f)
	}
}

func (e *endpoint) closePollers() {
	for _, p := range e.pollers {
		p.close()
	}
}

func (e *endpoint) accept() {
	provide.Accept(e.listener.AcceptUnix, func(nc *net.UnixConn) {
		s := socket{nc}
		uid, err := s.checkPeer()
		if err != nil || !e.admit(s) {
			nc.Close()
			e.noteRefusal(err)
			return
		}
		if g, ok := e.lobby.Enter(nc, strconv.Itoa(uid)); ok {
			e.running.Go(func() { e.serveLink(s, g) })
		} else {
			e.forget(s)
		}
	})
}

// admit records a socket, so that Close closes it.
func (e *endpoint) admit(s socket) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Closed() {
		return false
	}
	e.mu.peers[s.UnixConn] = nil
	return true
}

// enlist makes an admitted socket a link, if there is room.
func (e *endpoint) enlist(l *serverLink) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.links[l.who.Role == rdma.RoleServer] >= e.maxLinks {
		return false
	}
	e.mu.links[l.who.Role == rdma.RoleServer]++
	e.mu.peers[l.sock.UnixConn] = l
	return true
}

// forget closes a socket and removes it and its link from the records.
func (e *endpoint) forget(s socket) {
	s.Close()
	e.mu.Lock()
	defer e.mu.Unlock()
	if l := e.mu.peers[s.UnixConn]; l != nil {
		e.mu.links[l.who.Role == rdma.RoleServer]--
	}
	delete(e.mu.peers, s.UnixConn)
}

// serveLink is the goroutine of one client process.
func (e *endpoint) serveLink(s socket, g *provide.Guest) {
	defer e.forget(s)
	l, err := e.greet(s, g)
	e.lobby.Leave(g)
	if err != nil {
		e.noteRefusal(err)
		return
	}
	l.receive()
	l.end()
}

// greet performs the handshake within controlTimeout.
func (e *endpoint) greet(s socket, g *provide.Guest) (*serverLink, error) {
	if err := s.SetReadDeadline(time.Now().Add(controlTimeout)); err != nil {
		return nil, err
	}
	m, files, err := s.receive(true)
	if err != nil {
		return nil, err
	}
	g.Speak()
	defer closeFiles(files)
	if m.kind != msgHello || len(files) != 1 {
		return nil, errWire
	}
	if m.version != wireVersion {
		_ = s.send(&message{kind: msgRefuse, reason: reasonVersion, version: wireVersion})
		return nil, errWire
	}
	if err := e.authenticate(s, m.role); err != nil {
		return nil, err
	}
	l, err := newServerLink(e, s, files[0])
	if err != nil {
		return nil, err
	}
	l.who.Role = m.role
	if !e.enlist(l) {
		err = s.send(&message{kind: msgRefuse, reason: reasonFull, version: wireVersion})
		l.end()
		return nil, errors.Join(errFull, err)
	}
	if err := errors.Join(l.welcome(e.Grants()), s.SetReadDeadline(time.Time{})); err != nil {
		l.end()
		return nil, err
	}
	return l, nil
}

// authenticate makes a process prove its role. A process of the server's user
// may be a client of any role; a data server must know the secret of the
// cluster.
func (e *endpoint) authenticate(s socket, role rdma.Role) error {
	if role == rdma.RoleNone {
		return errWire
	}
	if role < rdma.RoleServer {
		return nil
	}
	c := message{kind: msgChallenge}
	_, _ = rand.Read(c.blob[:]) // never fails
	if err := s.send(&c); err != nil {
		return err
	}
	m, _, err := s.receive(false)
	if err != nil {
		return err
	}
	if m.kind != msgProof || !e.p.secret.Proves(m.blob[:], "shm", c.blob[:]) {
		_ = s.send(&message{kind: msgRefuse, reason: reasonRole, version: wireVersion}) // the refusal counts even if the peer does not receive it
		return errRole
	}
	return nil
}
