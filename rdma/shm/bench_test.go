package shm

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"drtmx/rdma"
)

func dial(t testing.TB, p *Provider, addr string) *conn {
	t.Helper()
	c, err := p.Dial(context.Background(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*conn)
}

func spinOptions(t testing.TB, spin string) Options {
	t.Helper()
	o, err := parseOptions([]string{"spin=" + spin})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// BenchmarkRead compares READs with copying the same bytes within a process.
func BenchmarkRead(b *testing.B) {
	p := newProvider(b, Options{})
	addr := freeAddr()
	startServer(b, addr, "")
	ctx := context.Background()
	c := dial(b, p, addr)
	for _, n := range []int{1, 16} {
		b.Run(fmt.Sprintf("64B/batch=%d", n), func(b *testing.B) {
			var batch rdma.Batch
			bufs := make([][8]uint64, n)
			src := make([]uint64, 1<<17)
			reads := func(i int) {
				batch.Reset()
				for j := range bufs {
					batch.Read(1, uint64((i*16+j)*64)%(1<<20), bufs[j][:])
				}
				if err := rdma.Do(ctx, c, &batch); err != nil {
					b.Fatal(err)
				}
			}
			copies := func(i int) {
				for j := range bufs {
					off := (i*16 + j) * 8 % (1 << 17)
					copy(bufs[j][:], src[off:off+8])
				}
			}
			ours, theirs := paired(b, reads, copies, 20000)
			b.ReportMetric(float64(ours)/float64(n), "ns/READ")
			b.ReportMetric(float64(theirs)/float64(n), "ns/memcpy")
		})
	}
}

// paired times f and g by turns, so that noise of the machine meets both, and
// returns nanoseconds per call of each, from the fastest turns. b.Loop counts
// turns.
func paired(b *testing.B, f, g func(i int), perTurn int) (fNs, gNs float64) {
	b.Helper()
	best := [2]time.Duration{1 << 62, 1 << 62}
	for b.Loop() {
		for k, fn := range []func(int){f, g} {
			t := time.Now()
			for i := range perTurn {
				fn(i)
			}
			best[k] = min(best[k], time.Since(t))
		}
	}
	b.ReportMetric(0, "ns/op")
	return float64(best[0]) / float64(perTurn), float64(best[1]) / float64(perTurn)
}

// BenchmarkRoundTrip compares an RPC of 64 bytes with the bare ping-pong of
// two processes.
func BenchmarkRoundTrip(b *testing.B) {
	for _, spin := range []string{"-1ns", "5us"} {
		for name, g := range map[string]pinger{"futex": futexPing, "eventfd": eventfdPing} {
			b.Run("spin="+spin+"/"+name, func(b *testing.B) {
				p := newProvider(b, spinOptions(b, spin))
				addr := freeAddr()
				startServer(b, addr, "spin="+spin)
				pong := startPong(b, name, g)
				ctx := context.Background()
				c := dial(b, p, addr)
				var err error
				req, resp := make([]byte, 64), make([]byte, 0, 64)
				call := func(int) {
					if resp, err = rdma.Call(ctx, c, req, resp); err != nil {
						b.Fatal(err)
					}
				}
				ours, bare := paired(b, call, func(int) { pong() }, 5000)
				b.ReportMetric(ours, "ns/RPC")
				b.ReportMetric(bare, "ns/ping")
				b.ReportMetric(ours/bare, "ratio")
			})
		}
	}
}

// BenchmarkRotation is BenchmarkRoundTrip with four servers called in turn, so
// that each has gone to sleep when its turn comes.
func BenchmarkRotation(b *testing.B) {
	p := newProvider(b, Options{})
	ctx := context.Background()
	var conns []*conn
	var pongs []func()
	for range 4 {
		addr := freeAddr()
		startServer(b, addr, "")
		conns = append(conns, dial(b, p, addr))
		pongs = append(pongs, startPong(b, "futex", futexPing))
	}
	req, resp := make([]byte, 64), make([]byte, 0, 64)
	var err error
	ours, bare := paired(b, func(i int) {
		if resp, err = rdma.Call(ctx, conns[i%4], req, resp); err != nil {
			b.Fatal(err)
		}
	}, func(i int) { pongs[i%4]() }, 2000)
	b.ReportMetric(ours, "ns/RPC")
	b.ReportMetric(bare, "ns/ping")
	b.ReportMetric(ours/bare, "ratio")
}

// BenchmarkThroughput calls four server processes from one client process.
func BenchmarkThroughput(b *testing.B) {
	for _, spin := range []string{"-1ns", "5us"} {
		for _, callers := range []int{1, 4, 16, 64} {
			b.Run(fmt.Sprintf("spin=%s/callers=%d", spin, callers), func(b *testing.B) {
				throughput(b, spin, callers)
			})
		}
	}
}

func throughput(b *testing.B, spin string, callers int) {
	const servers = 4
	p := newProvider(b, spinOptions(b, spin))
	var kids []*child
	var addrs []string
	for range servers {
		addr := freeAddr()
		kids = append(kids, startServer(b, addr, "spin="+spin))
		addrs = append(addrs, addr)
	}
	ctx := context.Background()
	conns := make([][]rdma.Conn, callers)
	for i := range conns {
		for _, a := range addrs {
			conns[i] = append(conns[i], dial(b, p, a))
		}
	}
	cpu := func() (client, server time.Duration) {
		for _, k := range kids {
			server += k.cpu()
		}
		return cpuTime(), server
	}
	client0, server0 := cpu()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range callers {
		n := b.N / callers
		if i < b.N%callers {
			n++
		}
		wg.Go(func() {
			req, resp := make([]byte, 64), make([]byte, 0, 64)
			var err error
			for j := range n {
				if resp, err = rdma.Call(ctx, conns[i][(i+j)%servers], req, resp); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	client1, server1 := cpu()
	b.ReportMetric(float64(client1-client0)/float64(b.N), "client-cpu-ns/op")
	b.ReportMetric(float64(server1-server0)/float64(b.N), "server-cpu-ns/op")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "RPC/s")
}

// BenchmarkIdle is a round trip beside connections that do nothing, compared
// with one to a server that has none: 1,000 of one client process, and one
// each of 1,000 client processes.
func BenchmarkIdle(b *testing.B) {
	for _, links := range []int{1, 1000} {
		b.Run(fmt.Sprintf("links=%d", links), func(b *testing.B) {
			p := newProvider(b, Options{})
			quiet, busy := freeAddr(), freeAddr()
			startServer(b, quiet, "")
			startServer(b, busy, "")
			for range links {
				idle := newProvider(b, Options{})
				for range 1000 / links {
					dial(b, idle, busy)
				}
			}
			conns := []*conn{dial(b, p, busy), dial(b, p, quiet)}
			ctx := context.Background()
			req, resp := make([]byte, 64), make([]byte, 0, 64)
			var err error
			call := func(c *conn) func(int) {
				return func(int) {
					if resp, err = rdma.Call(ctx, c, req, resp); err != nil {
						b.Fatal(err)
					}
				}
			}
			with, without := paired(b, call(conns[0]), call(conns[1]), 5000)
			b.ReportMetric(with, "ns/RPC")
			b.ReportMetric(with/without, "ratio")
		})
	}
}
