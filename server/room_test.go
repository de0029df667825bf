package server

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// narrow is a fabric whose servers take few connections each.
type narrow struct {
	max   int
	mu    sync.Mutex
	open  map[string]int
	dials atomic.Int64 // that were refused
}

type narrowConn struct {
	rdma.Conn
	close func()
}

func (c *narrowConn) Close() error {
	c.close()
	return c.Conn.Close()
}

// openNarrow opens a database of a cluster whose servers take max connections each.
func openNarrow(t *testing.T, cl *Cluster, most int, retry txn.Retry) (*txn.DB, *narrow) {
	t.Helper()
	n := &narrow{max: most, open: map[string]int{}}
	var addrs []string
	for _, s := range cl.Servers {
		addrs = append(addrs, s.Addr())
	}
	db, err := txn.Open(t.Context(), txn.Config{Servers: addrs, Retry: retry, Dial: func(ctx context.Context, addr string) (rdma.Conn, error) {
		n.mu.Lock()
		if n.open[addr] == n.max {
			n.mu.Unlock()
			n.dials.Add(1)
			return nil, rdma.ErrBusy
		}
		n.open[addr]++
		n.mu.Unlock()
		leave := sync.OnceFunc(func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.open[addr]--
		})
		c, err := cl.Servers[0].cfg.Provider.Dial(ctx, addr)
		if err != nil {
			leave()
			return nil, err
		}
		return &narrowConn{c, leave}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		db.Close()
		n.mu.Lock()
		defer n.mu.Unlock()
		for addr, left := range n.open {
			if left != 0 {
				t.Errorf("%d connections to %s outlive the database", left, addr)
			}
		}
	})
	return db, n
}

