package server

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// crowdSize is more Updates of own sessions than run on their own connections.
const crowdSize = 600

// ownSessions opens sessions of a caller's own.
func ownSessions(t *testing.T, db *txn.DB, n int) []*txn.Session {
	t.Helper()
	all := make([]*txn.Session, n)
	for i := range all {
		s, err := db.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all[i] = s
	}
	return all
}

// crowdOf keeps Updates of own sessions in progress until stop is called. Their
// bodies write nothing.
func crowdOf(t *testing.T, db *txn.DB) (stop func()) {
	t.Helper()
	var began, done sync.WaitGroup
	end := make(chan struct{})
	began.Add(crowdSize)
	for _, s := range ownSessions(t, db, crowdSize) {
		done.Go(func() {
			var once sync.Once
			_ = s.Update(context.Background(), func(*txn.Txn) error {
				once.Do(began.Done)
				<-end
				return nil
			})
			s.Close()
		})
	}
	began.Wait()
	return func() {
		close(end)
		done.Wait()
	}
}

// TestOwnSessionsInUpdates: bodies that run Updates of another own session end,
// however many they are.
func TestOwnSessionsInUpdates(t *testing.T) {
	const n = 700
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	cl, acct, _ := startBank(t, 1)
	putAccounts(t, cl.DB, acct, 2*n, 0)
	outer, inner := ownSessions(t, cl.DB, n), ownSessions(t, cl.DB, n)
	errs := make(chan error, n)
	var began atomic.Int64
	all := make(chan struct{})
	for g := range uint64(n) {
		go func() {
			errs <- outer[g].Update(ctx, func(x *txn.Txn) error {
				if began.Add(1) == n {
					close(all)
				}
				select {
				case <-all:
				case <-ctx.Done():
					return ctx.Err()
				}
				if err := inner[g].Update(ctx, addOne(acct, n+g)); err != nil {
					return err
				}
				return addOne(acct, g)(x)
			})
		}()
	}
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if sum, _, err := total(ctx, cl.DB, acct, 2*n); err != nil || sum < 2*n {
		t.Errorf("total %d, %v, want at least %d", sum, err, 2*n)
	}
}

