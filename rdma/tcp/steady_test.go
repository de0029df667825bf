package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
	"drtmx/rdma/rdmatest"
)

// countedConn counts the reads and writes of a socket.
type countedConn struct {
	net.Conn
	reads, writes atomic.Int64
}

func (c *countedConn) Read(p []byte) (int, error) {
	c.reads.Add(1)
	return c.Conn.Read(p)
}

func (c *countedConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// countedRaw counts the attempts at writing of a transport: one without
// another was one system call.
type countedRaw struct {
	syscall.RawConn
	writes *atomic.Int64
}

func (c countedRaw) Write(f func(fd uintptr) bool) error {
	return c.RawConn.Write(func(fd uintptr) bool {
		c.writes.Add(1)
		return f(fd)
	})
}

// countedPair is a connection with its agent in this process, both sides
// counted. The agent is that of an endpoint that does not accept itself.
func countedPair(t *testing.T) (c *conn, k rdma.RKey, client, server *countedConn) {
	t.Helper()
	p := newProvider(t, Options{})
	e, _, k := listen(t, p, "", rdma.AccessRead)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server = &countedConn{}
	var agent sync.WaitGroup
	agent.Go(func() {
		defer l.Close()
		nc, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		sc, err := e.greet(nc.(*net.TCPConn), &provide.Guest{})
		if err != nil {
			t.Error(err)
			return
		}
		tr := sc.out.t
		server.Conn = tr.Conn
		tr.Conn, tr.raw = server, countedRaw{tr.raw, &server.writes}
		sc.run()
	})
	dialled, err := p.Dial(testContext(t), l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		dialled.Close()
		agent.Wait()
	})
	c = dialled.(*conn)
	client = &countedConn{Conn: c.conn}
	c.conn = client
	mustServe(t, c, k)
	return c, k, client, server
}

// TestSystemCallsOfABatch: a batch of 16 READs is one write and one read at
// either side.
func TestSystemCallsOfABatch(t *testing.T) {
	c, k, client, server := countedPair(t)
	var b rdma.Batch
	const reads, rounds = 16, 200
	for i := range reads {
		b.Read(k, uint64(i)*1024, make([]uint64, 8))
	}
	counts := func() [4]int64 {
		return [4]int64{client.writes.Load(), client.reads.Load(), server.reads.Load(), server.writes.Load()}
	}
	// The kernel's account has what the runtime's own wake-ups cost besides,
	// and the attempts at reading that found nothing.
	before, kernel := counts(), kernelCalls(t)
	for range rounds {
		if err := rdma.Do(testContext(t), c, &b); err != nil {
			t.Fatal(err)
		}
	}
	calls, after := kernelCalls(t)-kernel, counts()
	for i, what := range []string{"client's writes", "client's reads", "server's reads", "server's writes"} {
		// The server looks for the next request as soon as it has answered, so
		// that it is one read ahead at both times or has not got there yet.
		n := after[i] - before[i]
		if what == "server's reads" && (n == rounds-1 || n == rounds+1) {
			n = rounds
		}
		if n != rounds {
			t.Errorf("%d of the %s for %d batches of %d READs", n, what, rounds, reads)
		}
	}
	perBatch := float64(calls) / rounds
	t.Logf("%.2f reads and writes for a batch of %d READs by the kernel's account, both sides", perBatch, reads)
	if perBatch > reads/2 {
		t.Errorf("%.2f system calls for a batch of %d READs", perBatch, reads)
	}
	for i := range b.WRs {
		if j, ok := rdmatest.HasPattern(b.WRs[i].Buf, b.WRs[i].Addr); !ok {
			t.Fatalf("READ %d: word %d is wrong", i, j)
		}
	}
}

var ioCalls = regexp.MustCompile(`sysc[rw]: (\d+)`)

// kernelCalls is how often this process has called read and write and the
// like, whatever came of it.
func kernelCalls(t *testing.T) (n int64) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/io")
	if err != nil {
		t.Skipf("SKIP: the kernel keeps no account: %v", err)
	}
	for _, m := range ioCalls.FindAllSubmatch(b, -1) {
		v, _ := strconv.ParseInt(string(m[1]), 10, 64)
		n += v
	}
	return n
}

