package membertest

import (
	"bytes"
	"context"
	"errors"
	"reflect"
	"sync"
	"testing"
	"time"

	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/internal/rng"
)

func testEmpty(t *testing.T, e *env) {
	s := e.open(t)
	state := must[*member.State](t)(s.State(e.ctx))
	if state.Map != nil || len(state.Alive) != 0 || state.Revision == 0 {
		t.Errorf("state of nothing: %+v", state)
	}
}

func testSwap(t *testing.T, e *env) {
	s, other := e.open(t), e.open(t)
	m := newMap(2)
	m.Epoch = 8
	want(t, "swap where there is no map", s.Swap(e.ctx, 7, m), member.ErrEpoch)
	m.Epoch = 1
	check(t, s.Swap(e.ctx, 0, m))
	err := other.Swap(e.ctx, 0, m)
	want(t, "second first map", err, member.ErrEpoch)
	var epoch *member.EpochError
	if !errors.As(err, &epoch) || epoch.Current != 1 || epoch.Expected != 0 {
		t.Errorf("error %v, want one of epochs 0 and 1", err)
	}
	m.Epoch = 2
	m.Put(server(1, 7000))
	check(t, other.Swap(e.ctx, 1, m))
	want(t, "swap of an old map", s.Swap(e.ctx, 1, m), member.ErrEpoch)
	m.Epoch = 4
	want(t, "swap of a map to come", s.Swap(e.ctx, 3, m), member.ErrEpoch)
	m.Epoch = 2
	state := must[*member.State](t)(s.State(e.ctx))
	if !reflect.DeepEqual(state.Map, m) {
		t.Errorf("map %+v, want %+v", state.Map, m)
	}
}

func testSwapBad(t *testing.T, e *env) {
	s := e.open(t)
	for name, spoil := range map[string]func(*member.Map) *member.Map{
		"none":          func(*member.Map) *member.Map { return nil },
		"same epoch":    func(m *member.Map) *member.Map { m.Epoch = 0; return m },
		"epoch skipped": func(m *member.Map) *member.Map { m.Epoch = 2; return m },
		"no partitions": func(m *member.Map) *member.Map { m.Placement = placement.Map{}; return m },
		"outside":       func(m *member.Map) *member.Map { m.Placement = placement.Spread(3, 3); return m },
		"no instance":   func(m *member.Map) *member.Map { s := server(0, 1); s.Instance = 0; m.Put(s); return m },
	} {
		want(t, name, s.Swap(e.ctx, 0, spoil(newMap(2))), member.ErrInput)
	}
	if state := must[*member.State](t)(s.State(e.ctx)); state.Map != nil {
		t.Errorf("a bad map was taken: %+v", state.Map)
	}
}

func testWatchWaits(t *testing.T, e *env) {
	s, other := e.open(t), e.open(t)
	state := must[*member.State](t)(s.Watch(e.ctx, 0))
	short, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond)
	defer cancel()
	if got, err := s.Watch(short, state.Revision); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("watch without a change: %+v, %v", got, err)
	}
	for _, step := range []struct {
		what string
		do   func()
		ok   func(*member.State) bool
	}{
		{"map", func() { check(t, other.Swap(e.ctx, 0, newMap(1))) }, func(s *member.State) bool { return s.Map != nil }},
		{"join", func() { must[member.Lease](t)(other.Join(e.ctx, server(0, 1), long)) }, func(s *member.State) bool { return len(s.Alive) == 1 }},
		{"evict", func() {
			now := must[*member.State](t)(other.State(e.ctx))
			check(t, other.Evict(e.ctx, 0, now.Alive[0].Instance))
		}, func(s *member.State) bool { return len(s.Alive) == 0 }},
	} {
		type answer struct {
			state *member.State
			err   error
		}
		got := make(chan answer, 1)
		after := state.Revision
		go func() {
			state, err := s.Watch(e.ctx, after)
			got <- answer{state, err}
		}()
		time.Sleep(20 * time.Millisecond) // most often it waits by then
		step.do()
		a := <-got
		if a.err != nil || !step.ok(a.state) || a.state.Revision <= after {
			t.Fatalf("%s: after revision %d: %+v, %v", step.what, after, a.state, a.err)
		}
		state = a.state
	}
}

