package inproc

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/mem"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
)

// bed is one server and one client of a network.
type bed struct {
	*testing.T
	n   *Network
	e   *endpoint
	m   *mem.Region
	key rdma.RKey
	c   *conn
	ctx context.Context
}

func newBed(t *testing.T, o Options, h rdma.Handler) *bed {
	t.Helper()
	n := New(o)
	e, err := n.Listen("server", rdma.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	m, err := mem.New(mem.Options{SegmentBytes: 1 << 16, MaxBytes: 1 << 18})
	if err != nil {
		t.Fatal(err)
	}
	key, err := e.Register(m, rdma.AccessWrite|rdma.AccessAtomic)
	if err != nil {
		t.Fatal(err)
	}
	if h == nil {
		h = func(q *rdma.Request) { _ = q.Reply(q.Body) }
	}
	if err := e.Serve(h); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
	t.Cleanup(cancel)
	b := &bed{T: t, n: n, e: e.(*endpoint), m: m, key: key, ctx: ctx}
	b.c = b.dial()
	return b
}

func (b *bed) dial() *conn {
	b.Helper()
	c, err := b.n.Dial(b.ctx, "server")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = c.Close() })
	return c.(*conn)
}

func (b *bed) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) wantErr(what string, err, want error) {
	b.Helper()
	if !errors.Is(err, want) {
		b.Fatalf("%s: %v, want %v", what, err, want)
	}
}

func (b *bed) waitFor(what string, cond func() bool) {
	b.Helper()
	for !cond() {
		if b.ctx.Err() != nil {
			b.Fatal("waited in vain for " + what)
		}
		time.Sleep(50 * time.Microsecond)
	}
}

// handClock advances only by Sleep.
type handClock struct{ now atomic.Int64 }

func (c *handClock) Now() time.Duration    { return time.Duration(c.now.Load()) }
func (c *handClock) Sleep(d time.Duration) { c.now.Add(int64(d)) }

func TestMisuseIsReported(t *testing.T) {
	b := newBed(t, Options{}, nil)
	if _, err := b.c.FinishCall(b.ctx, nil); !errors.Is(err, provide.ErrNoCall) {
		t.Errorf("FinishCall without a call: %v", err)
	}
	b.check(b.c.StartCall(b.ctx, []byte("a")))
	if err := b.c.StartCall(b.ctx, []byte("b")); !errors.Is(err, provide.ErrCallBusy) {
		t.Errorf("second StartCall: %v", err)
	}
	if resp, err := b.c.FinishCall(b.ctx, nil); err != nil || string(resp) != "a" {
		t.Errorf("the first call: %q, %v", resp, err)
	}
	if err := b.e.Serve(func(*rdma.Request) {}); !errors.Is(err, provide.ErrServed) {
		t.Errorf("second Serve: %v", err)
	}
	for _, f := range []func(string) error{b.n.Pause, b.n.Resume, b.n.Kill} {
		if err := f("nobody"); !errors.Is(err, rdma.ErrAddress) {
			t.Errorf("script for an unknown address: %v", err)
		}
	}
}

func TestSecondReplyIsRefused(t *testing.T) {
	second := make(chan error, 1)
	b := newBed(t, Options{}, func(q *rdma.Request) {
		_ = q.Reply([]byte("first"))
		second <- q.Reply([]byte("second"))
	})
	b.check(b.c.StartCall(b.ctx, nil))
	if err := <-second; !errors.Is(err, provide.ErrReplied) {
		t.Errorf("second Reply: %v", err)
	}
	if resp, err := b.c.FinishCall(b.ctx, nil); err != nil || string(resp) != "first" {
		t.Errorf("%q, %v", resp, err)
	}
}

