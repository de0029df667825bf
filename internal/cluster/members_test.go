package cluster

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"drtmx/internal/member"
	"drtmx/internal/member/membertest"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/rdma/multi"
	"drtmx/server"
	"drtmx/txn"
)

// joinAt starts data server i of n at a host and port.
func joinAt(t testing.TB, ctx context.Context, members *membertest.Local, n, i int, host string) *Member {
	t.Helper()
	f, err := NewFabrics(multi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store := members.Open()
	m, err := Join(ctx, JoinOptions{
		Size: Size{Servers: n}, Index: placement.Server(i), Store: store, Addr: multi.Address{TCP: host}.String(), Lease: time.Second,
		Provider: f, Workload: Workload{Catalog: trialCatalog(t)}, MemoryBytes: 256 << 20,
	})
	if err != nil {
		t.Error(err)
		return nil
	}
	t.Cleanup(func() {
		if err := errors.Join(m.Close(), store.Close()); err != nil && !errors.Is(err, member.ErrClosed) {
			t.Error(err)
		}
	})
	return m
}

// membersOf is where a client finds the members, in the place of etcd.
func membersOf(l *membertest.Local) ConnectOptions {
	return ConnectOptions{
		Address: etcdAddress, Members: func(context.Context, *member.Location) (member.Store, error) { return l.Open(), nil },
	}
}

var etcdAddress = &Address{Members: &member.Location{Endpoints: []string{"etcd:1"}, Name: "trial"}}

// Servers that know nothing but the members find each other and are found; one
// that was started again elsewhere is a loss for clients that knew it, and is
// found by new ones.
func TestServersFindEachOtherByTheMembers(t *testing.T) {
	realServers(t)
	ctx, hosts, members := patience(t), freeHosts(t, 3), membertest.NewLocal()
	var all sync.WaitGroup
	servers := make([]*Member, 2)
	for i := range servers {
		all.Go(func() { servers[i] = joinAt(t, ctx, members, 2, i, hosts[i]) })
	}
	all.Wait()
	if t.Failed() {
		t.FailNow()
	}
	open := func() (*Cluster, *txn.DB) {
		c, err := Connect(ctx, membersOf(members))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if catalog, err := c.Tables(); err != nil || len(catalog.Tables) != 1 {
			t.Errorf("tables %v, %v", catalog, err)
		}
		db, err := txn.Open(ctx, c.Config())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { db.Close() })
		return c, db
	}
	c, db := open()
	for k := range uint64(8) {
		if err := put(ctx, db, k); err != nil {
			t.Error(err)
		}
	}
	if err := servers[1].Close(); err != nil {
		t.Fatal(err)
	}
	if c.Err() != nil {
		t.Errorf("a server that is away counts as lost: %v", c.Err())
	}
	again := joinAt(t, ctx, members, 2, 1, hosts[2])
	if again.place.self.Instance == servers[1].place.self.Instance {
		t.Error("the instance of a restarted server is what it was")
	}
	select {
	case <-c.Lost():
	case <-ctx.Done():
		t.Fatal("a restarted server went unnoticed")
	}
	if err := c.Err(); !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), "data server 1 was started again, at tcp:"+hosts[2]) {
		t.Error(err)
	}
	// The old handle is led to the new place, and takes nothing from there.
	if conn, err := c.Config().Dial(ctx, c.Addrs()[1]); err != nil {
		t.Errorf("dial where it was: %v", err)
	} else if h, err := sayHello(ctx, conn); err != nil || h.Incarnation != uint64(again.place.self.Instance) {
		t.Errorf("there is %+v, %v", h, err)
	} else {
		conn.Close()
	}
	after, err := Connect(ctx, membersOf(members))
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	if after.Addrs()[1] != "tcp:"+hosts[2] || after.Err() != nil {
		t.Errorf("found at %v, %v", after.Addrs(), after.Err())
	}
	if db, err := txn.Open(ctx, after.Config()); !errors.Is(err, txn.ErrRestarted) {
		if db != nil {
			db.Close()
		}
		t.Errorf("a database over a server that lost its memory: %v", err)
	}
	if err := servers[0].Err(); err != nil {
		t.Error(err)
	}
}

