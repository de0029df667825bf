package inproc

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"drtmx/internal/rng"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// endpoint is the server side. Its pollers live from Listen to Close. After
// Close or Kill there are no more handler calls and no more replies.
type endpoint struct {
	provide.Endpoint
	net     *Network
	opts    rdma.ListenOptions
	paused  atomic.Bool
	pollers []*poller
	running sync.WaitGroup
	late    lateWRs
	// effects is held shared while a verb changes memory, and otherwise by Revoke.
	effects sync.RWMutex
	revoked map[rdma.PeerID]bool // under effects
	device  *device              // nil unless atomics are apart
	node    atomic.Pointer[node] // nil unless the machine is modelled
	// Requests handled while the machine was modelled, and how long that took.
	requests atomic.Uint64
	handled  atomic.Int64

	mu struct {
		sync.Mutex
		conns    map[*conn]struct{}
		left     map[*rdma.Tally]struct{} // of broken connections, whose clients may still count completions
		closed   rdma.Counters            // sum of the connections their clients closed
		lastPeer rdma.PeerID
		resumed  chan struct{} // closed at the end of a pause; nil while there is none
		held     []*conn       // connections answered during a pause
	}
}

func newEndpoint(n *Network, addr string, o rdma.ListenOptions) *endpoint {
	e := &endpoint{net: n, opts: o}
	if n.opts.Faults.Apart > 0 {
		e.device = &device{o: &n.opts, rng: rng.New(n.opts.Seed).Split("device")}
	}
	e.Init("inproc", addr, math.MaxUint32)
	e.mu.conns = make(map[*conn]struct{})
	e.mu.left = make(map[*rdma.Tally]struct{})
	for range n.opts.Pollers {
		p := newPoller(e)
		e.pollers = append(e.pollers, p)
		e.running.Go(p.run)
	}
	return e
}

// Serve makes the pollers hand RPCs to h, including those that arrived before.
func (e *endpoint) Serve(h rdma.Handler) error { return e.Start(h, e.wakePollers) }

// Counters sums the connections, one-sided verbs included: in one process
// they can be seen without charging the server.
func (e *endpoint) Counters() rdma.Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	sum := e.mu.closed
	for n := range e.mu.left {
		sum = sum.Add(n.Snapshot())
	}
	for c := range e.mu.conns {
		sum = sum.Add(c.ctr.Snapshot())
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

// stop is Close without waiting: peers see the death of the server.
func (e *endpoint) stop() {
	e.net.forget(e) // first: a dial that finds the endpoint down looks again
	e.mu.Lock()
	e.Shut()
	conns := make([]*conn, 0, len(e.mu.conns))
	for c := range e.mu.conns {
		conns = append(conns, c)
	}
	e.unpause() // wakes dials and pollers that wait for the end of a pause
	e.mu.Unlock()
	// In a fixed order, so that a simulation can be repeated.
	slices.SortFunc(conns, func(a, b *conn) int { return cmp.Compare(a.peer, b.peer) })
	for _, c := range conns {
		c.leave(provide.Broken)
	}
	e.wakePollers()
}

// Grant implements rdma.Endpoint.
func (e *endpoint) Grant(peer rdma.PeerID, k rdma.RKey, a rdma.Access) error {
	e.mu.Lock() // a connection that is found has not ended yet, so OnDisconnect comes later
	defer e.mu.Unlock()
	c := e.find(peer)
	if err := e.CheckGrant(peer, c != nil, c != nil && c.reads, k); err != nil {
		return err
	}
	c.extra.Add(k, a)
	return nil
}

// Revoke implements rdma.Endpoint.
func (e *endpoint) Revoke(peer rdma.PeerID) {
	e.effects.Lock() // waits for those in progress; later ones see that they are refused
	if e.revoked == nil {
		e.revoked = make(map[rdma.PeerID]bool)
	}
	e.revoked[peer] = true
	e.effects.Unlock()
	if c := e.connOf(peer); c != nil {
		c.leave(provide.Broken)
	}
	e.late.drop(peer)
}

// connOf returns the connection of a peer, nil if it is not connected.
func (e *endpoint) connOf(peer rdma.PeerID) *conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.find(peer)
}

// find is connOf for a caller that holds the lock.
func (e *endpoint) find(peer rdma.PeerID) *conn {
	for c := range e.mu.conns {
		if c.peer == peer {
			return c
		}
	}
	return nil
}

func (e *endpoint) wakePollers() {
	for _, p := range e.pollers {
		p.wake()
	}
}

// accept creates a connection, or returns a channel to wait on before looking
// the address up again.
func (e *endpoint) accept(number uint64, who *rdma.Identity) (*conn, <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.Closed() {
		return nil, closedChan
	}
	if e.mu.resumed != nil {
		return nil, e.mu.resumed
	}
	e.mu.lastPeer++
	c := newConn(e, e.mu.lastPeer, who, e.pollers[uint64(e.mu.lastPeer)%uint64(len(e.pollers))])
	if !e.net.plain {
		c.adv = newAdversary(&e.net.opts, e.net.root.Split(e.Addr()).SplitN(number))
	}
	e.mu.conns[c] = struct{}{}
	return c, nil
}

var closedChan = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func (e *endpoint) pause() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.resumed == nil && !e.Closed() {
		e.mu.resumed = make(chan struct{})
		e.paused.Store(true)
	}
}

func (e *endpoint) resume() {
	e.mu.Lock()
	held := e.mu.held
	e.unpause()
	e.mu.Unlock()
	for _, c := range held {
		c.deliver()
	}
	e.wakePollers()
}

// unpause ends a pause. The caller holds the lock.
func (e *endpoint) unpause() {
	if e.mu.resumed != nil {
		close(e.mu.resumed)
	}
	e.mu.resumed, e.mu.held = nil, nil
	e.paused.Store(false)
}

// hold delays the answer to c if the endpoint is paused.
func (e *endpoint) hold(c *conn) bool {
	if !e.paused.Load() {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.mu.resumed == nil {
		return false
	}
	e.mu.held = append(e.mu.held, c)
	return true
}

// noteBroken records that c is down. It reports whether the server still runs and so
// must be notified.
func (e *endpoint) noteBroken(c *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !c.summed {
		delete(e.mu.conns, c)
		e.mu.left[c.ctr] = struct{}{}
	}
	return !e.Closed()
}

// forget removes c and keeps its counts. Close may run before the goroutine
// that found the connection broken calls noteBroken, so noteBroken may come after it.
func (e *endpoint) forget(c *conn) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c.summed = true
	delete(e.mu.conns, c)
	delete(e.mu.left, c.ctr)
	e.mu.closed = e.mu.closed.Add(c.ctr.Snapshot())
}
