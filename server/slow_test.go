package server

import (
	"context"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// TestLongProcedureHoldsUpNoOthers: while a procedure that is known to be long
// holds the executor of its partition, a transaction of another partition of the
// server commits, rows are read, and a commit of the same partition waits
// without the poller.
func TestLongProcedureHoldsUpNoOthers(t *testing.T) {
	ctx, cat := context.Background(), bank(t)
	started, release := make(chan bool, 8), make(chan bool)
	cl, err := Embedded(ctx, EmbeddedConfig{Catalog: cat, Servers: 1, Partitions: 2, Procedures: []txn.Procedure{{
		Name: "long", Body: func(context.Context, *txn.Txn, []byte) ([]byte, error) {
			started <- true
			<-release
			return nil, nil
		},
	}, transferProcedure(cat)}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	defer close(release) // a test that fails ends the procedures
	acct := cat.MustTable("account")
	putAccounts(t, cl.DB, acct, 8, startBalance)
	long := func() <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := cl.DB.Call(ctx, 0, "long", nil)
			done <- err
		}()
		<-started
		return done
	}
	within := func(what string, done <-chan error) {
		t.Helper()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		case <-time.After(testseed.Patience()):
			t.Fatalf("%s is held up by a long procedure", what)
		}
	}
	run := func(fn func() error) <-chan error {
		done := make(chan error, 1)
		go func() { done <- fn() }()
		return done
	}
	s := cl.Servers[0]
	first := long() // nobody knows yet
	for end := time.Now().Add(testseed.Patience()); s.slow.known.Load() == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("a long procedure is not noticed")
		}
	}
	release <- true
	within("the first call", first)

	second := long()
	same := run(func() error {
		return cl.DB.Update(ctx, func(tx *txn.Txn) error { return deposit(tx, acct, 0, 2) })
	})
	within("a procedure of another partition", run(func() error {
		_, err := cl.DB.Call(ctx, 1, "transfer", transferArgs(1, 3, 10))
		return err
	}))
	within("an Update of another partition", run(func() error {
		return cl.DB.Update(ctx, func(tx *txn.Txn) error { return deposit(tx, acct, 1, 3) })
	}))
	within("a View", run(func() error {
		return cl.DB.View(ctx, func(tx *txn.Txn) error { _, err := tx.Get(acct, tables.Num(0)); return err })
	}))
	within("statistics of the server", run(func() error { s.ownStats(); return nil }))
	select {
	case err := <-same:
		t.Errorf("an Update of the same partition has not waited: %v", err)
	case err := <-second:
		t.Errorf("the long procedure has ended: %v", err)
	default:
	}
	release <- true
	within("the second call", second)
	within("an Update of the same partition", same)
}

// opConn tells of requests of a kind that it has sent.
type opConn struct {
	rdma.Conn
	op   wire.Op
	sent chan<- struct{}
}

// StartCall implements rdma.Conn.
func (c *opConn) StartCall(ctx context.Context, req []byte) error {
	err := c.Conn.StartCall(ctx, req)
	if wire.Op(req[0]) == c.op {
		select {
		case c.sent <- struct{}{}:
		default:
		}
	}
	return err
}

// TestLongProcedureBesideWriters: a client that is about to write an index itself waits for a long procedure
// of the partition, and holds up nobody.
func TestLongProcedureBesideWriters(t *testing.T) {
	ctx, net, cat := t.Context(), inproc.New(inproc.Options{}), mixedCatalog(t)
	started, release := make(chan bool, 8), make(chan bool)
	cl, err := Embedded(ctx, EmbeddedConfig{Catalog: cat, Servers: 1, Partitions: 2, Network: net, Procedures: []txn.Procedure{{
		Name: "long", Body: func(context.Context, *txn.Txn, []byte) ([]byte, error) {
			started <- true
			<-release
			return nil, nil
		},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	defer close(release) // a test that fails ends the procedures
	loadMixed(t, cl, cat, func(uint64) int64 { return 0 })
	called, s := make(chan error, 2), cl.Servers[0]
	for range 2 { // it is known to be long when it runs again
		go func() {
			_, err := cl.DB.Call(ctx, 0, "long", nil)
			called <- err
		}()
		<-started
		for s.slow.known.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		if len(called) == 0 && s.slow.running.Load() == 0 {
			release <- true
			if err := <-called; err != nil {
				t.Fatal(err)
			}
		}
	}
	sent, c := make(chan struct{}, 1), patient()
	c.Servers = []string{s.Addr()}
	c.Dial = func(ctx context.Context, addr string) (rdma.Conn, error) {
		conn, err := net.Dial(ctx, addr)
		return &opConn{conn, wire.OpWriter, sent}, err
	}
	db, err := txn.Open(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	tab, here, other := cat.MustTable("written"), uint64(0), uint64(1)
	if home, err := db.Home(tab, tables.Num(here)); err != nil || home != 0 {
		here, other = other, here
	}
	waits := make(chan error, 1)
	go func() { waits <- putN(db, tab, here, 1) }()
	<-sent
	done := make(chan error, 1)
	go func() { done <- putN(cl.DB, cat.MustTable("kept"), other, 1) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(testseed.Patience()):
		t.Fatal("an Update of another partition is held up")
	}
	release <- true
	for _, c := range []chan error{called, waits} {
		if err := <-c; err != nil {
			t.Error(err)
		}
	}
}
