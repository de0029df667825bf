package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"drtmx/internal/member"
)

// Times of a server's place among the members.
const (
	// LeaseDefault is how long a lease lasts if nobody says.
	LeaseDefault = 5 * time.Second
	// leaveTimeout bounds how long leaving may take; a lease that could not be
	// given back runs out.
	leaveTimeout  = 2 * time.Second
	rejoinPauseOf = 10 // part of a lease's time between attempts to take it again
)

// ErrDeposed reports a data server whose place another instance has.
var ErrDeposed = errors.New("cluster: another instance has taken this data server's place")

// JoinOptions describe a data server's place in a cluster whose members are
// kept in a store.
type JoinOptions struct {
	Size
	Index int
	Addr  string        // its own: see Offer
	TTL   time.Duration // of its lease; 0 means LeaseDefault
	Log   *slog.Logger  // nil means none
	// Waiting, which may be nil, is told what is waited for.
	Waiting func(text string)
}

// Joined is a data server's place among the members: its lease, which is kept,
// and the others, which are followed. Methods are safe for concurrent use.
type Joined struct {
	o        JoinOptions
	store    member.Store
	self     member.Server
	addrs    []string
	follows  *following
	end      context.CancelFunc
	kept     chan struct{}
	lost     chan struct{}
	leftOnce sync.Once
	leftErr  error

	mu struct {
		sync.Mutex
		lease   member.Lease
		mapped  bool // the map has named this instance
		deposed error
	}
}

// Join takes a place among the members, and waits until all servers have one.
// While another instance holds the place, it waits for two leases' time: that
// of a server that died runs out. The store stays the caller's, who closes it
// after Leave. Errors are those of package member, ErrOptions and ErrAddress.
func Join(ctx context.Context, store member.Store, o JoinOptions) (*Joined, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	if o.TTL == 0 {
		o.TTL = LeaseDefault
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Waiting == nil {
		o.Waiting = func(string) {}
	}
	endpoints, err := endpointsOf(o.Addr)
	if err != nil {
		return nil, err
	}
	j := &Joined{
		o: o, store: store, kept: make(chan struct{}), lost: make(chan struct{}),
		self: member.Server{Index: o.Index, Instance: member.NewInstance(), Endpoints: endpoints},
	}
	if j.mu.lease, err = j.take(ctx); err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	j.end = end
	j.follows = follow(store, j.watch, func(err error) { o.Log.Warn("members unknown", "server", o.Index, "error", err) })
	go j.keep(life)
	if err := j.enter(ctx); err != nil {
		return nil, errors.Join(err, j.Leave())
	}
	return j, nil
}

func (o *JoinOptions) check() error {
	if err := o.Size.check(); err != nil {
		return err
	}
	if o.Index < 0 || o.Index >= o.Servers {
		return fmt.Errorf("%w: data server %d of %d, want 0 to %d", ErrOptions, o.Index, o.Servers, o.Servers-1)
	}
	return nil
}

// take gets the first lease.
func (j *Joined) take(ctx context.Context) (member.Lease, error) {
	l, err := j.store.Join(ctx, j.self, j.o.TTL)
	if !errors.Is(err, member.ErrTaken) {
		return l, err
	}
	patience := 2 * j.o.TTL
	j.o.Waiting(fmt.Sprintf("%v; waiting %v for its lease to end", err, patience))
	wait, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %v for its lease to end", patience))
	defer cancel()
	if l, err = member.JoinWhenFree(wait, j.store, j.self, j.o.TTL); err != nil {
		return nil, oneLine(err)
	}
	return l, nil
}

// enter puts the server into the map and waits for the others.
func (j *Joined) enter(ctx context.Context) error {
	admitted, err := member.Admit(ctx, j.store, j.o.Servers, j.o.Partitions, j.self)
	if err != nil {
		return err
	}
	m, err := j.follows.complete(ctx, admitted.Epoch, func(m *member.Map) { j.o.Waiting(missing(m)) })
	if err != nil {
		return oneLine(err)
	}
	j.addrs, err = addrsOf(m)
	return err
}

// watch notices that the map names another instance.
func (j *Joined) watch(s *member.State) {
	if s.Map == nil {
		return
	}
	now, ok := s.Map.Server(j.o.Index)
	if !ok {
		return
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case now.Instance == j.self.Instance:
		j.mu.mapped = true
	case j.mu.mapped:
		j.depose(fmt.Errorf("%w: server %d is instance %v since epoch %d", ErrDeposed, j.o.Index, now.Instance, s.Map.Epoch))
	}
}

// depose says why the place is lost. The lock is held.
func (j *Joined) depose(why error) {
	if j.mu.deposed == nil {
		j.mu.deposed = why
		close(j.lost)
	}
}

// keep takes the lease again when it was lost, which an etcd that was away
// brings about: memory and instance are the same, so it may, unless another
// instance has come.
func (j *Joined) keep(life context.Context) {
	defer close(j.kept)
	for {
		j.mu.Lock()
		l := j.mu.lease
		j.mu.Unlock()
		select {
		case <-l.Lost():
		case <-life.Done():
			return
		}
		if errors.Is(l.Err(), member.ErrClosed) {
			return
		}
		j.o.Log.Warn("lease lost", "server", j.o.Index, "error", l.Err())
		if l = j.again(life); l == nil {
			return
		}
		j.mu.Lock()
		j.mu.lease = l
		j.mu.Unlock()
		j.o.Log.Info("lease taken again", "server", j.o.Index, "term", l.Stamp().Term)
	}
}

// again takes the lease, however often that fails; nil if it must not be.
func (j *Joined) again(life context.Context) member.Lease {
	for {
		l, err := j.store.Join(life, j.self, j.o.TTL)
		switch {
		case err == nil:
			return l
		case life.Err() != nil, errors.Is(err, member.ErrClosed):
			return nil
		case errors.Is(err, member.ErrTaken):
			j.mu.Lock()
			defer j.mu.Unlock()
			j.depose(fmt.Errorf("%w: %w", ErrDeposed, err))
			return nil
		}
		select {
		case <-life.Done():
			return nil
		case <-time.After(j.o.TTL / rejoinPauseOf):
		}
	}
}

// Addrs are the addresses of all data servers, in order.
func (j *Joined) Addrs() []string { return j.addrs }

// Instance is that of this start of the server.
func (j *Joined) Instance() member.Instance { return j.self.Instance }

// Lost is closed when another instance has taken the place; Err then says so,
// wrapping ErrDeposed.
func (j *Joined) Lost() <-chan struct{} { return j.lost }

// Err is nil until Lost is closed.
func (j *Joined) Err() error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.mu.deposed
}

// Leave gives the lease back and stops following. The map still names the
// server. It may be called again.
func (j *Joined) Leave() error {
	j.leftOnce.Do(func() {
		j.end()
		j.follows.close()
		<-j.kept
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		j.mu.Lock()
		l := j.mu.lease
		j.mu.Unlock()
		if j.leftErr = l.Leave(ctx); errors.Is(j.leftErr, member.ErrUnreachable) || ctx.Err() != nil {
			j.o.Log.Warn("left without giving the lease back", "server", j.o.Index, "error", j.leftErr)
			j.leftErr = nil // it runs out
		}
	})
	return j.leftErr
}
