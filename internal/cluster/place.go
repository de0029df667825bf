package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/datadir"
	"drtmx/internal/member"
	"drtmx/server"
)

const (
	// leaveTimeout bounds how long leaving may take. A lease that could not be given back
	// runs out.
	leaveTimeout = 2 * time.Second
	// rejoinPauses is the number of attempts to take a lost lease again within
	// the time of one.
	rejoinPauses = 10
)

// ErrDeposed reports a data server whose place another instance has.
var ErrDeposed = errors.New("cluster: another instance has taken this data server's place")

// place is a data server's place among the members. It keeps the lease, and follows the
// other members. Methods are safe for concurrent use.
type place struct {
	o        *JoinOptions
	config   server.Config // of the data server, as far as it is known
	self     member.Server
	dir      *datadir.Dir // for the data server to take over; nil in memory, or when the server has it
	addrs    []string     // of all data servers
	follows  *following
	state    atomic.Pointer[member.State]   // the newest; nil at first
	news     bell                           // rings when state changes
	ended    [member.MaxServers]atomic.Bool // by host: see leaves
	end      context.CancelFunc
	life     context.Context
	kept     chan struct{} // closed when the lease is no longer kept
	log      func() uint64 // up to where the data server's log is durable; nil in memory, or until it serves
	noting   sync.WaitGroup
	lost     chan struct{} // closed when another instance has the place
	leftOnce sync.Once
	leftErr  error

	// The server calls holds under its locks, so holds must not take a lock that can
	// block.
	hangs   atomic.Bool                  // the data server did not close, and may not have fenced its memory
	lapsed  atomic.Bool                  // the lease has ended, or the map does not confirm the place yet
	current atomic.Pointer[member.Lease] // mu.lease
	serving struct {
		sync.Mutex          // before mu
		server     suspends // the data server, if it is durable; nil until it serves
	}

	mu struct {
		sync.Mutex
		lease    member.Lease
		admitted member.MapEpoch // in which the map has named this instance; 0: not yet
		deposed  error           // why lost was closed
	}
}

// suspends is a data server that can stop answering while its place is not certain.
type suspends interface {
	Suspend()
	Resume()
}

// takePlace takes a place among the members, and waits until all data servers
// have one. A durable server takes the place that its directory has.
func takePlace(ctx context.Context, o *JoinOptions, config server.Config) (p *place, err error) {
	endpoints, err := endpointsOf(o.Addr)
	if err != nil {
		return nil, err
	}
	config.Addrs = make([]string, o.Servers) // they are not known yet
	p = &place{
		o: o, config: config, kept: make(chan struct{}), lost: make(chan struct{}),
		self: member.Server{Index: o.Index, Instance: member.NewInstance(), Host: o.host(), Zone: o.Zone, Endpoints: endpoints},
	}
	if err := p.inspect(ctx); err != nil {
		return nil, err
	}
	if p.mu.lease, err = p.take(ctx); err != nil {
		return nil, err
	}
	first := p.mu.lease
	p.current.Store(&first)
	life, end := context.WithCancel(context.Background())
	p.life, p.end = life, end
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
	claim, err := p.open(ctx)
	if err != nil {
		return err
	}
	admitted, err := member.Admit(ctx, p.o.Store, p.o.Servers, p.o.Partitions, p.self, claim)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.mu.admitted = max(p.mu.admitted, admitted.Epoch)
	p.mu.Unlock()
	if now := p.follows.newest(); now != nil {
		p.watch(&member.State{Map: now}) // it may be of a later epoch, when watch did not know admitted yet
	}
	m, err := p.follows.complete(ctx, admitted.Epoch, func(m *member.Map) { p.o.Waiting(missing(m)) })
	if err != nil {
		return oneLine(err)
	}
	p.addrs, err = addrsOf(m)
	return err
}

// watch takes a state of the members, and notices that the map names another instance.
func (p *place) watch(s *member.State) {
	if s.Map == nil {
		return
	}
	if s.Revision != 0 {
		p.compare(p.state.Swap(s), s)
		defer p.news.ring()
	}
	now, ok := s.Map.Server(p.o.Index)
	if !ok {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case now.Instance == p.self.Instance:
		p.mu.admitted = max(p.mu.admitted, s.Map.Epoch)
	case p.mu.admitted != 0 && s.Map.Epoch > p.mu.admitted:
		p.depose(fmt.Errorf("%w: server %d is instance %v since epoch %d", ErrDeposed, p.o.Index, now.Instance, s.Map.Epoch))
	}
}

// depose records why the place is lost. The lock is held.
func (p *place) depose(why error) {
	if p.mu.deposed == nil {
		p.mu.deposed = why
		close(p.lost)
	}
}

// keep takes the lease again whenever it was lost, for example because etcd was away.
// It may, because memory and instance are the same, unless another instance has come.
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
		p.lapse()
		if l = p.retake(life); l == nil {
			return
		}
		p.mu.Lock()
		p.mu.lease = l
		p.mu.Unlock()
		p.current.Store(&l)
		p.o.Log.Info("lease taken again", "server", p.o.Index, "term", l.Stamp().Term)
		p.confirm(life, l)
	}
}

