//go:build verbs

package verbs

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

// holdAnswers keeps the server from answering queries about regions until release is
// called. It serves everything else.
func (r *rig) holdAnswers(t *testing.T) (release func()) {
	t.Helper()
	busy, end := make(chan struct{}), make(chan struct{})
	r.e.(*endpoint).clerk.do(func() { close(busy); <-end })
	<-busy
	held := true
	release = func() {
		if held {
			close(end)
		}
		held = false
	}
	t.Cleanup(release) // before the endpoint is closed
	return release
}

// queries returns how many queries a connection has sent.
func queries(c *conn) uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.query.seq
}

func statuses(b *rdma.Batch) (all []rdma.Status) {
	for i := range b.WRs {
		all = append(all, b.WRs[i].Status)
	}
	return all
}

// wantStatuses checks the statuses of a batch, and the content of its READs.
func wantStatuses(t *testing.T, b *rdma.Batch, want ...rdma.Status) {
	t.Helper()
	for i, s := range statuses(b) {
		if s != want[i] {
			t.Fatalf("the statuses are %v, want %v", statuses(b), want)
		}
		wr := &b.WRs[i]
		if j, ok := rdmatest.HasPattern(wr.Buf, wr.Addr); wr.Op == rdma.OpRead && s == rdma.StatusOK && !ok {
			t.Fatalf("request %d: word %d is wrong", i, j)
		}
	}
}

// While the server does not answer a query, Post returns, Wait returns when its context
// ends, and calls go on. The batch and those behind it stay in flight, and complete when
// the answer comes.
func TestContextEndsWhileAQueryIsOpen(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	c := r.client(t)
	m, fresh := r.fresh(t, rdma.AccessRead|rdma.AccessWrite)
	release := r.holdAnswers(t)
	var first, behind rdma.Batch
	first.Read(r.key, 64, make([]uint64, 8))
	first.Read(fresh, 128, make([]uint64, 8))
	first.Write(fresh, 256, []uint64{1, 2})
	first.Read(fresh+100, 128, make([]uint64, 8)) // no such region
	first.Read(fresh, 4*testSegment, make([]uint64, 8))
	first.Read(fresh, testSegment, make([]uint64, 8))
	first.Ordered = true
	behind.Read(r.key, 512, make([]uint64, 8))
	if err := errors.Join(c.Post(&first), c.Post(&behind)); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	soon, cancel := context.WithTimeout(r.ctx, 30*time.Millisecond)
	defer cancel()
	for range 2 {
		if err := c.Wait(soon, &first); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("Wait while a query is open: %v, want the error of the context", err)
		}
		if err := c.Wait(ended, &behind); !errors.Is(err, context.Canceled) {
			t.Fatalf("Wait for a batch behind: %v, want the error of the context", err)
		}
		for _, n := range []int{1, 10 * credits * payloadBytes} {
			req := bytes.Repeat([]byte("x"), n)
			if out, err := rdma.Call(r.ctx, c, req, nil); err != nil || !bytes.Equal(out, req) {
				t.Fatalf("a call of %d bytes while a query is open: %d bytes, %v", n, len(out), err)
			}
		}
	}
	if got := first.WRs[1].Status; got != rdma.StatusPending {
		t.Fatalf("without an answer a request has status %d", got)
	}
	release()
	if err := c.Wait(r.ctx, &behind); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(r.ctx, &first); !errors.Is(err, rdma.ErrAccess) {
		t.Fatalf("%v, want ErrAccess for the request without a region", err)
	}
	wantStatuses(t, &behind, rdma.StatusOK)
	wantStatuses(t, &first, rdma.StatusOK, rdma.StatusOK, rdma.StatusOK, rdma.StatusAccess, rdma.StatusAccess, rdma.StatusOK)
	if a, b := m.MustSpan(256, 16).Load(0), m.MustSpan(256, 16).Load(1); a != 1 || b != 2 {
		t.Errorf("the WRITE has left %d, %d", a, b)
	}
	r.mustRead(t, c)
}

