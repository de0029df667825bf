package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/rdma/multi"
)

// A server is at the host with its data. It is to be at its own host, or where an
// operator wants it; if that host is drained, at any other one. When the host where it
// is to be has a copy in sync, the host that has the server ends it, and the other one
// takes it over by the same change of the map as any takeover. A host whose own server
// has moved away is a keeper from then on. docs/replication.md has the rules.

// movePauseMax bounds the pause after failed moves, because their cause may end.
const movePauseMax = 5 * time.Minute

// nextPause returns the next pause after one more failed move.
func (p paces) nextPause(pause time.Duration) time.Duration {
	return min(max(2*pause, p.movePause), movePauseMax)
}

// ownHost returns the host that was started for a data server: it has the same number.
func ownHost(server placement.Server) int { return int(server) }

// ownServer returns the data server for which a host was started.
func ownServer(host int) placement.Server { return placement.Server(host) }

// aim returns the host at which a server is to be. All hosts compute the same one from
// the same state. If they know different states, a host with a copy in sync takes the
// server by the rules of takeovers, and the server moves on from there.
func aim(s *member.State, server placement.Server) int {
	m := s.Map
	where, _ := m.Server(server)
	if own := ownHost(server); where.Host != own && len(serversBeside(m, own)) > 0 || needed(s, own) {
		// The other servers at its own host, or their only data, depend on its presence
		// there.
		return own
	}
	wish := m.Wish(server)
	if !m.Drains(wish) && (wish == where.Host || !m.Drains(where.Host) || canRun(s, server, wish)) {
		return wish
	}
	// A host whose own server is to leave must first get rid of other servers.
	if !m.Drains(where.Host) && (where.Host == ownHost(server) || acceptsOthers(m, where.Host)) {
		return where.Host
	}
	if host, ok := refuge(s, server, acceptsOthers); ok {
		return host
	}
	if !m.Drains(where.Host) {
		return where.Host
	}
	if host, ok := refuge(s, server, func(m *member.Map, host int) bool { return !m.Drains(host) }); ok {
		return host
	}
	if !m.Drains(wish) {
		return wish // when it runs
	}
	return where.Host
}

// needed reports whether a host has the only usable data of another server that is
// lost: no host has that server's lease, and no other host with its data in sync can
// run it.
func needed(s *member.State, host int) bool {
	if _, keeps := keeperOf(s, host); !keeps && !runsOwn(s, host) {
		return false
	}
	m := s.Map
	has := func(server placement.Server, host int) bool {
		return m.Set(server).Members.Has(m.Copy(server, host))
	}
	for _, lost := range m.Servers {
		_, alive := s.Registered(lost.Index)
		if alive || lost.Index == ownServer(host) || lost.Host == host || !has(lost.Index, host) {
			continue
		}
		elsewhere := false
		for other := range m.Size {
			elsewhere = elsewhere || other != host && has(lost.Index, other) && canRun(s, lost.Index, other)
		}
		if !elsewhere {
			return true
		}
	}
	return false
}

// refuge returns the next host after that of a server that suits and can run the server
// now. Hosts with a copy in sync come first.
func refuge(s *member.State, server placement.Server, suits func(m *member.Map, host int) bool) (host int, found bool) {
	m := s.Map
	where, _ := m.Server(server)
	for k := 1; k < m.Size; k++ {
		next := (where.Host + k) % m.Size
		copied := m.Copy(server, next)
		if !suits(m, next) || copied < 0 || !canRun(s, server, next) {
			continue
		}
		if m.Set(server).Members.Has(copied) {
			return next, true
		}
		if !found {
			host, found = next, true
		}
	}
	return host, found
}

// acceptsOthers reports whether a host accepts servers of drained hosts: it is not drained,
// and its own server is not to be elsewhere.
func acceptsOthers(m *member.Map, host int) bool {
	wish := m.Wish(ownServer(host))
	return !m.Drains(host) && (wish == host || m.Drains(wish))
}

// canRun reports whether a host that does not have a server can run it now: either the
// host runs its own server, or the server is its own and the host is a keeper.
func canRun(s *member.State, server placement.Server, host int) bool {
	if host == ownHost(server) {
		_, ok := keeperOf(s, host)
		return ok
	}
	return runsOwn(s, host)
}

// runsOwn reports whether a host runs its own data server.
func runsOwn(s *member.State, host int) bool {
	own, ok := s.Map.Server(ownServer(host))
	r, alive := s.Registered(ownServer(host))
	return ok && own.Host == host && alive && r.Instance == own.Instance
}

