package server

import (
	"context"
	"testing"
	"time"

	"drtmx/internal/testseed"
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
