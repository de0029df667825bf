package server_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/internal/twophase"
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
	t.Parallel()
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
	d.peers.instances.Store(placement.Server(0), uint64(4242))
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
	const workers = 4
	decisions := cmp.Or(flooded().Kept, twophase.DefaultKept) * 9 / 8
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

// flooded are tables of the commit protocol that a flood fills: those of users in a
// soak, much smaller ones otherwise.
func flooded() twophase.Limits {
	if testseed.Soaking() {
		return twophase.Limits{}
	}
	return twophase.Limits{Kept: 1 << 10}
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
	d := newHandoversIn(t, flooded())
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
	d := newDoubtsIn(t, flooded())
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

// TestSilentServersHoldUpNobodyElse: a server is in doubt about transactions of
// several coordinators that are silent, and about one that another server can settle.
// That one is settled as soon as if none were silent: it asks each server by itself.
// Timers run on simulated time, so the times are exact.
func TestSilentServersHoldUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const each = 2
		silent, began := []int{0, 3, 4, 5}, time.Now() // when they begin to tick
		x, _, peers := startHooked(t, newListSchema(4), 6, txn.Config{Retry: txn.Retry{Attempts: 1}})
		d := disturb(t, x, peers)
		settle := func(value uint64) time.Duration {
			t.Helper()
			lost := map[wire.Op]bool{}
			var mu sync.Mutex
			d.peers.set(func(addr string, op wire.Op, sent bool) error {
				mu.Lock()
				defer mu.Unlock()
				if op == wire.OpDecide { // those that are silent do not decide
					return errCut
				}
				if addr != d.addrs[2] || lost[op] || !(op == wire.OpHandOver && sent || op == wire.OpResolve && !sent && lost[wire.OpHandOver]) {
					return nil
				}
				lost[op] = true // the answer to the handing over, and the first question
				return errCut
			})
			d.Servers[1].ForgetDeadline()
			start := time.Now()
			if err := d.hash(context.Background(), value, 7, 8); err != nil { // with their entries, at servers 1 and 2
				t.Errorf("it was committed: %v", err)
			}
			took := time.Since(start)
			time.Sleep(server.TickEvery / 2) // it ends at a tick
			if len(lost) != 2 {
				t.Errorf("%d messages were lost, want 2", len(lost))
			}
			return took
		}
		time.Sleep(server.TickEvery*3/2 - time.Since(began)%server.TickEvery) // all that follows begins between two ticks
		want := settle(1)
		key := func(i, server int) uint64 { return uint64(24*i + 4*server) } // of the ordered table
		writeAll := func(value uint64, between time.Duration) {
			for i := range each {
				time.Sleep(time.Duration(i) * between)
				for n, s := range silent { // the coordinator
					if err := d.write(value, key(i, s), key(each*n+i, 1), key(each*n+i, 2)); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
		d.peers.set(nil)
		writeAll(1, 0)
		d.onDecide(1, func() {}, 1, 2)
		writeAll(5, server.TickEvery) // questions are repeated every other tick: now there are some at each
		for _, s := range silent {
			if err := d.net.Pause(d.addrs[s]); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(3 * time.Second) // it has asked them
		if n := d.Servers[1].InDoubt(); n != each*len(silent) {
			t.Fatalf("%d transactions in doubt, want %d", n, each*len(silent))
		}
		if took := settle(7); took != want {
			t.Errorf("settled after %v, with no silent server after %v", took, want)
		} else {
			t.Logf("settled after %v, with no silent server after %v", took, want)
		}
		d.peers.set(nil)
		for _, s := range silent {
			if err := d.net.Resume(d.addrs[s]); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Second)
		for i, s := range d.Servers {
			if n := s.InDoubt(); n != 0 {
				t.Errorf("server %d is in doubt about %d transactions though all answer", i, n)
			}
		}
	})
}
