package tcp

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/certs"
	"drtmx/rdma"
	"drtmx/rdma/internal/provide"
	"drtmx/rdma/rdmatest"
)

// both runs a test in plain text and over TLS.
func both(t *testing.T, o Options, f func(t *testing.T, server, client *Provider)) {
	t.Run("plain", func(t *testing.T) { f(t, newProvider(t, o), newProvider(t, o)) })
	t.Run("TLS", func(t *testing.T) {
		s, c := o, o
		s.TLS, c.TLS = issue(t, trialCA(t), serverLeaf), issue(t, trialCA(t), certs.Leaf{Name: "app", Role: certs.RoleLoader})
		f(t, newProvider(t, s), newProvider(t, c))
	})
}

// TestPeerThatDoesNotRead asks for far more than the kernels hold and reads
// nothing. It costs the server a chunk, ends after the stall time-out, and
// harms nobody.
func TestPeerThatDoesNotRead(t *testing.T) {
	both(t, Options{StallTimeout: time.Second}, func(t *testing.T, sp, cp *Provider) {
		e, _, k := listen(t, sp, "", rdma.AccessRead)
		c, other := dial(t, cp, e), dial(t, cp, e)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			wr := rdma.WR{Op: rdma.OpRead, RKey: k, Buf: make([]uint64, testSegment/8)}
			w := appendWR([]uint64{0, 1}, &wr, 0, c.caps[0])
			w[0] = frame{kind: kindBatch, count: 1, size: uint32(len(w) - headerWords)}.word0()
			for { // until the server has had enough
				if c.write(w) != nil {
					return
				}
			}
		}()
		stalled := func() bool { return e.Refused(refusedStalled) == 1 && connections(e) == 1 }
		for deadline := time.Now().Add(patience); !stalled(); {
			if time.Now().After(deadline) {
				t.Fatalf("the peer is still there: %+v", e.Refusals())
			}
			mustServe(t, other, k)
		}
		<-gone
		mustServe(t, other, k)
	})
}

// TestReplyToPeerThatDoesNotRead: the handler's poller does not wait.
func TestReplyToPeerThatDoesNotRead(t *testing.T) {
	both(t, Options{StallTimeout: time.Second}, func(t *testing.T, sp, cp *Provider) {
		e, err := sp.Listen("", rdma.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		m := testRegion(t)
		if _, err := e.Register(m, rdma.AccessRead); err != nil {
			t.Fatal(err)
		}
		big := make([]byte, rdma.MaxMessageBytes)
		if err := e.Serve(func(q *rdma.Request) {
			if len(q.Body) > 0 {
				_ = q.Reply(q.Body)
				return
			}
			_ = q.Reply(big)
		}); err != nil {
			t.Fatal(err)
		}
		other := dial(t, cp, e)
		c := dial(t, cp, e)
		var seq uint64
		for e.(*endpoint).Refused(refusedStalled) == 0 {
			seq++ // a call is taken when the last reply is in the hands of the kernels
			before := e.Counters().RPCs
			if c.write(appendMessage(nil, kindCall, seq, nil)) != nil {
				break
			}
			for e.Counters().RPCs == before && connections(e) == 2 {
				runtime.Gosched()
			}
			mustServe(t, other, 1)
		}
		eventually(t, "the peer is dropped", func() bool { return connections(e) == 1 })
		mustServe(t, other, 1)
	})
}

// TestSlowHandshakes: more of them than there is room for, none of which says
// a word. Others come in at once, and the slow ones are dropped.
func TestSlowHandshakes(t *testing.T) {
	both(t, Options{HandshakeTimeout: 2 * time.Second}, func(t *testing.T, sp, cp *Provider) {
		e, _, k := listen(t, sp, "", rdma.AccessRead)
		const slow = provide.MaxGuestsEach + 20
		var conns []net.Conn
		for i := range slow {
			nc, err := net.Dial("tcp", e.Addr())
			if err != nil {
				t.Fatal(err)
			}
			conns = append(conns, nc)
			_, _ = nc.Write([]byte("drtmx")[:i%5])
		}
		mustServe(t, dial(t, cp, e), k)
		for _, nc := range conns {
			if _, err := io.Copy(io.Discard, nc); errors.Is(err, context.DeadlineExceeded) {
				t.Error(err)
			}
			nc.Close()
		}
		eventually(t, "all are counted", func() bool { return e.Refused(refusedHandshake)+e.Refused(refusedAuth) == slow })
	})
}

// TestIdleConnections: a thousand cost little, and do not slow one down.
func TestIdleConnections(t *testing.T) {
	const idle = 1000
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &lim); err != nil || lim.Cur < 2*idle+100 {
		t.Fatalf("this test needs %d descriptors: %+v, %v", 2*idle+100, lim, err)
	}
	p := newProvider(t, Options{})
	e, _, k := listen(t, p, "", rdma.AccessRead)
	active := dial(t, p, e)
	before := inUse()
	conns := make([]rdma.Conn, idle)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := i; j < idle; j += 8 {
				c, err := p.Dial(testContext(t), e.Addr())
				if err != nil {
					t.Error(err)
					return
				}
				conns[j] = c
			}
		})
	}
	wg.Wait()
	if t.Failed() {
		return
	}
	perConn := (inUse() - before) / idle
	t.Logf("%d bytes for each connection, both sides", perConn)
	if perConn > 64<<10 {
		t.Errorf("an idle connection takes %d bytes", perConn)
	}
	for range 100 {
		mustServe(t, active, k)
	}
	for _, c := range conns {
		c.Close()
	}
	eventually(t, "they are gone", func() bool { return connections(e) == 1 })
	mustServe(t, active, k)
}