func testWatchCoalesces(t *testing.T, e *env) {
	s := e.open(t)
	first := must[*member.State](t)(s.State(e.ctx))
	const changes = 20
	m := newMap(1)
	for i := range member.MapEpoch(changes) {
		m.Epoch = i + 1
		check(t, s.Swap(e.ctx, i, m))
	}
	state := must[*member.State](t)(s.Watch(e.ctx, first.Revision))
	if state.Map == nil || state.Map.Epoch != changes {
		t.Errorf("after %d changes: %+v", changes, state.Map)
	}
}

func testNames(t *testing.T, e *env) {
	s, other := e.open(t), e.openName(t, e.cluster+"-2")
	check(t, s.Swap(e.ctx, 0, newMap(1)))
	l := must[member.Lease](t)(s.Join(e.ctx, server(0, 1), long))
	state := must[*member.State](t)(other.State(e.ctx))
	if state.Map != nil || len(state.Alive) != 0 {
		t.Errorf("a cluster sees another's: %+v", state)
	}
	must[member.Lease](t)(other.Join(e.ctx, server(0, 1), long))
	if l.Err() != nil {
		t.Error(l.Err())
	}
}

// All handles of a cluster see the same secret, also if several of them are the first;
// other clusters have others.
func testSecret(t *testing.T, e *env) {
	secrets := make([][]byte, 4)
	var wg sync.WaitGroup
	for i := range secrets {
		s := e.open(t)
		wg.Go(func() {
			b, err := s.Secret(e.ctx)
			if err != nil {
				t.Error(err)
			}
			secrets[i] = b
		})
	}
	wg.Wait()
	last := must[[]byte](t)(e.open(t).Secret(e.ctx))
	for i, b := range secrets {
		if len(b) != member.SecretBytes || !bytes.Equal(b, last) {
			t.Fatalf("the secret is %x for one and %x for another", b, secrets[(i+1)%len(secrets)])
		}
	}
	if other := must[[]byte](t)(e.openName(t, e.cluster+"-2").Secret(e.ctx)); bytes.Equal(other, last) {
		t.Error("another cluster has the same secret")
	}
	last[0]++
	if again := must[[]byte](t)(e.open(t).Secret(e.ctx)); bytes.Equal(again, last) {
		t.Error("the store shares memory with its caller")
	}
}

func testNothingShared(t *testing.T, e *env) {
	s := e.open(t)
	m := newMap(2)
	m.Put(server(0, 1))
	check(t, s.Swap(e.ctx, 0, m))
	joins := server(1, 1)
	must[member.Lease](t)(s.Join(e.ctx, joins, long))
	spoil := func(m *member.Map, s *member.Server) {
		m.Servers[0].Endpoints[0].Addr, s.Endpoints[0].Addr = "spoilt", "spoilt"
	}
	spoil(m, &joins)
	state := must[*member.State](t)(s.State(e.ctx))
	spoil(state.Map, &state.Alive[0].Server)
	state = must[*member.State](t)(s.State(e.ctx))
	if state.Map.Servers[0].Endpoints[0].Addr == "spoilt" || state.Alive[0].Endpoints[0].Addr == "spoilt" {
		t.Errorf("the store shares memory with its caller: %+v", state)
	}
}

// Contenders change the map at random, each counting its own changes in it.
// What they count must be there in the end, and watchers must see epochs that
// only rise, the last among them.
func testContenders(t *testing.T, e *env) {
	const contenders, changes = 4, 12
	root := rng.New(Seed(t))
	check(t, e.open(t).Swap(e.ctx, 0, newMap(contenders)))
	watching, stop := context.WithCancel(e.ctx)
	defer stop()
	var watchers, all sync.WaitGroup
	for range 2 {
		s := e.open(t)
		watchers.Go(func() { watchEpochs(t, watching, s, contenders*changes+1) })
	}
	for c := range placement.Server(contenders) {
		s, r := e.open(t), root.SplitN(uint64(c))
		all.Go(func() { contend(t, e, s, r, c, changes) })
	}
	all.Wait()
	m := must[*member.State](t)(e.open(t).State(e.ctx)).Map
	if m.Epoch != contenders*changes+1 {
		stop() // they would wait for the epoch that is missing
	}
	watchers.Wait()
	if m.Epoch != contenders*changes+1 {
		t.Errorf("epoch %d after %d changes", m.Epoch, contenders*changes)
	}
	for c := range placement.Server(contenders) {
		if s, ok := m.Server(c); !ok || s.Instance != changes {
			t.Errorf("contender %d made %d changes, the map says %v", c, changes, s.Instance)
		}
	}
}

