package inproc

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"drtmx/internal/rng"
	"drtmx/rdma"
)

// Network is a fabric of this process, with its own address space. It
// implements rdma.Provider and is safe for concurrent use.
type Network struct {
	opts  Options
	plain bool // no latency and no faults
	root  *rng.Stream

	mu struct {
		sync.Mutex
		node      *Node // of new endpoints
		endpoints map[string]*endpoint
		dials     map[string]uint64 // by address, to number the fault streams
		nextName  int
		failing   []dialFault
	}
}

// dialFault makes dials fail.
type dialFault struct {
	from, to string // a name of Identity and an address; "" means any
	err      error
}

var (
	_ rdma.Provider     = (*Network)(nil)
	_ rdma.Impersonator = (*Network)(nil)
)

// New returns an empty network.
func New(o Options) *Network {
	o = o.withDefaults()
	n := &Network{opts: o, plain: o.plain(), root: rng.New(o.Seed)}
	n.mu.endpoints = make(map[string]*endpoint)
	n.mu.dials = make(map[string]uint64)
	return n
}

// Name returns "inproc".
func (n *Network) Name() string { return "inproc" }

// Unordered implements the method that rdma.Unordered asks for.
func (n *Network) Unordered() bool { return n.opts.Faults.Scramble > 0 }

// Listen opens an endpoint named addr, or under a fresh name if addr is empty.
// It returns rdma.ErrAddress if the name is in use.
func (n *Network) Listen(addr string, o rdma.ListenOptions) (rdma.Endpoint, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for addr == "" {
		n.mu.nextName++
		name := fmt.Sprintf("inproc-%d", n.mu.nextName)
		if n.mu.endpoints[name] == nil {
			addr = name
		}
	}
	if n.mu.endpoints[addr] != nil {
		return nil, fmt.Errorf("inproc: listen at %q: %w: name is taken", addr, rdma.ErrAddress)
	}
	e := newEndpoint(n, addr, o)
	e.become(n.mu.node, n.opts.Clock)
	n.mu.endpoints[addr] = e
	return e, nil
}

// Dial connects to the endpoint named addr as a peer that may do everything.
// While the endpoint is paused Dial waits.
func (n *Network) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	return n.dial(ctx, addr, &anybody)
}

// anybody is the identity of a plain Dial: code of this process is trusted with
// the role of a data server.
var anybody = rdma.Identity{Role: rdma.RoleServer}

// As returns the network as a peer sees it: its dials carry that identity.
func (n *Network) As(who rdma.Identity) rdma.Provider { return &member{n, who} }

// member is a network whose dials carry an identity.
type member struct {
	*Network
	who rdma.Identity
}

// Dial is Network.Dial with the member's identity.
func (m *member) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	return m.dial(ctx, addr, &m.who)
}

func (n *Network) dial(ctx context.Context, addr string, who *rdma.Identity) (rdma.Conn, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("inproc: dial %q: %w", addr, err)
		}
		e, number, err := n.lookUp(addr, who)
		if err != nil {
			return nil, fmt.Errorf("inproc: dial %q: %w", addr, err)
		}
		c, resumed := e.accept(number, who)
		if c != nil {
			return c, nil
		}
		select {
		case <-resumed:
		case <-ctx.Done():
		}
	}
}

// lookUp looks an endpoint up and returns the number of the new connection.
func (n *Network) lookUp(addr string, who *rdma.Identity) (*endpoint, uint64, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, f := range n.mu.failing {
		if (f.from == "" || f.from == who.Name) && (f.to == "" || f.to == addr) {
			return nil, 0, f.err
		}
	}
	e := n.mu.endpoints[addr]
	if e == nil {
		return nil, 0, rdma.ErrRefused
	}
	n.mu.dials[addr]++
	return e, n.mu.dials[addr], nil
}

// FailDials makes every dial from the peer of that name (see As) to the address
// to fail with err, such as one of rdma.DialErrors, until it is called with
// nil. An empty name or address means any. Existing connections are not
// affected. A test can thus simulate a process without descriptors, or a name
// that no longer resolves, with both servers alive.
func (n *Network) FailDials(from, to string, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.failing = slices.DeleteFunc(n.mu.failing, func(f dialFault) bool { return f.from == from && f.to == to })
	if err != nil {
		n.mu.failing = append(n.mu.failing, dialFault{from, to, err})
	}
}

// Pause freezes the endpoint at addr: requests, responses and new connections
// wait for Resume, while its memory still answers verbs. A handler that is
// running continues, but its answer waits.
func (n *Network) Pause(addr string) error { return n.script("pause", addr, (*endpoint).pause) }

// Resume ends a Pause.
func (n *Network) Resume(addr string) error { return n.script("resume", addr, (*endpoint).resume) }

// Kill makes the endpoint at addr vanish as if its process had died: peers see
// rdma.ErrPeerDown, the address is free at once, and no peer sees later actions
// of its handlers. The owner must still call Close.
func (n *Network) Kill(addr string) error { return n.script("kill", addr, (*endpoint).stop) }

func (n *Network) script(what, addr string, do func(*endpoint)) error {
	n.mu.Lock()
	e := n.mu.endpoints[addr]
	n.mu.Unlock()
	if e == nil {
		return fmt.Errorf("inproc: %s %q: %w: no server listens", what, addr, rdma.ErrAddress)
	}
	do(e)
	return nil
}

// forget frees the name of e, unless another endpoint already has it.
func (n *Network) forget(e *endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.endpoints[e.Addr()] == e {
		delete(n.mu.endpoints, e.Addr())
	}
}
