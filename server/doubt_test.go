package server_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// recoveryBound is the time after a failure within which the survivors have
// settled what was in doubt: the participants' patience with a coordinator that
// is gone, and some rounds of questions. They take 6 s together, on a busy machine
// more.
const recoveryBound = 20 * time.Second

// doubts is a transaction that writes at three servers, the first its home,
// and is disturbed between its prepares and its decisions.
type doubts struct {
	*cluster
	peers *hooks

	mu        sync.Mutex
	restarted []*server.Server
}

// disturb hooks doubts into a cluster. Servers restart in goroutines of other
// servers, so the test alone registers what closes them.
func disturb(t *testing.T, x *cluster, peers *hooks) *doubts {
	d := &doubts{cluster: x, peers: peers}
	t.Cleanup(func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, s := range d.restarted {
			_ = s.Close()
		}
	})
	return d
}

var doubtKeys = []uint64{0, 4, 8} // of the ordered table, at servers 0, 1 and 2

func newDoubts(t *testing.T) *doubts { return newDoubtsIn(t, twophase.Limits{}) }

// newDoubtsIn is newDoubts with tables of the commit protocol of some size.
func newDoubtsIn(t *testing.T, l twophase.Limits) *doubts {
	x, _, peers := startLimited(t, newListSchema(4), 3, txn.Config{Retry: txn.Retry{Attempts: 100000}}, 0, l)
	for i, k := range doubtKeys {
		if home := int(x.s.home(x.DB, inOrdered, k)); home != i {
			t.Fatalf("key %d is at server %d", k, home)
		}
		if err := x.put(inOrdered, k, 1); err != nil {
			t.Fatal(err)
		}
	}
	d := disturb(t, x, peers)
	// Each coordinates once: a server opens its own client of the cluster when
	// it first needs it, and only while all others answer.
	for i := range doubtKeys {
		if err := d.write(1, doubtKeys[i], doubtKeys[(i+1)%3], doubtKeys[(i+2)%3]); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// onDecide runs fn, once, when a decision is about to be sent to a server, and
// loses that decision and all further ones to servers for which lose is true.
func (d *doubts) onDecide(to int, fn func(), lose ...int) {
	done := false
	d.peers.set(func(addr string, op wire.Op, sent bool) error {
		if op != wire.OpDecide || sent {
			return nil
		}
		if addr == d.addrs[to] && !done {
			done = true
			fn()
		}
		for _, l := range lose {
			if addr == d.addrs[l] {
				return errCut
			}
		}
		return nil
	})
}

// prepared waits until each of some servers has one transaction in doubt.
func (d *doubts) prepared(t *testing.T, servers ...*server.Server) {
	t.Helper()
	for end := time.Now().Add(testseed.Patience()); ; time.Sleep(time.Millisecond) {
		left := 0
		for _, s := range servers {
			if s.InDoubt() != 1 {
				left++
			}
		}
		if left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Errorf("%d servers of %d have not one transaction in doubt", left, len(servers))
			return
		}
	}
}

// kill ends a server and starts another in its place: its memory is gone, and
// the others can learn that.
func (d *doubts) kill(t *testing.T, server int) func() {
	return func() { d.restart(t, server) }
}

// write sets the keys in one transaction.
func (d *doubts) write(value uint64, keys ...uint64) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*recoveryBound)
	defer cancel()
	return d.DB.Update(ctx, func(tx *txn.Txn) error {
		for _, k := range keys {
			if err := tx.Put(d.s.tab[inOrdered], tables.Num(k), d.s.row(inOrdered, k, value)); err != nil {
				return err
			}
		}
		return nil
	})
}

// survivors reads what the keys hold once they can be read, and then writes
// them: no lock outlives the bound.
func (d *doubts) survivors(t *testing.T, want uint64, keys ...uint64) {
	t.Helper()
	start := time.Now()
	for _, k := range keys {
		if got, err := d.value(inOrdered, k); err != nil || got != want {
			t.Errorf("key %d is %d, want %d: %v", k, got, want, err)
		}
	}
	if err := d.write(77, keys...); err != nil {
		t.Errorf("a write of the survivors' keys: %v", err)
	}
	if took := time.Since(start); took > recoveryBound {
		t.Errorf("settled after %v, want at most %v", took, recoveryBound)
	} else {
		t.Logf("settled after %v", took.Round(time.Millisecond))
	}
}