// lapse records that the lease has ended: another instance may come, or have come.
func (p *place) lapse() {
	p.serving.Lock()
	defer p.serving.Unlock()
	p.lapsed.Store(true)
	if p.serving.server != nil {
		p.serving.server.Suspend()
	}
}

// restore ends a lapse.
func (p *place) restore() {
	p.serving.Lock()
	defer p.serving.Unlock()
	p.lapsed.Store(false)
	if p.serving.server != nil {
		p.serving.server.Resume()
	}
}

// confirm ends the lapse when the map, read while the lease is held, says that no
// other instance was admitted meanwhile.
func (p *place) confirm(life context.Context, l member.Lease) {
	for {
		state, err := p.o.Store.State(life)
		if err == nil && state.Map != nil {
			p.watch(state)
			now, _ := state.Map.Server(p.o.Index)
			p.mu.Lock()
			mine := now.Instance == p.self.Instance || p.mu.admitted == 0 // the map has never named this instance
			p.mu.Unlock()
			if mine {
				p.restore()
			}
			return
		}
		select {
		case <-life.Done():
			return
		case <-l.Lost():
			return
		case <-time.After(p.o.Lease / rejoinPauses):
		}
	}
}

// holds reports whether the place is certain: the lease has not ended by this
// process's clock.
func (p *place) holds() bool { return p.left() > 0 }

// left returns for how long the place is certain, 0 if it is not. The lease is
// read before lapsed: a lease that was taken again counts only when the map, read
// since, has confirmed the place.
func (p *place) left() time.Duration {
	left := member.Left(*p.current.Load(), clock.Now())
	if p.lapsed.Load() {
		return 0
	}
	return max(left, 0)
}

// keeps reports whether a host can keep copies now: its own data server is there,
// and registered, or the host is a keeper.
func (p *place) keeps(host int) bool {
	s := p.state.Load()
	if s == nil {
		return false
	}
	if _, ok := keeperOf(s, host); ok {
		return true
	}
	own, ok := s.Map.Server(ownServer(host))
	r, alive := s.Registered(ownServer(host))
	return ok && own.Host == host && alive && r.Instance == own.Instance
}

// zone returns the zone of a host, empty if that is not known.
func (p *place) zone(host int) string {
	if host == p.self.Host {
		return p.self.Zone
	}
	s := p.state.Load()
	if s == nil || s.Map == nil {
		return ""
	}
	return ZoneOf(s, host)
}

// serves is called with the data server when it serves.
func (p *place) serves(s dataServer) {
	p.serving.Lock()
	defer p.serving.Unlock()
	if p.serving.server, _ = s.(suspends); p.serving.server != nil && p.lapsed.Load() {
		p.serving.server.Suspend()
	}
	if l, ok := s.(interface{ DurableTo() uint64 }); ok && p.o.DataDir != "" {
		p.log = l.DurableTo
		p.noting.Go(p.note)
	}
}

// notesPerLease is how often within the time of a lease the store is told how far
// the log is durable.
const notesPerLease = 3

// note reports to the store, as long as the place is kept, how far the log is durable.
// A directory whose log ends before that is an older copy.
func (p *place) note() {
	for noted := uint64(0); ; {
		if to := p.log(); to > noted {
			if err := (*p.current.Load()).Advance(p.life, to); err == nil {
				noted = to
			} else if p.life.Err() == nil {
				p.o.Log.Debug("position of the log not noted", "server", p.o.Index, "error", err)
			}
		}
		select {
		case <-p.life.Done():
			return
		case <-time.After(p.o.Lease / notesPerLease):
		}
	}
}

// retake takes the lease, and retries until it succeeds. It returns nil if another
// instance has the lease, or life ends.
func (p *place) retake(life context.Context) member.Lease {
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

// deposed returns why lost was closed, nil until then.
func (p *place) deposed() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mu.deposed
}

// leave gives the lease back and stops following. The map still names the
// server. It may be called again.
func (p *place) leave() error {
	p.leftOnce.Do(func() {
		if p.dir != nil {
			p.leftErr = p.dir.Close()
		}
		p.end()
		p.follows.close()
		<-p.kept
		p.noting.Wait()
		p.mu.Lock()
		l := p.mu.lease
		p.mu.Unlock()
		if p.log != nil {
			ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
			defer cancel()
			if err := l.Advance(ctx, p.log()); err != nil {
				p.o.Log.Warn("the end of the log is not noted", "server", p.o.Index, "error", err)
			}
		}
		if p.hangs.Load() {
			// Another process could have the place at once, and clients trust the memory
			// of this one until the end of the lease. That is not renewed: a process that
			// has other servers goes on, and nobody could serve this one.
			p.o.Log.Warn("left without giving the lease back: the data server did not close", "server", p.o.Index)
			ended, cancel := context.WithCancel(context.Background())
			cancel()
			if err := l.Leave(ended); err != nil && !errors.Is(err, context.Canceled) {
				p.leftErr = errors.Join(p.leftErr, err)
			}
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
		defer cancel()
		err := l.Leave(ctx)
		if errors.Is(err, member.ErrUnreachable) || ctx.Err() != nil {
			p.o.Log.Warn("left without giving the lease back", "server", p.o.Index, "error", err)
			err = nil // the lease runs out
		}
		p.leftErr = errors.Join(p.leftErr, err)
	})
	return p.leftErr
}
