package inproc

import (
	"context"
	"fmt"
	"sync"

	"drtmx/internal/rng"
	"drtmx/rdma"
)

// Network is a fabric of this process, with its own address space. It
// implements rdma.Provider and is safe for concurrent use.
type Network struct {
	opts  Options
	plain bool // neither latency nor faults
	root  *rng.Stream

	mu struct {
		sync.Mutex
		endpoints map[string]*endpoint
		dials     map[string]uint64 // by address, to number the fault streams
		nextName  int
	}
}

var _ rdma.Provider = (*Network)(nil)

// New makes an empty network.
func New(o Options) *Network {
	o = o.withDefaults()
	n := &Network{opts: o, plain: o.plain(), root: rng.New(o.Seed)}
	n.mu.endpoints = make(map[string]*endpoint)
	n.mu.dials = make(map[string]uint64)
	return n
}

// Name is "inproc".
func (n *Network) Name() string { return "inproc" }

// Listen opens an endpoint named addr, or under a fresh name if addr is
// empty. A name in use is rdma.ErrAddress.
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
	n.mu.endpoints[addr] = e
	return e, nil
}

// Dial connects to the endpoint named addr. While that is paused Dial waits.
func (n *Network) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	for {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("inproc: dial %q: %w", addr, err)
		}
		e, number := n.dialled(addr)
		if e == nil {
			return nil, fmt.Errorf("inproc: dial %q: %w: nobody listens", addr, rdma.ErrAddress)
		}
		c, resumed := e.accept(number)
		if c != nil {
			return c, nil
		}
		select {
		case <-resumed:
		case <-ctx.Done():
		}
	}
}

// dialled looks an endpoint up and numbers the connection to be.
func (n *Network) dialled(addr string) (*endpoint, uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	e := n.mu.endpoints[addr]
	if e == nil {
		return nil, 0
	}
	n.mu.dials[addr]++
	return e, n.mu.dials[addr]
}

// Pause freezes the endpoint at addr: requests, responses and new connections
// wait for Resume, while its memory goes on answering verbs. A handler that
// runs at this moment runs on, but its answer waits.
func (n *Network) Pause(addr string) error { return n.script("pause", addr, (*endpoint).pause) }

// Resume ends a Pause.
func (n *Network) Resume(addr string) error { return n.script("resume", addr, (*endpoint).resume) }

// Kill makes the endpoint at addr vanish as if its process had died: peers
// see rdma.ErrPeerDown, the address is free at once, and what its handlers
// still do is seen by nobody. Its Close is still to be called.
func (n *Network) Kill(addr string) error { return n.script("kill", addr, (*endpoint).stop) }

func (n *Network) script(what, addr string, do func(*endpoint)) error {
	n.mu.Lock()
	e := n.mu.endpoints[addr]
	n.mu.Unlock()
	if e == nil {
		return fmt.Errorf("inproc: %s %q: %w: nobody listens", what, addr, rdma.ErrAddress)
	}
	do(e)
	return nil
}

// forget frees the name of e, unless another endpoint has it by now.
func (n *Network) forget(e *endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.endpoints[e.addr] == e {
		delete(n.mu.endpoints, e.addr)
	}
}
