package cluster

import (
	"errors"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/server"
)

// startMovable starts hosts that keep copies while their own server is elsewhere.
func startMovable(t *testing.T, n int) *hostsOf {
	t.Helper()
	return startHostsSet(t, n, 2, 0, func(o *JoinOptions) { o.Return = true })
}

// move moves a server and waits until it serves there.
func (h *hostsOf) move(server, to int) {
	h.t.Helper()
	if _, err := h.cluster.Move(h.ctx, placement.Server(server), to); err != nil {
		h.t.Fatal(err)
	}
	h.settle(server, to)
}

func (h *hostsOf) settle(server, to int) {
	h.t.Helper()
	w, err := h.cluster.AwaitPlaced(h.ctx, placement.Server(server))
	if err != nil || w.Host != to {
		h.t.Fatalf("%+v, %v: server %d is not at host %d", w, err, server, to)
	}
}

// TestMoveThereAndBack: each server is moved to another host and back while clients
// write. No client sees an error, nothing that was acknowledged is lost, and every
// server has a copy in sync again.
func TestMoveThereAndBack(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startMovable(t, 3)
	h.fill(0, 20)
	w := h.write(2)
	for server := range 3 {
		to := (server + 1) % 3
		if server == 1 {
			to = 0 // which has no copy of it yet
		}
		w.goOn()
		h.move(server, to)
		w.goOn()
		h.inSync(server)
		h.move(server, server)
		w.goOn()
	}
	for i := range 3 {
		h.inSync(i)
		if at := h.at(i); at != i {
			t.Errorf("server %d is at host %d", i, at)
		}
	}
	h.has(20)
	t.Logf("%d pairs acknowledged; the longest wait of a client was %v", w.end(), time.Duration(w.longest.Load()))
	if err := h.cluster.Err(); err != nil {
		t.Errorf("the client counts a server as lost: %v", err)
	}
}

// TestMovesThatAreRefused: a move that cannot be made is refused, and leaves no wish.
func TestMovesThatAreRefused(t *testing.T) {
	m := &member.Map{Epoch: 9, ID: 7, Size: 4, Placement: placement.Spread(5, 4)}
	s := &member.State{Revision: 1, Map: m}
	register := func(index placement.Server, host int) {
		e := member.Server{Index: index, Instance: member.Instance(100 + index), Host: host, Endpoints: []member.Endpoint{{Fabric: "tcp", Addr: "a:1"}}}
		if int(index) < m.Size {
			m.Put(e)
		}
		s.Alive = append(s.Alive, member.Registration{Server: e})
	}
	register(0, 0)
	register(1, 0) // beside the own one
	register(2, 2)
	register(keeperIndex(4, 1), 1)
	m.Put(member.Server{Index: 3, Instance: 9, Host: 3, Endpoints: []member.Endpoint{{Fabric: "tcp", Addr: "d:1"}}}) // it does not run
	for i := range 4 {
		m.Sets = append(m.Sets, member.ServerSet{Server: placement.Server(i)})
		m.Sets[i].Members = 3
	}
	for _, c := range []struct {
		server placement.Server
		to     int
		want   string
	}{
		{4, 0, "cluster: no move: data server 4: want 0 to 3, a data server of this cluster"},
		{-1, 0, "cluster: no move: data server -1: want 0 to 3, a data server of this cluster"},
		{2, 4, "cluster: no move: host 4: want 0 to 3, a host of this cluster"},
		{2, 1, "cluster: no move: host 1 keeps copies only, while its own data server is at host 0: want that back first"},
		{2, 3, "cluster: no move: host 3 does not run: want one of 0, 1, 2"},
		{0, 2, "cluster: no move: host 0 also has data server 1: want those moved before its own"},
		{3, 0, "cluster: no move: data server 3 does not run: want it to be at a host, from which it can go"},
		{2, 0, ""},
		{1, 2, ""},
		{1, 1, ""},
		{1, 0, ""},
	} {
		switch err := checkMove(s, c.server, c.to); {
		case c.want == "" && err != nil:
			t.Errorf("server %d to host %d: %v", c.server, c.to, err)
		case c.want != "" && (!errors.Is(err, ErrMove) || err.Error() != c.want):
			t.Errorf("server %d to host %d: %v, want %s", c.server, c.to, err, c.want)
		}
	}
	m.PutDrained(0, true)
	if err := checkMove(s, 2, 0); !errors.Is(err, ErrMove) {
		t.Errorf("to a drained host: %v", err)
	}
	m.PutDrained(0, false)
	m.Sets = nil
	if err := checkMove(s, 2, 0); !errors.Is(err, ErrMove) {
		t.Errorf("without copies: %v", err)
	}
}

