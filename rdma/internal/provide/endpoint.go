package provide

import (
	"fmt"
	"sync"
	"sync/atomic"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Grant is the access that peers have to one region.
type Grant struct {
	Region *mem.Region
	Access rdma.Access
}

// Endpoint is the part of an endpoint that all providers share: its address,
// its handler, and its grants by rkey. Providers embed it and call Init first.
// Its methods are safe for concurrent use.
type Endpoint struct {
	provider, addr string
	regionsMax     int
	closed         atomic.Bool
	handler        atomic.Pointer[rdma.Handler]
	changing       sync.Mutex
	grants         atomic.Pointer[[]Grant] // by rkey-1; copied on Register
}

// Init sets the provider's name, for the texts of errors, the address, and how many
// regions the endpoint may have.
func (e *Endpoint) Init(provider, addr string, regionsMax int) {
	e.provider, e.addr, e.regionsMax = provider, addr, regionsMax
	e.grants.Store(new([]Grant))
}

// Addr returns the address that a client passes to Dial.
func (e *Endpoint) Addr() string { return e.addr }

// Register grants every present and future peer access to r.
func (e *Endpoint) Register(r *mem.Region, a rdma.Access) (rdma.RKey, error) {
	e.changing.Lock()
	defer e.changing.Unlock()
	if e.Closed() {
		return 0, fmt.Errorf("%s: register at %q: %w", e.provider, e.addr, rdma.ErrClosed)
	}
	old := e.Grants()
	if len(old) == e.regionsMax {
		return 0, fmt.Errorf("%s: more than %d regions: %w", e.provider, e.regionsMax, rdma.ErrTooLarge)
	}
	grants := append(old[:len(old):len(old)], Grant{r, a | rdma.AccessRead})
	e.grants.Store(&grants)
	return rdma.RKey(len(grants)), nil
}

// Grants returns all grants, by rkey-1. The caller must not change them.
func (e *Endpoint) Grants() []Grant { return *e.grants.Load() }

// Region returns a region with the access that all peers have to it.
func (e *Endpoint) Region(k rdma.RKey) (Grant, bool) {
	grants := e.Grants()
	if i := int(k) - 1; uint(i) < uint(len(grants)) {
		return grants[i], true
	}
	return Grant{}, false
}

// Start sets the handler and calls start, which starts or wakes the pollers. It
// fails after Shut, and at the second call. Shut does not return before start
// has.
func (e *Endpoint) Start(h rdma.Handler, start func()) error {
	e.changing.Lock()
	defer e.changing.Unlock()
	if e.Closed() {
		return fmt.Errorf("%s: serve at %q: %w", e.provider, e.addr, rdma.ErrClosed)
	}
	if !e.handler.CompareAndSwap(nil, &h) {
		return fmt.Errorf("%s: serve at %q: %w", e.provider, e.addr, ErrServed)
	}
	start()
	return nil
}

// Handler returns the handler, nil before Start.
func (e *Endpoint) Handler() rdma.Handler {
	if h := e.handler.Load(); h != nil {
		return *h
	}
	return nil
}

// Shut marks the endpoint closed. It reports whether it was open.
func (e *Endpoint) Shut() bool {
	e.changing.Lock()
	defer e.changing.Unlock()
	return !e.closed.Swap(true)
}

// Closed reports whether Shut was called.
func (e *Endpoint) Closed() bool { return e.closed.Load() }

// Need returns the access that a verb with a buffer of so many words needs, and
// how many words of the region it touches. The access is 0 if the verb does not
// exist, and the words are 0 if the buffer is empty or exceeds a bound.
func Need(op rdma.Op, words int) (rdma.Access, int) {
	if words > rdma.MaxReadBytes/mem.WordBytes {
		words = 0
	}
	switch op {
	case rdma.OpRead:
		return rdma.AccessRead, words
	case rdma.OpWrite:
		return rdma.AccessWrite, words
	case rdma.OpCAS, rdma.OpFAA:
		return rdma.AccessAtomic, min(words, 1)
	}
	return 0, 0
}

// CompareAndSwap replaces expect by swap in the first word of s, and returns
// the old value, which mem.Span's method does not.
func CompareAndSwap(s mem.Span, expect, swap uint64) uint64 {
	for {
		old := s.Load(0)
		if old != expect || s.CompareAndSwap(0, expect, swap) {
			return old
		}
	}
}