// TestTransactionsWaitForConnections: more goroutines than the servers take
// connections from run transactions of every kind, with sessions of the pool and
// with their own, at two servers in either order. All end, and few dials are refused.
func TestTransactionsWaitForConnections(t *testing.T) {
	const most, goroutines, each, accounts = 5, 60, 10, 8
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	cl, acct, _ := startBank(t, 2)
	putAccounts(t, cl.DB, acct, accounts, startBalance)
	db, net := openNarrow(t, cl, most, txn.Retry{})
	errs := make(chan error, goroutines)
	for g := range uint64(goroutines) {
		go func() {
			update, view := db.Update, db.View
			call := db.Call
			if g%2 == 0 {
				s, err := db.NewSession(ctx)
				if err != nil {
					errs <- err
					return
				}
				defer s.Close()
				update, view, call = s.Update, s.View, s.Call
			}
			errs <- func() error {
				for n := range uint64(each) {
					a, b := (g+n)%accounts, (g+n+1)%accounts // of different servers
					if err := view(ctx, func(x *txn.Txn) error {
						if _, err := x.Get(acct, tables.Num(a)); err != nil {
							return err
						}
						_, err := x.Get(acct, tables.Num(b))
						return err
					}); err != nil {
						return fmt.Errorf("View: %w", err)
					}
					if err := update(ctx, addOne(acct, a)); err != nil {
						return fmt.Errorf("Update: %w", err)
					}
					if _, err := call(ctx, txn.Home(b%2), "transfer", transferArgs(a, b, 1)); err != nil {
						return fmt.Errorf("Call: %w", err)
					}
				}
				return nil
			}()
		}()
	}
	for range goroutines {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if sum, _, err := total(ctx, cl.DB, acct, accounts); err != nil || sum != accounts*startBalance+goroutines*each {
		t.Errorf("total %d, %v, want %d", sum, err, accounts*startBalance+goroutines*each)
	}
	t.Logf("%d dials were refused", net.dials.Load())
}

// TestWaitsForConnectionsEnd: a transaction that waits for a connection ends with
// its context, and says for what it has waited.
func TestWaitsForConnectionsEnd(t *testing.T) {
	const most = 3
	cl, acct, _ := startBank(t, 1)
	putAccounts(t, cl.DB, acct, 4, startBalance)
	db, _ := openNarrow(t, cl, most, txn.Retry{})
	get := func(x *txn.Txn) error {
		_, err := x.Get(acct, tables.Num(1))
		return err
	}
	var began, done sync.WaitGroup
	end := make(chan struct{})
	began.Add(most)
	for range most {
		done.Go(func() {
			var once sync.Once
			if err := db.View(t.Context(), func(x *txn.Txn) error {
				err := get(x)
				once.Do(began.Done)
				<-end
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
	began.Wait()
	for patience := 100 * time.Millisecond; ; patience *= 2 { // until a dial is refused before the end
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		err := db.View(ctx, get)
		cancel()
		busy := errors.Is(err, rdma.ErrBusy) && errors.Is(err, txn.ErrUnavailable)
		if !errors.Is(err, context.DeadlineExceeded) || !busy && patience > testseed.Patience() {
			t.Errorf("View without a connection: %v, want the end of its context, ErrUnavailable and ErrBusy", err)
			break
		} else if busy {
			break
		}
	}
	later := make(chan error)
	go func() { later <- db.View(t.Context(), get) }()
	close(end)
	if err := <-later; err != nil {
		t.Errorf("View when there are connections again: %v", err)
	}
	done.Wait()
}

// TestErrorsOfBodiesAreNoLackOfRoom: a body that returns the error of another
// database, which had no connection, ends with that error: its own database lacks
// none.
func TestErrorsOfBodiesAreNoLackOfRoom(t *testing.T) {
	cl, acct, _ := startBank(t, 1)
	putAccounts(t, cl.DB, acct, 1, 0)
	foreign := fmt.Errorf("another database: %w", rdma.ErrBusy)
	body := func(x *txn.Txn) error {
		if _, err := x.Get(acct, tables.Num(0)); err != nil {
			return err
		}
		return foreign
	}
	if err := cl.DB.Update(t.Context(), body); !errors.Is(err, foreign) {
		t.Errorf("Update: %v, want %v", err, foreign)
	}
	if err := cl.DB.View(t.Context(), body); !errors.Is(err, foreign) {
		t.Errorf("View: %v, want %v", err, foreign)
	}
}

// TestIdleSessionsKeepNoDials: connections that were being made when the
// transactions that needed them gave up do not keep others out.
func TestIdleSessionsKeepNoDials(t *testing.T) {
	const most = 3
	cl, acct, _ := startBank(t, 1)
	putAccounts(t, cl.DB, acct, 4, startBalance)
	var slow atomic.Bool
	var open, dials atomic.Int64
	release := make(chan struct{})
	db, err := txn.Open(t.Context(), txn.Config{Servers: []string{cl.Servers[0].Addr()}, Dial: func(ctx context.Context, addr string) (rdma.Conn, error) {
		if slow.Load() {
			dials.Add(1)
			<-release
		}
		if open.Add(1) > most {
			open.Add(-1)
			return nil, rdma.ErrBusy
		}
		leave := sync.OnceFunc(func() { open.Add(-1) })
		c, err := cl.Servers[0].cfg.Provider.Dial(ctx, addr)
		if err != nil {
			leave()
			return nil, err
		}
		return &narrowConn{c, leave}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	get := func(x *txn.Txn) error {
		_, err := x.Get(acct, tables.Num(1))
		return err
	}
	slow.Store(true)
	var gaveUp sync.WaitGroup
	short, giveUp := context.WithCancel(t.Context())
	for range most {
		gaveUp.Go(func() {
			if err := db.View(short, get); !errors.Is(err, context.Canceled) {
				t.Errorf("a View that gives up: %v", err)
			}
		})
	}
	for end := time.Now().Add(testseed.Patience()); dials.Load() < most && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	giveUp()
	gaveUp.Wait()
	slow.Store(false)
	close(release)
	for end := time.Now().Add(testseed.Patience()); open.Load() < dials.Load() && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	t.Logf("%d dials, %d connections, no transaction", dials.Load(), open.Load())
	s, err := db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	if err := s.View(ctx, get); err != nil {
		t.Errorf("a View while all connections are idle: %v", err)
	}
}

// TestAttemptsBesideAFullServer: attempts before and after a wait for a connection
// count together.
func TestAttemptsBesideAFullServer(t *testing.T) {
	const attempts, here, there = 3, 2, 1 // the accounts are of different servers
	cl, acct, _ := startBank(t, 2)
	putAccounts(t, cl.DB, acct, 4, startBalance)
	db, _ := openNarrow(t, cl, 1, txn.Retry{Attempts: attempts})
	get := func(x *txn.Txn, id uint64) error {
		_, err := x.Get(acct, tables.Num(id))
		return err
	}
	began, end, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() { // has the only connection to one of the servers
		ended <- db.View(t.Context(), func(x *txn.Txn) error {
			err := get(x, there)
			close(began)
			<-end
			return err
		})
	}()
	<-began
	runs := 0
	err := db.Update(t.Context(), func(x *txn.Txn) error {
		if runs++; runs == attempts {
			err := get(x, there)
			if !errors.Is(err, rdma.ErrBusy) {
				t.Errorf("a server that takes no more connections: %v, want ErrBusy", err)
			}
			close(end)
			return err
		}
		if err := get(x, here); err != nil {
			return err
		}
		if err := cl.DB.Update(t.Context(), addOne(acct, here)); err != nil {
			return err
		}
		return addOne(acct, here)(x)
	})
	if !errors.Is(err, txn.ErrConflict) || runs != attempts+1 {
		t.Errorf("an Update of %d attempts ran %d times, once without a connection: %v", attempts, runs, err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
