package inproc

import (
	"fmt"
	"sync"

	"drtmx/internal/mem"
	"drtmx/internal/rng"
	"drtmx/rdma"
)

// device performs the atomics of an endpoint where they are atomic only among each other: it holds
// a lock of its own, which the processor knows nothing of, and loads and stores.
type device struct {
	o *Options

	mu  sync.Mutex
	rng *rng.Stream
}

func (d *device) perform(s mem.Span, wr *rdma.WR) uint64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	was := s.Load(0)
	if d.rng.Bool(d.o.Faults.Apart) {
		d.o.Yield()
	}
	switch {
	case wr.Op == rdma.OpFAA:
		s.Store(0, was+wr.Arg)
	case was == wr.Arg:
		s.Store(0, wr.Swap)
	}
	return was
}

// fails decides whether a Swap fails, and whether it takes effect nonetheless.
func (d *device) fails() (fails, effect bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.rng.Bool(d.o.Faults.DropVerb), d.rng.Bool(0.5)
}

// AtomicsApart implements rdma.ApartAtomics.
func (e *endpoint) AtomicsApart(rdma.PeerID) bool { return e.device != nil }

// Swap implements rdma.ApartAtomics.
func (e *endpoint) Swap(key rdma.RKey, addr, from, to uint64) (bool, error) {
	g, ok := e.Region(key)
	if !ok {
		return false, fmt.Errorf("inproc: swap at %q: no region %d: %w", e.Addr(), key, rdma.ErrAccess)
	}
	s, ok := g.Region.Span(addr, mem.WordBytes)
	if !ok {
		return false, fmt.Errorf("inproc: swap at %q: no word %#x in region %d: %w", e.Addr(), addr, key, rdma.ErrAccess)
	}
	if e.device == nil {
		return s.CompareAndSwap(0, from, to), nil
	}
	fails, effect := e.device.fails()
	if fails && !effect {
		return false, fmt.Errorf("inproc: swap at %q: %w", e.Addr(), rdma.ErrPeerDown)
	}
	was := e.device.perform(s, &rdma.WR{Op: rdma.OpCAS, Arg: from, Swap: to})
	if fails {
		return false, fmt.Errorf("inproc: swap at %q: %w", e.Addr(), rdma.ErrPeerDown)
	}
	return was == from, nil
}
