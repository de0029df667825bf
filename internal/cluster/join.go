package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"drtmx/internal/member"
	"drtmx/rdma"
	"drtmx/rdma/multi"
)

const (
	// MinMemoryBytes is the least memory of a partition.
	MinMemoryBytes = 64 << 20
	// DefaultLease is the duration of a lease if the options give none.
	DefaultLease = 5 * time.Second
)

// ErrMember reports a data server that runs already.
var ErrMember = errors.New("cluster: data server runs already")

// JoinOptions describe one data server of a cluster. The other servers are
// separate processes, on this host or on others. The servers know each other by a list
// of addresses, or find each other in a store of members.
type JoinOptions struct {
	Size
	Index    int
	Provider rdma.Provider
	Workload Workload
	Log      *slog.Logger // nil means none
	// Addrs are the addresses of all data servers, in order: see MemberAddrs.
	// With a Store, they are left empty.
	Addrs []string
	// Dir, if set, is where the server's socket and its pid file are. It is
	// made if it does not exist, and shared with other data servers: a secret
	// in it is how they know each other over shared memory. Without one they
	// reach each other over networks only.
	Dir string
	// MemoryBytes bounds the memory of the server's partitions together; 0
	// means the server package's bound for each.
	MemoryBytes uint64

	// Store, if set, keeps the members of the cluster. The caller owns it, and
	// closes it after the member.
	Store member.Store
	// Addr is the server's own address among the members: see multi.Address.
	Addr string
	// Lease is how long the server's lease lasts; 0 means DefaultLease.
	Lease time.Duration
	// Waiting, if set, is called with a description of what the server waits for.
	Waiting func(text string)
}

// Hosted is the number of the data server's partitions.
func (o *JoinOptions) Hosted() int {
	partitions := o.Partitions
	if partitions == 0 {
		partitions = o.Servers
	}
	return (partitions - o.Index + o.Servers - 1) / o.Servers
}

// check completes the options and reports all their faults.
func (o *JoinOptions) check() error {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Waiting == nil {
		o.Waiting = func(string) {}
	}
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	faults := o.Size.faults()
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.Provider == nil {
		fault("no provider")
	}
	if o.Index < 0 || o.Index >= o.Servers {
		fault("data server %d of %d, want 0 to %d", o.Index, o.Servers, o.Servers-1)
	} else if need := uint64(o.Hosted()) * MinMemoryBytes; o.MemoryBytes != 0 && o.MemoryBytes < need {
		fault("%d MiB of memory, want at least %d MiB: %d for each of the %d partitions of data server %d",
			o.MemoryBytes>>20, need>>20, MinMemoryBytes>>20, o.Hosted(), o.Index)
	}
	if o.Store == nil && len(o.Addrs) != o.Servers {
		fault("%d addresses for %d data servers", len(o.Addrs), o.Servers)
	}
	if len(o.Dir) > dirBytesMax {
		fault("directory %s has %d bytes; with sockets in it, at most %d fit", o.Dir, len(o.Dir), dirBytesMax)
	}
	return optionsError(faults)
}

// Member is a data server in this process. Methods are safe for concurrent use.
type Member struct {
	server dataServer
	pid    *pidFile // nil without a directory
	place  *place   // nil without a store
	once   sync.Once
	err    error
}

// Join starts one data server in this process. With a Store it first waits
// until all other servers are members; while another instance holds its place,
// it waits until the lease of a server that died would have ended. The error
// wraps ErrOptions, ErrDir, ErrMember for a server that runs in its directory
// already, or ErrStart, or is one of package member.
func Join(ctx context.Context, o JoinOptions) (m *Member, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	m = &Member{}
	defer func() {
		if err != nil {
			m, err = nil, errors.Join(err, m.Close())
		}
	}()
	s := serverConfig(o.Workload, o.Size, o.Index, o.Addrs)
	s.Provider, s.Log = o.Provider, o.Log
	if o.Store != nil {
		if m.place, err = takePlace(ctx, &o); err != nil {
			return m, err
		}
		s.Addrs, s.Incarnation = m.place.addrs, uint64(m.place.self.Instance)
		s.Registered = registeredIn(o.Store)
		if f, ok := o.Provider.(*multi.Provider); ok {
			f.Resolve = m.place.follows.resolve
		}
	}
	if o.Dir != "" {
		if m.pid, err = takePID(o.Dir, o.Index); err != nil {
			return m, err
		}
		secret, err := sharedSecret(o.Dir)
		if err != nil {
			return m, err
		}
		rdma.SetSecret(o.Provider, secret)
	}
	if o.MemoryBytes != 0 {
		s.MemoryBytes = o.MemoryBytes / uint64(o.Hosted())
	}
	if m.server, err = startServer(s); err != nil {
		return m, fmt.Errorf("%w: server %d: %w", ErrStart, o.Index, err)
	}
	return m, nil
}

// registeredIn returns a function that returns the incarnation of a data server
// that is registered in a store now, 0 if none is. It reads the store every
// time: only the store's present state proves that an earlier incarnation is
// gone.
func registeredIn(store member.Store) func(ctx context.Context, server int) (incarnation uint64, err error) {
	return func(ctx context.Context, server int) (uint64, error) {
		state, err := store.State(ctx)
		if err != nil {
			return 0, err
		}
		r, ok := state.Registered(server)
		if !ok {
			return 0, nil
		}
		return uint64(r.Instance), nil
	}
}

// Lost is closed when another instance has taken the server's place in the
// store; it is nil without a store.
func (m *Member) Lost() <-chan struct{} {
	if m.place == nil {
		return nil
	}
	return m.place.lost
}

// Err is nil until Lost is closed. The error wraps ErrDeposed.
func (m *Member) Err() error {
	if m.place == nil {
		return nil
	}
	return m.place.deposed()
}

// Close stops the data server, removes its files, and gives up its lease. Its
// wait for a server that hangs is bounded. It may be called again.
func (m *Member) Close() error {
	m.once.Do(func() {
		if m.server != nil {
			m.err = closeWithin(m.server, closeTimeout)
		}
		m.pid.release()
		if m.place != nil {
			m.err = errors.Join(m.err, m.place.leave())
		}
	})
	return m.err
}