// TestAim: where a server is to be.
func TestAim(t *testing.T) {
	build := func() *member.State {
		s := &member.State{Map: &member.Map{Size: 4}}
		for i := range 4 {
			e := member.Server{Index: placement.Server(i), Instance: member.Instance(i + 1), Host: i}
			s.Map.Put(e)
			s.Alive = append(s.Alive, member.Registration{Server: e})
		}
		return s
	}
	members := func(s *member.State, server placement.Server, hosts ...int) {
		set := s.Map.Set(server)
		for _, host := range hosts {
			set.Members = set.Members.With(s.Map.Copy(server, host))
		}
		s.Map.PutSet(server, set)
	}
	keeper := func(s *member.State, host, to int) { // drained, and its own server is elsewhere
		s.Map.PutDrained(host, true)
		s.Map.Servers[host].Host = to
		s.Alive = append(s.Alive, member.Registration{Server: member.Server{Index: keeperIndex(s.Map.Size, host), Host: host}})
	}
	lose := func(s *member.State, server placement.Server) {
		s.Alive = slices.DeleteFunc(s.Alive, func(r member.Registration) bool { return r.Index == server })
	}
	for _, c := range []struct {
		what   string
		change func(s *member.State)
		want   int
	}{
		{"its own host", func(*member.State) {}, 1},
		{"where it is wished for", func(s *member.State) { s.Map.PutWish(1, 3) }, 3},
		{"away from a drained host, to the next one", func(s *member.State) { s.Map.PutDrained(1, true) }, 2},
		{"one that is in sync comes first", func(s *member.State) { s.Map.PutDrained(1, true); members(s, 1, 1, 3) }, 3},
		{"not to a drained one", func(s *member.State) { s.Map.PutDrained(1, true); s.Map.PutDrained(2, true); members(s, 1, 1, 2) }, 3},
		{"not to one that does not run", func(s *member.State) { s.Map.PutDrained(1, true); s.Alive = s.Alive[:2] }, 0},
		{"it stays where all are drained", func(s *member.State) {
			for i := range 4 {
				s.Map.PutDrained(i, true)
			}
		}, 1},
		{"it stays at a host that is not drained while its own is", func(s *member.State) {
			s.Map.PutDrained(1, true)
			s.Map.Servers[1].Host = 3
		}, 3},
		{"away from a host whose own server is to leave", func(s *member.State) {
			s.Map.PutDrained(1, true)
			s.Map.PutWish(3, 0)
			s.Map.Servers[1].Host = 3
			members(s, 1, 3, 0)
		}, 0},
		{"to one whose own server is to leave, if there is no other", func(s *member.State) {
			for _, host := range []int{0, 1, 2} {
				s.Map.PutDrained(host, true)
			}
			s.Map.PutWish(3, 0)
			s.Map.PutDrained(0, false)
			s.Alive = s.Alive[1:]
		}, 3},
		{"away from a drained host, while its own does not run", func(s *member.State) {
			s.Map.PutDrained(3, true)
			s.Map.Servers[1].Host, s.Alive = 3, s.Alive[2:]
		}, 2},
		{"its own host, that does not run, if no other one does", func(s *member.State) {
			s.Map.PutDrained(3, true)
			s.Map.Servers[1].Host, s.Alive = 3, s.Alive[3:]
		}, 1},
		{"its own host, whatever the wish is, while that has another server without it", func(s *member.State) {
			s.Map.PutDrained(1, true)
			s.Map.Servers[1].Host, s.Map.Servers[0].Host = 3, 1
		}, 1},
		{"its own host, that is drained, while it keeps the only data of a lost server", func(s *member.State) {
			keeper(s, 1, 3)
			lose(s, 0)
			members(s, 0, 0, 1)
		}, 1},
		{"its own host still, when it is there and the lost server not yet", func(s *member.State) {
			s.Map.PutDrained(1, true)
			lose(s, 0)
			members(s, 0, 0, 1)
		}, 1},
		{"not its own host, if another one can run the lost server", func(s *member.State) {
			keeper(s, 1, 3)
			lose(s, 0)
			members(s, 0, 0, 1, 2)
		}, 3},
		{"its own host, if the other one with the data is a keeper, too", func(s *member.State) {
			keeper(s, 1, 3)
			keeper(s, 2, 3)
			lose(s, 0)
			members(s, 0, 0, 1, 2)
		}, 1},
		{"not its own host, that does not run", func(s *member.State) {
			keeper(s, 1, 3)
			s.Alive = s.Alive[:len(s.Alive)-1]
			lose(s, 0)
			members(s, 0, 0, 1)
		}, 3},
		{"not its own host, if the other server has a lease", func(s *member.State) {
			keeper(s, 1, 3)
			members(s, 0, 0, 1)
		}, 3},
	} {
		s := build()
		c.change(s)
		if got := aim(s, 1); got != c.want {
			t.Errorf("%s: host %d, want %d", c.what, got, c.want)
		}
	}
}

