package inproc

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// stopped is a clock that a test sets.
type stopped struct{ now time.Duration }

func (s *stopped) Now() time.Duration    { return s.now }
func (s *stopped) Sleep(d time.Duration) { s.now += d }

// TestNodeQueues: verbs, bytes and atomics queue at one NIC in the order of arrival, requests at
// the core that is free first, and all times are stretched.
func TestNodeQueues(t *testing.T) {
	clock := &stopped{now: time.Second}
	model := Node{RTT: 2000, Verb: 25, Atomic: 100, Byte: 0.5, Cores: 2, RPC: 1000, Dilation: 10}
	n := &node{Node: model, clock: clock, cores: make([]time.Duration, 2)}
	at := func(what string, got, want time.Duration) {
		t.Helper()
		if got -= clock.now; got != want*10 {
			t.Errorf("%s: after %v, want %v", what, got, want*10)
		}
	}
	var b rdma.Batch
	b.Read(1, 64, make([]uint64, 8))
	at("a READ of 64 bytes", n.batch(&b), 2000+25+32)
	at("another, at the same time", n.batch(&b), 2000+2*(25+32))
	b.Reset()
	b.CAS(1, 64, 0, 0, make([]uint64, 1))
	b.CAS(1, 64, 0, 0, make([]uint64, 1))
	at("two CAS, which the atomic unit makes one by one", n.batch(&b), 2000+2*(25+32)+25+4+100+100)

	clock.now += time.Second // all is idle again
	e := &endpoint{}
	call := func(took time.Duration) (c *conn) {
		p := &poller{e: e}
		c = &conn{poller: p, e: e}
		c.call.arrived = n.arrive(100)
		n.begin(p, c)
		clock.now += took
		return c
	}
	// Handlers take no time of the stopped clock but what the test adds.
	first := call(0)
	at("the first answer", n.answer(first, 0, 200), 25+50+1000+25+100+2000)
	n.end(first.poller)
	second := call(0)
	n.answer(second, 0, 200)
	n.end(second.poller)
	third := call(0)
	n.mu.Lock()
	core, end := n.serve(third.call.arrived, 0)
	n.mu.Unlock()
	if core != 0 {
		t.Errorf("core %d serves the third request, want the one that is free first", core)
	}
	// By then the NIC has carried two requests and two answers, and the third request.
	at("the third request waits for the first core", end, 25+50+1000+1000)

	clock.now += time.Second
	slow := call(300)
	at("the answer of a handler that ran for 300 ns", n.answer(slow, 0, 200)+300-300*10, 25+50+1000+300-300+25+100+2000)
	clock.now += 50
	n.end(slow.poller)
	if free := n.cores[slow.poller.turn.core]; free != slow.call.arrived+10*(1000+300+50) {
		t.Errorf("its core is free at %v, %v after the arrival", free, free-slow.call.arrived)
	}
	if ran := e.handled.Load(); ran != 350 {
		t.Errorf("handlers ran for %d ns, want 350", ran)
	}
}

// TestNodeDelaysVerbsAndCalls: over a modelled machine verbs and calls give the same results, no
// sooner than the model says, and an end of the context or of the server is noticed meanwhile.
func TestNodeDelaysVerbsAndCalls(t *testing.T) {
	net := New(Options{})
	r, err := mem.New(mem.Options{Kind: mem.Heap})
	if err != nil {
		t.Fatal(err)
	}
	e, err := net.Listen("s", rdma.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	key, err := e.Register(r, rdma.AccessRead)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Serve(func(q *rdma.Request) { _ = q.Reply(append([]byte("re: "), q.Body...)) }); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial(t.Context(), "s")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := net.SetNode(&Node{RTT: 2 * time.Microsecond, Cores: 1, RPC: time.Microsecond, Dilation: 1000}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	buf := make([]uint64, 2)
	var b rdma.Batch
	b.Read(key, 0, buf)
	if err := rdma.Do(t.Context(), c, &b); err != nil || b.WRs[0].Status != rdma.StatusOK {
		t.Fatalf("a READ: %v, status %v", err, b.WRs[0].Status)
	}
	if took := time.Since(began); took < 2*time.Millisecond {
		t.Errorf("a READ takes %v, want 2 ms or more", took)
	}
	began = time.Now()
	if resp, err := rdma.Call(t.Context(), c, []byte("hello"), nil); err != nil || string(resp) != "re: hello" {
		t.Fatalf("a call: %q, %v", resp, err)
	}
	if took := time.Since(began); took < 3*time.Millisecond {
		t.Errorf("a call takes %v, want 3 ms or more", took)
	}
	if requests, took := net.Handled(); requests != 1 || took <= 0 {
		t.Errorf("%d requests handled in %v", requests, took)
	}
	if err := net.SetNode(&Node{RTT: time.Second, Cores: 1, Dilation: 1000}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	b.Reset()
	b.Read(key, 0, buf)
	if err := rdma.Do(ctx, c, &b); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a READ with a deadline: %v", err)
	}
	if err := net.SetNode(&Node{RTT: 30 * time.Millisecond, Cores: 1, Dilation: 1}); err != nil {
		t.Fatal(err)
	}
	began = time.Now()
	if err := c.Post(&b); err != nil {
		t.Fatal(err)
	}
	if err := c.Wait(ctx, &b); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a Wait after the deadline: %v", err)
	}
	if err := c.Wait(t.Context(), &b); err != nil || time.Since(began) < 30*time.Millisecond {
		t.Errorf("the next Wait: %v, after %v, want 30 ms or more", err, time.Since(began))
	}
	if err := net.SetNode(&Node{RTT: time.Second, Cores: 1, Dilation: 1000}); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(time.Millisecond, func() { _ = net.Kill("s") })
	if _, err := rdma.Call(t.Context(), c, []byte("x"), nil); !errors.Is(err, rdma.ErrPeerDown) {
		t.Errorf("a call to a server that dies: %v", err)
	}
}

// TestNodesAreChecked: models that make no sense, and models beside faults, are refused.
func TestNodesAreChecked(t *testing.T) {
	for _, n := range []Node{
		{Cores: 0, Dilation: 1},
		{Cores: 1, Dilation: 0.5},
		{Cores: 1, Dilation: 1, RTT: -1},
		{Cores: 1, Dilation: 1, Byte: -1},
		{Cores: 1, Dilation: math.NaN()},
		{Cores: 1, Dilation: math.Inf(1)},
		{Cores: 1, Dilation: 1, Byte: math.NaN()},
		{Cores: 1, Dilation: 1, Handler: time.Hour},
		{Cores: 1 << 20, Dilation: 1},
	} {
		if err := New(Options{}).SetNode(&n); err == nil {
			t.Errorf("%+v is taken", n)
		}
	}
	if err := New(Options{Latency: Latency{Read: 1}}).SetNode(&Node{Cores: 1, Dilation: 1}); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("a model beside latencies: %v", err)
	}
}
