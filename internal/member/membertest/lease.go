package membertest

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/member"
)

func testJoin(t *testing.T, e *env) {
	s, other := e.open(t), e.open(t)
	a := server(3, 7000)
	l := must[member.Lease](t)(s.Join(e.ctx, a, long))
	if l.TTL() < long || l.Err() != nil || l.Deadline()-clock.Now() > l.TTL() {
		t.Errorf("lease of %v for %v: %v, deadline %v", l.TTL(), long, l.Err(), l.Deadline())
	}
	b := server(3, 7001)
	_, err := other.Join(e.ctx, b, long)
	want(t, "index of another instance", err, member.ErrTaken)
	var taken *member.TakenError
	if !errors.As(err, &taken) || taken.Holder.Instance != a.Instance || !strings.Contains(err.Error(), "10.0.0.4:7000") {
		t.Errorf("error %v, want the holder's instance and endpoint", err)
	}
	must[member.Lease](t)(other.Join(e.ctx, server(1, 7001), long))
	state := must[*member.State](t)(other.State(e.ctx))
	if len(state.Alive) != 2 || state.Alive[0].Index != 1 || state.Alive[1].Index != 3 ||
		state.Alive[1].Instance != a.Instance || state.Alive[1].Term != l.Stamp().Term {
		t.Errorf("alive: %+v", state.Alive)
	}
	if r, ok := state.Registered(3); !ok || r.Instance != a.Instance {
		t.Errorf("registered: %+v, %v", r, ok)
	}
	check(t, l.Leave(e.ctx))
	want(t, "after leaving", lost(t, e.ctx, l), member.ErrLeft)
	check(t, l.Leave(e.ctx))
	next := must[member.Lease](t)(other.Join(e.ctx, b, long))
	if !l.Stamp().Less(next.Stamp()) {
		t.Errorf("stamp %v after %v", next.Stamp(), l.Stamp())
	}
	if next.Err() != nil {
		t.Error(next.Err())
	}
}

func testJoinAgain(t *testing.T, e *env) {
	s, other := e.open(t), e.open(t)
	a := server(0, 7000)
	first := must[member.Lease](t)(s.Join(e.ctx, a, 3*e.TTL))
	a.Endpoints[0].Addr = "10.0.0.1:7009"
	second := must[member.Lease](t)(other.Join(e.ctx, a, long))
	want(t, "the lease before", lost(t, e.ctx, first), member.ErrLeaseLost)
	check(t, first.Leave(e.ctx))
	if !first.Stamp().Less(second.Stamp()) {
		t.Errorf("stamp %v after %v", second.Stamp(), first.Stamp())
	}
	state := must[*member.State](t)(s.State(e.ctx))
	if len(state.Alive) != 1 || state.Alive[0].Endpoints[0] != a.Endpoints[0] || second.Err() != nil {
		t.Errorf("alive: %+v; second lease: %v", state.Alive, second.Err())
	}
}

func testJoinBad(t *testing.T, e *env) {
	s := e.open(t)
	for name, spoil := range map[string]func(*member.Server){
		"index":     func(s *member.Server) { s.Index = member.MaxServers },
		"negative":  func(s *member.Server) { s.Index = -1 },
		"instance":  func(s *member.Server) { s.Instance = 0 },
		"homeless":  func(s *member.Server) { s.Endpoints = nil },
		"no port":   func(s *member.Server) { s.Endpoints[0].Addr = "10.0.0.1" },
		"no fabric": func(s *member.Server) { s.Endpoints[0].Fabric = "" },
		"zone":      func(s *member.Server) { s.Zone = "a\n" },
	} {
		a := server(0, 1)
		spoil(&a)
		_, err := s.Join(e.ctx, a, e.TTL)
		want(t, name, err, member.ErrInput)
	}
	for _, ttl := range []time.Duration{0, -1, member.MinTTL - 1, member.MaxTTL + 1} {
		_, err := s.Join(e.ctx, server(0, 1), ttl)
		want(t, ttl.String(), err, member.ErrInput)
	}
}

func testEvict(t *testing.T, e *env) {
	s, other := e.open(t), e.open(t)
	a := server(0, 7000)
	l := must[member.Lease](t)(s.Join(e.ctx, a, 6*e.TTL)) // that it is lost is noticed when it is renewed
	check(t, other.Evict(e.ctx, 0, a.Instance+2))
	check(t, other.Evict(e.ctx, 1, a.Instance))
	if state := must[*member.State](t)(s.State(e.ctx)); len(state.Alive) != 1 {
		t.Errorf("another instance's eviction hit: %+v", state.Alive)
	}
	check(t, other.Evict(e.ctx, 0, a.Instance))
	if state := must[*member.State](t)(s.State(e.ctx)); len(state.Alive) != 0 {
		t.Errorf("alive after eviction: %+v", state.Alive)
	}
	want(t, "evicted", lost(t, e.ctx, l), member.ErrLeaseLost)
	check(t, other.Evict(e.ctx, 0, a.Instance))
	must[member.Lease](t)(other.Join(e.ctx, server(0, 7001), long))
}

