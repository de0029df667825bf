package server_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/server"
	"drtmx/txn"
)

// restart ends a server, with its memory, and starts another at its address.
func (d *doubts) restart(t *testing.T, at int) {
	t.Helper()
	if err := d.net.Kill(d.addrs[at]); err != nil {
		t.Error(err)
	}
	srv, err := server.New(server.Config{
		Index: at, Addrs: d.addrs, Catalog: d.s.cat, Procedures: d.s.procedures(), Provider: d.peers, MemoryBytes: 1 << 28,
	})
	if err != nil {
		t.Error(err)
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.restarted = append(d.restarted, srv)
	if err := srv.Start(); err != nil {
		t.Error(err)
	}
}

// dialErrors are ways in which a dial fails. None of them tells whether the
// server at that address still has its memory.
var dialErrors = map[string]error{
	"nobody listens":      fmt.Errorf("%w: %w", rdma.ErrAddress, syscall.ECONNREFUSED),
	"no descriptors left": fmt.Errorf("%w: %w", rdma.ErrAddress, syscall.EMFILE),
	"unreachable network": fmt.Errorf("%w: %w", rdma.ErrAddress, syscall.ENETUNREACH),
	"name not resolved":   fmt.Errorf("%w: no such host", rdma.ErrAddress),
	"accept queue full":   fmt.Errorf("%w: %w", rdma.ErrAddress, syscall.EAGAIN),
	"timeout":             context.DeadlineExceeded,
}

// TestDialErrorsProveNothing: a participant that cannot dial its coordinator
// does not decide alone, however the dial fails. The coordinator lives, and has
// committed.
func TestDialErrorsProveNothing(t *testing.T) {
	for name, failure := range dialErrors {
		t.Run("participant, "+name, func(t *testing.T) {
			t.Parallel()
			d := newDoubts(t)
			var failing atomic.Bool
			d.peers.set(func(addr string, op wire.Op, sent bool) error {
				switch {
				case op == wire.OpDecide && addr != d.addrs[0]:
					failing.Store(true)
					d.failDials(failure)
					return errCut
				case op == wire.OpResolve && failing.Load():
					return errCut // over a connection there was before
				}
				return nil
			})
			wrote := make(chan error, 1)
			go func() { wrote <- d.write(5, doubtKeys...) }()
			d.prepared(t, d.Servers[1:]...)
			time.Sleep(3500 * time.Millisecond)
			for i, s := range d.Servers[1:] {
				if n := s.InDoubt(); n != 1 {
					t.Errorf("server %d has %d transactions in doubt, want 1: it decided on its own", i+1, n)
				}
			}
			d.failDials(nil)
			d.peers.set(nil)
			if err := <-wrote; err != nil {
				t.Errorf("all voted yes: %v", err)
			}
			d.survivors(t, 5, doubtKeys...)
		})
		t.Run("home of a hand-over, "+name, func(t *testing.T) {
			d := newHandovers(t)
			d.onHandOver(true, func() { d.failDials(failure) })
			wrote := make(chan error, 1)
			go func() { wrote <- d.hash(context.Background(), 5, handKeys...) }()
			d.prepared(t, d.Servers[0])
			time.Sleep(3500 * time.Millisecond)
			if n := d.Servers[0].InDoubt(); n != 1 {
				t.Errorf("the home has %d transactions in doubt, want 1: it decided on its own", n)
			}
			d.failDials(nil)
			if err := <-wrote; err != nil {
				t.Errorf("the other committed: %v", err)
			}
			d.left(t, 5, recoveryBound, handKeys...)
		})
	}
}

// TestMembershipProvesThatMemoryIsGone: participants whose coordinator is
// killed and not replaced at its address stay in doubt until the membership
// store names another incarnation in its place.
func TestMembershipProvesThatMemoryIsGone(t *testing.T) {
	d := newDoubts(t)
	d.onDecide(1, func() {
		if err := d.net.Kill(d.addrs[0]); err != nil {
			t.Error(err)
		}
	}, 1, 2)
	var lost *txn.UnknownOutcome
	if err := d.write(5, doubtKeys...); !errors.As(err, &lost) {
		t.Errorf("the coordinator is killed before it told anyone: %v, want an unknown outcome", err)
	}
	time.Sleep(3 * time.Second)
	for i, s := range d.Servers[1:] {
		if n := s.InDoubt(); n != 1 {
			t.Errorf("server %d has %d transactions in doubt, want 1: nothing proves that the coordinator's memory is gone", i+1, n)
		}
	}
	d.peers.instances.Store(0, uint64(4242))
	d.survivors(t, 1, doubtKeys[1:]...)
}

// failDials makes every dial between servers fail.
func (d *doubts) failDials(err error) {
	d.peers.mu.Lock()
	defer d.peers.mu.Unlock()
	d.peers.dial = func(string) error { return err }
}

// flood commits transactions of two keys, so many that any memory of a bounded
// number of decisions would have lost the first.
func (d *doubts) flood(t *testing.T, keys ...uint64) {
	t.Helper()
	const decisions, workers = 70_000, 4
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for range decisions / workers {
				if err := d.hash(context.Background(), uint64(w), keys[0]+12*uint64(w), keys[1]+12*uint64(w)); err != nil {
					t.Errorf("flood: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
}

func needTimeForFloods(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("short: a flood of transactions takes long beside the race detector, which other tests give the same ones")
	}
}

// TestLateHandOverPastManyDecisions: a hand-over that was answered to be
// aborted is refused when it comes after all, however many decisions have been
// made meanwhile.
func TestLateHandOverPastManyDecisions(t *testing.T) {
	needTimeForFloods(t)
	d := newHandovers(t)
	var late []byte
	d.peers.mu.Lock()
	d.peers.request = func(_ string, req []byte) {
		if wire.Op(req[0]) == wire.OpHandOver && late == nil {
			late = append([]byte(nil), req...)
		}
	}
	d.peers.mu.Unlock()
	d.onHandOver(false, func() {})
	if err := d.hash(context.Background(), 5, handKeys...); !errors.Is(err, txn.ErrUnavailable) {
		t.Fatalf("the request was lost: %v", err)
	}
	d.peers.mu.Lock()
	d.peers.request = nil
	d.peers.mu.Unlock()
	d.flood(t, 12, 13) // other keys at the same servers: see newHandovers
	conn, err := d.net.Dial(context.Background(), d.addrs[1])
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, err := rdma.Call(context.Background(), conn, late, nil)
	if err != nil {
		t.Fatal(err)
	}
	if wire.Code(resp[0]) == wire.OK {
		t.Errorf("a hand-over that was answered to be aborted is committed, when it comes late: %x", resp)
	}
	if got, err := d.value(inHash, handKeys[1]); err != nil || got != 1 {
		t.Errorf("key %d is %d, want 1: %v", handKeys[1], got, err)
	}
}

// TestCommitIsRememberedPastManyDecisions: one survivor knows of a commit, the
// coordinator is gone with its memory, and the other survivor asks only after
// many other decisions.
func TestCommitIsRememberedPastManyDecisions(t *testing.T) {
	t.Parallel()
	needTimeForFloods(t)
	d := newDoubts(t)
	var cut sync.Map // addresses that questions do not reach
	done := false
	d.peers.set(func(addr string, op wire.Op, sent bool) error {
		if sent {
			return nil
		}
		if _, is := cut.Load(addr); is && op == wire.OpResolve {
			return errCut
		}
		if op == wire.OpDecide && addr == d.addrs[2] && !done {
			done = true
			cut.Store(d.addrs[1], true)
			cut.Store(d.addrs[2], true)
			d.restart(t, 0)
		}
		if op == wire.OpDecide && addr == d.addrs[2] {
			return errCut
		}
		return nil
	})
	var lost *txn.UnknownOutcome
	if err := d.write(5, doubtKeys...); !errors.As(err, &lost) {
		t.Errorf("the client is told %v, want an unknown outcome", err)
	}
	time.Sleep(time.Second)
	if n := d.Servers[2].InDoubt(); n != 1 {
		t.Fatalf("server 2 has %d transactions in doubt, want 1", n)
	}
	for _, keys := range [][2]uint64{{4, 8}, {8, 4}} { // keys of the hash table at servers 1 and 2, as are their entries
		d.flood(t, keys[:]...)
	}
	cut.Clear()
	d.survivors(t, 5, doubtKeys[1:]...)
}

// settleBound is the time within which locks are free that others than a silent
// server can free: less than the silent one would take for all that it decides.
const settleBound = 20 * time.Second

// TestSilentServerHoldsUpNobodyElse: a server is in doubt about many
// transactions of a coordinator that is silent, and about one that another
// server can settle.
func TestSilentServerHoldsUpNobodyElse(t *testing.T) {
	const many = 20
	x, _, peers := startHooked(t, newListSchema(4), 3, txn.Config{Retry: txn.Retry{Attempts: 100000}})
	d := disturb(t, x, peers)
	if err := errors.Join(d.write(1, 0, 4, 8), d.write(1, 4, 8, 0), d.hash(context.Background(), 1, 4, 8)); err != nil {
		t.Fatal(err)
	}
	d.onDecide(1, func() {}, 1, 2)
	for i := range uint64(many) {
		_ = d.write(5, 12*i, 12*i+4, 12*i+8) // homes are at server 0
	}
	if n := d.Servers[1].InDoubt(); n == 0 {
		t.Fatal("nothing is in doubt")
	}
	if err := d.net.Pause(d.addrs[0]); err != nil {
		t.Fatal(err)
	}
	lost := map[wire.Op]bool{}
	var mu sync.Mutex
	d.peers.set(func(addr string, op wire.Op, sent bool) error {
		mu.Lock()
		defer mu.Unlock()
		if addr != d.addrs[2] || lost[op] || !(op == wire.OpHandOver && sent || op == wire.OpResolve && !sent) {
			return nil
		}
		lost[op] = true // the answer to the handing over, and the first question
		return errCut
	})
	start := time.Now()
	err := d.hash(context.Background(), 7, 4, 8)
	if took := time.Since(start); took > settleBound {
		t.Errorf("settled after %v, want at most %v", took, settleBound)
	} else {
		t.Logf("settled after %v", took)
	}
	if err != nil {
		t.Errorf("it was committed: %v", err)
	}
	if err := d.net.Resume(d.addrs[0]); err != nil {
		t.Fatal(err)
	}
}
