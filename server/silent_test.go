package server_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn"
)

// TestSilentServerFillsNoTables: a server votes for transactions, and then hears of
// no decision and answers nothing for as long as two others commit many more
// transactions than the tables of the commit protocol have room for. Each commits.
func TestSilentServerFillsNoTables(t *testing.T) {
	limits := twophase.Limits{Open: 16, Kept: 64}
	d := newDoubtsIn(t, limits)
	d.peers.set(func(addr string, op wire.Op, sent bool) error {
		if op == wire.OpDecide && addr == d.addrs[2] {
			return errCut
		}
		return nil
	})
	// Each of the first two coordinates one, and hands none over to the third.
	for i, keys := range [][]uint64{{0, 8, 4}, {4 + 1, 8 + 1, 0 + 1}} {
		if err := d.write(uint64(10+i), keys...); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.net.Pause(d.addrs[2]); err != nil {
		t.Fatal(err)
	}
	pinned := d.Servers[2].InDoubt()
	if pinned == 0 {
		t.Error("the paused server waits for no decision")
	}
	for n := range 4 * limits.Kept {
		keys := []uint64{2, 4 + 2}
		if n%2 == 1 {
			keys[0], keys[1] = keys[1], keys[0]
		}
		if err := d.write(uint64(n), keys...); err != nil {
			t.Fatalf("transaction %d of the other servers: %v", n, err)
		}
	}
	t.Logf("%d transactions of the others beside %d that the paused server has not acknowledged", 4*limits.Kept, pinned)
	d.peers.set(nil)
	if err := d.net.Resume(d.addrs[2]); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(testseed.Patience()); d.Servers[2].InDoubt() > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the server stays in doubt after its pause")
		}
	}
	if err := d.write(1000, doubtKeys...); err != nil {
		t.Error(err)
	}
}

// TestFullTableWaits: clients commit all at once, over the same servers, whose tables
// have room for one transaction that waits and for few that are kept. Each commits: it
// waits for room.
func TestFullTableWaits(t *testing.T) {
	d := newDoubtsIn(t, twophase.Limits{Open: 1, Kept: 4})
	const clients, each = 8, 20
	errs := make([]error, clients)
	var wg sync.WaitGroup
	for c := range clients {
		wg.Go(func() {
			for n := range each {
				// Keys of its own; both servers coordinate.
				keys := []uint64{12 * uint64(1+c), 12*uint64(1+c) + 4}
				if n%2 == 1 {
					keys[0], keys[1] = keys[1], keys[0]
				}
				if err := d.write(uint64(n), keys...); err != nil {
					errs[c] = fmt.Errorf("transaction %d of client %d: %w", n, c, err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Error(err)
	}
}

// TestFullTableWaitsNotForEver: a server takes part in a transaction and is silent. The
// table has no room for another one with it. A client that commits one hears that the
// server does not answer, and transactions of the other servers commit.
func TestFullTableWaitsNotForEver(t *testing.T) {
	d := newDoubtsIn(t, twophase.Limits{Open: 1, Kept: 4})
	d.peers.set(func(addr string, op wire.Op, _ bool) error {
		if op == wire.OpDecide && addr == d.addrs[2] {
			return errCut
		}
		return nil
	})
	if err := d.write(10, 0, 4, 8); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	err := d.DB.Update(ctx, func(tx *txn.Txn) error {
		for _, k := range []uint64{1, 4 + 1, 8 + 1} {
			if err := tx.Put(d.s.tab[inOrdered], tables.Num(k), d.s.row(inOrdered, k, 11)); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.Is(err, txn.ErrUnavailable) || ctx.Err() != nil {
		t.Errorf("%v: want %v before the deadline", err, txn.ErrUnavailable)
	}
	if err := d.write(12, 2, 4+2); err != nil {
		t.Errorf("a transaction of the other servers: %v", err)
	}
	d.peers.set(nil)
	if err := d.write(13, doubtKeys...); err != nil {
		t.Errorf("when the server answers again: %v", err)
	}
}