// goesTo returns the host at which a server is to be, if it is not there, and reports
// whether that host can take it now: it runs, and has a copy in sync.
func goesTo(s *member.State, server placement.Server) (host int, ready bool) {
	to := aim(s, server)
	where, ok := s.Map.Server(server)
	if !ok || to == where.Host || !canRun(s, server, to) {
		return to, false
	}
	return to, s.Map.Set(server).Members.Has(s.Map.Copy(server, to))
}

// target returns the host to which the server is to move from this one, -1 if it is to
// stay.
func (p *place) target() int {
	s := p.state.Load()
	if s == nil || s.Map == nil {
		return -1
	}
	if to := aim(s, p.o.Index); to != p.self.Host {
		return to
	}
	return -1
}

// leaves reports whether copies are to leave a host, and whether the host has ended: it
// was a keeper, and is not any more. A host whose own server has just moved away does
// not count as ended: it is about to be a keeper.
func (p *place) leaves(host int) (leaves, ended bool) {
	s := p.state.Load()
	if s == nil || s.Map == nil {
		return false, false
	}
	return s.Map.Drains(host), p.ended[host].Load()
}

// compare notes which hosts have ended between two states.
func (p *place) compare(was, now *member.State) {
	if was == nil {
		return
	}
	for host := range now.Map.Size {
		_, kept := keeperOf(was, host)
		_, keeps := keeperOf(now, host)
		switch own, ok := now.Map.Server(ownServer(host)); {
		case keeps, ok && own.Host == host:
			p.ended[host].Store(false)
		case kept:
			p.ended[host].Store(true)
		}
	}
}

// bell wakes all goroutines that wait for its next ring.
type bell struct {
	mu sync.Mutex
	c  chan struct{}
}

// next returns a channel that is closed when the bell rings after the call.
func (b *bell) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}

// rest stops the takeovers from beginning anything, if no other server is here or about
// to be. It reports whether it did; resume ends it.
func (t *takeovers) rest() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.mu.homes {
		if h.busy || h.member != nil {
			return false
		}
	}
	t.mu.rests = true
	return true
}

func (t *takeovers) resume() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.rests = false
}

// attend waits for the moment at which the host's own server is to go to another host,
// moves it, and runs it again when it is back, until the member is closed or its place
// is lost.
func (m *Member) attend() {
	defer close(m.attended)
	for {
		p := m.place
		news := p.news.next()
		m.turns.Add(1)
		if to, due := m.due(); due {
			if err := m.move(to); err != nil {
				if m.life.Err() == nil {
					m.fail(err)
				}
				return
			}
			continue
		}
		if err := m.broken(); err != nil {
			m.o.Log.Error("the host ends, so that another one has what it cannot write", "host", m.o.host(), "error", err)
			m.fail(err)
			return
		}
		select {
		case <-m.life.Done():
			return
		case <-p.lost:
			m.fail(p.deposed())
			return
		case <-news:
		case <-m.logFailed():
		case <-time.After(m.rest()):
		}
	}
}

// rest returns how long attend may sleep without news. A failure of the log wakes it,
// and a disk that does not answer is given more time than that.
func (m *Member) rest() time.Duration {
	if m.readyAt != 0 || m.others != nil && m.others.runs() {
		return takeoverTick
	}
	return takeoverRest
}

// broken returns an error if the host cannot write the log of its own server, or of one
// that it has taken over. Such a server serves nobody, but the host would keep the
// lease, so no other host would serve either. When the host ends, another one with a
// copy in sync takes the server over; without one, the host is started again and
// recovers. A disk that does not answer may do so later, so without a copy the host
// waits for it.
func (m *Member) broken() error {
	if err := m.logFailure(); err != nil {
		return err
	}
	if m.others == nil {
		return nil
	}
	return m.others.broken()
}

// logFailed returns a channel that is closed when the log of the host's own server
// fails, nil if it has none.
func (m *Member) logFailed() <-chan struct{} {
	if s, ok := m.server.(interface{ LogFailed() <-chan struct{} }); ok {
		return s.LogFailed()
	}
	return nil
}

// logFailure is broken for the member's own server.
func (m *Member) logFailure() error {
	s, ok := m.server.(interface {
		LogFailure(patience time.Duration) error
	})
	if !ok || m.place == nil {
		return nil
	}
	patience := m.o.around.diskPatience
	if now := m.place.state.Load(); now == nil || now.Map == nil || now.Map.Set(m.o.Index).Members.Count() < 2 {
		patience = math.MaxInt64
	}
	if err := s.LogFailure(patience); err != nil {
		return fmt.Errorf("data server %d: %w", m.o.Index, err)
	}
	return nil
}