// TestSteadyStateAllocatesNothing counts both sides, which share the process,
// and under a context that can end.
func TestSteadyStateAllocatesNothing(t *testing.T) {
	if rdmatest.RaceEnabled {
		t.Skip("the race detector allocates; run without it to check")
	}
	p := newProvider(t, Options{})
	e, _, k := listen(t, p, "", rdma.AccessRead|rdma.AccessWrite|rdma.AccessAtomic)
	c := dial(t, p, e)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	buf := make([]uint64, 16*64)
	var batches [4]rdma.Batch
	for name, fill := range map[string]func(b *rdma.Batch){
		"one READ": func(b *rdma.Batch) { b.Read(k, 64, buf[:8]) },
		"16 READs": func(b *rdma.Batch) {
			for i := range 16 {
				b.Read(k, uint64(i)*1024, buf[i*64:i*64+8])
			}
		},
		"a READ of 32 KiB": func(b *rdma.Batch) { b.Read(k, 0, make([]uint64, 4<<10)) },
		"one of each verb": func(b *rdma.Batch) {
			b.Write(k, 4096, buf[:8])
			b.CAS(k, 8192, 1, 2, buf[8:9])
			b.FAA(k, 8200, 1, buf[9:10])
			b.Read(k, 4096, buf[16:24])
		},
	} {
		for i := range batches {
			batches[i].Reset()
			fill(&batches[i])
		}
		n := testing.AllocsPerRun(300, func() {
			for i := range batches { // pipelined
				if err := c.Post(&batches[i]); err != nil {
					t.Fatal(err)
				}
			}
			for i := range batches {
				if err := c.Wait(ctx, &batches[i]); err != nil {
					t.Fatal(err)
				}
			}
		})
		if n != 0 {
			t.Errorf("%d batches of %s in flight: %v allocations a round, want none", len(batches), name, n)
		}
	}
}

// TestConnectionLimit: what comes beyond it gets a typed refusal, those
// inside are served meanwhile, and who leaves makes room.
func TestConnectionLimit(t *testing.T) {
	both(t, Options{MaxConnections: 8}, func(t *testing.T, sp, cp *Provider) {
		refused := make(chan error, 64)
		e, err := sp.Listen("", rdma.ListenOptions{OnRefuse: func(err error) { refused <- err }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		k, err := e.Register(testRegion(t), rdma.AccessRead)
		if err == nil {
			err = e.Serve(rdmatest.Echo)
		}
		if err != nil {
			t.Fatal(err)
		}
		var inside []*conn
		for range 8 {
			inside = append(inside, dial(t, cp, e))
		}
		const outside = 40
		var wg sync.WaitGroup
		for range outside {
			wg.Go(func() {
				if c, err := cp.Dial(testContext(t), e.Addr()); !errors.Is(err, rdma.ErrTooLarge) {
					t.Errorf("one connection too many: %v, %v", c, err)
				}
			})
		}
		for _, c := range inside {
			mustServe(t, c, k)
		}
		wg.Wait()
		if n := connections(e); n != 8 {
			t.Errorf("%d connections too many, and the books say %d", outside, n)
		}
		eventually(t, "all are counted", func() bool { return e.(*endpoint).Refused(refusedRoom) == outside })
		for range outside {
			if err := <-refused; !errors.Is(err, rdma.ErrTooLarge) {
				t.Errorf("a refusal is told as %v", err)
			}
		}
		if n := e.(rdma.Auditor).Refusals(); fmt.Sprint(n[0]) != fmt.Sprint(rdma.Refusal{Reason: "no_room", Count: outside}) {
			t.Errorf("metrics are told %+v", n)
		}
		inside[3].Close()
		eventually(t, "there is room again", func() bool { return connections(e) == 7 })
		mustServe(t, dial(t, cp, e), k)
		for i, c := range inside {
			if i != 3 {
				mustServe(t, c, k)
			}
		}
	})
}
