package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/testseed"
	"drtmx/rdma/multi"
	"drtmx/server"
)

// gone ends a host, as a crash does for its peers.
func (h *hostsOf) gone(i int) {
	h.t.Helper()
	if err := h.hosts[i].Close(); err != nil {
		h.t.Error(err)
	}
	h.hosts[i] = nil
}

// soonest are moments at which something happens in the middle of a move: at once, and
// later.
var soonest = []time.Duration{0, 60 * time.Millisecond}

// TestTargetEndsInAMove: the host to which a server goes ends in the middle. The server
// is served all the time, but for a moment, and goes there when the host is back.
func TestTargetEndsInAMove(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startMovable(t, 3)
	w := h.write(2)
	for _, pause := range soonest {
		w.goOn()
		if _, err := h.cluster.Move(h.ctx, 0, 2); err != nil { // it has no copy there
			t.Fatal(err)
		}
		time.Sleep(pause)
		h.gone(2)
		w.goOn()
		back := h.startAgain(2)
		back()
		h.settle(0, 2)
		w.goOn()
		h.move(0, 0)
		h.settle(2, 2)
	}
	t.Logf("%d pairs acknowledged", w.end())
}

// TestHomeEndsInAMove: the host from which a server goes ends in the middle, or loses
// its lease and runs on. The server comes to where it is to be.
func TestHomeEndsInAMove(t *testing.T) {
	t.Parallel()
	soon(t)
	for _, how := range []string{"ends", "is cut off"} {
		t.Run(how, func(t *testing.T) {
			h := startMovable(t, 3)
			w := h.write(2)
			w.goOn()
			former := h.hosts[0]
			if _, err := h.cluster.Move(h.ctx, 0, 1); err != nil {
				t.Fatal(err)
			}
			if how == "ends" {
				h.gone(0)
			} else {
				h.stores[0].away.Store(true)
				if err := h.stores[0].Evict(h.ctx, 0, former.place.self.Instance); err != nil {
					t.Fatal(err)
				}
			}
			h.settle(0, 1)
			w.goOn()
			if how != "ends" {
				h.stores[0].away.Store(false)
				h.gone(0)
			}
			back := h.startAgain(0)
			h.move(0, 0)
			back()
			w.goOn()
			t.Logf("%d pairs acknowledged", w.end())
		})
	}
}

// lostStore is a store that does not answer while it is away.
type lostStore struct {
	member.Store
	away *atomic.Bool
}

func (s lostStore) State(ctx context.Context) (*member.State, error) {
	if s.away.Load() {
		return nil, member.ErrUnreachable
	}
	return s.Store.State(ctx)
}

func (s lostStore) Watch(ctx context.Context, after member.Revision) (*member.State, error) {
	if s.away.Load() {
		return nil, member.ErrUnreachable
	}
	return s.Store.Watch(ctx, after)
}

func (s lostStore) Swap(ctx context.Context, expected member.MapEpoch, next *member.Map) error {
	if s.away.Load() {
		return member.ErrUnreachable
	}
	return s.Store.Swap(ctx, expected, next)
}

func (s lostStore) Join(ctx context.Context, server member.Server, ttl time.Duration) (member.Lease, error) {
	if s.away.Load() {
		return nil, member.ErrUnreachable
	}
	return s.Store.Join(ctx, server, ttl)
}

// TestStoreIsAwayInAMove: the store does not answer any host in the middle of a move.
// When it does again the move ends.
func TestStoreIsAwayInAMove(t *testing.T) {
	t.Parallel()
	soon(t)
	away := &atomic.Bool{}
	h := startHostsSet(t, 3, 2, 0, func(o *JoinOptions) { o.Return, o.Store = true, lostStore{o.Store, away} })
	w := h.write(2)
	for i, pause := range soonest {
		w.goOn()
		to := 1 - i%2
		if _, err := h.cluster.Move(h.ctx, 0, to); err != nil {
			t.Fatal(err)
		}
		time.Sleep(pause)
		away.Store(true)
		time.Sleep(300 * time.Millisecond)
		away.Store(false)
		h.settle(0, to)
	}
	w.goOn()
	t.Logf("%d pairs acknowledged", w.end())
}