// runs reports whether the host runs servers that it has taken over.
func (t *takeovers) runs() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.mu.homes {
		if h.member != nil {
			return true
		}
	}
	return false
}

// broken is logFailure for all servers that the host has taken over.
func (t *takeovers) broken() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, h := range t.mu.homes {
		if h.member == nil || h.busy {
			continue
		}
		if err := h.member.logFailure(); err != nil {
			return err
		}
	}
	return nil
}

// fail records why the member is lost.
func (m *Member) fail(err error) {
	m.why = err
	close(m.lost)
}

// due reports whether the host's own server is to move to another host now, by the
// store's present state. If so, the takeovers of the host rest.
func (m *Member) due() (to int, due bool) {
	own := m.o.Index
	goes := func(s *member.State) bool {
		if s == nil || s.Map == nil {
			return false
		}
		for _, o := range s.Map.Servers {
			if o.Index != own && o.Host == ownHost(own) { // a keeper does not run others
				return false
			}
		}
		to, due = goesTo(s, own)
		return due
	}
	if !goes(m.place.state.Load()) {
		m.readyAt = 0
		return 0, false
	}
	now := clock.Now()
	if m.readyAt == 0 {
		m.readyAt = now
	}
	if now-m.readyAt < m.o.around.returnAfter { // the other host reads its copy
		return 0, false
	}
	if now < m.notYet || !m.place.holds() || !m.others.rest() {
		return 0, false
	}
	ctx, cancel := context.WithTimeout(m.life, leaveTimeout)
	defer cancel()
	if s, err := m.o.Store.State(ctx); err != nil || !goes(s) {
		m.others.resume()
		return 0, false
	}
	return to, true
}

// move ends the host's own server, so that another host takes it over, keeps copies
// until the server is back, and runs it again. After an error the member has ended.
func (m *Member) move(to int) error {
	o := &m.o
	o.Log.Warn("data server goes to another host, which has a copy in sync", "server", o.Index, "host", o.host(), "to", to)
	if err := m.halt(false); err != nil {
		return err
	}
	if o.Keeping != nil {
		o.Keeping()
	}
	for taken := false; ; {
		now, err := m.awaitTaken(to)
		taken = taken || now
		if err == nil {
			err = m.start(m.life)
		}
		switch {
		case err == nil:
			m.readyAt = 0
			if taken {
				m.pause = 0
			} else {
				m.pause = m.o.around.nextPause(m.pause)
				m.notYet = clock.Now() + m.pause
			}
			if o.Serving != nil {
				o.Serving()
			}
			return nil
		case m.life.Err() != nil:
			return m.life.Err()
		case !errors.Is(err, member.ErrElsewhere) && !errors.Is(err, member.ErrTaken) && !errors.Is(err, member.ErrUnreachable):
			return err
		}
		o.Log.Warn("data server does not come back yet", "server", o.Index, "error", oneLine(err))
		select {
		case <-m.life.Done():
			return m.life.Err()
		case <-time.After(takeoverTick):
		}
	}
}

// awaitTaken waits until another host has taken the server that this one has ended, or
// until none is about to. It reports whether one has.
func (m *Member) awaitTaken(to int) (taken bool, err error) {
	ctx, cancel := context.WithTimeout(m.life, returnPatience)
	defer cancel()
	_, err = member.WaitFor(ctx, m.o.Store, func(s *member.State) bool {
		if s.Map == nil {
			return true
		}
		where, _ := s.Map.Server(m.o.Index)
		taken = where.Host != m.o.host()
		_, held := s.Registered(m.o.Index)
		_, there := s.Registered(ownServer(to))
		return taken || !held && !there
	})
	if err != nil && m.life.Err() == nil && ctx.Err() != nil {
		err = nil
	}
	if err == nil && !taken {
		m.o.Log.Warn("the data server stays: no host has taken it", "server", m.o.Index, "to", to)
	}
	return taken, err
}

// leadWith makes a provider of the member follow the members. The first call must come
// before the provider is used.
func (m *Member) leadWith(f *multi.Provider, now *following) {
	if m.leads.Swap(now) == nil {
		f.Resolve = func(addr string) string { return m.leads.Load().resolve(addr) }
	}
	now.leads(f)
}
