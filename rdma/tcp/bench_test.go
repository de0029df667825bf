package tcp

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

func BenchmarkSuite(b *testing.B)    { rdmatest.Benchmark(b, fixture(Options{})) }
func BenchmarkSuiteTLS(b *testing.B) { rdmatest.Benchmark(b, tlsFixture) }

// BenchmarkRead compares READs of 64 bytes with a bare echo of as many bytes
// over the same kind of connection, in turns; it reports medians.
func BenchmarkRead(b *testing.B) {
	server, client := issue(b, trialCA(b), serverLeaf), issue(b, trialCA(b), clientLeaf())
	for _, x := range []struct {
		name           string
		server, client Options
	}{
		{"plain", Options{}, Options{}},
		{"TLS", Options{TLS: server}, Options{TLS: client}},
	} {
		for _, n := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/batch=%d", x.name, n), func(b *testing.B) {
				sp, cp := newProvider(b, x.server), newProvider(b, x.client)
				e, _, k := listen(b, sp, "", rdma.AccessRead)
				c := dial(b, cp, e)
				echo := dialEcho(b, sp, cp, 64*n)
				read := reader(b, c, k, n)
				ours, theirs := turns(b, read, echo)
				b.ReportMetric(ours, "ns/round")
				b.ReportMetric(ours/float64(n), "ns/READ")
				b.ReportMetric(theirs, "ns/echo")
				b.ReportMetric(ours/theirs, "ratio")
			})
		}
	}
}

// reader does a round of n READs.
func reader(b *testing.B, c rdma.Conn, k rdma.RKey, n int) func() {
	var batch rdma.Batch
	buf := make([]uint64, 8*n)
	ctx := context.Background()
	return func() {
		batch.Reset()
		for i := range n {
			batch.Read(k, uint64(i)*1024, buf[i*8:i*8+8])
		}
		if err := rdma.Do(ctx, c, &batch); err != nil {
			b.Fatal(err)
		}
	}
}

// dialEcho does a round trip of n bytes with a server that sends back what it
// reads.
func dialEcho(b *testing.B, sp, cp *Provider, n int) func() {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	if sp.server != nil {
		l = tls.NewListener(l, sp.server)
	}
	b.Cleanup(func() { l.Close() })
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		buf := make([]byte, 8<<10)
		for {
			k, err := c.Read(buf)
			if err != nil {
				return
			}
			if _, err := c.Write(buf[:k]); err != nil {
				return
			}
		}
	}()
	var c net.Conn
	if cp.client != nil {
		cfg := cp.client.Clone()
		cfg.ServerName = "127.0.0.1"
		c, err = tls.Dial("tcp", l.Addr().String(), cfg)
	} else {
		c, err = net.Dial("tcp", l.Addr().String())
	}
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close() })
	out, in := make([]byte, n), make([]byte, n)
	return func() {
		if _, err := c.Write(out); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, in); err != nil {
			b.Fatal(err)
		}
	}
}

// turns runs two functions by turns and returns the median of each one's time.
func turns(b *testing.B, f, g func()) (ofF, ofG float64) {
	const perTurn = 200
	b.ReportAllocs()
	var fs, gs []float64
	measure := func(f func()) float64 {
		start := time.Now()
		for range perTurn {
			f()
		}
		return float64(time.Since(start).Nanoseconds()) / perTurn
	}
	measure(f)
	measure(g)
	for i := 0; b.Loop(); i++ {
		if i%2 == 0 {
			fs = append(fs, measure(f))
			gs = append(gs, measure(g))
		} else {
			gs = append(gs, measure(g))
			fs = append(fs, measure(f))
		}
	}
	slices.Sort(fs)
	slices.Sort(gs)
	return fs[len(fs)/2], gs[len(gs)/2]
}

// TestAllocationsOfTLS measures what the suite is told that TLS allocates.
func TestAllocationsOfTLS(t *testing.T) {
	if rdmatest.RaceEnabled {
		t.Skip("the race detector allocates; run without it to check")
	}
	f := tlsFixture(t)
	e, _, k := listen(t, f.Provider.(*Provider), "", rdma.AccessRead)
	c := dial(t, f.Dialer.(*Provider), e)
	var batch rdma.Batch
	batch.Read(k, 64, make([]uint64, 8))
	n := testing.AllocsPerRun(500, func() {
		if err := rdma.Do(context.Background(), c, &batch); err != nil {
			t.Fatal(err)
		}
	})
	t.Logf("%v allocations in a round over TLS, both sides", n)
	if n > tlsAllocs {
		t.Errorf("%v allocations in a round, want at most %d", n, tlsAllocs)
	}
}
