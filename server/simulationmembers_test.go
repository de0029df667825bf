//go:build simulated

package server_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/internal/rng"
	"drtmx/internal/sim"
)

// storeName is the process of the store of members.
const storeName = "store"

// simMembers is a store of members that is a process of its own in a simulated world.
// It answers at once, but what crosses the network may be late or lost, and it counts
// leases by a clock of its own.
type simMembers struct {
	w *sim.World

	mu       sync.Mutex
	s        *rng.Stream
	slack    time.Duration // how much later a lease ends, at most
	lost     float64       // share of the answers that are lost
	loses    float64       // what lost is to be once the cluster runs
	revision member.Revision
	changed  chan struct{}
	agreed   *member.Map
	held     map[placement.Server]*simHeld
	durable  map[placement.Server]member.Durable

	alone   map[placement.Server]time.Time // since when servers have no copy in sync
	orderly bool                           // nothing goes wrong
	copies  int                            // that are to be in sync then, the home's own included
	broken  struct {
		sync.Mutex
		errs []error // rules that are broken
	}
}

// simHeld is a registration at the store.
type simHeld struct {
	member.Registration
	ttl   time.Duration
	since time.Time // when the server joined
	until time.Time
	timer *time.Timer
}

func newSimMembers(w *sim.World, s *rng.Stream) *simMembers {
	m := &simMembers{w: w, s: s, revision: 1, changed: make(chan struct{}), alone: map[placement.Server]time.Time{}, held: map[placement.Server]*simHeld{}, durable: map[placement.Server]member.Durable{}}
	m.slack = []time.Duration{0, 0, 50 * time.Millisecond, 500 * time.Millisecond}[s.Intn(4)]
	m.loses = []float64{0, 0, 0.02, 0.1}[s.Intn(4)]
	return m
}

// orders says that nothing goes wrong in this run, and how many copies are to be in sync.
func (m *simMembers) orders(copies int) {
	m.orderly, m.copies, m.slack, m.loses = true, copies, 0, 0
}

// disorder says that something goes wrong from now on.
func (m *simMembers) disorder() {
	m.mu.Lock()
	m.orderly = false
	m.mu.Unlock()
}

// brokenRules are the rules that were broken.
func (m *simMembers) brokenRules() error {
	m.broken.Lock()
	defer m.broken.Unlock()
	return errors.Join(m.broken.errs...)
}

// change begins the next revision. The lock is held, as for those that follow.
func (m *simMembers) change(format string, args ...any) {
	m.revision++
	close(m.changed)
	m.changed = make(chan struct{})
	m.w.Event("the store: revision %d: %s", m.revision, fmt.Sprintf(format, args...))
}

func (m *simMembers) state() *member.State {
	s := &member.State{Revision: m.revision, Map: m.agreed.Clone()}
	for _, i := range slices.Sorted(maps.Keys(m.held)) {
		r := m.held[i].Registration
		r.Endpoints = slices.Clone(r.Endpoints)
		s.Alive = append(s.Alive, r)
	}
	return s
}

// renew counts a lease from now on.
func (m *simMembers) renew(h *simHeld) {
	d := time.Duration(float64(h.ttl)/m.w.Rate(storeName)) + time.Duration(m.s.Float64()*float64(m.slack))
	h.until = time.Now().Add(d)
	if h.timer != nil {
		h.timer.Stop()
	}
	h.timer = time.AfterFunc(d, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.held[h.Index] == h && !time.Now().Before(h.until) {
			m.end(h, "the lease has ended")
		}
	})
}

func (m *simMembers) end(h *simHeld, why string) {
	h.timer.Stop()
	delete(m.held, h.Index)
	m.change("server %d, %v: %s", h.Index, h.Instance, why)
}

// begin loses answers from now on.
func (m *simMembers) begin() {
	m.mu.Lock()
	m.lost = m.loses
	m.mu.Unlock()
}

// calm loses no answers from now on.
func (m *simMembers) calm() {
	m.mu.Lock()
	m.lost = 0
	m.mu.Unlock()
}

// now reads the state without a process.
func (m *simMembers) now() *member.State {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state()
}

// open returns the store as the present process of a name sees it.
func (m *simMembers) open(name string) *simHandle {
	h := &simHandle{m: m, name: name}
	h.life, h.end = context.WithCancel(context.Background())
	return h
}

// simHandle is a handle on the store.
type simHandle struct {
	m    *simMembers
	name string
	life context.Context
	end  context.CancelFunc
	wg   sync.WaitGroup // renewals
	dead bool           // under m.mu: the process is

	serving atomic.Bool            // its process has begun to serve
	closing atomic.Bool            // its process ends
	held    atomic.Pointer[string] // the file of a call of its disk that hangs
}

// Bounds of what a store may take to answer, as in the product.
const (
	simAnswer = 2 * time.Second
	simWatch  = 3 * time.Second
)

