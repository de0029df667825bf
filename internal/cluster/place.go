package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"drtmx/internal/member"
)

const (
	// leaveTimeout bounds how long leaving may take; a lease that could not be
	// given back runs out.
	leaveTimeout = 2 * time.Second
	// rejoinPauses is the number of attempts to take a lost lease again within
	// the time of one.
	rejoinPauses = 10
)

// ErrDeposed reports a data server whose place another instance has.
var ErrDeposed = errors.New("cluster: another instance has taken this data server's place")

// place is a data server's place among the members: its lease, which is kept,
// and the other members, which are followed. Methods are safe for concurrent use.
type place struct {
	o        *JoinOptions
	self     member.Server
	addrs    []string // of all data servers
	follows  *following
	end      context.CancelFunc
	kept     chan struct{} // closed when the lease is no longer kept
	lost     chan struct{} // closed when another instance has the place
	leftOnce sync.Once
	leftErr  error

	mu struct {
		sync.Mutex
		lease   member.Lease
		mapped  bool  // the map has named this instance
		deposed error // why lost was closed
	}
}

// takePlace takes a place among the members, and waits until all data servers
// have one.
func takePlace(ctx context.Context, o *JoinOptions) (*place, error) {
	endpoints, err := endpointsOf(o.Addr)
	if err != nil {
		return nil, err
	}
	p := &place{
		o: o, kept: make(chan struct{}), lost: make(chan struct{}),
		self: member.Server{Index: o.Index, Instance: member.NewInstance(), Endpoints: endpoints},
	}
	if p.mu.lease, err = p.take(ctx); err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	p.end = end
	p.follows = follow(o.Store, p.watch, func(err error) { o.Log.Warn("members unknown", "server", o.Index, "error", err) })
	go p.keep(life)
	if err := p.enter(ctx); err != nil {
		return nil, errors.Join(err, p.leave())
	}
	return p, nil
}

// take gets the first lease.
func (p *place) take(ctx context.Context) (member.Lease, error) {
	l, err := p.o.Store.Join(ctx, p.self, p.o.Lease)
	if !errors.Is(err, member.ErrTaken) {
		return l, err
	}
	patience := 2 * p.o.Lease
	p.o.Waiting(fmt.Sprintf("%v; waiting %v for its lease to end", err, patience))
	wait, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited %v for its lease to end", patience))
	defer cancel()
	if l, err = member.JoinWhenFree(wait, p.o.Store, p.self, p.o.Lease); err != nil {
		return nil, oneLine(err)
	}
	return l, nil
}

// enter puts the server into the map and waits for the others.
func (p *place) enter(ctx context.Context) error {
	admitted, err := member.Admit(ctx, p.o.Store, p.o.Servers, p.o.Partitions, p.self)
	if err != nil {
		return err
	}
	m, err := p.follows.complete(ctx, admitted.Epoch, func(m *member.Map) { p.o.Waiting(missing(m)) })
	if err != nil {
		return oneLine(err)
	}
	p.addrs, err = addrsOf(m)
	return err
}

// watch notices that the map names another instance.
func (p *place) watch(s *member.State) {
	if s.Map == nil {
		return
	}
	now, ok := s.Map.Server(p.o.Index)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case now.Instance == p.self.Instance:
		p.mu.mapped = true
	case p.mu.mapped:
		p.depose(fmt.Errorf("%w: server %d is instance %v since epoch %d", ErrDeposed, p.o.Index, now.Instance, s.Map.Epoch))
	}
}

// depose says why the place is lost. The lock is held.
func (p *place) depose(why error) {
	if p.mu.deposed == nil {
		p.mu.deposed = why
		close(p.lost)
	}
}

// keep takes the lease again when it was lost, which an etcd that was away
// brings about: memory and instance are the same, so it may, unless another
// instance has come.
func (p *place) keep(life context.Context) {
	defer close(p.kept)
	for {
		p.mu.Lock()
		l := p.mu.lease
		p.mu.Unlock()
		select {
		case <-l.Lost():
		case <-life.Done():
			return
		}
		if errors.Is(l.Err(), member.ErrClosed) {
			return
		}
		p.o.Log.Warn("lease lost", "server", p.o.Index, "error", l.Err())
		if l = p.again(life); l == nil {
			return
		}
		p.mu.Lock()
		p.mu.lease = l
		p.mu.Unlock()
		p.o.Log.Info("lease taken again", "server", p.o.Index, "term", l.Stamp().Term)
	}
}

// again takes the lease, however often that fails; nil if it must not be.
func (p *place) again(life context.Context) member.Lease {
	for {
		l, err := p.o.Store.Join(life, p.self, p.o.Lease)
		switch {
		case err == nil:
			return l
		case life.Err() != nil, errors.Is(err, member.ErrClosed):
			return nil
		case errors.Is(err, member.ErrTaken):
			p.mu.Lock()
			defer p.mu.Unlock()
			p.depose(fmt.Errorf("%w: %w", ErrDeposed, err))
			return nil
		}
		select {
		case <-life.Done():
			return nil
		case <-time.After(p.o.Lease / rejoinPauses):
		}
	}
}

// deposed is why lost was closed, nil until then.
func (p *place) deposed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.deposed
}

// leave gives the lease back and stops following. The map still names the
// server. It may be called again.
func (p *place) leave() error {
	p.leftOnce.Do(func() {
		p.end()
		p.follows.close()
		<-p.kept
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		p.mu.Lock()
		l := p.mu.lease
		p.mu.Unlock()
		if p.leftErr = l.Leave(ctx); errors.Is(p.leftErr, member.ErrUnreachable) || ctx.Err() != nil {
			p.o.Log.Warn("left without giving the lease back", "server", p.o.Index, "error", p.leftErr)
			p.leftErr = nil // it runs out
		}
	})
	return p.leftErr
}