// TestPausesBetweenMoves: pauses double, and have a bound.
func TestPausesBetweenMoves(t *testing.T) {
	p, pause := paces{movePause: time.Second}, time.Duration(0)
	for _, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
		if pause = p.nextPause(pause); pause != want {
			t.Errorf("%v, want %v", pause, want)
		}
	}
	for range 100 {
		pause = p.nextPause(pause)
	}
	if pause != movePauseMax {
		t.Errorf("%v after many failures, want %v", pause, movePauseMax)
	}
}

// stopwatch measures how long clients wait.
type stopwatch struct{ longest atomic.Int64 }

func (s *stopwatch) waited(since time.Duration) {
	for d := int64(clock.Now() - since); ; {
		was := s.longest.Load()
		if d <= was || s.longest.CompareAndSwap(was, d) {
			return
		}
	}
}

// fewest is how many copies of each server's log have been in sync, its own included.
type fewest struct {
	stop func()
	mu   sync.Mutex
	n    [3]int
}

// watchSets looks at every map that a host makes.
func (h *hostsOf) watchSets() *fewest {
	f := &fewest{n: [3]int{99, 99, 99}}
	look := func(m *member.Map) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for i := range f.n {
			f.n[i] = min(f.n[i], bits.OnesCount8(uint8(m.Set(placement.Server(i)).Members)))
		}
	}
	for _, s := range h.stores {
		s.swapped.Store(&look)
	}
	f.stop = func() {
		for _, s := range h.stores {
			s.swapped.Store(nil)
		}
	}
	return f
}