// TestOwnSessionsThatWaitForLaterOnes: bodies that wait for an Update which began
// after them end.
func TestOwnSessionsThatWaitForLaterOnes(t *testing.T) {
	const n = crowdSize + 400 // of which some hundred wait at the gate
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	cl, acct, _ := startBank(t, 1)
	putAccounts(t, cl.DB, acct, n+1, 0)
	sessions := ownSessions(t, cl.DB, n+1)
	errs := make(chan error, n)
	later := make(chan struct{})
	var began sync.WaitGroup
	began.Add(crowdSize)
	for g := range uint64(n) {
		if g == crowdSize {
			began.Wait()
		}
		go func() {
			var once sync.Once
			errs <- sessions[g].Update(ctx, func(x *txn.Txn) error {
				if g < crowdSize {
					once.Do(began.Done)
				}
				select {
				case <-later:
				case <-ctx.Done():
					return ctx.Err()
				}
				return addOne(acct, g)(x)
			})
		}()
	}
	if err := sessions[n].Update(ctx, addOne(acct, n)); err != nil {
		t.Fatal(err)
	}
	close(later)
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// TestManyOwnSessionsFewConnections: Updates that many own sessions run at the same
// time share few connections, and each session counts what it has run.
func TestManyOwnSessionsFewConnections(t *testing.T) {
	const n = 4500
	c := startOver(t, "inproc", inproc.New(inproc.Options{}), n)
	sessions := ownSessions(t, c.db, n)
	begin := make(chan struct{})
	errs := make(chan error, n)
	for g, s := range sessions {
		go func() {
			<-begin
			errs <- s.Update(t.Context(), addOne(c.acct, uint64(g)))
		}()
	}
	close(begin)
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if dials := c.dials.Load(); dials > n*3/4 {
		t.Errorf("%d connections for %d sessions", dials, n)
	} else {
		t.Logf("%d connections for %d sessions", dials, n)
	}
	var sum rdma.Counters
	for g, s := range sessions {
		st := s.Stats()
		if st.Commits != 1 || st.Fabric.RPCs == 0 || st.Rounds == 0 {
			t.Fatalf("session %d counts %+v after one Update", g, st)
		}
		sum = sum.Add(st.Fabric)
	}
	if all := c.counters(); sum.RPCs > all.RPCs || sum.Reads > all.Reads {
		t.Errorf("the sessions count %d RPCs and %d READs, the connections %d and %d", sum.RPCs, sum.Reads, all.RPCs, all.Reads)
	}
}

// TestOwnSessionInACrowd: a session still runs one transaction at a time, and none
// once it is closed.
func TestOwnSessionInACrowd(t *testing.T) {
	cl, acct, _ := startBank(t, 1)
	putAccounts(t, cl.DB, acct, 4, startBalance)
	defer crowdOf(t, cl.DB)()
	s := ownSessions(t, cl.DB, 1)[0]
	nothing := func(*txn.Txn) error { return nil }
	if err := s.Update(t.Context(), func(*txn.Txn) error {
		_, call := s.Call(t.Context(), 0, "transfer", transferArgs(0, 1, 1))
		for name, err := range map[string]error{
			"Update": s.Update(t.Context(), nothing), "View": s.View(t.Context(), nothing), "Snapshot": s.Snapshot(t.Context(), nothing),
			"Call": call,
		} {
			if !errors.Is(err, txn.ErrClosed) {
				t.Errorf("%s inside an Update of the session: %v, want ErrClosed", name, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := s.Update(t.Context(), nothing); !errors.Is(err, txn.ErrClosed) {
		t.Errorf("Update of a closed session: %v, want ErrClosed", err)
	}
}

// heldConn keeps the first commit back, and says that the connection broke.
type heldConn struct {
	rdma.Conn
	held *atomic.Pointer[[]byte]
}

func (c *heldConn) StartCall(ctx context.Context, req []byte) error {
	kept := append([]byte(nil), req...)
	if wire.Op(req[0]) != wire.OpCommit || !c.held.CompareAndSwap(nil, &kept) {
		return c.Conn.StartCall(ctx, req)
	}
	<-ctx.Done()
	c.Conn.Close()
	return rdma.ErrPeerDown
}

// TestUnknownOutcomeInACrowd: a session whose Update has an unknown outcome settles
// it before its next transaction begins, whatever sessions they run on. A commit
// that arrives later is refused.
func TestUnknownOutcomeInACrowd(t *testing.T) {
	cl, acct, _ := startBank(t, 1)
	putAccounts(t, cl.DB, acct, 4, startBalance)
	net := cl.Servers[0].cfg.Provider
	var held atomic.Pointer[[]byte]
	idle := []byte{}
	held.Store(&idle) // keeps nothing back yet
	db, err := txn.Open(t.Context(), txn.Config{
		Servers: []string{cl.Servers[0].Addr()},
		Dial: func(ctx context.Context, addr string) (rdma.Conn, error) {
			c, err := net.Dial(ctx, addr)
			return &heldConn{c, &held}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	s := ownSessions(t, db, 1)[0]
	if err := s.Update(t.Context(), addOne(acct, 1)); err != nil { // it has a connection
		t.Fatal(err)
	}
	stop := crowdOf(t, db)
	held.Store(nil)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for end := time.Now().Add(testseed.Patience()); held.Load() == nil && time.Now().Before(end); time.Sleep(time.Millisecond) {
		}
		cancel()
	}()
	err = s.Update(ctx, addOne(acct, 2))
	stop()
	var unknown *txn.UnknownOutcome
	if !errors.As(err, &unknown) {
		t.Fatalf("the lost commit: %v, want ErrOutcomeUnknown", err)
	}
	if err := s.Update(t.Context(), addOne(acct, 1)); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial(t.Context(), cl.Servers[0].Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	resp, err := rdma.Call(t.Context(), c, *held.Load(), nil)
	if err != nil || wire.Code(resp[0]) == wire.OK {
		t.Errorf("a commit that arrives after the next transaction of its session: %v, %v; want a refusal", resp, err)
	}
	if err := db.Outcome(t.Context(), unknown.ID); !errors.Is(err, txn.ErrConflict) {
		t.Errorf("its outcome: %v, want ErrConflict", err)
	}
	if err := db.View(t.Context(), func(x *txn.Txn) error {
		row, err := x.Get(acct, tables.Num(2))
		if err == nil && row.Int(acct.Field("balance")) != startBalance {
			t.Error("the late commit took effect")
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