// inUse is the memory of heap and stacks.
func inUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// TestHalfOpen: between client and server sits somebody who forwards nothing
// any more but acknowledges everything.
func TestHalfOpen(t *testing.T) {
	both(t, Options{KeepAlive: 500 * time.Millisecond}, func(t *testing.T, sp, cp *Provider) {
		e, err := sp.Listen("", rdma.ListenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { e.Close() })
		m := testRegion(t)
		k, err := e.Register(m, rdma.AccessRead)
		if err != nil {
			t.Fatal(err)
		}
		requests := make(chan *rdma.Request, 1)
		if err := e.Serve(func(q *rdma.Request) { requests <- q }); err != nil {
			t.Fatal(err)
		}
		proxy := newProxy(t, e.Addr())
		c, err := cp.Dial(testContext(t), proxy.addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		// A handler that takes its time is no sign of death.
		if err := c.StartCall(testContext(t), []byte("slow")); err != nil {
			t.Fatal(err)
		}
		q := <-requests
		time.AfterFunc(2*time.Second, func() { _ = q.Reply([]byte("done")) })
		if r, err := c.FinishCall(context.Background(), nil); err != nil || string(r) != "done" {
			t.Fatalf("slow call: %q, %v", r, err)
		}
		proxy.freeze()
		var b rdma.Batch
		b.Read(k, 64, make([]uint64, 8))
		start := time.Now()
		if err := rdma.Do(context.Background(), c, &b); !errors.Is(err, rdma.ErrPeerDown) {
			t.Fatalf("READ over a frozen network: %v", err)
		}
		t.Logf("noticed after %v", time.Since(start))
		if _, err := rdma.Call(testContext(t), c, nil, nil); !errors.Is(err, rdma.ErrPeerDown) {
			t.Errorf("call afterwards: %v", err)
		}
	})
}

// TestSocketOptions: the kernel looks after connections that nobody waits on.
func TestSocketOptions(t *testing.T) {
	p := newProvider(t, Options{KeepAlive: 30 * time.Second})
	e, _, _ := listen(t, p, "", rdma.AccessRead)
	c := dial(t, p, e)
	eventually(t, "the connection is in the books", func() bool { return connections(e) == 1 })
	e.mu.Lock()
	server := e.mu.conns[1].out.t.Conn
	e.mu.Unlock()
	for side, nc := range map[string]net.Conn{"client": c.socket, "server": server} {
		raw, err := nc.(*net.TCPConn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		_ = raw.Control(func(fd uintptr) {
			for opt, want := range map[[2]int]int{
				{unix.SOL_SOCKET, unix.SO_KEEPALIVE}: 1, {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE}: 30,
				{unix.IPPROTO_TCP, unix.TCP_KEEPINTVL}: 10, {unix.IPPROTO_TCP, unix.TCP_KEEPCNT}: 3,
				{unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT}: 60000,
			} {
				if got, err := unix.GetsockoptInt(int(fd), opt[0], opt[1]); err != nil || got != want {
					t.Errorf("%s: option %v is %d, want %d (%v)", side, opt, got, want, err)
				}
			}
		})
	}
}

// TestCutAtEveryByte breaks connections after every number of bytes from
// either side, handshake included: the client sees a dead peer, or what it
// asked for, and the server serves on.
func TestCutAtEveryByte(t *testing.T) {
	both(t, Options{}, func(t *testing.T, sp, cp *Provider) {
		e, _, k := listen(t, sp, "", rdma.AccessRead)
		step, end := 3, 700
		if sp.server != nil {
			step, end = 61, 6000
		}
		for _, toServer := range []bool{true, false} {
			for n := 0; n < end; n += step {
				proxy := newProxy(t, e.Addr())
				proxy.cut(toServer, n)
				cutOnce(t, cp, proxy.addr(), k)
				proxy.close()
			}
		}
		mustServe(t, dial(t, cp, e), k)
		eventually(t, "all but one are gone", func() bool { return connections(e) == 1 })
	})
}

// cutOnce uses a connection that will break somewhere.
func cutOnce(t *testing.T, p *Provider, addr string, k rdma.RKey) {
	ctx := testContext(t)
	c, err := p.Dial(ctx, addr)
	if err != nil {
		if ctx.Err() != nil || !errors.Is(err, rdma.ErrPeerDown) && !errors.Is(err, rdma.ErrAddress) {
			t.Errorf("dial: %v, want ErrPeerDown", err)
		}
		return
	}
	defer c.Close()
	var b rdma.Batch
	b.Read(k, 64, make([]uint64, 8))
	b.Read(k, 1024, make([]uint64, 8))
	err = rdma.Do(ctx, c, &b)
	for i := range b.WRs {
		switch wr := &b.WRs[i]; wr.Status {
		case rdma.StatusOK:
			if _, ok := rdmatest.HasPattern(wr.Buf, wr.Addr); !ok {
				t.Error("a READ of a broken connection has wrong content")
			}
		case rdma.StatusPeerDown:
		default:
			t.Errorf("status %d", wr.Status)
		}
	}
	if err == nil {
		var resp []byte
		if resp, err = rdma.Call(ctx, c, []byte("x"), nil); err == nil && string(resp) != "x" {
			t.Errorf("response %q", resp)
		}
	}
	if err != nil && !errors.Is(err, rdma.ErrPeerDown) {
		t.Errorf("broken connection: %v, want ErrPeerDown", err)
	}
}
