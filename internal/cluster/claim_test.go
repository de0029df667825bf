package cluster

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/member"
	"drtmx/internal/member/membertest"
	"drtmx/internal/placement"
	"drtmx/rdma/multi"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// awayStore is a store that can be made unreachable for those who join, and tells of
// the maps that are made through it.
type awayStore struct {
	member.Store
	away    atomic.Bool
	swapped atomic.Pointer[func(*member.Map)] // nil: nobody wants to know
}

func (s *awayStore) Swap(ctx context.Context, expected member.MapEpoch, next *member.Map) error {
	err := s.Store.Swap(ctx, expected, next)
	if f := s.swapped.Load(); f != nil && err == nil {
		(*f)(next)
	}
	return err
}

func (s *awayStore) Join(ctx context.Context, server member.Server, ttl time.Duration) (member.Lease, error) {
	if s.away.Load() {
		return nil, member.ErrUnreachable
	}
	return s.Store.Join(ctx, server, ttl)
}

// durableOptions are those of data server i of n, with its data in a directory.
func durableOptions(t testing.TB, store member.Store, dir string, n, i int, host string) JoinOptions {
	t.Helper()
	f, err := NewFabrics(multi.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return JoinOptions{
		Size: Size{Servers: n, DataDir: dir}, Index: placement.Server(i), Store: store, Addr: multi.Address{TCP: host}.String(), Lease: time.Second,
		Provider: f, Workload: Workload{Catalog: trialCatalog(t)}, MemoryBytes: 256 << 20,
	}
}

// startDurable starts all data servers at their hosts.
func startDurable(t testing.TB, ctx context.Context, stores []*awayStore, dir string, hosts []string) []*Member {
	t.Helper()
	all, failed := make([]*Member, len(stores)), make(chan error, len(stores))
	for i, s := range stores {
		o := durableOptions(t, s, dir, len(stores), i, hosts[i])
		go func() {
			var err error
			all[i], err = Join(ctx, o)
			failed <- err
		}()
	}
	for range stores {
		if err := <-failed; err != nil {
			t.Fatal(err)
		}
	}
	for _, m := range all {
		t.Cleanup(func() { _ = m.Close() })
	}
	return all
}

// insertPair inserts two rows, one in each of two partitions, in one transaction.
func insertPair(ctx context.Context, db *txn.DB, key uint64) error {
	tab, err := db.Table("t")
	if err != nil {
		return err
	}
	return db.Update(ctx, func(x *txn.Txn) error {
		if err := x.Insert(tab, tables.Num(key), tab.NewRow()); err != nil {
			return err
		}
		return x.Insert(tab, tables.Num(key+1), tab.NewRow())
	})
}

// TestDurableServersTakeTheirPlaces starts a data server again on its directory,
// at another address. Those who knew it go on with the data that it has recovered.
func TestDurableServersTakeTheirPlaces(t *testing.T) {
	realServers(t)
	ctx, hosts, members, dir := patience(t), freeHosts(t, 3), membertest.NewLocal(), t.TempDir()
	stores := []*awayStore{{Store: members.Open()}, {Store: members.Open()}}
	servers := startDurable(t, ctx, stores, dir, hosts)
	c, err := Connect(ctx, membersOf(members))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	db, err := txn.Open(ctx, c.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for k := uint64(0); k < 16; k += 2 {
		if err := insertPair(ctx, db, k); err != nil {
			t.Fatal(err)
		}
	}
	life, err := registeredIn(stores[0])(ctx, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := servers[1].Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Join(ctx, durableOptions(t, stores[1], dir, 2, 1, hosts[2]))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if r := again.Recovery(); r == nil || r.Rows != 8 {
		t.Errorf("recovered %+v, want 8 rows", r)
	}
	if now, err := registeredIn(stores[0])(ctx, 1); err != nil || now != life || again.place.self.Instance == servers[1].place.self.Instance {
		t.Errorf("its state is known as %x, was %x (instance %v), %v: peers count it as gone", now, life, again.place.self.Instance, err)
	}
	for k := uint64(16); k < 32; k += 2 {
		if err := insertPair(ctx, db, k); err != nil {
			t.Fatalf("a client of before: %v", err)
		}
	}
	tab, _ := db.Table("t")
	for k := range uint64(32) {
		if err := db.View(ctx, func(x *txn.Txn) error { _, err := x.Get(tab, tables.Num(k)); return err }); err != nil {
			t.Errorf("key %d: %v", k, err)
		}
	}
	if err := errors.Join(c.Err(), servers[0].Err(), again.Err()); err != nil {
		t.Errorf("a server that has recovered counts as lost: %v", err)
	}
}

// TestLeaseThatEndsSuspends: while a durable server does not know that it has its
// place, it acknowledges nothing and its memory is refused; it goes on when nobody
// has come, and ends when another copy of its directory was admitted.
func TestLeaseThatEndsSuspends(t *testing.T) {
	realServers(t)
	ctx, hosts, members, dir := patience(t), freeHosts(t, 2), membertest.NewLocal(), t.TempDir()
	store := &awayStore{Store: members.Open()}
	m := startDurable(t, ctx, []*awayStore{store}, dir, hosts)[0]
	c, err := Connect(ctx, membersOf(members))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	db, err := txn.Open(ctx, c.Config())
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := put(ctx, db, 1); err != nil {
		t.Fatal(err)
	}
	lose := func() {
		t.Helper()
		store.away.Store(true)
		if err := store.Evict(ctx, 0, m.place.self.Instance); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the server knows that its lease has ended", func() bool { return !m.place.holds() })
	}
	refused := func(what string, f func(ctx context.Context) error) {
		t.Helper()
		for wait := 300 * time.Millisecond; ; wait *= 2 {
			short, cancel := context.WithTimeout(ctx, wait)
			err := f(short)
			cancel()
			switch {
			case err == nil:
				t.Errorf("%s: answered by a server without a lease", what)
				return
			case errors.Is(err, txn.ErrUnavailable) || errors.Is(err, txn.ErrOutcomeUnknown):
				return
			case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil: // else the time was too short to find out
				t.Errorf("%s: %v, want ErrUnavailable or ErrOutcomeUnknown", what, err)
				return
			}
		}
	}
	tab, _ := db.Table("t")
	get := func(ctx context.Context) error {
		return db.View(ctx, func(x *txn.Txn) error { _, err := x.Get(tab, tables.Num(1)); return err })
	}
	lose()
	refused("view", get)
	refused("commit", func(ctx context.Context) error { return put(ctx, db, 2) })
	if m.Err() != nil {
		t.Error(m.Err())
	}
	store.away.Store(false)
	if err := errors.Join(put(ctx, db, 3), get(ctx)); err != nil {
		t.Errorf("after it has its lease again: %v", err)
	}

	// A copy of the same life takes the place while the server is without a lease. It is
	// made when nothing more can be noted of the server's log.
	lose()
	copied := t.TempDir()
	if err := os.CopyFS(server.ServerDir(copied, 0), os.DirFS(server.ServerDir(dir, 0))); err != nil {
		t.Fatal(err)
	}
	other, err := Join(ctx, durableOptions(t, members.Open(), copied, 1, 0, hosts[1]))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	select {
	case <-m.Lost():
	case <-ctx.Done():
		t.Fatal("a deposed server does not know")
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	store.away.Store(false)
	_, err = Join(ctx, durableOptions(t, store, dir, 1, 0, hosts[0]))
	if !errors.Is(err, member.ErrTaken) && !errors.Is(err, member.ErrPlace) {
		t.Errorf("the former server again: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	before, err := os.ReadFile(server.ServerDir(dir, 0) + "/PLACE")
	if err != nil {
		t.Fatal(err)
	}
	if _, err = Join(ctx, durableOptions(t, store, dir, 1, 0, hosts[0])); !errors.Is(err, member.ErrPlace) {
		t.Errorf("the former server again: %v", err)
	}
	if after, err := os.ReadFile(server.ServerDir(dir, 0) + "/PLACE"); err != nil || string(after) != string(before) {
		t.Errorf("the refusal has changed the directory: %s, %v", after, err)
	}
}

// TestOlderCopyOfALife: a copy of a data directory that was made while its server
// ran is refused when that server has ended, because it lacks what was committed
// since. Nothing is changed, and the directory itself has its place.
func TestOlderCopyOfALife(t *testing.T) {
	realServers(t)
	ctx, hosts, members, dir := patience(t), freeHosts(t, 2), membertest.NewLocal(), t.TempDir()
	store := &awayStore{Store: members.Open()}
	m := startDurable(t, ctx, []*awayStore{store}, dir, hosts)[0]
	c, err := Connect(ctx, membersOf(members))
	if err != nil {
		t.Fatal(err)
	}
	db, err := txn.Open(ctx, c.Config())
	if err != nil {
		t.Fatal(err)
	}
	noted := func() {
		t.Helper()
		eventually(t, "the store knows how far the log is durable", func() bool {
			d, err := store.Durable(ctx, 0)
			return err == nil && d.Log >= m.server.(*server.Server).DurableTo()
		})
	}
	if err := put(ctx, db, 1); err != nil {
		t.Fatal(err)
	}
	noted()
	copied := t.TempDir()
	if err := os.CopyFS(server.ServerDir(copied, 0), os.DirFS(server.ServerDir(dir, 0))); err != nil {
		t.Fatal(err)
	}
	if err := put(ctx, db, 2); err != nil {
		t.Fatal(err)
	}
	noted() // from here on it may be killed
	if err := errors.Join(db.Close(), c.Close(), m.Close()); err != nil {
		t.Fatal(err)
	}
	files := func() string {
		t.Helper()
		b, err := os.ReadFile(server.ServerDir(copied, 0) + "/PLACE")
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	before := files()
	if _, err := Join(ctx, durableOptions(t, store, copied, 1, 0, hosts[1])); !errors.Is(err, member.ErrPlace) {
		t.Fatalf("a copy that lacks a commit: %v, want %v", err, member.ErrPlace)
	}
	if after := files(); after != before {
		t.Errorf("the refusal has changed the directory: %s, was %s", after, before)
	}
	again, err := Join(ctx, durableOptions(t, store, dir, 1, 0, hosts[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if r := again.Recovery(); r == nil || r.Rows != 2 {
		t.Errorf("recovered %+v, want 2 rows", r)
	}
}
