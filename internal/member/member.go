package member

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
)

// Bounds of a cluster.
const (
	// MaxServers bounds the servers of a map.
	MaxServers = 256
	// MaxPartitions bounds its partitions.
	MaxPartitions = 1024
	// MaxEndpoints bounds the endpoints of one server.
	MaxEndpoints = 8
	// MaxZoneBytes bounds the name of a zone.
	MaxZoneBytes = 64
	// MinTTL and MaxTTL bound the requested time of a lease.
	MinTTL, MaxTTL = time.Second, 10 * time.Minute
)

// MapEpoch numbers the versions of a map, from 1 on.
type MapEpoch uint64

// Revision orders the states of a store. Its values have no other meaning, and
// are comparable only while the store keeps its data.
type Revision uint64

// Instance identifies one start of a server. It is never 0.
type Instance uint64

// Incarnation identifies the life of a server's state. That of a durable server
// is in its data directory, and outlives the process. 0 means that the server
// keeps its state in memory: it lasts as long as the Instance.
type Incarnation uint64

// ClusterID identifies a cluster among all that have had its name. It is never 0.
type ClusterID uint64

// NewInstance returns a random instance.
func NewInstance() Instance { return Instance(random()) }

// NewIncarnation returns a random incarnation.
func NewIncarnation() Incarnation { return Incarnation(random()) }

// random returns a random number that is not 0.
func random() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:]) | 1
}

// digits is the text of an identifier: sixteen lower-case hexadecimal digits.
func digits(v uint64) string { return fmt.Sprintf("%016x", v) }

// parseDigits is the inverse of digits.
func parseDigits(what string, b []byte) (uint64, error) {
	v, err := strconv.ParseUint(string(b), 16, 64)
	if err != nil || digits(v) != string(b) {
		return 0, fmt.Errorf("%w: %s %q, want sixteen hexadecimal digits", ErrInput, what, b)
	}
	return v, nil
}

func (i Instance) String() string    { return digits(uint64(i)) }
func (i Incarnation) String() string { return digits(uint64(i)) }
func (c ClusterID) String() string   { return digits(uint64(c)) }

// MarshalText returns the same text as String.
func (i Instance) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// MarshalText returns the same text as String.
func (i Incarnation) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// MarshalText returns the same text as String.
func (c ClusterID) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// UnmarshalText parses sixteen lower-case hexadecimal digits.
func (i *Instance) UnmarshalText(b []byte) error {
	v, err := parseDigits("instance", b)
	*i = Instance(v)
	return err
}

// UnmarshalText parses sixteen lower-case hexadecimal digits.
func (i *Incarnation) UnmarshalText(b []byte) error {
	v, err := parseDigits("incarnation", b)
	*i = Incarnation(v)
	return err
}

// UnmarshalText parses sixteen lower-case hexadecimal digits.
func (c *ClusterID) UnmarshalText(b []byte) error {
	v, err := parseDigits("cluster", b)
	*c = ClusterID(v)
	return err
}

// Server describes one data server to clients and to other servers.
type Server struct {
	Index       placement.Server `json:"index"`
	Instance    Instance         `json:"instance"`
	Incarnation Incarnation      `json:"incarnation,omitempty"` // 0: of a server in memory
	// Host is the index with which the server's process was started. It is another
	// one if that process has taken the server over, from a copy that it had.
	Host int `json:"host"`
	// Zone names what may fail together with that process: a machine, a rack, a site.
	// Copies are kept in other zones, if there are any. Empty: not known.
	Zone      string     `json:"zone,omitempty"`
	Endpoints []Endpoint `json:"endpoints"` // best first; at least one
}

