package cluster

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/member"
	"drtmx/internal/member/membertest"
	"drtmx/rdma/inproc"
	"drtmx/rdma/multi"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// frozenStore is the store of a process that can be paused: its lease is then
// renewed no more and runs out, and the process does not notice.
type frozenStore struct {
	member.Store
	frozen atomic.Bool
	at     atomic.Int64 // the last deadline that the process knows
}

type frozenLease struct {
	member.Lease
	s    *frozenStore
	lost chan struct{}
}

func (s *frozenStore) Join(ctx context.Context, server member.Server, ttl time.Duration) (member.Lease, error) {
	l, err := s.Store.Join(ctx, server, ttl)
	if err != nil {
		return nil, err
	}
	f := &frozenLease{Lease: l, s: s, lost: make(chan struct{})}
	go func() {
		if <-l.Lost(); !s.frozen.Load() {
			close(f.lost)
		}
	}()
	return f, nil
}

func (l *frozenLease) Lost() <-chan struct{} { return l.lost }

func (l *frozenLease) Deadline() time.Duration {
	if !l.s.frozen.Load() {
		l.s.at.Store(int64(l.Lease.Deadline()))
	}
	return time.Duration(l.s.at.Load())
}

// stillStore is the store of a client to which no news come.
type stillStore struct{ member.Store }

func (s stillStore) Watch(ctx context.Context, after member.Revision) (*member.State, error) {
	if after != 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.Store.Watch(ctx, after)
}

// tally is a client that counts in a row, and looks at what is there: no Update may
// be lost or done twice, and no View may show less than what was counted before it.
type tally struct {
	db      *txn.DB
	counted atomic.Int64 // acknowledged
	seen    atomic.Int64 // Views
}

func (y *tally) count(ctx context.Context) error {
	tab, err := y.db.Table("t")
	if err != nil {
		return err
	}
	err = y.db.Update(ctx, func(x *txn.Txn) error {
		row, err := x.Get(tab, tables.Num(1))
		if err != nil {
			return err
		}
		v := tab.Field("v")
		row.SetInt(v, row.Int(v)+1)
		return x.Update(tab, tables.Num(1), row)
	})
	if err == nil {
		y.counted.Add(1)
	}
	return err
}

func (y *tally) look(ctx context.Context, db *txn.DB) (n int64, err error) {
	tab, err := db.Table("t")
	if err != nil {
		return 0, err
	}
	return n, db.View(ctx, func(x *txn.Txn) error {
		row, err := x.Get(tab, tables.Num(1))
		if err == nil {
			n = row.Int(tab.Field("v"))
		}
		return err
	})
}

// TestPlaceOfAPausedServer: a process that is paused for longer than its lease has
// readable memory, in which nothing says so, and answers nothing. When another
// process has its place, clients that hear of it leave the former one, also those
// that wait there for an answer, and lose and repeat nothing. A client that does
// not hear of it gets nothing from the former one's memory.
func TestPlaceOfAPausedServer(t *testing.T) {
	realServers(t)
	ctx, members, dir := patience(t), membertest.NewLocal(), t.TempDir()
	local := inproc.New(inproc.Options{})
	store := &frozenStore{Store: members.Open()}
	options := func(store member.Store, dir, name string) JoinOptions {
		o := durableOptions(t, store, dir, 1, 0, "")
		o.Provider, o.Addr = &multi.Provider{Shm: local}, multi.Address{Shm: name}.String()
		return o
	}
	m, err := Join(ctx, options(store, dir, "@former"))
	if err != nil {
		t.Fatal(err)
	}
	open := func(store member.Store) *txn.DB {
		t.Helper()
		// The in-process fabric stands for shared memory: a paused process there
		// is one whose memory answers READs.
		c, err := connectMembers(ctx, &multi.Provider{Shm: local}, etcdAddress,
			func(context.Context, *member.Location) (member.Store, error) { return store, nil }, true)
		if err != nil {
			t.Fatal(err)
		}
		db, err := txn.Open(ctx, c.Config())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = db.Close(), c.Close() })
		return db
	}
	y := &tally{db: open(members.Open())}
	deaf := open(stillStore{members.Open()})
	if err := put(ctx, y.db, 1); err != nil {
		t.Fatal(err)
	}
	if n, err := y.look(ctx, deaf); err != nil || n != 0 {
		t.Fatalf("%d, %v", n, err)
	}

	var all sync.WaitGroup
	stop := make(chan struct{})
	repeat := func(what string, f func() error) {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(); err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
			}
		})
	}
	for range 2 {
		repeat("an Update", func() error { return y.count(ctx) })
		repeat("a View", func() error {
			before := y.counted.Load()
			n, err := y.look(ctx, y.db)
			if n < before && err == nil {
				t.Errorf("a View shows %d, and %d were counted before it", n, before)
			}
			y.seen.Add(1)
			return err
		})
	}
	more := func(n *atomic.Int64, what string) {
		t.Helper()
		was := n.Load()
		eventually(t, what, func() bool { return n.Load() > was+20 })
	}
	more(&y.counted, "Updates")
	more(&y.seen, "Views")

	// The process is paused, its lease runs out, and a copy of what is on its disk
	// takes the place.
	if err := local.Pause("@former"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "its log is durable and noted", func() bool {
		d, err := store.Durable(ctx, 0)
		return err == nil && d.Log >= m.server.(*server.Server).DurableTo()
	})
	store.frozen.Store(true)
	if err := store.Store.Close(); err != nil {
		t.Fatal(err)
	}
	copied := t.TempDir()
	if err := os.CopyFS(server.ServerDir(copied, 0), os.DirFS(server.ServerDir(dir, 0))); err != nil {
		t.Fatal(err)
	}
	other, err := Join(ctx, options(members.Open(), copied, "@present"))
	if err != nil {
		t.Fatal(err)
	}
	if now := clock.Now(); m.place.holds() {
		t.Errorf("both have the place: the former one until %v, at %v", (*m.place.current.Load()).Deadline(), now)
	}
	more(&y.counted, "Updates at the other process")
	more(&y.seen, "Views at the other process")
	for typed := 0; typed < 3; {
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		n, err := y.look(short, deaf)
		cancel()
		if err == nil {
			t.Errorf("a client that knows the former process alone reads %d there, and %d were counted", n, y.counted.Load())
			break
		}
		var e *txn.Error
		if errors.Is(err, txn.ErrUnavailable) && errors.As(err, &e) && e.Partition == 0 {
			typed++
		}
		if ctx.Err() != nil {
			t.Fatalf("a client that knows the former process alone: %v, want ErrUnavailable of partition 0", err)
		}
	}
	close(stop)
	all.Wait()
	want := y.counted.Load()
	if n, err := y.look(ctx, y.db); err != nil || n != want {
		t.Errorf("%d in the row, %v; %d were counted", n, err, want)
	}
	t.Logf("%d Updates, %d Views", want, y.seen.Load())
	if err := local.Resume("@former"); err != nil {
		t.Error(err)
	}
	if err := errors.Join(other.Close(), closeFormer(m)); err != nil {
		t.Error(err)
	}
}

// closeFormer closes a server whose store is closed.
func closeFormer(m *Member) error {
	if err := m.Close(); err != nil && !errors.Is(err, member.ErrClosed) {
		return err
	}
	return nil
}
