package inproc

import (
	"context"
	"fmt"
	"sync"

	"drtmx/rdma"
)

// Options configure a Network. The zero value is a fabric without latency or faults.
type Options struct {
	// Pollers is the number of goroutines that run an endpoint's handler; 0
	// means 1. A connection always uses the same one.
	Pollers int
}

// Network is a fabric of this process, with its own address space. It
// implements rdma.Provider and is safe for concurrent use.
type Network struct {
	opts Options

	mu struct {
		sync.Mutex
		endpoints map[string]*endpoint
		nextName  int
	}
}

var _ rdma.Provider = (*Network)(nil)

// New makes an empty network.
func New(o Options) *Network {
	o.Pollers = max(o.Pollers, 1)
	n := &Network{opts: o}
	n.mu.endpoints = make(map[string]*endpoint)
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

// Dial connects to the endpoint named addr.
func (n *Network) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("inproc: dial %q: %w", addr, err)
	}
	e := n.endpoint(addr)
	if e == nil {
		return nil, fmt.Errorf("inproc: dial %q: %w: nobody listens", addr, rdma.ErrAddress)
	}
	c, err := e.accept()
	if err != nil {
		return nil, fmt.Errorf("inproc: dial %q: %w", addr, err)
	}
	return c, nil
}

func (n *Network) endpoint(addr string) *endpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.mu.endpoints[addr]
}

// forget frees the name of e, unless another endpoint has it by now.
func (n *Network) forget(e *endpoint) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.endpoints[e.addr] == e {
		delete(n.mu.endpoints, e.addr)
	}
}