func TestCallsBeforeServeWait(t *testing.T) {
	n := New(Options{})
	e, err := n.Listen("", rdma.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	ctx := context.Background()
	var conns []rdma.Conn
	for range 3 {
		c, err := n.Dial(ctx, e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if err := c.StartCall(ctx, []byte("early")); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	time.Sleep(2 * time.Millisecond)
	if err := e.Serve(func(q *rdma.Request) { _ = q.Reply(q.Body) }); err != nil {
		t.Fatal(err)
	}
	for _, c := range conns {
		if resp, err := c.FinishCall(ctx, nil); err != nil || string(resp) != "early" {
			t.Errorf("%q, %v", resp, err)
		}
	}
}

func TestPauseStallsCallsButNotReads(t *testing.T) {
	requests := make(chan *rdma.Request, 1)
	b := newBed(t, Options{}, func(q *rdma.Request) {
		if string(q.Body) == "defer" {
			requests <- q
			return
		}
		_ = q.Reply(q.Body)
	})
	held := b.dial()
	b.check(held.StartCall(b.ctx, []byte("defer")))
	q := <-requests

	b.check(b.n.Pause("server"))
	b.check(b.c.StartCall(b.ctx, []byte("x")))
	b.check(q.Reply([]byte("held")))
	dialled := make(chan error, 1)
	go func() {
		c, err := b.n.Dial(b.ctx, "server")
		if err == nil {
			err = c.Close()
		}
		dialled <- err
	}()
	ctx, cancel := context.WithTimeout(b.ctx, time.Millisecond)
	if _, err := b.n.Dial(ctx, "server"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("dial to a paused server: %v", err)
	}
	cancel()
	time.Sleep(2 * time.Millisecond)
	for _, c := range []*conn{b.c, held} {
		if c.call.phase.Load()&phaseMask == phaseReplied {
			t.Error("a paused server answered a call")
		}
		var wrs rdma.Batch
		wrs.Read(b.key, 64, make([]uint64, 8))
		b.check(rdma.Do(b.ctx, c, &wrs))
	}
	if len(dialled) != 0 {
		t.Error("a paused server accepted a connection")
	}

	b.check(b.n.Resume("server"))
	b.check(<-dialled)
	if resp, err := b.c.FinishCall(b.ctx, nil); err != nil || string(resp) != "x" {
		t.Errorf("after Resume: %q, %v", resp, err)
	}
	if resp, err := held.FinishCall(b.ctx, nil); err != nil || string(resp) != "held" {
		t.Errorf("after Resume: %q, %v", resp, err)
	}
}

func TestKillOfPausedServer(t *testing.T) {
	b := newBed(t, Options{}, nil)
	b.check(b.n.Pause("server"))
	b.check(b.c.StartCall(b.ctx, nil))
	dialled := make(chan error, 1)
	go func() {
		_, err := b.n.Dial(b.ctx, "server")
		dialled <- err
	}()
	time.Sleep(time.Millisecond)
	b.check(b.n.Kill("server"))
	_, err := b.c.FinishCall(b.ctx, nil)
	b.wantErr("call", err, rdma.ErrPeerDown)
	b.wantErr("dial", <-dialled, rdma.ErrAddress)
	b.wantErr("kill of the dead", b.n.Kill("server"), rdma.ErrAddress)
}

func TestKillFromAHandler(t *testing.T) {
	var n *Network
	b := newBed(t, Options{}, func(q *rdma.Request) {
		_ = n.Kill("server")
		if err := q.Reply(nil); !errors.Is(err, rdma.ErrPeerDown) {
			t.Errorf("a dead server's reply: %v", err)
		}
	})
	n = b.n
	_, err := rdma.Call(b.ctx, b.c, nil, nil)
	b.wantErr("call", err, rdma.ErrPeerDown)
}

func TestLatencyIsChargedExactly(t *testing.T) {
	clock := &handClock{}
	b := newBed(t, Options{Clock: clock, Latency: Latency{
		Read: 2000, Write: 3000, Atomic: 4000, RPC: 7000, ByteNs: 2,
	}}, nil)
	elapsed := func(f func()) time.Duration {
		start := clock.Now()
		f()
		return clock.Now() - start
	}
	want := func(what string, got, want time.Duration) {
		t.Helper()
		if got != want {
			t.Errorf("%s takes %v, want %v", what, got, want)
		}
	}
	var r, w, a rdma.Batch
	r.Read(b.key, 64, make([]uint64, 8))
	w.Write(b.key, 64, make([]uint64, 1))
	a.FAA(b.key, 64, 1, make([]uint64, 1))
	do := func(x *rdma.Batch) func() { return func() { b.check(rdma.Do(b.ctx, b.c, x)) } }
	want("a READ of 64 bytes", elapsed(do(&r)), 2000+2*64)
	want("a WRITE", elapsed(do(&w)), 3000+2*8)
	want("a FAA", elapsed(do(&a)), 4000+2*8)
	for range 15 {
		r.Read(b.key, 64, make([]uint64, 8))
	}
	want("a batch of 16 READs", elapsed(do(&r)), 2000+2*16*64)
	want("a call", elapsed(func() {
		_, err := rdma.Call(b.ctx, b.c, make([]byte, 100), nil)
		b.check(err)
	}), 7000+2*100+2*100)

	d := b.dial()
	var r2 rdma.Batch
	r2.Read(b.key, 64, make([]uint64, 8))
	want("two batches in flight on two connections", elapsed(func() {
		b.check(b.c.Post(&r))
		b.check(d.Post(&r2))
		b.check(d.Wait(b.ctx, &r2))
		b.check(b.c.Wait(b.ctx, &r))
	}), 2000+2*16*64)
	want("two batches in flight on one connection", elapsed(func() {
		b.check(b.c.Post(&r))
		b.check(b.c.Post(&r2))
		b.check(b.c.Wait(b.ctx, &r))
		b.check(b.c.Wait(b.ctx, &r2))
	}), 2000+2*17*64)
}

func TestWaitGivenUpLeavesBuffersAlone(t *testing.T) {
	b := newBed(t, Options{Latency: Latency{Read: time.Hour}}, nil)
	c := b.dial()
	buf := []uint64{1, 2, 3}
	var wrs rdma.Batch
	wrs.Read(b.key, 64, buf)
	b.check(c.Post(&wrs))
	for _, kill := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(b.ctx, 2*time.Millisecond)
		want, status := context.DeadlineExceeded, rdma.StatusPending
		if kill {
			ctx, want, status = b.ctx, rdma.ErrPeerDown, rdma.StatusPeerDown
			go func() { _ = b.n.Kill("server") }()
		}
		b.wantErr("Wait", c.Wait(ctx, &wrs), want)
		cancel()
		if wrs.WRs[0].Status != status || buf[0] != 1 || buf[1] != 2 || buf[2] != 3 {
			t.Errorf("status %d, want %d, buffer %v", wrs.WRs[0].Status, status, buf)
		}
	}
	b.wantErr("Post", c.Post(&wrs), rdma.ErrPeerDown)
	if n := c.Counters(); n.Rounds != 1 || n.Reads != 1 || n.ReadBytes != 0 || n.Faults != 1 {
		t.Errorf("counters %+v", n)
	}
	if n := b.e.Counters(); n.Reads != 1 || n.Faults != 1 {
		t.Errorf("the endpoint's counters %+v", n)
	}
}

// TestFailDials injects every kind of dial error, for one peer and one address
// and for all. Existing connections must not be affected.
func TestFailDials(t *testing.T) {
	b := newBed(t, Options{}, nil)
	one, other := b.n.As(rdma.Identity{Role: rdma.RoleServer, Name: "one"}), b.n.As(rdma.Identity{Role: rdma.RoleReader, Name: "other"})
	dial := func(p rdma.Provider, want error) {
		t.Helper()
		c, err := p.Dial(b.ctx, "server")
		if c != nil {
			defer c.Close()
		}
		if !errors.Is(err, want) {
			t.Errorf("dial: %v, want %v", err, want)
		}
	}
	for _, kind := range rdma.DialErrors() {
		b.n.FailDials("one", "server", kind)
		dial(one, kind)
		dial(other, nil)
		b.n.FailDials("one", "server", nil)
		dial(one, nil)
		b.n.FailDials("", "", kind)
		dial(one, kind)
		dial(other, kind)
		dial(b.n, kind)
		var wrs rdma.Batch
		wrs.Read(b.key, 64, make([]uint64, 8))
		b.check(rdma.Do(b.ctx, b.c, &wrs))
		b.n.FailDials("", "", nil)
	}
	b.n.FailDials("", "elsewhere", rdma.ErrBusy)
	dial(one, nil)
}

func TestIdentityReachesTheHandler(t *testing.T) {
	for _, o := range []Options{{}, {Faults: Faults{Duplicate: 1}}} {
		b := newBed(t, o, func(q *rdma.Request) { _ = q.Reply([]byte(q.From.String())) })
		for who, p := range map[string]rdma.Provider{
			"server":           b.n,
			"reader r of a, b": b.n.As(rdma.Identity{Role: rdma.RoleReader, Name: "r", Tables: []string{"a", "b"}}),
		} {
			c, err := p.Dial(b.ctx, "server")
			b.check(err)
			resp, err := rdma.Call(b.ctx, c, nil, nil)
			b.check(err)
			if want := strings.Replace(who, "r of", "r of tables", 1); string(resp) != want {
				t.Errorf("the handler sees %q, want %q", resp, want)
			}
			b.check(c.Close())
		}
	}
}
