package server_test

import (
	"context"
	"errors"
	"testing"

	"drtmx/internal/history"
	"drtmx/internal/testseed"
	"drtmx/tables"
	"drtmx/txn"
)

// TestSurvivorNamesARestartedServer: a client that does not reach a server which was
// restarted hears of it from the server that runs its procedure, and the error has
// that type, and the server.
func TestSurvivorNamesARestartedServer(t *testing.T) {
	x, client, peers := startHooked(t, newListSchema(4), 2, txn.Config{Retry: txn.Retry{Attempts: 100000}})
	d := disturb(t, x, peers)
	const key = 4 // of the table by hash, at server 0; its entry by key is at server 1
	insert := func(key uint64) error {
		ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
		defer cancel()
		_, err := x.DB.Call(ctx, 0, "run", encodeSteps(nil, []step{{PlanOp: history.PlanOp{Kind: history.OpAppend, Key: history.Key(key), Value: 1}}}))
		return err
	}
	if home := x.s.home(x.DB, inHash, key); home != 0 {
		t.Fatalf("key %d is at server %d", key, home)
	}
	if err := insert(key + 12); err != nil { // all servers know each other
		t.Fatal(err)
	}
	d.restart(t, 1)
	client.mu.Lock()
	client.dial = func(to string) error {
		if to == x.addrs[1] {
			return errCut
		}
		return nil
	}
	client.mu.Unlock()
	var e *tables.Error
	err := insert(key)
	if !errors.Is(err, txn.ErrUnavailable) || !errors.Is(err, txn.ErrRestarted) {
		t.Errorf("an insert whose entry belongs to the restarted server: %v; want %v and %v", err, txn.ErrUnavailable, txn.ErrRestarted)
	}
	if !errors.As(err, &e) || e.Server != x.addrs[1] {
		t.Errorf("%v: want server %s", err, x.addrs[1])
	}
}