// die ends all that the handle has under way.
func (h *simHandle) die() {
	h.m.mu.Lock()
	h.dead = true
	h.m.mu.Unlock()
	h.end()
}

// Close implements member.Store.
func (h *simHandle) Close() error {
	h.end()
	h.wg.Wait()
	return nil
}

// ask performs do at the store, under its lock. changes tells that it may change
// something.
func (h *simHandle) ask(ctx context.Context, changes bool, do func() error) error {
	outer := ctx
	ctx, cancel := context.WithTimeout(ctx, simAnswer)
	defer cancel()
	defer context.AfterFunc(h.life, cancel)()
	failed := func(made bool) error {
		switch {
		case h.life.Err() != nil:
			return member.ErrClosed
		case outer.Err() != nil:
			return errors.Join(context.Cause(outer), h.unsure(made && changes))
		}
		return errors.Join(member.ErrUnreachable, h.unsure(made && changes))
	}
	if h.life.Err() != nil || h.m.w.Runs(h.name) != nil {
		return member.ErrClosed
	}
	if err := outer.Err(); err != nil {
		return context.Cause(outer)
	}
	if h.m.w.Cross(ctx, h.name, storeName) != nil {
		return failed(true)
	}
	h.m.mu.Lock()
	if h.dead {
		h.m.mu.Unlock()
		return member.ErrClosed
	}
	err := do()
	lost := h.m.s.Bool(h.m.lost)
	h.m.mu.Unlock()
	if lost {
		h.m.w.Event("an answer of the store to %s is lost", h.name)
		<-ctx.Done()
		return failed(true)
	}
	if h.m.w.Cross(ctx, storeName, h.name) != nil {
		return failed(true)
	}
	if h.m.w.Runs(h.name) != nil {
		return member.ErrClosed
	}
	return err
}

func (h *simHandle) unsure(is bool) error {
	if is {
		return member.ErrOutcome
	}
	return nil
}

// State implements member.Store.
func (h *simHandle) State(ctx context.Context) (s *member.State, err error) {
	var found *member.State
	err = h.ask(ctx, false, func() error { found = h.m.state(); return nil })
	if err != nil {
		return nil, err
	}
	return found, nil
}

// Watch implements member.Store.
func (h *simHandle) Watch(ctx context.Context, after member.Revision) (*member.State, error) {
	for {
		var s *member.State
		var changed <-chan struct{}
		err := h.ask(ctx, false, func() error {
			if s = h.m.state(); s.Revision == after {
				s, changed = nil, h.m.changed
			}
			return nil
		})
		if err != nil || s != nil {
			return s, err
		}
		again := time.NewTimer(simWatch)
		select {
		case <-changed:
		case <-again.C:
		case <-h.life.Done():
		case <-ctx.Done():
		}
		again.Stop()
	}
}

// Swap implements member.Store.
func (h *simHandle) Swap(ctx context.Context, expected member.MapEpoch, next *member.Map) error {
	if err := member.CheckSwap(expected, next); err != nil {
		return err
	}
	next = next.Clone()
	return h.ask(ctx, true, func() error {
		var current member.MapEpoch
		if h.m.agreed != nil {
			current = h.m.agreed.Epoch
		}
		if current != expected {
			return &member.EpochError{Expected: expected, Current: current}
		}
		text := ""
		for _, s := range next.Servers {
			text += fmt.Sprintf(" %d:%v@%d%v", s.Index, s.Instance, s.Host, next.Set(s.Index))
		}
		h.m.shrinks(next)
		h.m.agreed = next
		for _, s := range next.Servers {
			if _, ok := h.m.alone[s.Index]; next.Set(s.Index).Members.Count() > 1 {
				delete(h.m.alone, s.Index)
			} else if !ok {
				h.m.alone[s.Index] = time.Now()
			}
		}
		h.m.change("map %d by %s:%s", next.Epoch, h.name, text)
		return nil
	})
}

// Join implements member.Store.
func (h *simHandle) Join(ctx context.Context, s member.Server, ttl time.Duration) (member.Lease, error) {
	if err := member.CheckJoin(&s, ttl); err != nil {
		return nil, err
	}
	l := &simLease{h: h, self: s, ttl: ttl, deadline: clock.Now() + ttl, lost: make(chan struct{})}
	err := h.ask(ctx, true, func() error {
		since := time.Now()
		if was := h.m.held[s.Index]; was != nil {
			if was.Instance != s.Instance {
				return &member.TakenError{Holder: was.Registration}
			}
			was.timer.Stop()
			since = was.since // it has been there all the time
		}
		held := &simHeld{Registration: member.Registration{Server: s}, ttl: ttl, since: since}
		h.m.held[s.Index] = held
		h.m.change("%s joins as server %d, %v at %d", h.name, s.Index, s.Instance, s.Host)
		held.Term = uint64(h.m.revision)
		l.term = held.Term
		h.m.renew(held)
		return nil
	})
	if err != nil {
		return nil, err
	}
	h.wg.Go(l.keep)
	return l, nil
}