// Life returns the number by which other servers and clients know the server's
// state. Another number proves that the state is gone.
func (s *Server) Life() uint64 {
	if s.Incarnation != 0 {
		return uint64(s.Incarnation)
	}
	return uint64(s.Instance)
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
	Epoch MapEpoch `json:"epoch"`
	// ID is random, and does not change.
	ID ClusterID `json:"id"`
	// Size is the intended number of data servers. Fewer may have joined so
	// far.
	Size    int      `json:"size"`
	Servers []Server `json:"servers"` // in the order of their indexes, each once
	// Placement says which servers hold the partitions.
	Placement placement.Map `json:"primaries"`
	// Sets say which copies of the servers' logs are in sync, in the order of the
	// servers, each once. A server that never had copies has none.
	Sets []ServerSet `json:"sets,omitempty"`
	// Wishes say at which hosts servers are to be that are not to be at their own, in
	// the order of the servers, each once.
	Wishes []Wish `json:"wishes,omitempty"`
	// Drained are the hosts at which no server and no copy is to be, in rising order.
	Drained []int `json:"drained,omitempty"`
}

// Wish is an operator's wish: a server is to be at a host.
type Wish struct {
	Server placement.Server `json:"server"`
	Host   int              `json:"host"`
}

// ServerSet is the set of copies in sync of a server's log. Member k of the set is
// kept by the host that is k after the server's own, modulo the size of the map.
type ServerSet struct {
	Server placement.Server `json:"server"`
	replica.Set
}

// Clone returns a copy that shares nothing with m.
func (m *Map) Clone() *Map {
	if m == nil {
		return nil
	}
	c := *m
	c.Servers = slices.Clone(m.Servers)
	for i := range c.Servers {
		c.Servers[i] = c.Servers[i].clone()
	}
	c.Sets = slices.Clone(m.Sets)
	c.Wishes = slices.Clone(m.Wishes)
	c.Drained = slices.Clone(m.Drained)
	return &c
}

// Wish returns the host at which a server is to be: its own, unless an operator has
// wished for another one.
func (m *Map) Wish(server placement.Server) int {
	if i, ok := m.findWish(server); ok {
		return m.Wishes[i].Host
	}
	return int(server)
}

// PutWish replaces the wish of a server. It reports whether that changes the map.
func (m *Map) PutWish(server placement.Server, host int) bool {
	i, ok := m.findWish(server)
	switch {
	case !ok && host == int(server) || ok && m.Wishes[i].Host == host:
		return false
	case !ok:
		m.Wishes = slices.Insert(m.Wishes, i, Wish{server, host})
	case host == int(server):
		m.Wishes = slices.Delete(m.Wishes, i, i+1)
	default:
		m.Wishes[i].Host = host
	}
	return true
}

func (m *Map) findWish(server placement.Server) (int, bool) {
	return slices.BinarySearchFunc(m.Wishes, server, func(w Wish, server placement.Server) int { return int(w.Server - server) })
}

// Drains reports whether no server and no copy is to be at a host.
func (m *Map) Drains(host int) bool {
	_, ok := slices.BinarySearch(m.Drained, host)
	return ok
}

// PutDrained sets whether no server and no copy is to be at a host. It reports whether
// that changes the map.
func (m *Map) PutDrained(host int, drained bool) bool {
	i, ok := slices.BinarySearch(m.Drained, host)
	if ok == drained {
		return false
	}
	if drained {
		m.Drained = slices.Insert(m.Drained, i, host)
	} else {
		m.Drained = slices.Delete(m.Drained, i, i+1)
	}
	return true
}

// Set returns the set of copies of a server's log, the zero Set if it has none.
func (m *Map) Set(server placement.Server) replica.Set {
	if i, ok := m.findSet(server); ok {
		return m.Sets[i].Set
	}
	return replica.Set{}
}

// PutSet replaces the set of copies of a server's log.
func (m *Map) PutSet(server placement.Server, set replica.Set) {
	i, ok := m.findSet(server)
	if !ok {
		m.Sets = slices.Insert(m.Sets, i, ServerSet{Server: server})
	}
	m.Sets[i].Set = set
}