// An answer is taken by whatever operation is under way when it comes, and each batch
// goes on: here a call receives it.
func TestCallsTakeAnswersToQueries(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	c := r.client(t)
	_, fresh := r.fresh(t, rdma.AccessRead)
	release := r.holdAnswers(t)
	var b rdma.Batch
	b.Read(fresh, 128, make([]uint64, 8))
	if err := c.Post(&b); err != nil {
		t.Fatal(err)
	}
	release()
	for status := rdma.StatusPending; status == rdma.StatusPending; {
		if _, err := rdma.Call(r.ctx, c, []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
		c.mu.Lock()
		status = b.WRs[0].Status
		c.mu.Unlock()
	}
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	if err := c.Wait(ended, &b); err != nil {
		t.Fatalf("Wait for a batch that calls have completed: %v", err)
	}
	wantStatuses(t, &b, rdma.StatusOK)
}

// A long request that uses up the credits delays a query. It does not lose it.
func TestQueriesWaitForCredits(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	c := r.client(t)
	_, fresh := r.fresh(t, rdma.AccessRead)
	c.mu.Lock()
	had := c.mail.credits
	c.mail.credits = 0
	c.mu.Unlock()
	var b rdma.Batch
	b.Read(fresh, 128, make([]uint64, 8))
	before := queries(c)
	if err := c.Post(&b); err != nil {
		t.Fatal(err)
	}
	if n := queries(c) - before; n != 0 {
		t.Fatalf("%d queries were sent without a credit", n)
	}
	ended, cancel := context.WithTimeout(r.ctx, 30*time.Millisecond)
	defer cancel()
	if err := c.Wait(ended, &b); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Wait without credits: %v", err)
	}
	c.mu.Lock()
	c.mail.credits += had
	c.mu.Unlock()
	if _, err := rdma.Call(r.ctx, c, []byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(r.ctx, &b); err != nil {
		t.Fatal(err)
	}
	wantStatuses(t, &b, rdma.StatusOK)
}

// Close ends a Wait for an answer.
func TestCloseWhileAQueryIsOpen(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	c := r.client(t)
	_, fresh := r.fresh(t, rdma.AccessRead)
	r.holdAnswers(t)
	var b rdma.Batch
	b.Read(fresh, 128, make([]uint64, 8))
	if err := c.Post(&b); err != nil {
		t.Fatal(err)
	}
	waited := make(chan error, 1)
	go func() { waited <- c.Wait(r.ctx, &b) }()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-waited; !errors.Is(err, rdma.ErrClosed) && !errors.Is(err, rdma.ErrPeerDown) {
		t.Errorf("Wait for an answer on a closed connection: %v, want ErrClosed", err)
	}
	if err := c.Post(&b); !errors.Is(err, rdma.ErrClosed) {
		t.Errorf("%v, want ErrClosed", err)
	}
}

// A server that does not answer a query in time ends the connection, and with it all
// batches in flight.
func TestUnansweredQueryEndsTheConnection(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	c := r.client(t)
	_, fresh := r.fresh(t, rdma.AccessRead)
	r.holdAnswers(t)
	var b, behind rdma.Batch
	b.Read(fresh, 128, make([]uint64, 8))
	behind.Read(r.key, 128, make([]uint64, 8))
	if err := errors.Join(c.Post(&b), c.Post(&behind)); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.query.since = time.Now().Add(-2 * queryTimeout)
	c.mu.Unlock()
	err := c.Wait(r.ctx, &b)
	if !errors.Is(err, rdma.ErrPeerDown) || !strings.Contains(err.Error(), errUnanswered.Error()) {
		t.Errorf("Wait for an answer that does not come: %v, want ErrPeerDown, for it does not come", err)
	}
	if err := c.Wait(r.ctx, &behind); !errors.Is(err, rdma.ErrPeerDown) {
		t.Errorf("Wait for a batch behind: %v, want ErrPeerDown", err)
	}
}

// A batch asks once about what is not there, and about a region as often as its
// segments fill answers. A later batch asks again.
func TestQueriesAreNotRepeated(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	c := r.client(t)
	const small, segments = 4096, 2*segmentKeysMax + 2
	large, err := mappedRegion(mem.Options{SegmentBytes: small, MaxBytes: 4 * segments * small})
	if err != nil {
		t.Fatal(err)
	}
	grow := func(n int) {
		for large.Size() < uint64(n)*small {
			if _, err := large.Grow(); err != nil {
				t.Fatal(err)
			}
		}
		rdmatest.FillPattern(large, 0, large.Size())
	}
	grow(segments)
	k, err := r.e.Register(large, rdma.AccessRead)
	if err != nil {
		t.Fatal(err)
	}
	many := func(op rdma.Op, k rdma.RKey, addr uint64) *rdma.Batch {
		b := new(rdma.Batch)
		for range 50 {
			b.WRs = append(b.WRs, rdma.WR{Op: op, RKey: k, Addr: addr, Buf: make([]uint64, 1)})
		}
		return b
	}
	for _, step := range []struct {
		name   string
		b      *rdma.Batch
		asks   uint32
		status rdma.Status
		before func()
	}{
		{"a region that is not there", many(rdma.OpRead, k+100, 64), 1, rdma.StatusAccess, nil},
		{"the same again", many(rdma.OpRead, k+100, 64), 1, rdma.StatusAccess, nil},
		{"segments far into a new region", many(rdma.OpRead, k, (segments-1)*small), 3, rdma.StatusOK, nil},
		{"the same again", many(rdma.OpRead, k, (segments-1)*small), 0, rdma.StatusOK, nil},
		{"memory that is not there yet", many(rdma.OpRead, k, segments*small), 1, rdma.StatusAccess, nil},
		{"the same once it is there", many(rdma.OpRead, k, segments*small), 1, rdma.StatusOK, func() { grow(segments + 1) }},
		{"access that was not granted", many(rdma.OpWrite, k, 64), 1, rdma.StatusAccess, nil},
		{"the same once it is granted", many(rdma.OpWrite, k, 64), 1, rdma.StatusOK, func() {
			if err := r.e.Grant(rdma.PeerID(r.far(t).number), k, rdma.AccessWrite); err != nil {
				t.Fatal(err)
			}
		}},
		{"segments far into it under other keys", many(rdma.OpWrite, k, segments*small), 2, rdma.StatusOK, nil},
	} {
		if step.before != nil {
			step.before()
		}
		before := queries(c)
		_ = rdma.Do(r.ctx, c, step.b)
		for i, s := range statuses(step.b) {
			if s != step.status {
				t.Fatalf("%s: request %d has status %d, want %d", step.name, i, s, step.status)
			}
		}
		if n := queries(c) - before; n != step.asks {
			t.Errorf("%s: %d queries, want %d", step.name, n, step.asks)
		}
	}

	// A batch that was posted after the query of another was sent asks anew.
	release := r.holdAnswers(t)
	before := queries(c)
	first, second := many(rdma.OpRead, k+200, 64), many(rdma.OpRead, k+200, 64)
	if err := errors.Join(c.Post(first), c.Post(second)); err != nil {
		t.Fatal(err)
	}
	release()
	for _, b := range []*rdma.Batch{first, second} {
		if err := c.Wait(r.ctx, b); !errors.Is(err, rdma.ErrAccess) {
			t.Fatalf("%v, want ErrAccess", err)
		}
	}
	if n := queries(c) - before; n != 2 {
		t.Errorf("two batches sent %d queries, want 2", n)
	}
}

// A swap waits for the registration of its region for longer than the device has for
// an atomic: the clerk may have much to do for others first.
func TestSwapWaitsForTheClerk(t *testing.T) {
	r := newRig(t, rdma.AccessRead, rdmatest.Echo)
	swap := func(k rdma.RKey) error {
		done, err := r.e.(rdma.ApartAtomics).Swap(k, 64, rdmatest.Pattern(64), 1)
		if err == nil && !done {
			err = errors.New("the word was another")
		}
		return err
	}
	_, first := r.fresh(t, rdma.AccessRead)
	m, second := r.fresh(t, rdma.AccessRead)
	if err := swap(first); err != nil {
		t.Fatal(err)
	}
	release := r.holdAnswers(t)
	result := make(chan error, 1)
	go func() { result <- swap(second) }()
	time.Sleep(swapTimeout + time.Second)
	release()
	if err := <-result; err != nil {
		t.Error(err)
	}
	if v := m.MustSpan(64, 8).Load(0); v != 1 {
		t.Errorf("the word is %#x", v)
	}
}
