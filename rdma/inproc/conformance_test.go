package inproc_test

import (
	"testing"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/rdmatest"
)

// fixture makes networks with those options, seeded by the run, whose endpoints are modelled
// machines unless node is nil.
func fixture(o inproc.Options, node *inproc.Node) func(testing.TB) rdmatest.Fixture {
	return func(t testing.TB) rdmatest.Fixture {
		o := o
		o.Seed = rdmatest.Seed(t)
		n := inproc.New(o)
		if node != nil {
			if err := n.SetNode(node); err != nil {
				t.Fatal(err)
			}
		}
		return rdmatest.Fixture{
			Provider: n,
			Grants:   rdma.AccessRead | rdma.AccessWrite | rdma.AccessAtomic,
			Kill: func(e rdma.Endpoint) {
				if err := n.Kill(e.Addr()); err != nil {
					t.Error(err)
				}
			},
		}
	}
}

var latency = inproc.Latency{
	Read: 2 * time.Microsecond, Write: 2 * time.Microsecond, Atomic: 3 * time.Microsecond,
	RPC: 5 * time.Microsecond, ByteNs: 0.08, // 100 Gb/s
}

// The adversary of the suite injects all faults that break no connection and
// repeat no request.
var (
	inOrder  = inproc.Faults{Pause: 0.05, Reorder: 0.5, Defer: 0.5, Delay: 0.1, MaxDelay: 20 * time.Microsecond}
	apart    = inproc.Faults{Apart: 0.5, Pause: 0.05, Reorder: 0.5, Defer: 0.5}
	scramble = inproc.Faults{Scramble: 0.9, Pause: 0.05, Reorder: 0.5, Defer: 0.5, Delay: 0.1, MaxDelay: 20 * time.Microsecond}
)

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		o    inproc.Options
		node *inproc.Node
	}{
		{name: "plain"},
		{name: "pollers", o: inproc.Options{Pollers: 3}},
		{name: "latency", o: inproc.Options{Latency: latency}},
		{name: "node", o: inproc.Options{Pollers: 2}, node: &inproc.Node{RTT: 2 * time.Microsecond, Verb: 25, Atomic: 100, Byte: 0.08, Cores: 1, RPC: 1000, Dilation: 3}},
		{name: "adversaryInOrder", o: inproc.Options{Faults: inOrder}},
		{name: "atomicsApart", o: inproc.Options{Faults: apart}},
		{name: "adversaryAnyOrder", o: inproc.Options{Faults: scramble, Latency: latency}},
	} {
		t.Run(c.name, func(t *testing.T) { rdmatest.Run(t, fixture(c.o, c.node)) })
	}
}

func BenchmarkPlain(b *testing.B) { rdmatest.Benchmark(b, fixture(inproc.Options{}, nil)) }
func BenchmarkLatency(b *testing.B) {
	rdmatest.Benchmark(b, fixture(inproc.Options{Latency: latency}, nil))
}
