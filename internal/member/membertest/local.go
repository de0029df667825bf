package membertest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/member"
	"drtmx/internal/placement"
)

// renewals is the number of renewals within the duration of one.
const renewals = 3

// Local stores the members of a cluster within one process. Several handles,
// see Open, share one Local.
type Local struct {
	mu struct {
		sync.Mutex
		revision member.Revision
		changed  chan struct{} // closed and replaced when revision grows
		agreed   *member.Map
		held     map[placement.Server]*localLease
		durable  map[placement.Server]member.Durable
		secret   []byte
	}
}

// NewLocal returns a Local without servers and without a map.
func NewLocal() *Local {
	l := &Local{}
	l.mu.revision = 1
	l.mu.changed = make(chan struct{})
	l.mu.held, l.mu.durable = map[placement.Server]*localLease{}, map[placement.Server]member.Durable{}
	return l
}

// Open returns a new handle.
func (l *Local) Open() member.Store {
	return &localStore{local: l, closed: make(chan struct{}), leases: map[*localLease]bool{}}
}

// change starts the next revision and wakes watchers. The caller holds the
// lock.
func (l *Local) change() member.Revision {
	l.mu.revision++
	close(l.mu.changed)
	l.mu.changed = make(chan struct{})
	return l.mu.revision
}

// state returns a copy. The caller holds the lock.
func (l *Local) state() *member.State {
	s := &member.State{Revision: l.mu.revision, Map: l.mu.agreed.Clone()}
	for _, i := range slices.Sorted(maps.Keys(l.mu.held)) {
		s.Alive = append(s.Alive, l.mu.held[i].registration())
	}
	return s
}

// localStore is one handle. Its leases are guarded by the lock of local.
type localStore struct {
	local  *Local
	closed chan struct{}
	once   sync.Once
	leases map[*localLease]bool
}

// enter makes the checks common to all calls, and takes the lock.
func (s *localStore) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	s.local.mu.Lock()
	select {
	case <-s.closed:
		s.local.mu.Unlock()
		return member.ErrClosed
	default:
		return nil
	}
}

func (s *localStore) State(ctx context.Context) (*member.State, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.local.mu.Unlock()
	return s.local.state(), nil
}

func (s *localStore) Secret(ctx context.Context) ([]byte, error) {
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.local.mu.Unlock()
	if s.local.mu.secret == nil {
		s.local.mu.secret = member.NewSecret()
	}
	return slices.Clone(s.local.mu.secret), nil
}

func (s *localStore) Watch(ctx context.Context, after member.Revision) (*member.State, error) {
	for {
		if err := s.enter(ctx); err != nil {
			return nil, err
		}
		if s.local.mu.revision != after {
			defer s.local.mu.Unlock()
			return s.local.state(), nil
		}
		changed := s.local.mu.changed
		s.local.mu.Unlock()
		select {
		case <-changed:
		case <-s.closed:
		case <-ctx.Done():
		}
	}
}

func (s *localStore) Swap(ctx context.Context, expected member.MapEpoch, next *member.Map) error {
	if err := member.CheckSwap(expected, next); err != nil {
		return err
	}
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.local.mu.Unlock()
	var current member.MapEpoch
	if m := s.local.mu.agreed; m != nil {
		current = m.Epoch
	}
	if current != expected {
		return &member.EpochError{Expected: expected, Current: current}
	}
	s.local.mu.agreed = next.Clone()
	s.local.change()
	return nil
}

func (s *localStore) Join(ctx context.Context, server member.Server, ttl time.Duration) (member.Lease, error) {
	if err := member.CheckJoin(&server, ttl); err != nil {
		return nil, err
	}
	if err := s.enter(ctx); err != nil {
		return nil, err
	}
	defer s.local.mu.Unlock()
	if h := s.local.mu.held[server.Index]; h != nil {
		if h.server.Instance != server.Instance {
			return nil, &member.TakenError{Holder: h.registration()}
		}
		h.end(fmt.Errorf("%w: server %d joined again", member.ErrLeaseLost, server.Index))
	}
	l := &localLease{store: s, server: copyOf(server), ttl: ttl, granted: clock.Now(), lost: make(chan struct{})}
	s.local.mu.held[server.Index] = l
	s.leases[l] = true
	l.term = uint64(s.local.change())
	return l, nil
}

func (s *localStore) Evict(ctx context.Context, index placement.Server, instance member.Instance) error {
	if err := s.enter(ctx); err != nil {
		return err
	}
	defer s.local.mu.Unlock()
	if h := s.local.mu.held[index]; h != nil && h.server.Instance == instance {
		h.end(fmt.Errorf("%w: server %d was evicted", member.ErrLeaseLost, index))
		s.local.change()
	}
	return nil
}

