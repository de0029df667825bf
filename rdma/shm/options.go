package shm

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"runtime"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// DefaultSpin is the longest time that a client process spins before it sleeps, if
// Options.Spin is zero.
const DefaultSpin = 50 * time.Microsecond

// Options configure a provider. The zero value is usable.
type Options struct {
	// Pollers is the number of goroutines that serve the RPCs of an
	// endpoint; 0 means 1, which handles all requests one after the other.
	Pollers int
	// Spin is the longest time that a client process spins before it sleeps; 0
	// means DefaultSpin, and a negative value means never to spin. The pollers of
	// an endpoint spin up to serverSpins times as long. See the package
	// documentation.
	Spin time.Duration
}

// serverSpins is how much longer a poller spins than a client. A client waits for
// one answer; a poller waits for the next request of any client, and a poller that
// sleeps makes all of them wait.
const serverSpins = 4

// New returns the provider "shm". The connections of one provider share their
// mappings, so a process needs only one. New fails with rdma.ErrUnsupported if
// Available does, and with rdma.ErrTooLarge for options out of range.
func New(o Options) (*Provider, error) {
	if err := Available(); err != nil {
		return nil, err
	}
	var err error
	if o.Pollers, err = provide.PollersOf(o.Pollers, MaxPollers); err != nil {
		return nil, fmt.Errorf("shm: %w", err)
	}
	o.Spin = cmp.Or(o.Spin, DefaultSpin)
	h, err := newHub(o.Spin)
	if err != nil {
		return nil, err
	}
	p := &Provider{opts: o, hub: h, dialSocket: new(net.Dialer).DialContext}
	return p, nil
}

// Available returns nil if this machine can run the provider: Linux with memfd
// and its seals. Otherwise the error wraps rdma.ErrUnsupported; a caller that
// needs only one process can use inproc instead.
func Available() error {
	r, err := mem.New(mem.Options{Name: "probe", Kind: mem.Shared, SegmentBytes: pageBytes, MaxBytes: pageBytes})
	if err != nil {
		if errors.Is(err, mem.ErrNoMemfd) {
			return fmt.Errorf("shm: %w: %w", rdma.ErrUnsupported, err)
		}
		return fmt.Errorf("shm: shared memory with seals: %w: %w", rdma.ErrUnsupported, err)
	}
	runtime.KeepAlive(r)
	return nil
}