// contend makes changes that count themselves as the instance of a server; some
// are tried from a map that may be old by then.
func contend(t *testing.T, e *env, s member.Store, r *rng.Stream, c placement.Server, changes int) {
	var stale *member.Map
	for made := 0; made < changes; {
		m := stale
		if m == nil || r.Bool(0.7) {
			state, err := s.State(e.ctx)
			if err != nil {
				t.Error(err)
				return
			}
			m = state.Map
		}
		if r.Bool(0.3) {
			stale = m.Clone()
		}
		next := m.Clone()
		now, ok := next.Server(c)
		if !ok {
			now = server(c, 1)
			now.Instance = 0
		}
		now.Instance++
		next.Put(now)
		next.Placement = placement.Spread(next.Size, 1+r.Intn(next.Size))
		next.Epoch++
		err := s.Swap(e.ctx, m.Epoch, next)
		if err == nil {
			made++
			continue
		}
		stale = nil
		var epoch *member.EpochError
		if !errors.As(err, &epoch) || epoch.Current <= m.Epoch {
			t.Errorf("contender %d at epoch %d: %v", c, m.Epoch, err)
			return
		}
	}
}

// watchEpochs sees epochs rise until it has seen the last, or ctx is cancelled.
func watchEpochs(t *testing.T, ctx context.Context, s member.Store, last member.MapEpoch) {
	var after member.Revision
	var seen member.MapEpoch
	for seen != last {
		state, err := s.Watch(ctx, after)
		if errors.Is(err, context.Canceled) {
			return
		}
		if err != nil {
			t.Errorf("watch after epoch %d: %v", seen, err)
			return
		}
		if state.Map.Epoch <= seen || state.Revision <= after {
			t.Errorf("epoch %d at revision %d after %d at %d", state.Map.Epoch, state.Revision, seen, after)
			return
		}
		after, seen = state.Revision, state.Map.Epoch
	}
}

func testAdmit(t *testing.T, e *env) {
	const size, partitions = 3, 6
	var all sync.WaitGroup
	servers := []member.Server{server(0, 1), server(1, 1), server(2, 1)}
	for _, s := range servers {
		store := e.open(t)
		all.Go(func() {
			if _, err := member.Admit(e.ctx, store, size, partitions, s, member.Claim{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	s := e.open(t)
	state := must[*member.State](t)(s.State(e.ctx))
	if m := state.Map; m.Epoch != size || !m.Complete() || !reflect.DeepEqual(m.Servers, servers) || !reflect.DeepEqual(m.Placement, placement.Spread(partitions, size)) {
		t.Errorf("map %+v", m)
	}
	again := must[*member.Map](t)(member.Admit(e.ctx, s, size, partitions, servers[1], member.Claim{}))
	if again.Epoch != size {
		t.Errorf("admitting a server that is there makes epoch %d", again.Epoch)
	}
	restarted := server(1, 1)
	after := must[*member.Map](t)(member.Admit(e.ctx, s, size, partitions, restarted, member.Claim{}))
	if got, _ := after.Server(1); after.Epoch != size+1 || got.Instance != restarted.Instance || len(after.Servers) != size {
		t.Errorf("after a restart: %+v", after)
	}
	_, err := member.Admit(e.ctx, s, size, partitions+1, servers[1], member.Claim{})
	want(t, "other number of partitions", err, member.ErrShape)
	_, err = member.Admit(e.ctx, s, size+1, partitions, servers[1], member.Claim{})
	want(t, "other number of servers", err, member.ErrShape)
	moved := server(2, 1)
	moved.Endpoints = servers[0].Endpoints
	_, err = member.Admit(e.ctx, s, size, partitions, moved, member.Claim{})
	want(t, "endpoint of another server", err, member.ErrInput)
}

func testFollow(t *testing.T, e *env) {
	s, other := e.open(t), e.open(t)
	ctx, cancel := context.WithCancel(e.ctx)
	seen := make(chan member.MapEpoch, 16)
	ended := make(chan error, 1)
	go func() {
		ended <- member.Follow(ctx, s, func(state *member.State) {
			if state.Map != nil {
				seen <- state.Map.Epoch
			}
		}, nil)
	}()
	m := newMap(1)
	for i := range member.MapEpoch(3) {
		m.Epoch = i + 1
		check(t, other.Swap(e.ctx, i, m))
		if got := <-seen; got != m.Epoch {
			t.Errorf("followed to epoch %d, want %d", got, m.Epoch)
		}
	}
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	go func() { ended <- member.Follow(e.ctx, s, func(*member.State) {}, nil) }()
	check(t, s.Close())
	want(t, "closed", <-ended, member.ErrClosed)
}
