package tcp

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/rdma"
)

// TestFloodOfSilentConnections: a client of this very machine opens
// connections as fast as it can and says nothing. Every honest handshake
// beside it succeeds.
func TestFloodOfSilentConnections(t *testing.T) {
	both(t, Options{}, func(t *testing.T, sp, cp *Provider) {
		e, _, k := listen(t, sp, "", rdma.AccessRead)
		var stop atomic.Bool
		var flooded atomic.Int64
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				held := make([]net.Conn, 400)
				for i := 0; !stop.Load(); i++ {
					if c := held[i%len(held)]; c != nil {
						c.Close()
					}
					nc, err := net.Dial("tcp", e.Addr())
					if err == nil {
						flooded.Add(1)
						held[i%len(held)] = nc
					}
				}
				for _, c := range held {
					if c != nil {
						c.Close()
					}
				}
			})
		}
		const honest = 150
		failed := 0
		for range honest {
			c, err := cp.Dial(testContext(t), e.Addr())
			if err != nil {
				if failed++; failed == 1 {
					t.Errorf("an honest handshake fails: %v", err)
				}
				continue
			}
			mustServe(t, c.(*conn), k)
			c.Close()
		}
		stop.Store(true)
		wg.Wait()
		t.Logf("%d of %d honest handshakes failed beside %d silent connections", failed, honest, flooded.Load())
	})
}

// TestIdleConnectionGivesBuffersBack: what a large request needed is free a
// little later, although the connection says nothing more.
func TestIdleConnectionGivesBuffersBack(t *testing.T) {
	both(t, Options{}, func(t *testing.T, sp, cp *Provider) {
		e, _, _ := listen(t, sp, "", rdma.AccessRead)
		const n = 20
		conns := make([]*conn, n)
		for i := range conns {
			conns[i] = dial(t, cp, e)
			if _, err := rdma.Call(testContext(t), conns[i], []byte("small"), nil); err != nil {
				t.Fatal(err)
			}
		}
		before := inUse()
		large := make([]byte, rdma.MaxMessageBytes)
		resp := make([]byte, 0, rdma.MaxMessageBytes)
		for _, c := range conns {
			if _, err := rdma.Call(testContext(t), c, large, resp); err != nil {
				t.Fatal(err)
			}
		}
		large, resp = nil, nil
		const keep = 128 << 10
		var each int64
		for deadline := time.Now().Add(testseed.Patience()); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
			if each = (int64(inUse()) - int64(before)) / n; each < keep {
				break
			}
		}
		if each >= keep {
			t.Errorf("an idle connection keeps %d bytes after a large request", each)
		}
		for _, c := range conns { // it still works
			if _, err := rdma.Call(testContext(t), c, []byte("small"), nil); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestDataServersAlwaysGetIn: clients that hold every connection there is keep
// no data server out.
func TestDataServersAlwaysGetIn(t *testing.T) {
	ca := trialCA(t)
	e, _, k := listen(t, newProvider(t, Options{TLS: issue(t, ca, serverLeaf), MaxConnections: 3}), "", rdma.AccessRead)
	client := newProvider(t, Options{TLS: issue(t, ca, clientLeaf())})
	for range 3 {
		dial(t, client, e)
	}
	if _, err := client.Dial(testContext(t), e.Addr()); !errors.Is(err, rdma.ErrBusy) {
		t.Fatalf("one client more: %v", err)
	}
	mustServe(t, dial(t, newProvider(t, Options{TLS: issue(t, ca, serverLeaf)}), e), k)
}
