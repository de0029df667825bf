package txn_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// write puts one row of table wide.
func (r *rig) write(ctx context.Context, db *txn.DB, keys ...uint64) error {
	return db.Update(ctx, func(x *txn.Txn) error {
		for _, k := range keys {
			if err := x.Put(r.wide, tables.Num(k), r.wide.NewRow()); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *rig) addrs() (addrs []string) {
	for _, s := range r.Servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

// TestOpenNeedsTheServersTouched opens a database while one server is paused or
// gone, whichever it is, and uses the other.
func TestOpenNeedsTheServersTouched(t *testing.T) {
	for away := range 2 {
		for _, how := range []string{"paused", "killed"} {
			t.Run(fmt.Sprint("server ", away, " ", how), func(t *testing.T) {
				r := newRig(t, 2, txn.Config{}, nil)
				here, there := uint64(1), uint64(boundary+1)
				if away == 0 {
					here, there = there, here
				}
				if err := r.write(t.Context(), r.DB, here, there); err != nil {
					t.Fatal(err)
				}
				if how == "paused" {
					if err := r.net.Pause(r.Servers[away].Addr()); err != nil {
						t.Fatal(err)
					}
					defer func() { _ = r.net.Resume(r.Servers[away].Addr()) }()
				} else if err := r.net.Kill(r.Servers[away].Addr()); err != nil {
					t.Fatal(err)
				}
				start := time.Now()
				db, err := txn.Open(within(t, testseed.Patience()), txn.Config{Servers: r.addrs(), AllServers: true, Dial: r.net.Dial})
				if err != nil {
					t.Fatalf("after %v: %v", time.Since(start), err)
				}
				defer db.Close()
				if err := r.write(within(t, testseed.Patience()), db, here); err != nil {
					t.Errorf("update of the server that is there: %v", err)
				}
				if err := db.View(within(t, testseed.Patience()), func(x *txn.Txn) error { _, err := x.Get(r.wide, tables.Num(here)); return err }); err != nil {
					t.Errorf("view of the server that is there: %v", err)
				}
				if err := r.write(within(t, 200*time.Millisecond), db, there); err == nil {
					t.Error("an update of the server that is away succeeds")
				}
			})
		}
	}
}

// TestOpenWaitsUntilServersHaveMet opens a database over two servers of which one has
// not started. If the other lost its memory, nobody would notice, so it is not used.
func TestOpenWaitsUntilServersHaveMet(t *testing.T) {
	cat, net, addrs := rigCatalog(t), inproc.New(inproc.Options{}), []string{"a", "b"}
	start := func(i int) {
		s, err := server.New(server.Config{Index: i, Addrs: addrs, Catalog: cat, Provider: net, MemoryBytes: 256 << 20})
		if err == nil {
			err = s.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
	}
	start(0)
	config := txn.Config{Servers: addrs, Dial: net.Dial}
	for wait := 50 * time.Millisecond; ; wait *= 2 { // until it is long enough for an answer
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		db, err := txn.Open(ctx, config)
		cancel()
		if err == nil {
			db.Close()
		}
		if errors.Is(err, txn.ErrUnavailable) && strings.Contains(fmt.Sprint(err), "not all other data servers have met it") {
			break
		}
		if !errors.Is(err, txn.ErrUnavailable) || wait > time.Minute {
			t.Fatalf("a database over a server that is alone: %v, want %v", err, txn.ErrUnavailable)
		}
	}
	start(1)
	db, err := txn.Open(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	db.Close()
}

// TestOpenRefusesAReplacedServer restarts one of two in-memory servers: a
// database opened afterwards does not take its empty memory for the data.
func TestOpenRefusesAReplacedServer(t *testing.T) {
	for victim := range 2 {
		t.Run(fmt.Sprint("server ", victim), func(t *testing.T) {
			cat, net, addrs := rigCatalog(t), inproc.New(inproc.Options{}), []string{"a", "b"}
			start := func(i int) *server.Server {
				s, err := server.New(server.Config{Index: i, Addrs: addrs, Catalog: cat, Provider: net, MemoryBytes: 256 << 20})
				if err != nil {
					t.Fatal(err)
				}
				if err := s.Start(); err != nil {
					t.Fatal(err)
				}
				return s
			}
			servers := []*server.Server{start(0), start(1)}
			defer func() {
				for _, s := range servers {
					_ = s.Close()
				}
			}()
			config := txn.Config{Servers: addrs, Dial: net.Dial}
			r := &rig{wide: cat.MustTable("wide")}
			db, err := txn.Open(t.Context(), config)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.write(t.Context(), db, 1, boundary+1); err != nil {
				t.Fatal(err)
			}
			_ = db.Close()
			if err := servers[victim].Close(); err != nil {
				t.Fatal(err)
			}
			servers[victim] = start(victim)
			db, err = txn.Open(t.Context(), config)
			if err == nil {
				key := uint64(1)
				if victim == 1 {
					key = boundary + 1
				}
				err = db.View(t.Context(), func(x *txn.Txn) error { _, err := x.Get(r.wide, tables.Num(key)); return err })
				_ = db.Close()
			}
			if !errors.Is(err, txn.ErrRestarted) {
				t.Fatalf("a database over the restarted server: %v, want %v", err, txn.ErrRestarted)
			}
			for _, s := range servers {
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			servers[0], servers[1] = start(0), start(1)
			for end := time.Now().Add(testseed.Patience()); ; time.Sleep(10 * time.Millisecond) {
				db, err := txn.Open(t.Context(), config) // all are new: the cluster is another, and empty
				if err == nil {
					_ = db.Close()
					return
				}
				if time.Now().After(end) {
					t.Fatalf("all servers were restarted: %v", err)
				}
			}
		})
	}
}

// TestCloseBesideTransactions closes the database while sessions connect and
// work. It is for the race detector.
func TestCloseBesideTransactions(t *testing.T) {
	r := newRig(t, 2, txn.Config{}, nil)
	for range 20 {
		db, err := txn.Open(t.Context(), txn.Config{Servers: r.addrs(), AllServers: true, Dial: r.net.Dial})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for w := range uint64(4) {
			wg.Go(func() {
				for k := w; ; k++ {
					if err := r.write(t.Context(), db, k%16, boundary+k%16); errors.Is(err, txn.ErrClosed) {
						return
					}
				}
			})
		}
		time.Sleep(time.Millisecond)
		if err := db.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

// TestDeadlineBoundsAttempts holds a lock in doubt for longer than any number
// of attempts used to last. A View waits for it up to its deadline; a number of
// attempts is a bound beside it.
func TestDeadlineBoundsAttempts(t *testing.T) {
	r := newRig(t, 2, txn.Config{}, nil)
	if err := r.write(t.Context(), r.DB, 1, boundary+1); err != nil {
		t.Fatal(err)
	}
	read := func(x *txn.Txn) error { _, err := x.Get(r.wide, tables.Num(1)); return err }
	impatient, err := txn.Open(t.Context(), txn.Config{Servers: r.addrs(), AllServers: true, Dial: r.net.Dial, Retry: txn.Retry{Attempts: 2}})
	if err != nil {
		t.Fatal(err)
	}
	defer impatient.Close()
	waiting, err := txn.Open(t.Context(), txn.Config{Servers: r.addrs(), AllServers: true, Dial: r.net.Dial, Retry: txn.Retry{Patience: 100 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	for _, db := range []*txn.DB{impatient, waiting, r.DB} {
		if err := db.View(t.Context(), read); err != nil { // connects
			t.Fatal(err)
		}
	}
	for range 2 { // the servers connect to each other, too
		if err := r.write(t.Context(), r.DB, 1, boundary+1); err != nil {
			t.Fatal(err)
		}
	}
	other := r.Servers[1].Addr()
	if err := r.net.Pause(other); err != nil {
		t.Fatal(err)
	}
	written := make(chan error, 1)
	go func() { written <- r.write(t.Context(), r.DB, 1, boundary+1) }()
	// The home has prepared its share, and waits for the other server.
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		if err := impatient.View(t.Context(), read); errors.Is(err, txn.ErrConflict) {
			break
		}
		if time.Since(start) > testseed.Patience() {
			t.Fatal("the row is never locked")
		}
	}
	if err := impatient.View(within(t, testseed.Patience()), read); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("a View of 20 attempts on a lock in doubt: %v", err)
	}
	if err := waiting.View(t.Context(), read); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("a View without deadline, patience 100 ms, on a lock in doubt: %v", err)
	}
	for d := 300 * time.Millisecond; ; d *= 2 { // until it has met the lock before its deadline
		err := r.DB.View(within(t, d), read)
		if met := errors.Is(err, txn.ErrConflict); !errors.Is(err, context.DeadlineExceeded) || !met && d > testseed.Patience() {
			t.Errorf("a View with a deadline of %v on a lock in doubt: %v", d, err)
			break
		} else if met {
			break
		}
	}
	time.AfterFunc(1800*time.Millisecond, func() { _ = r.net.Resume(other) })
	start := time.Now()
	if err := r.DB.View(within(t, testseed.Patience()), read); err != nil {
		t.Errorf("a View with a deadline of 30 s gives up after %v: %v", time.Since(start), err)
	}
	if err := <-written; err != nil && !errors.Is(err, txn.ErrUnavailable) && !errors.Is(err, txn.ErrOutcomeUnknown) {
		t.Errorf("the update: %v", err)
	}
}

// echo returns a result of the size that its arguments ask for.
func echo(*tables.Catalog) []txn.Procedure {
	return []txn.Procedure{{Name: "echo", Body: func(_ context.Context, _ *txn.Txn, args []byte) ([]byte, error) {
		return bytes.Repeat([]byte{'r'}, 1<<20-1000), nil
	}}}
}

// TestClosedSessionsAreForgotten opens, uses and closes many sessions with
// large results, and keeps as many open: what the server remembers of either is
// bounded.
func TestClosedSessionsAreForgotten(t *testing.T) {
	r := newRig(t, 1, txn.Config{}, echo)
	open := make([]*txn.Session, 0, 200)
	for i := range 400 {
		s, err := r.DB.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Call(t.Context(), 0, "echo", nil); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			open = append(open, s)
		} else if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	st := r.Servers[0].Stats()
	if st.OutcomeBytes > 64<<20 || st.Outcomes > 400 {
		t.Errorf("200 sessions open and 200 closed: %d answers kept, %d MiB", st.Outcomes, st.OutcomeBytes>>20)
	}
	for _, s := range open {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if st := r.Servers[0].Stats(); st.OutcomeBytes > 64<<10 {
		t.Errorf("all sessions closed: %d answers kept, %d bytes", st.Outcomes, st.OutcomeBytes)
	}
}
