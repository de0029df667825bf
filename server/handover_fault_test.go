package server_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn"
)

// handKeys of the hash table are at servers 0 and 1: a transaction of both is
// handed over by the first to the second.
var handKeys = []uint64{0, 1}

func newHandovers(t *testing.T) *doubts { return newHandoversIn(t, twophase.Limits{}) }

// newHandoversIn is newHandovers with tables of the commit protocol of some size.
func newHandoversIn(t *testing.T, l twophase.Limits) *doubts {
	t.Parallel()
	x, _, peers := startLimited(t, newListSchema(4), 2, txn.Config{Retry: txn.Retry{Attempts: 100000}}, 0, l)
	d := disturb(t, x, peers)
	for i, k := range handKeys {
		if home := int(x.s.home(x.DB, inHash, k)); home != i {
			t.Fatalf("key %d is at server %d", k, home)
		}
	}
	for _, keys := range [][]uint64{handKeys, {1, 0}} {
		if err := d.hash(context.Background(), 1, keys...); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// hash sets keys of the hash table in one transaction.
func (d *doubts) hash(ctx context.Context, value uint64, keys ...uint64) error {
	ctx, cancel := context.WithTimeout(ctx, 2*recoveryBound)
	defer cancel()
	return d.DB.Update(ctx, func(tx *txn.Txn) error {
		for _, k := range keys {
			if err := tx.Put(d.s.tab[inHash], tables.Num(k), d.s.row(inHash, k, value)); err != nil {
				return err
			}
		}
		return nil
	})
}

// onHandOver breaks the connection, once, around the handing over; fn runs
// before that.
func (d *doubts) onHandOver(sent bool, fn func()) {
	var done atomic.Bool
	d.peers.set(func(_ string, op wire.Op, s bool) error {
		if op != wire.OpHandOver || s != sent || done.Swap(true) {
			return nil
		}
		fn()
		return errCut
	})
}

// left reads and then writes keys: they hold what they should, and no lock
// outlives the bound.
func (d *doubts) left(t *testing.T, want uint64, within time.Duration, keys ...uint64) {
	t.Helper()
	start := time.Now()
	for _, k := range keys {
		if got, err := d.value(inHash, k); err != nil || got != want {
			t.Errorf("key %d is %d, want %d: %v", k, got, want, err)
		}
	}
	if err := d.hash(context.Background(), 77, keys...); err != nil {
		t.Errorf("a write afterwards: %v", err)
	}
	if took := time.Since(start); took > within {
		t.Errorf("settled after %v, want at most %v", took, within)
	}
}

// settles runs a disturbed transaction, which returns what the keys then hold, until
// all is settled as soon as it should be: the machine may be held up once, and not
// each time.
func (d *doubts) settles(t *testing.T, soon time.Duration, run func() (want uint64)) {
	t.Helper()
	for begin := time.Now(); !t.Failed(); {
		want := run()
		start := time.Now()
		d.left(t, want, recoveryBound, handKeys...)
		took := time.Since(start)
		if took <= soon {
			return
		}
		if t.Logf("settled after %v", took); time.Since(begin) > testseed.Patience() {
			t.Errorf("never settled within %v, the last time after %v", soon, took)
		}
	}
}

// TestHandedOver disturbs a transaction around its handing over.
func TestHandedOver(t *testing.T) {
	const soon = 400 * time.Millisecond
	t.Run("answer lost", func(t *testing.T) {
		d := newHandovers(t)
		d.settles(t, soon, func() uint64 {
			d.onHandOver(true, func() {})
			if err := d.hash(context.Background(), 5, handKeys...); err != nil {
				t.Errorf("it was committed: %v", err)
			}
			return 5
		})
	})
	t.Run("request lost", func(t *testing.T) {
		d := newHandovers(t)
		d.settles(t, soon, func() uint64 {
			if err := d.hash(context.Background(), 1, handKeys...); err != nil {
				t.Error(err)
			}
			d.onHandOver(false, func() {})
			if err := d.hash(context.Background(), 5, handKeys...); !errors.Is(err, txn.ErrUnavailable) {
				t.Errorf("nobody saw it: %v", err)
			}
			return 1
		})
	})
	t.Run("the other killed before", func(t *testing.T) {
		d := newHandovers(t)
		d.onHandOver(false, d.kill(t, 1))
		if err := d.hash(context.Background(), 5, handKeys...); !errors.Is(err, txn.ErrUnavailable) {
			t.Errorf("the other is gone: %v", err)
		}
		d.left(t, 1, recoveryBound, handKeys[0])
	})
	t.Run("the other killed after", func(t *testing.T) {
		d := newHandovers(t)
		d.onHandOver(true, d.kill(t, 1))
		if err := d.hash(context.Background(), 5, handKeys...); !errors.Is(err, txn.ErrUnavailable) {
			t.Errorf("the other is gone, and its memory with it: %v", err)
		}
		d.left(t, 1, recoveryBound, handKeys[0])
	})
	t.Run("the home killed after", func(t *testing.T) {
		d := newHandovers(t)
		d.onHandOver(true, d.kill(t, 0))
		var lost *txn.UnknownOutcome
		if err := d.hash(context.Background(), 5, handKeys...); !errors.As(err, &lost) {
			t.Errorf("the client is told %v, want an unknown outcome", err)
		}
		// A write would need the home too, where the row's other index entry is.
		if got, err := d.value(inHash, handKeys[1]); err != nil || got != 5 {
			t.Errorf("the other has %d, want 5: %v", got, err)
		}
		if n := d.Servers[1].InDoubt(); n != 0 {
			t.Errorf("the other has %d transactions in doubt", n)
		}
	})
	t.Run("the other silent", testSilentLastAgent)
}

// testSilentLastAgent: it may have committed, so the home waits for it, and the
// client's deadline is an unknown outcome.
func testSilentLastAgent(t *testing.T) {
	d := newHandovers(t)
	if err := d.net.Pause(d.addrs[1]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
	defer cancel()
	var lost *txn.UnknownOutcome
	err := d.DB.Update(ctx, func(tx *txn.Txn) error {
		for _, k := range handKeys {
			if err := tx.Put(d.s.tab[inHash], tables.Num(k), d.s.row(inHash, k, 5)); err != nil {
				return err
			}
		}
		return nil
	})
	if !errors.As(err, &lost) {
		t.Fatalf("the client is told %v, want an unknown outcome", err)
	}
	if n := d.Servers[0].InDoubt(); n != 1 {
		t.Errorf("the home has %d transactions in doubt, want 1: it decided on its own", n)
	}
	if err := d.net.Resume(d.addrs[1]); err != nil {
		t.Fatal(err)
	}
	got, err := d.value(inHash, handKeys[0])
	if err != nil || got != 1 && got != 5 {
		t.Fatalf("key %d is %d: %v", handKeys[0], got, err)
	}
	d.left(t, got, recoveryBound, handKeys...)
	want := txn.ErrConflict
	if got == 5 {
		want = nil
	}
	if err := d.DB.Outcome(context.Background(), lost.ID); !errors.Is(err, want) || want == nil && err != nil {
		t.Errorf("value %d, outcome %v", got, err)
	}
}