// Evict implements member.Store.
func (h *simHandle) Evict(ctx context.Context, index placement.Server, instance member.Instance) error {
	return h.ask(ctx, true, func() error {
		if was := h.m.held[index]; was != nil && was.Instance == instance {
			h.m.end(was, "evicted")
		}
		return nil
	})
}

// Durable implements member.Store.
func (h *simHandle) Durable(ctx context.Context, index placement.Server) (d member.Durable, err error) {
	var found member.Durable
	err = h.ask(ctx, false, func() error { found = h.m.durable[index]; return nil })
	if err != nil {
		return member.Durable{}, err
	}
	return found, nil
}

// Secret implements member.Store. The simulated network believes what a peer says that
// it is.
func (h *simHandle) Secret(ctx context.Context) ([]byte, error) {
	err := h.ask(ctx, false, func() error { return nil })
	if err != nil {
		return nil, err
	}
	return make([]byte, member.SecretBytes), nil
}

// simLease is a lease that its holder renews by messages.
type simLease struct {
	h    *simHandle
	self member.Server
	ttl  time.Duration
	term uint64
	lost chan struct{}

	noted atomic.Bool // that the server's log is durable

	mu       sync.Mutex
	deadline time.Duration
	count    uint64
	err      error
}

// renewals is how often a lease is renewed within its time.
const simRenewals = 3

// keep renews the lease until it has ended.
func (l *simLease) keep() {
	h := l.h
	for {
		t := time.NewTimer(min(l.ttl/simRenewals, l.Deadline()-clock.Now()))
		select {
		case <-t.C:
		case <-h.life.Done():
		case <-l.lost:
		}
		t.Stop()
		if h.m.w.Runs(h.name) != nil || h.life.Err() != nil {
			l.end(member.ErrClosed)
			return
		}
		if l.Err() != nil {
			return
		}
		sent := clock.Now()
		if sent >= l.Deadline() {
			l.end(fmt.Errorf("%w: server %d: it was not renewed in time", member.ErrLeaseLost, l.self.Index))
			return
		}
		ctx, cancel := context.WithTimeout(h.life, min(l.Deadline()-sent, l.ttl/(2*simRenewals)))
		err := h.ask(ctx, true, func() error {
			held := l.held()
			if held == nil {
				return fmt.Errorf("%w: server %d", member.ErrLeaseLost, l.self.Index)
			}
			h.m.renew(held)
			return nil
		})
		cancel()
		switch {
		case err == nil:
			l.mu.Lock()
			l.deadline, l.count = max(l.deadline, sent+l.ttl), l.count+1
			l.mu.Unlock()
		case errors.Is(err, member.ErrLeaseLost), errors.Is(err, member.ErrClosed):
			l.end(err)
			return
		}
	}
}

// held is the lease at the store, nil if it has ended. The lock of the store is held.
func (l *simLease) held() *simHeld {
	if held := l.h.m.held[l.self.Index]; held != nil && held.Term == l.term {
		return held
	}
	return nil
}

func (l *simLease) end(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil {
		l.err = why
		close(l.lost)
	}
}

// Stamp implements member.Lease.
func (l *simLease) Stamp() member.Stamp {
	l.mu.Lock()
	defer l.mu.Unlock()
	return member.Stamp{Term: l.term, Count: l.count}
}

// Deadline implements member.Lease.
func (l *simLease) Deadline() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.deadline
}

// TTL implements member.Lease.
func (l *simLease) TTL() time.Duration { return l.ttl }

// Lost implements member.Lease.
func (l *simLease) Lost() <-chan struct{} { return l.lost }

// Err implements member.Lease.
func (l *simLease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Advance implements member.Lease.
func (l *simLease) Advance(ctx context.Context, log uint64) error {
	if err := l.Err(); err != nil {
		return err
	}
	return l.h.ask(ctx, true, func() error {
		if l.held() == nil {
			return fmt.Errorf("%w: server %d", member.ErrLeaseLost, l.self.Index)
		}
		l.noted.Store(true)
		if was := l.h.m.durable[l.self.Index]; was.Incarnation != l.self.Incarnation || was.Log < log {
			l.h.m.durable[l.self.Index] = member.Durable{Incarnation: l.self.Incarnation, Log: log}
		}
		return nil
	})
}

// Leave implements member.Lease.
func (l *simLease) Leave(ctx context.Context) error {
	l.end(fmt.Errorf("%w: server %d", member.ErrLeft, l.self.Index)) // it is not renewed any more
	return l.h.ask(ctx, true, func() error {
		if held := l.held(); held != nil {
			l.h.m.leaves(l)
			l.h.m.end(held, "left")
		}
		return nil
	})
}
