package member

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"
)

// Bounds of a cluster.
const (
	// MaxServers bounds the servers of a map.
	MaxServers = 256
	// MaxPartitions bounds its partitions.
	MaxPartitions = 1024
	// MaxEndpoints bounds the endpoints of one server.
	MaxEndpoints = 8
	// MinTTL and MaxTTL bound the time that a lease is asked for.
	MinTTL, MaxTTL = time.Second, 10 * time.Minute
)

// Epoch numbers the versions of a map, from 1 on.
type Epoch uint64

// Revision orders the states of a store. Its values mean nothing else, and are
// comparable only as long as the store keeps its data.
type Revision uint64

// Instance tells one start of a server from every other. It is never 0.
type Instance uint64

// NewInstance draws an instance.
func NewInstance() Instance {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return Instance(binary.LittleEndian.Uint64(b[:]) | 1)
}

func (i Instance) String() string { return fmt.Sprintf("%016x", uint64(i)) }

// MarshalText is String.
func (i Instance) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText takes sixteen lower-case hexadecimal digits.
func (i *Instance) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 16, 64)
	if err != nil || Instance(v).String() != string(b) {
		return fmt.Errorf("%w: instance %q, want sixteen hexadecimal digits", ErrInput, b)
	}
	*i = Instance(v)
	return nil
}

// Server is one data server as others know it.
type Server struct {
	Index     int        `json:"index"` // from 0 on
	Instance  Instance   `json:"instance"`
	Endpoints []Endpoint `json:"endpoints"` // best first; at least one
}

func (s Server) clone() Server {
	s.Endpoints = slices.Clone(s.Endpoints)
	return s
}

// Registration is a server that is alive: it holds a lease.
type Registration struct {
	Server
	// Term is that of its lease's stamps.
	Term uint64 `json:"-"`
}

// Map is what a cluster has agreed on.
type Map struct {
	Epoch Epoch `json:"epoch"`
	// Size is how many data servers the cluster is to have. Fewer may have
	// joined so far.
	Size    int      `json:"size"`
	Servers []Server `json:"servers"` // in the order of their indexes, each once
	// Primaries are the indexes of the servers that hold the partitions, in the
	// order of the partitions.
	Primaries []int `json:"primaries"`
}

// Clone is a copy that shares nothing with m.
func (m *Map) Clone() *Map {
	if m == nil {
		return nil
	}
	c := *m
	c.Primaries = slices.Clone(m.Primaries)
	c.Servers = slices.Clone(m.Servers)
	for i := range c.Servers {
		c.Servers[i] = c.Servers[i].clone()
	}
	return &c
}

// Server finds a server by its index.
func (m *Map) Server(index int) (Server, bool) {
	i, ok := slices.BinarySearchFunc(m.Servers, index, func(s Server, index int) int { return s.Index - index })
	if !ok {
		return Server{}, false
	}
	return m.Servers[i], true
}

// Put adds a server, or replaces the one of its index.
func (m *Map) Put(s Server) {
	i, ok := slices.BinarySearchFunc(m.Servers, s.Index, func(s Server, index int) int { return s.Index - index })
	if ok {
		m.Servers[i] = s.clone()
		return
	}
	m.Servers = slices.Insert(m.Servers, i, s.clone())
}

// Complete reports whether all servers are in the map.
func (m *Map) Complete() bool { return len(m.Servers) == m.Size }

// State is what a store holds at one moment.
type State struct {
	Revision Revision
	Map      *Map           // nil: nobody has made one
	Alive    []Registration // in the order of their indexes
}

// Registered finds a live server by its index.
func (s *State) Registered(index int) (Registration, bool) {
	i := slices.IndexFunc(s.Alive, func(r Registration) bool { return r.Index == index })
	if i < 0 {
		return Registration{}, false
	}
	return s.Alive[i], true
}

// Stamp is the place of a renewal in the life of an index. Stamps of one index
// only grow: by Count with each renewal, by Term with each Join, whoever joins.
// Who sees a stamp grow knows that the holder had its lease not long before.
type Stamp struct{ Term, Count uint64 }

// Less reports whether s came before other.
func (s Stamp) Less(other Stamp) bool {
	return s.Term < other.Term || s.Term == other.Term && s.Count < other.Count
}

// Store is where the members of one cluster, which has a name, are kept.
// Methods are safe for concurrent use. Each honours its context, and without
// one still returns within a bounded time, Watch excepted; the errors are those
// of this package or the context's. What is passed in and handed out is the
// caller's: nothing is shared.
type Store interface {
	// State is what the store holds now: a change that was acknowledged to
	// anyone before the call is in it.
	State(ctx context.Context) (*State, error)

	// Watch waits until the store's state is another than at revision after,
	// and returns the newest: what came between is skipped, the last never is.
	// With after 0 it does not wait. It fails with ErrUnreachable within a
	// bounded time if the store goes away; a later call goes on from there.
	Watch(ctx context.Context, after Revision) (*State, error)

	// Swap replaces the map at epoch expected by next, whose epoch must be one
	// more; 0 means that there is none yet. It fails with an EpochError if
	// another change came before, and then has changed nothing.
	Swap(ctx context.Context, expected Epoch, next *Map) error

	// Join registers a server for as long as its lease is renewed, which the
	// store does by itself. The lease's time is at least ttl. It fails with a
	// TakenError while a server of another instance holds the index; a holder
	// of the same instance is replaced, and its lease is lost.
	Join(ctx context.Context, s Server, ttl time.Duration) (Lease, error)

	// Evict takes the lease of an instance away. It is no error if that
	// instance holds none.
	Evict(ctx context.Context, index int, instance Instance) error

	// Close lets go of what this handle holds. Its leases are no longer renewed
	// and end in their time, as if the process had died: to end them at once,
	// leave first.
	Close() error
}

// Lease is the hold of a server on its index. Methods are safe for concurrent use.
type Lease interface {
	// Stamp is that of the last renewal.
	Stamp() Stamp
	// Deadline is until when the lease is certainly held, on this machine's
	// clock; it moves with each renewal.
	Deadline() time.Time
	// TTL is the time that a renewal lasts.
	TTL() time.Duration
	// Lost is closed when the lease has ended: Err says why.
	Lost() <-chan struct{}
	// Err is nil until Lost is closed, and then wraps ErrLeaseLost, ErrLeft or ErrClosed.
	Err() error
	// Leave ends the lease at once. It is no error if it has ended already.
	Leave(ctx context.Context) error
}