// A handle that ends without leaving keeps its index for the time of the lease,
// and no longer. A waiting server then gets it.
func testAbandoned(t *testing.T, e *env) {
	other, b := e.open(t), server(0, 7001)
	// On a busy machine the lease may have run out before the test checks it.
	var l member.Lease
	for l == nil {
		if e.ctx.Err() != nil {
			t.Fatal(context.Cause(e.ctx))
		}
		if l = abandon(t, e, other, b); l == nil {
			continue
		}
		short, cancel := context.WithTimeout(e.ctx, 50*time.Millisecond)
		early, err := member.JoinWhenFree(short, other, b, e.TTL)
		cancel()
		if err == nil && !(clock.Now() < l.Deadline()) {
			check(t, early.Leave(e.ctx))
			l = nil
			continue
		}
		want(t, "waiting no longer", err, context.DeadlineExceeded)
	}
	next := must[member.Lease](t)(member.JoinWhenFree(e.ctx, other, b, e.TTL))
	if clock.Now() < l.Deadline() {
		t.Errorf("the index was given away %v before the holder's deadline", l.Deadline()-clock.Now())
	}
	if !l.Stamp().Less(next.Stamp()) {
		t.Errorf("stamp %v after %v", next.Stamp(), l.Stamp())
	}
}

// abandon closes a handle that holds a lease, and checks that the index is
// still taken. It returns nil if the lease has already run out.
func abandon(t *testing.T, e *env, other member.Store, b member.Server) member.Lease {
	s := e.Open(t, e.cluster)
	l := must[member.Lease](t)(s.Join(e.ctx, server(0, 7000), e.TTL))
	check(t, s.Close())
	why := lost(t, e.ctx, l)
	early, err := other.Join(e.ctx, b, e.TTL)
	if err == nil && !(clock.Now() < l.Deadline()) {
		check(t, early.Leave(e.ctx))
		return nil
	}
	want(t, "lease of a closed handle", why, member.ErrClosed)
	want(t, "index of an abandoned lease", err, member.ErrTaken)
	return l
}

func testRenewals(t *testing.T, e *env) {
	s := e.open(t)
	ttl := 2 * e.TTL
	l := must[member.Lease](t)(s.Join(e.ctx, server(0, 7000), ttl))
	first, stamp := l.Deadline(), l.Stamp()
	for seen := 0; seen < 2; {
		select {
		case <-l.Lost():
			if clock.Now() < l.Deadline() {
				t.Fatal(l.Err())
			}
			// The machine is too busy for leases as short as this.
			ttl *= 2
			l = must[member.Lease](t)(member.JoinWhenFree(e.ctx, s, server(0, 7000), ttl))
			first, stamp, seen = l.Deadline(), l.Stamp(), 0
		case <-e.ctx.Done():
			t.Fatal(context.Cause(e.ctx))
		case <-time.After(5 * time.Millisecond):
		}
		now := l.Stamp()
		if now.Less(stamp) {
			t.Fatalf("stamp %v after %v", now, stamp)
		}
		if stamp.Less(now) {
			stamp = now
			seen++
		}
	}
	if l.Deadline() <= first {
		t.Errorf("the deadline did not move from %v", first)
	}
	if state := must[*member.State](t)(s.State(e.ctx)); len(state.Alive) != 1 {
		t.Errorf("alive: %+v", state.Alive)
	}
}

// each calls every operation of a store.
func each(ctx context.Context, s member.Store, ttl time.Duration, do func(what string, err error)) {
	_, err := s.State(ctx)
	do("State", err)
	_, err = s.Watch(ctx, 0)
	do("Watch", err)
	_, err = s.Join(ctx, server(9, 1), ttl)
	do("Join", err)
	do("Swap", s.Swap(ctx, 0, newMap(1)))
	do("Evict", s.Evict(ctx, 0, 1))
}

func testContexts(t *testing.T, e *env) {
	s := e.open(t)
	l := must[member.Lease](t)(s.Join(e.ctx, server(0, 1), long))
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	cancelled := func(what string, err error) { want(t, what+" of a context that has ended", err, context.Canceled) }
	each(ctx, s, long, cancelled)
	state := must[*member.State](t)(s.State(e.ctx))
	if state.Map != nil || len(state.Alive) != 1 || l.Err() != nil {
		t.Errorf("changed by cancelled calls: %+v, %v", state, l.Err())
	}
	ctx, cancel = context.WithCancel(e.ctx)
	time.AfterFunc(30*time.Millisecond, cancel)
	_, err := s.Watch(ctx, state.Revision)
	cancelled("Watch", err)
	cancelled("Leave", l.Leave(ctx))
}

// A lease that its holder gives up is not renewed any more, even if the store is not
// asked: the process may live on, and use the handle for other leases.
func testLeaveUnasked(t *testing.T, e *env) {
	s := e.open(t)
	l := must[member.Lease](t)(s.Join(e.ctx, server(0, 7000), e.TTL))
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	want(t, "leaving with a context that has ended", l.Leave(ctx), context.Canceled)
	within, stop := context.WithTimeout(e.ctx, bound()/2)
	defer stop()
	want(t, "Err", lost(t, within, l), member.ErrLeft)
	next := must[member.Lease](t)(member.JoinWhenFree(e.ctx, e.open(t), server(0, 7001), e.TTL))
	if clock.Now() < l.Deadline() {
		t.Errorf("the index was given away %v before the holder's deadline", l.Deadline()-clock.Now())
	}
	check(t, next.Leave(e.ctx))
}

func testClosed(t *testing.T, e *env) {
	s := e.open(t)
	l := must[member.Lease](t)(s.Join(e.ctx, server(0, 1), long))
	state := must[*member.State](t)(s.State(e.ctx))
	ended := make(chan error, 1)
	go func() {
		_, err := s.Watch(e.ctx, state.Revision)
		ended <- err
	}()
	time.Sleep(20 * time.Millisecond)
	check(t, s.Close())
	check(t, s.Close())
	want(t, "a watch that waited", <-ended, member.ErrClosed)
	closed := func(what string, err error) { want(t, what+" of a closed handle", err, member.ErrClosed) }
	each(e.ctx, s, long, closed)
	closed("Leave", l.Leave(e.ctx))
	closed("Err", lost(t, e.ctx, l))
}
