package verbs

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// DefaultSpin is how long a side without work spins before it sleeps, if
// Options.Spin is zero.
const DefaultSpin = 10 * time.Microsecond

// Bounds of this provider. Exceeding one is rdma.ErrTooLarge.
const (
	// MaxPollers bounds Options.Pollers.
	MaxPollers = 16
	// MaxConns bounds the connections of clients to one endpoint, and separately
	// those of data servers.
	MaxConns = 4096
	// MaxQueueDepth bounds Options.QueueDepth.
	MaxQueueDepth = 8192
)

// DefaultPeerRole lets any peer that reaches the device do what clients may. Only
// peers that know the secret of the cluster are data servers. Use RDMA on a closed
// network.
const DefaultPeerRole = rdma.RoleLoader

// Options configure a provider. The zero value is usable.
type Options struct {
	// Device names the RDMA device, as in /sys/class/infiniband, at whose
	// address an endpoint listens that is given none; "" means the first that
	// has one.
	Device string
	// PeerRole is the most that a peer may be that connects to an endpoint of this
	// provider and proves nothing: the connection manager carries no certificates.
	// rdma.RoleNone means DefaultPeerRole. See Provider.SetSecret.
	PeerRole rdma.Role
	// Pollers is the number of goroutines that serve the RPCs of an endpoint;
	// 0 means 1, which handles all requests one after the other.
	Pollers int
	// Spin is the longest time to spin before sleeping; 0 means DefaultSpin, and
	// a negative value means never to spin.
	Spin time.Duration
	// QueueDepth bounds the one-sided work requests in the send queue of a
	// connection; larger batches are fed in pieces. 0 means 256, or the limit of
	// the device if that is less.
	QueueDepth int
}

const defaultQueueDepth = 256

// fill validates the options and puts defaults in the place of zeros.
func (o *Options) fill() error {
	o.PeerRole = cmp.Or(o.PeerRole, DefaultPeerRole)
	o.Spin = cmp.Or(o.Spin, DefaultSpin)
	o.QueueDepth = cmp.Or(o.QueueDepth, defaultQueueDepth)
	var err, depth error
	if o.Pollers, err = provide.PollersOf(o.Pollers, MaxPollers); err != nil {
		err = fmt.Errorf("verbs: %w", err)
	}
	if o.QueueDepth < 1 || o.QueueDepth > MaxQueueDepth {
		depth = fmt.Errorf("verbs: queue depth %d (want 1 to %d): %w", o.QueueDepth, MaxQueueDepth, rdma.ErrTooLarge)
	}
	return errors.Join(err, depth)
}