// TestMoveOfATakenServer: a server that another host has taken over is moved to a third
// one, while its own host is away, and goes home in the end.
func TestMoveOfATakenServer(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startMovable(t, 3)
	w := h.write(2)
	w.goOn()
	h.inSync(1)
	h.gone(1)
	h.runs(1, 2)
	h.move(1, 0)
	w.goOn()
	back := h.startAgain(1)
	w.goOn()
	if at := h.at(1); at != 0 {
		t.Errorf("server 1 is at host %d, and is to be at host 0", at)
	}
	h.move(1, 1)
	back()
	t.Logf("%d pairs acknowledged", w.end())
}

// TestMovesThatContradict: two servers are to go at the same time, one to where the
// other comes from. Nobody waits for ever, and the last wish holds.
func TestMovesThatContradict(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startMovable(t, 3)
	w := h.write(2)
	w.goOn()
	for _, m := range [][2]int{{0, 1}, {1, 2}, {1, 0}, {0, 2}} {
		if _, err := h.cluster.Move(h.ctx, placement.Server(m[0]), m[1]); err != nil && !errors.Is(err, ErrMove) {
			t.Fatal(err)
		}
	}
	w.goOn()
	for _, server := range []int{0, 1, 0, 1} { // one may wait for the other
		if _, err := member.Change(h.ctx, h.members.Open(), func(m *member.Map) (*member.Map, error) {
			if !m.PutWish(placement.Server(server), server) {
				return nil, nil
			}
			return m, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	for server := range 3 {
		h.settle(server, server)
	}
	w.goOn()
	t.Logf("%d pairs acknowledged", w.end())
}

// TestMoveWaitsForTheCopy: a server does not leave its host before the other one has a
// copy in sync, whatever the wish is.
func TestMoveWaitsForTheCopy(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startMovable(t, 2)
	h.fill(0, 10)
	// Its keeper takes no steps, as one whose disk is full.
	if _, _, err := h.hosts[1].others.copies.YieldCopy(0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the copy has left the set", func() bool {
		h.fillOne()
		s, err := h.members.Open().State(h.ctx)
		return err == nil && s.Map.Set(0).Members == 1
	})
	if _, err := h.cluster.Move(h.ctx, 0, 1); err != nil {
		t.Fatal(err)
	}
	server := h.hosts[0].server
	time.Sleep(5 * takeoverTick) // longer than a move would take
	if h.hosts[0].server != server || h.at(0) != 0 {
		t.Error("the server has left its host for one that has no copy in sync")
	}
	const want = "cluster: no move: data server 0 is at host 0 and is to be at host 1: the copy at host 1 is not in sync yet; it goes there when it can"
	for wait := 50 * time.Millisecond; ; wait *= 2 {
		ctx, cancel := context.WithTimeout(h.ctx, wait)
		_, err := h.cluster.AwaitPlaced(ctx, 0)
		cancel()
		if err != nil && err.Error() == want {
			break
		}
		if err == nil || wait > testseed.Patience()/2 { // else it may not have looked yet
			t.Errorf("it waits for %v", err)
			break
		}
	}
	h.hosts[1].others.copies.ResumeCopy(0)
	h.settle(0, 1)
	h.has(10)
}

// TestOwnServerGoesLast: a host that has another server beside its own keeps its own,
// whatever the wish is, because a keeper would not run the other one.
func TestOwnServerGoesLast(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startMovable(t, 3)
	w := h.write(2)
	w.goOn()
	h.inSync(1)
	h.gone(1)
	eventually(t, "host 2 has server 1", func() bool { return h.at(1) == 2 })
	w.goOn()
	for i := range 3 {
		h.inSync(i)
	}
	own := h.hosts[2].server
	if _, err := member.Change(h.ctx, h.members.Open(), func(m *member.Map) (*member.Map, error) {
		m.PutWish(2, 0)
		return m, nil
	}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(5 * takeoverTick) // longer than a move would take
	if h.hosts[2].server != own || h.at(2) != 2 {
		t.Error("the host has given its own server away, and has another one that it cannot run any more")
	}
	w.goOn()
	h.startAgain(1)()
	h.settle(1, 1)
	h.settle(2, 0)
	w.goOn()
	t.Logf("%d pairs acknowledged", w.end())
}

// TestOnlyDataAtADrainedHost: a host ends that has the only data of another server, and
// is drained before it starts again. Its own server comes back to it first, because it
// runs others only beside that. Then both go.
func TestOnlyDataAtADrainedHost(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startMovable(t, 3)
	h.fill(0, 10)
	h.inSync(0)
	h.gone(0)
	eventually(t, "host 1 has server 0", func() bool { return h.at(0) == 1 })
	h.inSync(0)
	h.inSync(1)
	// Its keeper takes no steps, as one whose disk is full.
	if _, _, err := h.hosts[2].others.copies.YieldCopy(0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the copy has left the set", func() bool {
		h.fillOne()
		s, err := h.members.Open().State(h.ctx)
		return err == nil && s.Map.Set(0).Members == 1
	})
	h.inSync(1)
	h.gone(1)
	eventually(t, "host 2 has server 1", func() bool { return h.at(1) == 2 })
	if _, err := member.Change(h.ctx, h.members.Open(), func(m *member.Map) (*member.Map, error) {
		m.PutDrained(1, true)
		return m, nil
	}); err != nil {
		t.Fatal(err)
	}
	h.startAgain(1)()
	h.hosts[2].others.copies.ResumeCopy(0)
	eventually(t, "host 1 is empty", func() bool { return h.at(0) == 2 && h.at(1) == 2 })
	for i := range 2 { // the host of one does not run, that of the other is drained
		if w, err := h.cluster.AwaitServing(h.ctx, placement.Server(i)); err != nil || w.Host != 2 {
			t.Errorf("%+v, %v: server %d is not served at host 2", w, err, i)
		}
	}
	h.has(10)
}

// TestLastCopyAtADrainedKeeper: the disk of a host is lost whose data only the keeper at
// a drained host has. The own server of that host comes back to it, the lost one is taken
// over beside it, and then both go.
func TestLastCopyAtADrainedKeeper(t *testing.T) {
	t.Parallel()
	soon(t)
	h := startMovable(t, 3)
	h.fill(0, 10)
	h.inSync(0)
	h.inSync(1)
	h.move(1, 2) // host 1 is a keeper from here on
	eventually(t, "host 1 alone keeps a copy of server 0", func() bool {
		s, err := h.members.Open().State(h.ctx)
		return err == nil && s.Map.Set(0).Members == replica.Members(0).With(0).With(s.Map.Copy(0, 1))
	})
	h.gone(0) // and its disk
	if _, err := member.Change(h.ctx, h.members.Open(), func(m *member.Map) (*member.Map, error) {
		m.PutDrained(1, true)
		return m, nil
	}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "host 1 is empty", func() bool { return h.at(0) == 2 && h.at(1) == 2 })
	for i := range 2 {
		if w, err := h.cluster.AwaitServing(h.ctx, placement.Server(i)); err != nil || w.Host != 2 {
			t.Errorf("%+v, %v: server %d is not served at host 2", w, err, i)
		}
	}
	h.has(10)
}

// fillOne writes a pair of rows of its own.
func (h *hostsOf) fillOne() {
	h.t.Helper()
	h.next += 2
	if err := insertPair(h.ctx, h.db, 1<<30+h.next); err != nil {
		h.t.Fatal(err)
	}
}

// patienceOf is how long hosts wait for data servers that they close.
type patienceOf struct{ atomic.Int64 }

func closingTime() *patienceOf {
	p := &patienceOf{}
	p.set(closeTimeout)
	return p
}

func (p *patienceOf) set(d time.Duration) { p.Store(int64(d)) }
func (p *patienceOf) get() time.Duration  { return time.Duration(p.Load()) }

// TestHangingHomeIsNotMoved: a server that does not close keeps its lease until that
// runs out, and its host ends.
func TestHangingHomeIsNotMoved(t *testing.T) {
	t.Parallel()
	hangs, closing := &stuckServer{end: make(chan struct{})}, closingTime()
	h := startHostsSet(t, 2, 2, 0, func(o *JoinOptions) {
		o.around.closing = closing.get
		if o.Return = true; o.Index == 0 {
			o.around.wrap = func(_ placement.Server, s dataServer) dataServer {
				hangs.dataServer = s
				return hangs
			}
		}
	})
	closing.set(50 * time.Millisecond)
	h.fill(0, 10)
	m := h.hosts[0]
	if _, err := h.cluster.Move(h.ctx, 0, 1); err != nil {
		t.Fatal(err)
	}
	select {
	case <-m.Lost():
	case <-h.ctx.Done():
		t.Fatal("the host goes on without a server that has not closed")
	}
	if !errors.Is(m.Err(), errNotClosed) {
		t.Errorf("it has ended with %v", m.Err())
	}
	s, err := h.members.Open().State(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r, held := s.Registered(0); !held || r.Host != 0 || h.at(0) != 0 {
		t.Errorf("the lease was given back although the server may serve: %+v", r)
	}
	close(hangs.end)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	closing.set(closeTimeout)
	if err := errors.Join(hangs.dataServer.Close(), h.stores[0].Close()); err != nil { // as its process does
		t.Error(err)
	}
	h.hosts[0] = nil
	h.settle(0, 1)
	h.has(10)
}

// TestHangingGuestIsTakenOver: a server that hangs while the host that had taken it over
// ends it keeps its lease until that runs out. The host goes on, and does not renew it:
// otherwise nobody could serve the server any more. As long as it hangs, the host leaves
// its directory alone, and so does not take the server over again.
func TestHangingGuestIsTakenOver(t *testing.T) {
	t.Parallel()
	soon(t)
	hangs, closing := &stuckServer{end: make(chan struct{})}, closingTime()
	attempts := &atomic.Int64{}
	h := startHostsSet(t, 2, 2, 0, func(o *JoinOptions) {
		o.around.closing = closing.get
		if o.Return = true; o.Index == 1 {
			o.around.wrap = func(server placement.Server, s dataServer) dataServer {
				if server == 1 || hangs.dataServer != nil {
					return s
				}
				hangs.dataServer = s
				return hangs
			}
			real := *o
			o.around.beside = func(server placement.Server) (string, *multi.Provider, error) {
				attempts.Add(1)
				return real.beside(server)
			}
		}
	})
	h.fill(0, 10)
	if _, err := h.cluster.Move(h.ctx, 0, 1); err != nil {
		t.Fatal(err)
	}
	h.settle(0, 1)
	h.fill(10, 20)
	closing.set(50 * time.Millisecond)
	store := h.members.Open()
	if _, err := h.cluster.Move(h.ctx, 0, 0); err != nil {
		t.Fatal(err)
	}
	wait, cancel := context.WithTimeout(h.ctx, testseed.Patience())
	defer cancel()
	if w, err := h.cluster.AwaitPlaced(wait, 0); err != nil || w.Host != 0 {
		t.Fatalf("%+v, %v: server 0 is not at host 0", w, err)
	}
	s, err := store.State(h.ctx)
	if err != nil {
		t.Fatal(err)
	}
	if r, held := s.Registered(0); !held || r.Host != 0 {
		t.Errorf("server 0 is at host 0, and its lease is that of %+v", r)
	}
	select {
	case <-h.hosts[1].Lost():
		t.Errorf("the host of the server that hangs has ended: %v", h.hosts[1].Err())
	default:
	}
	h.has(20)
	closing.set(closeTimeout)
	mark := filepath.Join(homeDir(server.ServerDir(filepath.Join(h.dir, "host-1"), 1), 0), "MARK")
	if err := os.WriteFile(mark, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	h.inSync(0)
	if err := h.hosts[0].Close(); err != nil {
		t.Error(err)
	}
	h.hosts[0] = nil
	tried := attempts.Load()
	eventually(t, "host 1 tries to take server 0 over", func() bool { return attempts.Load() >= tried+3 })
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("the directory of a server that hangs is removed: %v", err)
	}
	if err := hangs.dataServer.Close(); err != nil {
		t.Error(err)
	}
	close(hangs.end)
	eventually(t, "host 1 has server 0", func() bool { return h.at(0) == 1 })
	h.has(20)
}

// TestGuestsKnowWhereOthersWere: a server at another host than its own has the addresses
// of the others from a map that its host may not have seen. When one of them moves, the
// server's dials still lead there.
func TestGuestsKnowWhereOthersWere(t *testing.T) {
	t.Parallel()
	soon(t)
	var guest atomic.Pointer[multi.Provider]
	h := startHostsSet(t, 2, 2, 0, func(o *JoinOptions) {
		if o.Return = true; o.Index == 1 {
			real := *o
			o.around.beside = func(server placement.Server) (string, *multi.Provider, error) {
				addr, p, err := real.beside(server)
				guest.Store(p)
				return addr, p, err
			}
		}
	})
	h.fill(0, 10)
	if _, err := h.cluster.Move(h.ctx, 0, 1); err != nil {
		t.Fatal(err)
	}
	h.settle(0, 1)
	var follows *following
	eventually(t, "host 1 has server 0", func() bool {
		others := h.hosts[1].others
		others.mu.Lock()
		defer others.mu.Unlock()
		if home := others.mu.homes[0]; home != nil && home.member != nil {
			follows = home.member.place.follows
		}
		return follows != nil
	})
	const was = "tcp:198.51.100.7:1" // of server 1, in a map of which only the guest knows
	follows.mu.Lock()
	follows.mu.index[was] = 1
	now, _ := follows.mu.newest.Server(1)
	follows.mu.Unlock()
	if at := guest.Load().Resolve(was); at != addressOf(now) {
		t.Errorf("the guest dials %s for server 1, which is at %s", at, addressOf(now))
	}
}

// stuckServer is a data server that hangs when it closes.
type stuckServer struct {
	dataServer
	end chan struct{}
}

func (s *stuckServer) Close() error {
	<-s.end
	return nil
}

// TestMovesAtRandom: moves, drains, ends and starts of hosts and a store that is away,
// in any order, with clients that write. Nothing that was acknowledged is lost, no
// client sees an error, and all comes to where it is to be.
func TestMovesAtRandom(t *testing.T) {
	t.Parallel()
	soon(t)
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	away := &atomic.Bool{}
	h := startHostsSet(t, 3, 2, 0, func(o *JoinOptions) { o.Return, o.Store = true, lostStore{o.Store, away} })
	w := h.write(2)
	rounds := 8
	if testing.Short() {
		rounds = 3
	}
	var did []string
	for range rounds {
		server, host := rng.IntN(3), rng.IntN(3)
		var err error
		switch what := rng.IntN(4); what {
		case 0, 1:
			did = append(did, fmt.Sprintf("move %d to %d", server, host))
			_, err = h.cluster.Move(h.ctx, placement.Server(server), host)
		case 2:
			did = append(did, fmt.Sprintf("drain %d", host))
			if _, err = h.cluster.Drain(h.ctx, host); err == nil {
				time.Sleep(time.Duration(rng.IntN(300)) * time.Millisecond)
				err = h.cluster.Undrain(h.ctx, host)
			}
		case 3:
			did = append(did, "the store is away")
			away.Store(true)
			time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
			away.Store(false)
		}
		if err != nil && !errors.Is(err, ErrMove) {
			t.Fatalf("%v: %v", did, err)
		}
		time.Sleep(time.Duration(rng.IntN(400)) * time.Millisecond)
	}
	t.Log(did)
	if _, err := member.Change(h.ctx, h.members.Open(), func(m *member.Map) (*member.Map, error) {
		m.Wishes, m.Drained = nil, nil
		return m, nil
	}); err != nil {
		t.Fatal(err)
	}
	for server := range 3 {
		h.settle(server, server)
	}
	w.goOn()
	t.Logf("%d pairs acknowledged; the longest wait of a client was %v", w.end(), time.Duration(w.longest.Load()))
}
