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
	// MinTTL and MaxTTL bound the requested time of a lease.
	MinTTL, MaxTTL = time.Second, 10 * time.Minute
)

// Epoch numbers the versions of a map, from 1 on.
type Epoch uint64

// Revision orders the states of a store. Its values have no other meaning, and
// are comparable only while the store keeps its data.
type Revision uint64

// Instance identifies one start of a server. It is never 0.
type Instance uint64

// NewInstance returns a random instance.
func NewInstance() Instance {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return Instance(binary.LittleEndian.Uint64(b[:]) | 1)
}

func (i Instance) String() string { return fmt.Sprintf("%016x", uint64(i)) }

// MarshalText returns the same text as String.
func (i Instance) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText parses sixteen lower-case hexadecimal digits.
func (i *Instance) UnmarshalText(b []byte) error {
	v, err := strconv.ParseUint(string(b), 16, 64)
	if err != nil || Instance(v).String() != string(b) {
		return fmt.Errorf("%w: instance %q, want sixteen hexadecimal digits", ErrInput, b)
	}
	*i = Instance(v)
	return nil
}

// Server describes one data server to clients and to other servers.
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
	// Term is the term of its lease's stamps.
	Term uint64 `json:"-"`
}

// Map is the state on which a cluster has agreed.
type Map struct {
	Epoch Epoch `json:"epoch"`
	// Size is the intended number of data servers. Fewer may have joined so
	// far.
	Size    int      `json:"size"`
	Servers []Server `json:"servers"` // in the order of their indexes, each once
	// Primaries are the indexes of the servers that hold the partitions, in the
	// order of the partitions.
	Primaries []int `json:"primaries"`
}

// Clone returns a copy that shares nothing with m.
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

// Server returns the server of an index; it reports false if the map has none.
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

// State is the contents of a store at one moment.
type State struct {
	Revision Revision
	Map      *Map           // nil: no map exists yet
	Alive    []Registration // in the order of their indexes
}

// Registered returns the live server of an index; it reports false if there is
// none.
func (s *State) Registered(index int) (Registration, bool) {
	i := slices.IndexFunc(s.Alive, func(r Registration) bool { return r.Index == index })
	if i < 0 {
		return Registration{}, false
	}
	return s.Alive[i], true
}

// Stamp numbers the renewals of an index. Stamps of one index only grow: Count
// with each renewal, Term with each Join by any server. A reader that sees a
// stamp grow knows that the holder recently had its lease.
type Stamp struct{ Term, Count uint64 }

// Less reports whether s came before other.
func (s Stamp) Less(other Stamp) bool {
	return s.Term < other.Term || s.Term == other.Term && s.Count < other.Count
}

// Location says where a Store outside this process is.
type Location struct {
	Endpoints []string // host:port of one or more servers of the store
	Name      string   // of the cluster
	TLS       *TLS     // nil means plain text
}

// TLS names PEM files.
type TLS struct {
	CA         string // authority that signs the other side
	Cert, Key  string // own certificate
	ServerName string // name in the store's certificate, if it is not its host
}

// Store holds the members of one named cluster. Methods are safe for concurrent
// use. Each honours its context, and all except Watch also return within a
// bounded time without a deadline. Errors are those of this package or the
// context's. A Store shares no memory with its caller: it copies arguments and
// results.
type Store interface {
	// State returns the present state. It includes every change that was
	// acknowledged, to any caller, before the call.
	State(ctx context.Context) (*State, error)

	// Watch waits until the state differs from that at revision after, and
	// returns the latest state. Intermediate states may be skipped, the latest
	// one never is. With after 0 it does not wait. It fails with ErrUnreachable
	// within a bounded time if the store is lost; a later call continues from
	// the same revision.
	Watch(ctx context.Context, after Revision) (*State, error)

	// Swap replaces the map at epoch expected by next, whose epoch must be one
	// higher; expected 0 means that there is no map yet. If another change came
	// first, it fails with an EpochError and changes nothing.
	Swap(ctx context.Context, expected Epoch, next *Map) error

	// Join registers a server as long as its lease is renewed; the store renews
	// it automatically. The lease's time is at least ttl. Join fails with a
	// TakenError while a server of another instance holds the index. It
	// replaces a holder of the same instance, whose lease is then lost.
	Join(ctx context.Context, s Server, ttl time.Duration) (Lease, error)

	// Evict ends the lease of an instance. It is no error if that instance
	// holds none.
	Evict(ctx context.Context, index int, instance Instance) error

	// Close closes the handle. Its leases are no longer renewed and run out, as
	// if the process had died. To end them at once, call Leave first.
	Close() error
}

// Lease is the hold of a server on its index. Methods are safe for concurrent use.
type Lease interface {
	// Stamp returns the stamp of the last renewal.
	Stamp() Stamp
	// Deadline returns the time, by clock.Now, until which the lease is
	// certainly held. It moves with each renewal. The clock runs while the
	// machine sleeps, as the store's does.
	Deadline() time.Duration
	// TTL returns the duration of a renewal.
	TTL() time.Duration
	// Lost returns a channel that is closed when the lease has ended; Err has
	// the reason.
	Lost() <-chan struct{}
	// Err returns nil until Lost is closed, then an error that wraps
	// ErrLeaseLost, ErrLeft or ErrClosed.
	Err() error
	// Leave ends the lease at once. It is no error if the lease has already
	// ended.
	Leave(ctx context.Context) error
}