// TestInDoubt disturbs a distributed commit between prepare and decide.
func TestInDoubt(t *testing.T) {
	unknown := func(t *testing.T, err error) {
		var lost *txn.UnknownOutcome
		if !errors.As(err, &lost) {
			t.Errorf("the client is told %v, want an unknown outcome", err)
		}
	}
	t.Run("coordinator killed before it told anyone", func(t *testing.T) {
		t.Parallel()
		d := newDoubts(t)
		d.onDecide(1, d.kill(t, 0), 1, 2)
		unknown(t, d.write(5, doubtKeys...))
		d.survivors(t, 1, doubtKeys[1:]...)
	})
	t.Run("coordinator killed after it told one", func(t *testing.T) {
		t.Parallel()
		d := newDoubts(t)
		d.onDecide(2, d.kill(t, 0), 2)
		unknown(t, d.write(5, doubtKeys...))
		d.survivors(t, 5, doubtKeys[1:]...)
	})
	t.Run("participant killed", func(t *testing.T) {
		t.Parallel()
		d := newDoubts(t)
		// The secondary index's entry is at server 1, so server 2 is the one to go.
		d.onDecide(2, d.kill(t, 2))
		if err := d.write(5, doubtKeys...); err != nil {
			t.Errorf("all voted yes: %v", err)
		}
		d.survivors(t, 5, doubtKeys[:2]...)
	})
	t.Run("decisions lost", func(t *testing.T) {
		t.Parallel()
		d := newDoubts(t)
		d.onDecide(1, func() {}, 1, 2)
		if err := d.write(5, doubtKeys...); err != nil {
			t.Errorf("all voted yes: %v", err)
		}
		d.survivors(t, 5, doubtKeys...)
	})
	t.Run("one decision lost once", func(t *testing.T) {
		t.Parallel()
		d := newDoubts(t)
		var mu sync.Mutex
		lost, again := "", false
		d.peers.set(func(addr string, op wire.Op, sent bool) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case op != wire.OpDecide:
			case lost == "":
				lost = addr
				return errCut
			case addr == lost:
				again = true
			}
			return nil
		})
		if err := d.write(5, doubtKeys...); err != nil {
			t.Errorf("all voted yes: %v", err)
		}
		d.survivors(t, 5, doubtKeys...)
		mu.Lock()
		defer mu.Unlock()
		if !again {
			t.Error("the decision was not sent again")
		}
	})
	t.Run("coordinator silent", func(t *testing.T) { testSilentCoordinator(t) })
	t.Run("participant silent", func(t *testing.T) { testSilentParticipant(t) })
}

// testSilentCoordinator: one that does not answer may have decided; nobody may
// decide otherwise meanwhile.
func testSilentCoordinator(t *testing.T) {
	t.Parallel()
	d := newDoubts(t)
	d.onDecide(1, func() { _ = d.net.Pause(d.addrs[0]) }, 1, 2)
	wrote := make(chan error, 1)
	go func() { wrote <- d.write(5, doubtKeys...) }()
	d.prepared(t, d.Servers[1:]...)
	time.Sleep(3500 * time.Millisecond) // longer than one that is gone would be waited for
	left := 0
	for i, s := range d.Servers[1:] {
		n := s.InDoubt()
		if left += n; n != 1 {
			t.Errorf("server %d has %d transactions in doubt, want 1: it decided on its own", i+1, n)
		}
	}
	if err := d.net.Resume(d.addrs[0]); err != nil {
		t.Fatal(err)
	}
	if err := <-wrote; err != nil {
		t.Errorf("all voted yes: %v", err)
	}
	d.survivors(t, 5, doubtKeys...)
}

// testSilentParticipant: one that does not vote is not waited for; the others
// are free, and so is it when it is back.
func testSilentParticipant(t *testing.T) {
	t.Parallel()
	d := newDoubts(t)
	if err := d.write(2, doubtKeys...); err != nil { // all connections are made
		t.Fatal(err)
	}
	if err := d.net.Pause(d.addrs[2]); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if err := d.write(5, doubtKeys...); !errors.Is(err, txn.ErrUnavailable) {
		t.Errorf("a participant does not vote: %v", err)
	}
	if took := time.Since(start); took > recoveryBound {
		t.Errorf("refused after %v", took)
	}
	d.survivors(t, 2, doubtKeys[:2]...)
	if err := d.net.Resume(d.addrs[2]); err != nil {
		t.Fatal(err)
	}
	d.survivors(t, 2, doubtKeys[2])
}