// A server keeps its place when its lease is taken away, and gives it up to
// another instance.
func TestPlacesAreKeptAndTaken(t *testing.T) {
	ctx, members := patience(t), membertest.NewLocal()
	store := members.Open()
	defer store.Close()
	o := JoinOptions{
		Size: Size{Servers: 1}, Store: store, Addr: "tcp:10.0.0.1:7000", Lease: time.Second, Provider: fakeProvider{},
	}
	fakeServers(t)
	j, err := Join(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	state, err := store.State(ctx)
	if err != nil {
		t.Fatal(err)
	}
	term := state.Alive[0].Term
	if err := store.Evict(ctx, 0, j.place.self.Instance); err != nil {
		t.Fatal(err)
	}
	if _, err := member.WaitFor(ctx, store, func(s *member.State) bool { return len(s.Alive) == 1 && s.Alive[0].Term > term }); err != nil {
		t.Fatal(err)
	}
	if j.Err() != nil {
		t.Error(j.Err())
	}
	var waited []string
	o.Waiting = func(text string) { waited = append(waited, text) }
	if _, err := Join(ctx, o); !errors.Is(err, member.ErrTaken) || !strings.Contains(err.Error(), "10.0.0.1:7000") ||
		strings.Contains(err.Error(), "\n") || len(waited) != 1 {
		t.Errorf("a second server of the same number: %v, waited %q", err, waited)
	}
	// What the map says of another instance ends the place.
	other := member.Server{Instance: member.NewInstance(), Endpoints: []member.Endpoint{{Fabric: "tcp", Addr: "10.0.0.2:7000"}}}
	if _, err := member.Admit(ctx, store, 1, 1, other, member.Claim{}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-j.Lost():
	case <-ctx.Done():
		t.Fatal("a deposed server does not know")
	}
	if err := j.Err(); !errors.Is(err, ErrDeposed) || !strings.Contains(err.Error(), other.Instance.String()) {
		t.Error(err)
	}
}

func TestMembersThatCannotBe(t *testing.T) {
	members := membertest.NewLocal()
	store := members.Open()
	defer store.Close()
	if _, err := Connect(t.Context(), ConnectOptions{Address: etcdAddress}); !errors.Is(err, ErrAddress) {
		t.Errorf("no way to etcd: %v", err)
	}
	o := JoinOptions{Size: Size{Servers: 2}, Store: store, Addr: "tcp:10.0.0.1:7000", Lease: time.Second, Provider: fakeProvider{}}
	// A busy machine may need more time to find out what is missing.
	within := func(do func(ctx context.Context) error) (err error) {
		for wait := 200 * time.Millisecond; wait < testseed.Patience(); wait *= 2 {
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			err = do(ctx)
			cancel()
			if err == nil || strings.Contains(err.Error(), "missing") {
				break
			}
		}
		return err
	}
	err := within(func(ctx context.Context) error { _, err := Join(ctx, o); return err })
	if !errors.Is(err, ErrNoAnswer) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "1 of 2 data servers have joined; missing: 1") {
		t.Errorf("one server of two: %v", err)
	}
	state, err := store.State(t.Context())
	if err != nil || len(state.Alive) != 0 {
		t.Errorf("a server that gave up is registered: %+v, %v", state, err)
	}
	err = within(func(ctx context.Context) error { _, err := Connect(ctx, membersOf(members)); return err })
	if !errors.Is(err, ErrNoAnswer) || !strings.Contains(err.Error(), "missing: 1") ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("a client of one server of two: %v", err)
	}
	for _, size := range []Size{{Servers: 3}, {Servers: 2, Partitions: 4}} {
		bad := o
		bad.Size = size
		if _, err := Join(t.Context(), bad); !errors.Is(err, member.ErrShape) {
			t.Errorf("other shape: %v", err)
		}
	}
}

// TestRegisteredIncarnations: what the store says now, and nothing that it said before.
func TestRegisteredIncarnations(t *testing.T) {
	store := membertest.NewLocal().Open()
	registered := registeredIn(store)
	expect := func(when string, want member.Instance) {
		t.Helper()
		if got, err := registered(t.Context(), 1); err != nil || got != uint64(want) {
			t.Errorf("%s: %d, %v, want %d", when, got, err, want)
		}
	}
	expect("nobody has joined", 0)
	for range 2 {
		s := member.Server{Index: 1, Instance: member.NewInstance(), Endpoints: []member.Endpoint{{Fabric: "tcp", Addr: "10.0.0.1:7000"}}}
		lease, err := store.Join(t.Context(), s, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		expect("joined, and not admitted", 0)
		if _, err := member.Admit(t.Context(), store, 2, 2, s, member.Claim{}); err != nil {
			t.Fatal(err)
		}
		expect("admitted", s.Instance)
		if err := lease.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		expect("left", 0)
	}
	// A process that holds the lease may be refused by the map: its life proves nothing.
	other := member.Server{Index: 1, Instance: member.NewInstance(), Incarnation: 7, Endpoints: []member.Endpoint{{Fabric: "tcp", Addr: "10.0.0.2:7000"}}}
	lease, err := store.Join(t.Context(), other, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	expect("another life holds the lease", 0)
	if err := lease.Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := registered(t.Context(), 1); err == nil {
		t.Errorf("a store that does not answer: %d and no error", got)
	}
}

// hangingServer is a data server whose Close does not return until it is let.
type hangingServer struct{ let chan struct{} }

func (s hangingServer) Close() error {
	<-s.let
	return nil
}

// TestHangingServerKeepsItsLease: the memory of a data server that does not close
// may still be served, so its lease is not given back: it runs out when the process
// ends.
func TestHangingServerKeepsItsLease(t *testing.T) {
	for _, hangs := range []bool{true, false} {
		ctx, members, let := patience(t), membertest.NewLocal(), make(chan struct{})
		closing := closingTime()
		closing.set(10 * time.Millisecond)
		if !hangs {
			close(let)
			closing.set(time.Minute)
		}
		store := members.Open()
		m, err := Join(ctx, JoinOptions{
			Size: Size{Servers: 1}, Store: store, Addr: "tcp:10.0.0.1:7000", Lease: time.Second, Provider: fakeProvider{},
			around: surroundings{
				closing: closing.get,
				start:   func(server.Config) (dataServer, error) { return hangingServer{let}, nil },
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Close(); errors.Is(err, errNotClosed) != hangs {
			t.Errorf("hangs: %v: %v", hangs, err)
		}
		state, err := store.State(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if held := len(state.Alive) == 1; held != hangs {
			t.Errorf("hangs: %v; it has its lease: %v", hangs, held)
		}
		if hangs {
			close(let)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}
