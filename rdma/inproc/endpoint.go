package inproc

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// errServed reports a second Serve.
var errServed = errors.New("inproc: Serve was called before")

// grant is what peers may do to one region.
type grant struct {
	region *mem.Region
	access rdma.Access
}

// endpoint is the server side. Its pollers live from Listen to Close.
type endpoint struct {
	net     *Network
	addr    string
	opts    rdma.ListenOptions
	grants  atomic.Pointer[[]grant] // indexed by rkey-1; copied on Register
	handler atomic.Pointer[rdma.Handler]
	down    atomic.Bool // closed or killed: no more handler calls, no more replies
	pollers []*poller
	running sync.WaitGroup

	mu struct {
		sync.Mutex
		conns    map[*conn]struct{}
		retired  rdma.Counters // of connections that are gone
		lastPeer rdma.PeerID
	}
}

func newEndpoint(n *Network, addr string, o rdma.ListenOptions) *endpoint {
	e := &endpoint{net: n, addr: addr, opts: o}
	e.grants.Store(new([]grant))
	e.mu.conns = make(map[*conn]struct{})
	for range n.opts.Pollers {
		p := newPoller(e)
		e.pollers = append(e.pollers, p)
		e.running.Go(p.run)
	}
	return e
}

// Addr is the endpoint's name in its Network.
func (e *endpoint) Addr() string { return e.addr }

// Register grants every present and future peer access to r.
func (e *endpoint) Register(r *mem.Region, a rdma.Access) (rdma.RKey, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down.Load() {
		return 0, fmt.Errorf("inproc: register at %q: %w", e.addr, rdma.ErrClosed)
	}
	old := *e.grants.Load()
	grants := append(old[:len(old):len(old)], grant{r, a | rdma.AccessRead})
	e.grants.Store(&grants)
	return rdma.RKey(len(grants)), nil
}

// Serve makes the pollers hand RPCs to h, including those that arrived before.
func (e *endpoint) Serve(h rdma.Handler) error {
	if e.down.Load() {
		return fmt.Errorf("inproc: serve at %q: %w", e.addr, rdma.ErrClosed)
	}
	if !e.handler.CompareAndSwap(nil, &h) {
		return errServed
	}
	e.wakePollers()
	return nil
}

// Counters sums the connections, one-sided verbs included: in one process
// they can be seen without charging the server.
func (e *endpoint) Counters() rdma.Counters {
	e.mu.Lock()
	defer e.mu.Unlock()
	sum := e.mu.retired
	for c := range e.mu.conns {
		sum = sum.Add(c.Counters())
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

// stop is Close without the waiting: the server's death as peers see it.
func (e *endpoint) stop() {
	e.mu.Lock()
	e.down.Store(true)
	conns := make([]*conn, 0, len(e.mu.conns))
	for c := range e.mu.conns {
		conns = append(conns, c)
	}
	e.mu.Unlock()
	e.net.forget(e)
	for _, c := range conns {
		c.leave(linkPeerDown)
	}
	e.wakePollers()
}

func (e *endpoint) wakePollers() {
	for _, p := range e.pollers {
		p.wake()
	}
}

func (e *endpoint) accept() (*conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down.Load() {
		return nil, fmt.Errorf("%w: nobody listens", rdma.ErrAddress)
	}
	e.mu.lastPeer++
	c := newConn(e, e.mu.lastPeer, e.pollers[uint64(e.mu.lastPeer)%uint64(len(e.pollers))])
	e.mu.conns[c] = struct{}{}
	return c, nil
}

// retire drops a connection from the books, keeping what it counted. It
// reports whether the server still runs and so has to be told.
func (e *endpoint) retire(c *conn) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.mu.conns[c]; ok {
		delete(e.mu.conns, c)
		e.mu.retired = e.mu.retired.Add(c.Counters())
	}
	return !e.down.Load()
}
