package inproc

import (
	"context"
	"testing"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

func TestReadAndCall(t *testing.T) {
	n := New(Options{})
	e, err := n.Listen("a", rdma.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r, err := mem.New(mem.Options{SegmentBytes: 1 << 16, MaxBytes: 1 << 18})
	if err != nil {
		t.Fatal(err)
	}
	key, err := e.Register(r, rdma.AccessRead)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Serve(func(q *rdma.Request) { _ = q.Reply(q.Body) }); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	c, err := n.Dial(ctx, "a")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	r.MustSpan(64, 64).Store(0, 42)
	var b rdma.Batch
	buf := make([]uint64, 8)
	b.Read(key, 64, buf)
	if err := rdma.Do(ctx, c, &b); err != nil || buf[0] != 42 || b.WRs[0].Tail != 42 {
		t.Fatal(err, buf, b.WRs[0].Tail)
	}
	for range 1000 {
		resp, err := rdma.Call(ctx, c, []byte("hello"), nil)
		if err != nil || string(resp) != "hello" {
			t.Fatal(err, resp)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	n := New(Options{})
	e, _ := n.Listen("a", rdma.ListenOptions{})
	defer e.Close()
	_ = e.Serve(func(q *rdma.Request) { _ = q.Reply(q.Body) })
	ctx := context.Background()
	c, _ := n.Dial(ctx, "a")
	req, resp := make([]byte, 64), make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		resp, _ = rdma.Call(ctx, c, req, resp)
	}
}