func (s *localStore) Durable(ctx context.Context, index placement.Server) (member.Durable, error) {
	if err := s.enter(ctx); err != nil {
		return member.Durable{}, err
	}
	defer s.local.mu.Unlock()
	return s.local.mu.durable[index], nil
}

func (s *localStore) Close() error {
	s.once.Do(func() {
		s.local.mu.Lock()
		defer s.local.mu.Unlock()
		close(s.closed)
		for l := range s.leases {
			l.abandon(fmt.Errorf("%w: the lease of server %d is no longer renewed", member.ErrClosed, l.server.Index))
		}
	})
	return nil
}

// localLease needs no goroutine for its renewals: while its handle is open, it
// counts as renewed at every multiple of the renewal interval. The lock of
// local guards all but the first fields.
type localLease struct {
	store   *localStore
	server  member.Server
	ttl     time.Duration
	granted time.Duration // by clock.Now
	lost    chan struct{}

	term  uint64
	last  uint64 // renewals, once stopped
	ended error  // why lost is closed
}

// count returns the number of renewals so far. The caller holds the lock.
func (l *localLease) count() uint64 {
	if l.ended != nil {
		return l.last
	}
	return uint64((clock.Now() - l.granted) / (l.ttl / renewals))
}

func (l *localLease) registration() member.Registration {
	return member.Registration{Server: copyOf(l.server), Term: l.term}
}

// stop ends the renewals. The caller holds the lock.
func (l *localLease) stop(why error) {
	l.last = l.count()
	l.ended = why
	delete(l.store.leases, l)
	close(l.lost)
}

// end ends the lease; the caller must call change. The caller holds the lock.
func (l *localLease) end(why error) {
	if l.ended == nil {
		l.stop(why)
	}
	if held := l.store.local.mu.held; held[l.server.Index] == l {
		delete(held, l.server.Index)
	}
}

// abandon stops the renewals, so that the lease runs out. The caller holds the
// lock.
func (l *localLease) abandon(why error) {
	l.stop(why)
	local := l.store.local
	time.AfterFunc(l.deadline()-clock.Now(), func() {
		local.mu.Lock()
		defer local.mu.Unlock()
		if local.mu.held[l.server.Index] == l {
			delete(local.mu.held, l.server.Index)
			local.change()
		}
	})
}

func (l *localLease) deadline() time.Duration {
	return l.granted + time.Duration(l.count())*(l.ttl/renewals) + l.ttl
}

func (l *localLease) Stamp() member.Stamp {
	l.store.local.mu.Lock()
	defer l.store.local.mu.Unlock()
	return member.Stamp{Term: l.term, Count: l.count()}
}

func (l *localLease) Deadline() time.Duration {
	l.store.local.mu.Lock()
	defer l.store.local.mu.Unlock()
	return l.deadline()
}

func (l *localLease) TTL() time.Duration { return l.ttl }

func (l *localLease) Lost() <-chan struct{} { return l.lost }

func (l *localLease) Err() error {
	l.store.local.mu.Lock()
	defer l.store.local.mu.Unlock()
	return l.ended
}

func (l *localLease) Advance(ctx context.Context, log uint64) error {
	d := member.Durable{Incarnation: l.server.Incarnation, Log: log}
	if _, err := member.EncodeDurable(&d); err != nil {
		return err
	}
	if err := l.store.enter(ctx); err != nil {
		return err
	}
	local := l.store.local
	defer local.mu.Unlock()
	if l.ended != nil {
		return l.ended
	}
	if have := local.mu.durable[l.server.Index]; have.Incarnation != d.Incarnation || have.Log < log {
		local.mu.durable[l.server.Index] = d
	}
	return nil
}

func (l *localLease) Leave(ctx context.Context) error {
	if err := l.store.enter(ctx); err != nil {
		l.store.local.mu.Lock()
		defer l.store.local.mu.Unlock()
		if l.ended == nil {
			l.abandon(fmt.Errorf("%w: server %d", member.ErrLeft, l.server.Index))
		}
		return err
	}
	defer l.store.local.mu.Unlock()
	if l.store.local.mu.held[l.server.Index] == l {
		l.end(fmt.Errorf("%w: server %d", member.ErrLeft, l.server.Index))
		l.store.local.change()
	}
	return nil
}

func copyOf(s member.Server) member.Server {
	s.Endpoints = slices.Clone(s.Endpoints)
	return s
}