func (m *Map) findSet(server placement.Server) (int, bool) {
	return slices.BinarySearchFunc(m.Sets, server, func(s ServerSet, server placement.Server) int { return int(s.Server - server) })
}

// Copy returns the number that a host has among the members of a server's set, 0 if
// the server is there itself, and -1 if it has none.
func (m *Map) Copy(server placement.Server, host int) replica.Member {
	s, _ := m.Server(server)
	return replica.MemberAt(host, server, s.Host, m.Size)
}

// Server returns the server of an index; it reports false if the map has none.
func (m *Map) Server(index placement.Server) (Server, bool) {
	i, ok := slices.BinarySearchFunc(m.Servers, index, func(s Server, index placement.Server) int { return int(s.Index - index) })
	if !ok {
		return Server{}, false
	}
	return m.Servers[i], true
}

// Put adds a server, or replaces the one of its index.
func (m *Map) Put(s Server) {
	i, ok := slices.BinarySearchFunc(m.Servers, s.Index, func(s Server, index placement.Server) int { return int(s.Index - index) })
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
func (s *State) Registered(index placement.Server) (Registration, bool) {
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

// Durable is a note of how far a server's log was durable. The zero value notes
// nothing. A log of the same incarnation that ends before Log has lost its end.
type Durable struct {
	Incarnation Incarnation `json:"incarnation"`
	Log         uint64      `json:"log"`
}

// Location says where a Store outside this process is.
type Location struct {
	Endpoints []string `json:"endpoints"`     // host:port of one or more servers of the store, or absolute paths of their sockets
	Name      string   `json:"name"`          // of the cluster
	TLS       *TLS     `json:"tls,omitempty"` // nil means plain text
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
	Swap(ctx context.Context, expected MapEpoch, next *Map) error

	// Join registers a server as long as its lease is renewed; the store renews
	// it automatically. The lease's time is at least ttl. Join fails with a
	// TakenError while a server of another instance holds the index. It
	// replaces a holder of the same instance, whose lease is then lost.
	Join(ctx context.Context, s Server, ttl time.Duration) (Lease, error)

	// Evict ends the lease of an instance. It is no error if that instance
	// holds none. Clients trust the memory of a durable server until the end of
	// its lease, so only an instance that is known to have ended may be evicted.
	Evict(ctx context.Context, index placement.Server, instance Instance) error

	// Durable returns what was noted last for an index, see Lease.Advance; the zero
	// value if nothing was.
	Durable(ctx context.Context, index placement.Server) (Durable, error)

	// Secret returns the secret with which the data servers of the cluster authenticate
	// each other, SecretBytes long. It is made when it is first asked for, and never
	// changes. Watchers are not notified of it.
	Secret(ctx context.Context) ([]byte, error)

	// Close closes the handle. Its leases are no longer renewed and run out, as
	// if the process had died. To end them at once, call Leave first.
	Close() error
}

// SecretBytes is the size of the secret of a cluster.
const SecretBytes = 32

// NewSecret makes a secret for a cluster.
func NewSecret() []byte {
	b := make([]byte, SecretBytes)
	_, _ = rand.Read(b) // never fails
	return b
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
	// Advance notes that the state of the lease's server is durable up to a position of
	// its log. The note outlives the lease, and never goes back while the incarnation
	// stays. Only the holder of the index may advance it: the error is the lease's if it
	// has ended, or wraps ErrLeaseLost, and then nothing is noted. Watchers are not
	// notified of it.
	Advance(ctx context.Context, log uint64) error
	// Leave ends the lease at once. It is no error if the lease has already
	// ended. If the store does not answer, or ctx has ended, the lease is not
	// renewed any more, and runs out.
	Leave(ctx context.Context) error
}

// Left returns for how long a lease is certainly held from a moment on, by
// clock.Now; it may be negative. The store measures the lease by its own clock,
// which may be faster than this process's by what clock.Drift allows.
func Left(l Lease, now time.Duration) time.Duration { return l.Deadline() - l.TTL()/clock.Drift - now }
