package server

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/twophase"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
)

// Transactions with a server that is reachable again go on within renewBound,
// and after few attempts: the first that fails ends all broken connections.
const (
	renewBound    = 20 * time.Second // on a busy machine
	renewAttempts = 4
	warmLinks     = 32
	// brokenUses is how many of the broken connections may be used before they are
	// gone: messages may be under way on several.
	brokenUses = 8
)

// countedConn counts the calls that fail.
type countedConn struct {
	rdma.Conn
	failed *atomic.Int64
}

func (c *countedConn) StartCall(ctx context.Context, req []byte) error {
	return c.count(c.Conn.StartCall(ctx, req))
}

func (c *countedConn) FinishCall(ctx context.Context, resp []byte) ([]byte, error) {
	resp, err := c.Conn.FinishCall(ctx, resp)
	return resp, c.count(err)
}

func (c *countedConn) count(err error) error {
	if err != nil {
		c.failed.Add(1)
	}
	return err
}

// until tries fn until it succeeds, within the bounds.
func until(t *testing.T, what string, fn func() error) {
	t.Helper()
	start := time.Now()
	for tries := 1; ; tries++ {
		err := fn()
		if err == nil {
			t.Logf("%s after %v, at attempt %d", what, time.Since(start), tries)
			return
		}
		if tries == renewAttempts || time.Since(start) > renewBound {
			t.Fatalf("%s: not at attempt %d, after %v: %v", what, tries, time.Since(start), err)
		}
	}
}

// warm fills a server's pool of connections to a peer, which count in failed.
func warm(t *testing.T, p *peer, n int, failed *atomic.Int64) (links []*link) {
	t.Helper()
	for range n {
		l, err := p.dial(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		l.conn = &countedConn{l.conn, failed}
		links = append(links, l)
	}
	for _, l := range links {
		l.release()
	}
	return links
}

// fewBroken: most of the broken connections were not used any more.
func fewBroken(t *testing.T, failed *atomic.Int64) {
	t.Helper()
	if n := failed.Load(); n > brokenUses {
		t.Errorf("%d broken connections were used, want at most %d", n, brokenUses)
	}
}

// TestBrokenLinksAreRenewed: all connections between two servers break, and
// transactions between them go on over new ones.
func TestBrokenLinksAreRenewed(t *testing.T) {
	cl, acct, _ := startBank(t, 2)
	putAccounts(t, cl.DB, acct, 20, 100)
	for range 3 {
		var failed atomic.Int64
		for i, s := range cl.Servers {
			for _, l := range warm(t, s.peers[1-i], warmLinks, &failed) {
				l.conn.Close()
			}
		}
		until(t, "a transaction over both servers", func() error { return moveBetween(t, cl, acct) })
		fewBroken(t, &failed)
	}
}

// TestLinksToARestartedServer: a server is killed and another one, with an empty
// memory, takes its address. The survivor has connections to the former one.
// They are replaced without help, and transactions of the two go on, whichever
// coordinates. A survivor that has heard of the former server refuses the new
// one, so the test makes it believe that it has heard of the new one only; the refusal
// is tested at the end.
func TestLinksToARestartedServer(t *testing.T) {
	net, cat := inproc.New(inproc.Options{}), bank(t)
	addrs := []string{"a", "b"}
	start := func(i int, knownTo *Server) *Server {
		t.Helper()
		s, err := New(Config{Index: i, Addrs: addrs, Catalog: cat, Provider: net, MemoryBytes: 1 << 26})
		if err == nil && knownTo != nil { // before it can be dialed
			knownTo.acquainted.mu.Lock()
			knownTo.acquainted.said.Incarnations[i] = s.parts.incarnation
			knownTo.acquainted.mu.Unlock()
		}
		if err == nil {
			err = s.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		return s
	}
	entry, key := cat.MustTable("entry"), uint64(0)
	both := func(s *Server) error {
		key++
		c := wire.Commit{ID: wire.ID{Client: 7, Seq: key}}
		for p := range uint16(2) {
			c.Parts = append(c.Parts, wire.Part{Partition: placement.Partition(p), Writes: []wire.Write{writeOf(entry, wire.Insert, uint64(p)<<32+key)}})
		}
		if v, _ := s.driver.commit(context.Background(), &c, origin{}); !v.ok() {
			return v
		}
		return nil
	}
	survivor, lost := start(0, nil), start(1, nil)
	until(t, "a transaction before", func() error { return both(survivor) })
	for range 3 {
		former := lost.parts.party(lost.parts.here[0])
		var failed atomic.Int64
		warm(t, survivor.peers[1], warmLinks, &failed)
		if err := net.Kill(addrs[1]); err != nil {
			t.Fatal(err)
		}
		next := start(1, survivor)
		if err := lost.Close(); err != nil {
			t.Fatal(err)
		}
		lost = next
		until(t, "a transaction of the survivor", func() error { return both(survivor) })
		fewBroken(t, &failed)
		until(t, "a transaction of the restarted server", func() error { return both(lost) })
		// The survivor tells its machine about the former life if it has a message for it.
		msg := twophase.Message{Kind: twophase.Settled, From: survivor.parts.party(survivor.parts.here[0]), To: former}
		until(t, "a message", func() error { return survivor.peers[1].exchange([]twophase.Message{msg}) })
	}
	warm(t, survivor.peers[1], warmLinks, new(atomic.Int64))
	if err := net.Kill(addrs[1]); err != nil {
		t.Fatal(err)
	}
	next := start(1, nil)
	defer next.Close()
	until(t, "the refusal of a server that has lost its memory", func() error {
		err := both(survivor)
		var v verdict
		if !errors.As(err, &v) || v.code != wire.Unavailable || !strings.Contains(v.text, `"restarted":true`) {
			return errors.Join(errors.New("not refused as restarted"), err)
		}
		return nil
	})
}
