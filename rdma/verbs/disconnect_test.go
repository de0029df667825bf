//go:build verbs

package verbs

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

// far returns the server's side of the only connection of an endpoint.
func (r *rig) far(t *testing.T) *serverConn {
	t.Helper()
	all := r.e.(*endpoint).all()
	if len(all) != 1 {
		t.Fatalf("%d connections, want 1", len(all))
	}
	return all[0]
}

// until waits until cond holds.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within a minute", what)
		}
	}
}

// readFresh READs a region that the connection has not asked about.
func readFresh(ctx context.Context, c rdma.Conn, k rdma.RKey) error {
	var b rdma.Batch
	b.Read(k, 64, make([]uint64, 8))
	if err := rdma.Do(ctx, c, &b); err != nil {
		return err
	}
	if i, ok := rdmatest.HasPattern(b.WRs[0].Buf, 64); !ok {
		return fmt.Errorf("word %d is wrong", i)
	}
	return nil
}

// What runs in OnDisconnect may use the endpoint that calls it: over another
// connection, over the endpoint's own (Swap), and by a call. None of these waits
// for what waits for OnDisconnect, although regions are new to the connections
// and a request of the peer that left is next in the poller's queue.
func TestOnDisconnectUsesItsEndpoint(t *testing.T) {
	var r *rig
	var left atomic.Uint64 // the peer whose disconnect is the test's
	hold, handling := make(chan struct{}), make(chan struct{})
	result := make(chan error, 1)
	var use func() error
	r = newRigWith(t, rdma.AccessRead, func(q *rdma.Request) {
		if string(q.Body) == "hold" {
			close(handling)
			<-hold
		}
		_ = q.Reply(q.Body)
	}, rdma.ListenOptions{OnDisconnect: func(p rdma.PeerID) {
		if uint64(p) == left.Load() {
			result <- use()
		}
	}})
	_, forRead := r.fresh(t, rdma.AccessRead)
	words, forSwap := r.fresh(t, rdma.AccessRead|rdma.AccessAtomic)

	leaver := r.client(t)
	far := r.far(t)
	left.Store(uint64(far.number))
	other, holder := r.client(t), r.client(t)
	use = func() error {
		close(hold) // now the poller comes to the request of the peer that left
		if err := readFresh(r.ctx, other, forRead); err != nil {
			return fmt.Errorf("READ: %w", err)
		}
		was := words.MustSpan(64, 8).Load(0)
		if done, err := r.e.(rdma.ApartAtomics).Swap(forSwap, 64, was, 1); err != nil || !done {
			return fmt.Errorf("swap: %v, %w", done, err)
		}
		if out, err := rdma.Call(r.ctx, other, []byte("x"), nil); err != nil || string(out) != "x" {
			return fmt.Errorf("call: %q, %w", out, err)
		}
		return nil
	}
	if err := holder.StartCall(r.ctx, []byte("hold")); err != nil {
		t.Fatal(err)
	}
	<-handling
	if err := leaver.StartCall(r.ctx, []byte("never handled")); err != nil {
		t.Fatal(err)
	}
	until(t, "the request has arrived", func() bool {
		far.mu.Lock()
		defer far.mu.Unlock()
		return far.pending
	})
	if err := leaver.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
	if _, err := holder.FinishCall(r.ctx, nil); err != nil {
		t.Error(err)
	}
}

// A handler may use its endpoint even if its own peer disconnects meanwhile.
func TestHandlerOfAPeerThatLeftUsesItsEndpoint(t *testing.T) {
	var r *rig
	left, handling, result := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var other *conn
	var forRead rdma.RKey
	r = newRig(t, rdma.AccessRead, func(q *rdma.Request) {
		close(handling)
		<-left
		result <- readFresh(r.ctx, other, forRead)
		_ = q.Reply(nil)
	})
	leaver := r.client(t)
	far := r.far(t)
	other = r.client(t)
	_, forRead = r.fresh(t, rdma.AccessRead)
	if err := leaver.StartCall(r.ctx, nil); err != nil {
		t.Fatal(err)
	}
	<-handling
	if err := leaver.Close(); err != nil {
		t.Fatal(err)
	}
	e := r.e.(*endpoint)
	until(t, "the server frees the connection", func() bool {
		far.mu.Lock()
		defer far.mu.Unlock()
		return e.connOf(rdma.PeerID(far.number)) == nil && far.domain == nil
	})
	close(left)
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// Close waits for an OnDisconnect that runs, and calls none afterwards.
func TestCloseWaitsForOnDisconnect(t *testing.T) {
	entered, release := make(chan struct{}), make(chan struct{})
	var calls, returned atomic.Int64
	r := newRigWith(t, rdma.AccessRead, rdmatest.Echo, rdma.ListenOptions{OnDisconnect: func(rdma.PeerID) {
		if calls.Add(1) == 1 {
			close(entered)
		}
		<-release
		returned.Add(1)
	}})
	leaver, _ := r.client(t), r.client(t)
	if err := leaver.Close(); err != nil {
		t.Fatal(err)
	}
	<-entered
	e, closed := r.e.(*endpoint), make(chan struct{})
	go func() {
		defer close(closed)
		_ = e.Close()
	}()
	until(t, "the endpoint is closing", e.Closed)
	select {
	case <-closed:
		t.Error("Close returned while OnDisconnect was running")
	case <-time.After(20 * time.Millisecond):
	}
	close(release)
	<-closed
	if returned.Load() != 1 || calls.Load() != 1 {
		t.Errorf("when Close returned, OnDisconnect was called %d times and had returned %d times; want 1 and 1", calls.Load(), returned.Load())
	}
}

// A connection that has ended is granted nothing, although its disconnect may still
// have to be reported.
func TestNoGrantToAnEndedConnection(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	r.client(t)
	far := r.far(t)
	busy, release := make(chan struct{}), make(chan struct{})
	r.e.(*endpoint).clerk.do(func() { close(busy); <-release }) // the clerk does not come to free the connection
	defer close(release)
	<-busy
	if err := r.e.Grant(rdma.PeerID(far.number), r.key, rdma.AccessWrite); err != nil {
		t.Fatal(err)
	}
	far.end()
	if err := r.e.Grant(rdma.PeerID(far.number), r.key, rdma.AccessWrite); !errors.Is(err, rdma.ErrPeerDown) {
		t.Errorf("grant to a connection that has ended: %v, want ErrPeerDown", err)
	}
}
