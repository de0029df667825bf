package tcp

import (
	"context"
	"errors"
	"testing"

	"drtmx/internal/certs"
	"drtmx/internal/mem"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

// patience bounds what tests wait for; reaching it is a failure.
var patience = testseed.Patience()

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

const testSegment = 1 << 16

func testRegion(t testing.TB) *mem.Region {
	t.Helper()
	m, err := mem.New(mem.Options{SegmentBytes: testSegment, MaxBytes: 4 * testSegment})
	if err != nil {
		t.Fatal(err)
	}
	rdmatest.FillPattern(m, 0, m.Size())
	return m
}

// listen opens an endpoint with one region that echoes requests.
func listen(t testing.TB, p *Provider, addr string, a rdma.Access) (*endpoint, *mem.Region, rdma.RKey) {
	t.Helper()
	e, err := p.Listen(addr, rdma.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	m := testRegion(t)
	k, err := e.Register(m, a)
	if err == nil {
		err = e.Serve(rdmatest.Echo)
	}
	if err != nil {
		t.Fatal(err)
	}
	return e.(*endpoint), m, k
}

// connections is how many clients e serves.
func connections(e rdma.Endpoint) int {
	ep := e.(*endpoint)
	ep.mu.Lock()
	defer ep.mu.Unlock()
	return len(ep.mu.conns)
}

func dial(t testing.TB, p *Provider, e rdma.Endpoint) *conn {
	t.Helper()
	c, err := p.Dial(testContext(t), e.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*conn)
}

// mustServe checks that c reads and calls.
func mustServe(t testing.TB, c rdma.Conn, k rdma.RKey) {
	t.Helper()
	var b rdma.Batch
	b.Read(k, 64, make([]uint64, 8))
	if err := rdma.Do(testContext(t), c, &b); err != nil {
		t.Fatal(err)
	}
	if i, ok := rdmatest.HasPattern(b.WRs[0].Buf, 64); !ok {
		t.Fatalf("word %d is wrong", i)
	}
	if r, err := rdma.Call(testContext(t), c, []byte("x"), nil); err != nil || string(r) != "x" {
		t.Fatalf("call: %q, %v", r, err)
	}
}

// TestNoGrantToAnEndedConnection: a connection that has ended is granted nothing, although the
// endpoint may still list it when its disconnect is reported.
func TestNoGrantToAnEndedConnection(t *testing.T) {
	p := newProvider(t, Options{})
	e, _, k := listen(t, p, "", rdma.AccessRead)
	mustServe(t, dial(t, p, e), k)
	e.mu.Lock()
	var c *serverConn
	for _, c = range e.mu.conns {
	}
	e.mu.Unlock()
	if err := e.Grant(c.peer, k, rdma.AccessWrite); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	c.mu.ended = true // as end does before it reports the disconnect
	c.mu.Unlock()
	if err := e.Grant(c.peer, k, rdma.AccessWrite); !errors.Is(err, rdma.ErrPeerDown) {
		t.Errorf("grant to a connection that has ended: %v, want ErrPeerDown", err)
	}
}

// TestVerbsOutsideAGrant has a client show capabilities that are not its own,
// and its own for what they do not cover.
func TestVerbsOutsideAGrant(t *testing.T) {
	p := newProvider(t, Options{})
	e, m, k := listen(t, p, "", rdma.AccessRead)
	other := dial(t, p, e)
	addr := e.Addr()
	old := dial(t, p, e).caps[0]
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e, m2, _ := listen(t, p, addr, rdma.AccessRead)
	c, foreign := dial(t, p, e), dial(t, p, e)
	own := c.caps[0]
	for name, x := range map[string]struct {
		cap   capability
		slot  int
		addr  uint64
		words int
		op    rdma.Op
		count int
	}{
		"zero":                   {capability{}, 0, 64, 8, rdma.OpRead, refusedCapability},
		"guessed":                {newCapability(), 0, 64, 8, rdma.OpRead, refusedCapability},
		"one bit":                {capability{own[0], own[1] ^ 1<<63}, 0, 64, 8, rdma.OpRead, refusedCapability},
		"halves swapped":         {capability{own[1], own[0]}, 0, 64, 8, rdma.OpRead, refusedCapability},
		"of an earlier server":   {old, 0, 64, 8, rdma.OpRead, refusedCapability},
		"of a lost connection":   {other.caps[0], 0, 64, 8, rdma.OpRead, refusedCapability},
		"of another connection":  {foreign.caps[0], 0, 64, 8, rdma.OpRead, refusedCapability},
		"unknown slot":           {own, 1, 64, 8, rdma.OpRead, refusedCapability},
		"highest slot":           {own, MaxRegions - 1, 64, 8, rdma.OpRead, refusedCapability},
		"without the right":      {own, 0, 64, 8, rdma.OpWrite, refusedRight},
		"atomic, no right":       {own, 0, 64, 1, rdma.OpFAA, refusedRight},
		"past the end":           {own, 0, testSegment - 8, 2, rdma.OpRead, refusedBounds},
		"far out":                {own, 0, 1 << 60, 1, rdma.OpRead, refusedBounds},
		"overflowing offset":     {own, 0, ^uint64(7), 2, rdma.OpRead, refusedBounds},
		"overflowing by a lot":   {own, 0, ^uint64(15), 64, rdma.OpRead, refusedBounds},
		"unaligned":              {own, 0, 4, 1, rdma.OpRead, refusedBounds},
		"overflowing, no right":  {own, 0, ^uint64(7), 2, rdma.OpWrite, refusedRight},
		"WRITE with a wrong cap": {capability{1, 1}, 0, 64, 8, rdma.OpWrite, refusedCapability},
	} {
		key := rdma.RKey(x.slot + 1)
		for len(c.caps) <= x.slot {
			c.caps, c.held = append(c.caps, capability{}), append(c.held, true)
		}
		c.caps[x.slot] = x.cap
		before := e.Refused(x.count)
		var b rdma.Batch
		b.WRs = append(b.WRs, rdma.WR{Op: x.op, RKey: key, Addr: x.addr, Buf: make([]uint64, x.words)})
		if err := rdma.Do(testContext(t), c, &b); !errors.Is(err, rdma.ErrAccess) || b.WRs[0].Status != rdma.StatusAccess {
			t.Errorf("%s: %v, status %d", name, err, b.WRs[0].Status)
		}
		if after := e.Refused(x.count); after != before+1 {
			t.Errorf("%s: counted %+v, then %+v", name, before, after)
		}
		c.caps = c.caps[:1]
		c.caps[0] = own
		mustServe(t, c, k)
		mustServe(t, foreign, k)
	}
	for off := uint64(0); off < m.Size(); off += mem.WordBytes {
		if m2.MustSpan(off, 8).Load(0) != rdmatest.Pattern(off) || m.MustSpan(off, 8).Load(0) != rdmatest.Pattern(off) {
			t.Fatalf("the word at %#x changed", off)
		}
	}
}

// TestReaderCannotWrite withholds rights from a client by its certificate.
func TestReaderCannotWrite(t *testing.T) {
	ca := trialCA(t)
	all := rdma.AccessRead | rdma.AccessWrite | rdma.AccessAtomic
	server := newProvider(t, Options{
		TLS: issue(t, ca, serverLeaf),
		Rights: func(id Identity) rdma.Access {
			if id.Name == "writer" && id.Role == rdma.RoleWriter {
				return all
			}
			return rdma.AccessRead
		},
	})
	e, m, k := listen(t, server, "", all)
	for name, writes := range map[string]bool{"reader": false, "writer": true} { // in any order
		c := dial(t, newProvider(t, Options{TLS: issue(t, ca, certs.Leaf{Name: name, Role: name})}), e)
		var b rdma.Batch
		b.Write(k, 128, []uint64{1})
		b.CAS(k, 192, rdmatest.Pattern(192), 1, make([]uint64, 1))
		b.FAA(k, 256, 1, make([]uint64, 1))
		err := rdma.Do(testContext(t), c, &b)
		if writes != (err == nil) {
			t.Errorf("%s: %v", name, err)
		}
		for i := range b.WRs {
			wr := &b.WRs[i]
			if changed := m.MustSpan(wr.Addr, 8).Load(0) != rdmatest.Pattern(wr.Addr); changed != writes || (wr.Status == rdma.StatusOK) != writes {
				t.Errorf("%s: %v has status %d and changed memory: %v", name, wr.Op, wr.Status, changed)
			}
		}
		rdmatest.FillPattern(m, 0, m.Size())
		mustServe(t, c, k)
	}
	if n := e.Refused(refusedRight); n != 3 {
		t.Errorf("%d refusals for want of a right, want 3", n)
	}
}
