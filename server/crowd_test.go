package server

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// addOne is the body of a transaction that adds 1 to an account.
func addOne(acct *tables.Table, id uint64) func(*txn.Txn) error {
	return func(x *txn.Txn) error {
		row, err := x.Get(acct, tables.Num(id))
		if err != nil {
			return err
		}
		row = row.Clone()
		row.SetInt(acct.Field("balance"), row.Int(acct.Field("balance"))+1)
		return x.Update(acct, tables.Num(id), row)
	}
}

// TestUpdatesInUpdates: bodies that run Updates of their own end, however many
// they are.
func TestUpdatesInUpdates(t *testing.T) {
	const n = 700
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	cl, acct, _ := startBank(t, 1)
	putAccounts(t, cl.DB, acct, 2*n, 0)
	errs := make(chan error, n)
	var began atomic.Int64
	all := make(chan struct{})
	for g := range uint64(n) {
		go func() {
			errs <- cl.DB.Update(ctx, func(x *txn.Txn) error {
				if began.Add(1) == n {
					close(all)
				}
				select {
				case <-all:
				case <-ctx.Done():
					return ctx.Err()
				}
				if err := cl.DB.Update(ctx, addOne(acct, n+g)); err != nil {
					return fmt.Errorf("inside: %w", err)
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

// TestBodiesThatWaitForLaterUpdates: bodies that wait for an Update which began
// after them, and so waits behind them, end. Views pass Updates that wait.
func TestBodiesThatWaitForLaterUpdates(t *testing.T) {
	const n = 700
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	cl, acct, _ := startBank(t, 1)
	putAccounts(t, cl.DB, acct, n+1, 0)
	errs := make(chan error, n)
	var began sync.WaitGroup
	began.Add(100)
	later := make(chan struct{})
	for g := range uint64(n) {
		if g == n-100 {
			time.Sleep(time.Millisecond) // most of the others are waiting, or inside
		}
		go func() {
			errs <- cl.DB.Update(ctx, func(x *txn.Txn) error {
				if g < 100 {
					began.Done()
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
	all := make(chan struct{})
	go func() { began.Wait(); close(all) }()
	select {
	case <-all:
	case <-ctx.Done():
		t.Fatalf("bodies wait to begin: %v", ctx.Err())
	}
	if _, _, err := total(ctx, cl.DB, acct, n); err != nil {
		t.Errorf("a View beside Updates that wait: %v", err)
	}
	if err := cl.DB.Update(ctx, addOne(acct, n)); err != nil {
		t.Fatal(err)
	}
	close(later)
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
}

// TestManyUpdatesFewConnections: the Updates of many goroutines share few
// connections, so that a server's bound on them does not make Updates fail.
func TestManyUpdatesFewConnections(t *testing.T) {
	const n = 4500
	c := startOver(t, "inproc", inproc.New(inproc.Options{}), n)
	begin := make(chan struct{})
	errs := make(chan error, n)
	for g := range uint64(n) {
		go func() {
			<-begin
			errs <- c.db.Update(t.Context(), addOne(c.acct, g))
		}()
	}
	close(begin)
	for range n {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	if dials := c.dials.Load(); dials > n*3/4 {
		t.Errorf("%d connections for %d goroutines", dials, n)
	} else {
		t.Logf("%d connections for %d goroutines", dials, n)
	}
}