// TestDrain: all that is at a host goes away, while clients write. A copy leaves the
// drained host when another one is in sync, and not before. Then the host is stopped and
// started, stays drained, and all comes back when it is drained no more.
func TestDrain(t *testing.T) {
	t.Parallel()
	soon(t)
	// No copy leaves the set because a busy machine has kept it waiting.
	h := startHostsSet(t, 3, 2, 0, func(o *JoinOptions) {
		o.Return, o.around.configure = true, func(c *server.Config) { c.CopyPatience = testseed.Patience() }
	})
	h.fill(0, 20)
	w := h.write(2)
	w.goOn()
	sets := h.watchSets()
	goes, err := h.cluster.Drain(h.ctx, 1)
	if err != nil || len(goes) != 1 || goes[0].Server != 1 || goes[0].To == 1 {
		t.Fatalf("%+v, %v", goes, err)
	}
	if err := h.cluster.AwaitDrained(h.ctx, 1); err != nil {
		t.Fatal(err)
	}
	sets.stop()
	sets.mu.Lock()
	n := sets.n[0]
	sets.mu.Unlock()
	if n < 2 { // its copy was at host 1
		t.Errorf("%d copies of server 0 were in sync while its copy went to another host", n)
	}
	if at := h.at(1); at == 1 {
		t.Errorf("server 1 is at host %d", at)
	}
	if _, err := h.cluster.Move(h.ctx, 0, 1); !errors.Is(err, ErrMove) {
		t.Errorf("a move to a drained host: %v", err)
	}
	if err := h.cluster.CheckDrained(h.ctx, 1); err != nil {
		t.Error(err)
	}
	w.goOn()
	if err := h.hosts[1].Close(); err != nil {
		t.Error(err)
	}
	h.hosts[1] = nil
	w.goOn()
	back := h.startAgain(1)
	eventually(t, "host 1 keeps copies", func() bool {
		s, err := h.members.Open().State(h.ctx)
		_, keeps := keeperOf(s, 1)
		return err == nil && keeps
	})
	w.goOn()
	if s, _ := h.members.Open().State(h.ctx); holds(s, 1) != "" || h.at(1) == 1 {
		t.Errorf("the drained host has something again: %s", holds(s, 1))
	}
	if err := h.cluster.Undrain(h.ctx, 1); err != nil {
		t.Fatal(err)
	}
	if err := h.cluster.AwaitInSync(h.ctx, map[placement.Server]int{0: 2, 1: 2, 2: 2}); err != nil {
		t.Fatal(err)
	}
	back()
	for i := range 3 {
		if at := h.at(i); at != i {
			t.Errorf("server %d is at host %d", i, at)
		}
	}
	t.Logf("%d pairs acknowledged; the longest wait of a client was %v", w.end(), time.Duration(w.longest.Load()))
}

// startAgain starts a host again beside the test. The result waits until it serves.
func (h *hostsOf) startAgain(i int) (wait func()) {
	started := make(chan error, 1)
	go func() {
		var err error
		h.hosts[i], err = Join(h.ctx, h.options(i))
		started <- err
	}()
	return func() {
		h.t.Helper()
		if err := <-started; err != nil {
			h.t.Fatal(err)
		}
	}
}

// TestDrainsThatAreRefused: the last host that can take a data server is not drained.
func TestDrainsThatAreRefused(t *testing.T) {
	t.Parallel()
	h := startMovable(t, 2)
	if _, err := h.cluster.Drain(h.ctx, 2); !errors.Is(err, ErrMove) {
		t.Errorf("a host that does not exist: %v", err)
	}
	if err := h.cluster.CheckDrained(h.ctx, 0); !errors.Is(err, ErrMove) {
		t.Errorf("a host that is not drained is empty: %v", err)
	}
	for range 2 { // the second time there is nothing to do
		if _, err := h.cluster.Drain(h.ctx, 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := h.cluster.AwaitDrained(h.ctx, 0); err != nil {
		t.Fatal(err)
	}
	const want = "cluster: no move: no other host can take data server 0: want one that runs its own data server and is not drained"
	if _, err := h.cluster.Drain(h.ctx, 1); !errors.Is(err, ErrMove) || err.Error() != want {
		t.Errorf("the last host: %v", err)
	}
	h.fill(0, 10)
	h.has(10)
}
