package server_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// TestFencedPartitionServesNoView: the memory of a server that was deposed, or
// stopped, answers READs on; no View may be served from it, not even one of a
// single row, whether or not the client has read there before.
func TestFencedPartitionServesNoView(t *testing.T) {
	x := startCluster(t, newListSchema(4), 3, inproc.Options{}, txn.Config{Retry: txn.Retry{Attempts: 10}})
	defer x.Close()
	ctx := context.Background()
	for table := range 2 {
		for key := range uint64(12) {
			if err := x.put(table, key, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	const fenced = 1
	x.Servers[fenced].Fence(fenced)
	views := map[string]func(table int, key uint64, t *txn.Txn) error{
		"of one row": func(table int, key uint64, t *txn.Txn) error {
			_, err := t.Get(x.s.tab[table], tables.Num(key))
			return err
		},
		"of no row": func(table int, key uint64, t *txn.Txn) error {
			if _, err := t.Get(x.s.tab[table], tables.Num(key+12_000)); !errors.Is(err, txn.ErrNotFound) {
				return err
			}
			return nil
		},
		"of a range": func(_ int, key uint64, t *txn.Txn) error {
			_, err := t.QueueScan(x.s.tab[inOrdered].Primary(), tables.Num(key&^3), tables.Num(key|3), 0).Entries()
			return err
		},
	}
	for table := range 2 {
		for key := range uint64(12) {
			for name, fn := range views {
				there := int(x.s.home(x.DB, table, key)) == fenced
				if name == "of a range" {
					there = int(x.s.home(x.DB, inOrdered, key)) == fenced
				}
				err := x.DB.View(ctx, func(t *txn.Txn) error { return fn(table, key, t) })
				if there && err == nil {
					t.Errorf("a View %s of a fenced partition succeeds", name)
				}
				if !there && err != nil {
					t.Errorf("a View %s elsewhere: %v", name, err)
				}
			}
		}
	}
}

// TestPausedServerIsReadAndNotWritten: a server that is paused, and neither
// deposed nor stopped, cannot take a commit; its rows stay what they are, and
// readable.
func TestPausedServerIsReadAndNotWritten(t *testing.T) {
	x := startCluster(t, newListSchema(4), 1, inproc.Options{}, txn.Config{})
	defer x.Close()
	if err := x.put(inHash, 3, 7); err != nil {
		t.Fatal(err)
	}
	read := func() error {
		return x.DB.View(context.Background(), func(t *txn.Txn) error {
			row, err := t.Get(x.s.tab[inHash], tables.Num(3))
			if err == nil && x.s.first(inHash, row) != 7 {
				err = fmt.Errorf("read %d", x.s.first(inHash, row))
			}
			return err
		})
	}
	if err := read(); err != nil {
		t.Fatal(err)
	}
	if err := x.net.Pause(x.addrs[0]); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if err := read(); err != nil {
			t.Fatal(err)
		}
	}
	var lost *txn.UnknownOutcome
	var err error
	for patience := 20 * time.Millisecond; lost == nil && patience < testseed.Patience(); patience *= 2 { // until it is sent in time
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err = x.DB.Update(ctx, func(t *txn.Txn) error { return t.Put(x.s.tab[inHash], tables.Num(3), x.s.row(inHash, 3, 8)) })
		cancel()
		if !errors.As(err, &lost) && (!errors.Is(err, context.DeadlineExceeded) || errors.Is(err, txn.ErrUnavailable)) {
			break
		}
	}
	if !errors.As(err, &lost) || !errors.Is(err, txn.ErrOutcomeUnknown) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a commit to a paused server: %v", err)
	}
	if err := x.net.Resume(x.addrs[0]); err != nil {
		t.Fatal(err)
	}
	if lost != nil {
		switch err := x.DB.Outcome(context.Background(), lost.ID); {
		case err == nil, errors.Is(err, txn.ErrConflict), errors.Is(err, txn.ErrOutcomeUnknown):
			t.Logf("its outcome: %v", err)
		default:
			t.Errorf("outcome: %v", err)
		}
	}
}

// TestFencedPartitionTakesNoCommit: neither an Update, of one partition or of
// several, nor a procedure changes a partition that is no longer served.
func TestFencedPartitionTakesNoCommit(t *testing.T) {
	x := startCluster(t, newListSchema(4), 2, inproc.Options{}, txn.Config{Retry: txn.Retry{Attempts: 10}})
	defer x.Close()
	ctx := context.Background()
	for key := range uint64(2) {
		if err := x.put(inHash, key, 1); err != nil {
			t.Fatal(err)
		}
	}
	x.Servers[1].Fence(1)
	put := func(keys ...uint64) error {
		return x.DB.Update(ctx, func(tx *txn.Txn) error {
			for _, k := range keys {
				if err := tx.Put(x.s.tab[inHash], tables.Num(k), x.s.row(inHash, k, 2)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for name, err := range map[string]error{
		"an Update there": put(1), "an Update of both": put(0, 1), "an Update of both, handed over the other way": put(1, 0),
	} {
		if !errors.Is(err, txn.ErrUnavailable) {
			t.Errorf("%s: %v, want ErrUnavailable", name, err)
		}
	}
	if _, err := x.DB.Call(ctx, 1, "look", nil); !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("a procedure there: %v, want ErrUnavailable", err)
	}
	if n := x.Servers[0].InDoubt() + x.Servers[1].InDoubt(); n != 0 {
		t.Errorf("%d transactions in doubt", n)
	}
}
