package inproc_test

import (
	"context"
	"fmt"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// A server grants a region and answers calls; a client reads two places of the
// region in one round, and calls.
func Example() {
	ctx := context.Background()
	network := inproc.New(inproc.Options{})

	server, err := network.Listen("server", rdma.ListenOptions{})
	if err != nil {
		panic(err)
	}
	defer server.Close()
	region, err := mem.New(mem.Options{SegmentBytes: 1 << 16, MaxBytes: 1 << 20})
	if err != nil {
		panic(err)
	}
	region.MustSpan(64, 8).Store(0, 42)
	region.MustSpan(128, 8).Store(0, 43)
	key, err := server.Register(region, rdma.AccessRead)
	if err != nil {
		panic(err)
	}
	if err := server.Serve(func(q *rdma.Request) { _ = q.Reply(append([]byte("hello, "), q.Body...)) }); err != nil {
		panic(err)
	}

	client, err := network.Dial(ctx, "server")
	if err != nil {
		panic(err)
	}
	defer client.Close()
	var round rdma.Batch
	a, b := make([]uint64, 1), make([]uint64, 1)
	round.Read(key, 64, a)
	round.Read(key, 128, b)
	fmt.Println(rdma.Do(ctx, client, &round), a[0], b[0])
	answer, err := rdma.Call(ctx, client, []byte("client"), nil)
	fmt.Println(string(answer), err)
	fmt.Println(client.Counters().Rounds, "round,", client.Counters().RPCs, "call")

	// Output:
	// <nil> 42 43
	// hello, client <nil>
	// 1 round, 1 call
}
