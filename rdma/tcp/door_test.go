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
	"drtmx/rdma/internal/provide"
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
	plain := newProvider(t, Options{MaxConnections: 3})
	for name, x := range map[string]struct {
		listener, client *Provider
		server           rdma.Provider
	}{
		"TLS": {
			newProvider(t, Options{TLS: issue(t, ca, serverLeaf), MaxConnections: 3}), newProvider(t, Options{TLS: issue(t, ca, clientLeaf())}),
			newProvider(t, Options{TLS: issue(t, ca, serverLeaf)}),
		},
		"plain text": {plain, newProvider(t, Options{}), plain.As(rdma.Identity{Role: rdma.RoleServer})},
	} {
		t.Run(name, func(t *testing.T) {
			e, _, k := listen(t, x.listener, "", rdma.AccessRead)
			for range 3 {
				dial(t, x.client, e)
			}
			if _, err := x.client.Dial(testContext(t), e.Addr()); !errors.Is(err, rdma.ErrBusy) {
				t.Fatalf("one client more: %v", err)
			}
			c, err := x.server.Dial(testContext(t), e.Addr())
			if err != nil {
				t.Fatalf("a data server is kept out: %v", err)
			}
			defer c.Close()
			mustServe(t, c.(*conn), k)
		})
	}
}

// TestPeersInPlainText: a peer gets the role that it states, up to that of clients,
// or of a data server that it proves to be. A wrong proof, or none, is refused,
// counted, and holds no connection.
func TestPeersInPlainText(t *testing.T) {
	p, knows, other := newProvider(t, Options{MaxConnections: 1}), newProvider(t, Options{}), newProvider(t, Options{})
	p.SetSecret([]byte("of the cluster"))
	knows.SetSecret([]byte("of the cluster"))
	other.SetSecret([]byte("of another cluster"))
	var last atomic.Uint32 // the role of the peer that has asked
	e, err := p.Listen("", rdma.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	if err := e.Serve(func(r *rdma.Request) {
		last.Store(uint32(r.From.Role))
		_ = r.Reply(nil)
	}); err != nil {
		t.Fatal(err)
	}
	audit := e.(*endpoint)
	server := rdma.Identity{Role: rdma.RoleServer}
	for i, stranger := range []rdma.Provider{other.As(server), newProvider(t, Options{}).As(server)} {
		_, err := stranger.Dial(testContext(t), e.Addr())
		if !errors.Is(err, rdma.ErrRole) {
			t.Fatalf("stranger %d: %v", i, err)
		}
		want := uint64(i + 1)
		eventually(t, "the server counts the refusal", func() bool { return audit.Refused(refusedRole) == want })
	}
	for _, role := range rdma.Roles() {
		c, err := knows.As(rdma.Identity{Role: role}).Dial(testContext(t), e.Addr())
		if err != nil {
			t.Fatalf("as %v: %v", role, err)
		}
		if _, err := rdma.Call(testContext(t), c, []byte("who am I?"), nil); err != nil || rdma.Role(last.Load()) != role {
			t.Errorf("as %v: is taken for %v, %v", role, rdma.Role(last.Load()), err)
		}
		c.Close()
		eventually(t, "the connection ends", func() bool {
			audit.mu.Lock()
			defer audit.mu.Unlock()
			return len(audit.mu.conns) == 0
		})
	}
	if _, err := knows.As(rdma.Identity{Role: rdma.RoleLoader, Tables: []string{"a"}}).Dial(testContext(t), e.Addr()); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("restricted to a table: %v", err)
	}
}

// TestProofsAreForOneChallenge: what proved a role once proves nothing later.
func TestProofsAreForOneChallenge(t *testing.T) {
	p := newProvider(t, Options{})
	p.SetSecret([]byte("of the cluster"))
	e, _, _ := listen(t, p, "", rdma.AccessRead)
	h := ourHello()
	h.role = rdma.RoleServer
	greet := func(answer func(nonce []byte) [provide.ProofBytes]byte) reason {
		t.Helper()
		nc, err := net.Dial("tcp", e.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		_ = nc.SetDeadline(time.Now().Add(testseed.Patience()))
		_, _ = nc.Write(h.encode())
		asked, err := readHello(nc)
		if err != nil || asked.reason != reasonProve {
			t.Fatalf("asked with reason %d, %v", asked.reason, err)
		}
		proof := answer(asked.nonce[:])
		_, _ = nc.Write(proof[:])
		got, err := readHello(nc)
		if err != nil {
			t.Fatal(err)
		}
		return got.reason
	}
	var seen [provide.ProofBytes]byte
	if why := greet(func(nonce []byte) [provide.ProofBytes]byte {
		seen = p.secret.Proof(p.Name(), nonce)
		return seen
	}); why != reasonNone {
		t.Errorf("the proof is answered with reason %d", why)
	}
	if why := greet(func([]byte) [provide.ProofBytes]byte { return seen }); why != reasonRole {
		t.Errorf("an old proof is answered with reason %d", why)
	}
	if why := greet(func(nonce []byte) [provide.ProofBytes]byte { return p.secret.Proof("shm", nonce) }); why != reasonRole {
		t.Errorf("a proof for another fabric is answered with reason %d", why)
	}
}
