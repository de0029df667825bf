package rdmatest

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

var grantCases = []Case{
	{"GrantIsForOnePeer", caseGrantOne},
	{"GrantOfNothing", caseGrantNothing},
	{"NoGrantAfterDisconnect", caseGrantGone},
	{"RevokeEndsThePeer", caseRevoke},
	{"RevokeOfManyWrites", caseRevokeLarge},
	{"RevokeOfGonePeer", caseRevokeGone},
	{"RevokeInHandler", caseRevokeInHandler},
	{"SwapBesideAtomics", caseSwap},
}

// whoAmI is a handler that answers with the number of the peer.
func whoAmI(q *rdma.Request) { _ = q.Reply(binary.LittleEndian.AppendUint64(nil, uint64(q.Peer))) }

// peerOf asks a server with the handler whoAmI for the number of a connection.
func (r *rig) peerOf(c rdma.Conn) rdma.PeerID {
	r.Helper()
	b, err := rdma.Call(r.ctx, c, nil, nil)
	r.check(err)
	return rdma.PeerID(binary.LittleEndian.Uint64(b))
}

const writes = rdma.AccessWrite | rdma.AccessAtomic

// tries performs a WRITE, a CAS and a FAA of different words, and checks which of them are
// performed.
func (r *rig) tries(what string, c rdma.Conn, m *mem.Region, k rdma.RKey, want rdma.Access) {
	r.Helper()
	FillPattern(m, 0, 4096)
	var b rdma.Batch
	b.Read(k, 64, make([]uint64, 8))
	b.Write(k, 128, []uint64{1, 2, 3})
	b.CAS(k, 192, Pattern(192), 1, make([]uint64, 1))
	b.FAA(k, 256, 1, make([]uint64, 1))
	err := rdma.Do(r.ctx, c, &b)
	if want == writes && err != nil {
		r.Fatalf("%s: %v", what, err)
	}
	for i, need := range []rdma.Access{0, rdma.AccessWrite, rdma.AccessAtomic, rdma.AccessAtomic} {
		wr, allowed := &b.WRs[i], want&need == need
		if allowed && wr.Status != rdma.StatusOK || !allowed && !refused(wr.Status) {
			r.Errorf("%s: %v has status %d", what, wr.Op, wr.Status)
		}
		if changed := m.MustSpan(wr.Addr, 8).Load(0) != Pattern(wr.Addr); changed != (allowed && need != 0) {
			r.Errorf("%s: %v changed memory: %v", what, wr.Op, changed)
		}
	}
}

// caseGrantOne: a grant is for one peer, one region and the access named, at once and after
// others.
func caseGrantOne(r *rig) {
	r.needs(writes)
	e := r.listen(rdma.ListenOptions{})
	m, other := r.region(1), r.region(1)
	k, kOther := r.register(e, m, rdma.AccessRead), r.register(e, other, rdma.AccessRead)
	r.check(e.Serve(whoAmI))
	a, b := r.dial(e), r.dial(e)
	pa, pb := r.peerOf(a), r.peerOf(b)
	r.tries("nothing is granted", a, m, k, 0)
	r.check(e.Grant(pa, k, rdma.AccessWrite))
	before := time.Duration(0)
	if r.f.Performs {
		before = e.(rdma.Agent).AgentTime()
	}
	r.tries("WRITE is granted", a, m, k, rdma.AccessWrite)
	if r.f.Performs && e.(rdma.Agent).AgentTime() <= before {
		r.Errorf("the server has performed verbs, and no time was counted")
	}
	r.tries("WRITE is granted to another", b, m, k, 0)
	r.tries("WRITE of another region is granted", a, other, kOther, 0)
	r.check(e.Grant(pa, k, rdma.AccessAtomic))
	r.tries("all is granted", a, m, k, writes)
	r.tries("all is granted to another", b, m, k, 0)
	r.tries("all of another region is granted", a, other, kOther, 0)
	r.check(e.Grant(pb, kOther, writes))
	r.tries("all of this region is granted", b, other, kOther, writes)
	r.tries("all of the other region is granted", b, m, k, 0)
	r.tries("all is granted still", a, m, k, writes)
	late := r.region(1)
	kLate := r.register(e, late, rdma.AccessRead)
	r.check(e.Grant(pb, kLate, writes))
	r.tries("a region that came later is granted", b, late, kLate, writes)
	r.check(a.Close())
	a = r.dial(e)
	r.tries("a new connection has no grant", a, m, k, 0)
}

func caseGrantNothing(r *rig) {
	r.needs(writes)
	e := r.listen(rdma.ListenOptions{})
	m := r.region(1)
	k := r.register(e, m, rdma.AccessRead)
	r.check(e.Serve(whoAmI))
	c := r.dial(e)
	peer := r.peerOf(c)
	for _, unknown := range []rdma.RKey{0, k + 1, ^rdma.RKey(0)} {
		if err := e.Grant(peer, unknown, writes); !errors.Is(err, rdma.ErrAccess) {
			r.Errorf("grant of region %d, which does not exist: %v; want ErrAccess", unknown, err)
		}
	}
	for _, unknown := range []rdma.PeerID{0, peer + 1000, ^rdma.PeerID(0)} {
		if err := e.Grant(unknown, k, writes); !errors.Is(err, rdma.ErrPeerDown) {
			r.Errorf("grant to peer %d, which does not exist: %v; want ErrPeerDown", unknown, err)
		}
	}
	r.check(c.Close())
	r.eventually("a grant to a peer that left is refused", func() bool {
		err := e.Grant(peer, k, writes)
		if err != nil && !errors.Is(err, rdma.ErrPeerDown) {
			r.Fatalf("grant to a peer that left: %v; want ErrPeerDown", err)
		}
		return err != nil
	})
}

// caseGrantGone: what OnDisconnect takes back is granted no more: Grant fails once OnDisconnect has
// been called for the peer, and so it does in OnDisconnect.
func caseGrantGone(r *rig) {
	r.needs(writes)
	var lastGone atomic.Uint64 // the last peer that was reported gone
	inside := make(chan error, 1)
	var e rdma.Endpoint
	var k rdma.RKey
	e = r.listen(rdma.ListenOptions{OnDisconnect: func(p rdma.PeerID) {
		lastGone.Store(uint64(p))
		inside <- e.Grant(p, k, writes)
	}})
	k = r.register(e, r.region(1), rdma.AccessRead)
	r.check(e.Serve(whoAmI))
	stays := r.dial(e)
	r.rounds(20, func() {
		c, err := r.dialer().Dial(r.ctx, e.Addr())
		r.check(err)
		peer := r.peerOf(c)
		var wg sync.WaitGroup
		wg.Go(func() {
			for {
				gone := lastGone.Load() == uint64(peer)
				err := e.Grant(peer, k, writes)
				if err == nil && gone {
					r.Errorf("a grant to peer %d after its disconnect was reported", peer)
				}
				if err != nil && !errors.Is(err, rdma.ErrPeerDown) {
					r.Errorf("a grant to a peer that leaves: %v; want ErrPeerDown", err)
				}
				if err != nil || gone {
					return
				}
				runtime.Gosched()
			}
		})
		rest(r.rng)
		r.check(c.Close())
		if err := receive(r, "the disconnect is reported", inside); !errors.Is(err, rdma.ErrPeerDown) {
			r.Errorf("a grant in OnDisconnect: %v; want ErrPeerDown", err)
		}
		wg.Wait()
		r.check(e.Grant(r.peerOf(stays), k, writes)) // others go on
	})
}

// caseRevoke: once Revoke has returned, no WRITE and no atomic of the peer takes effect; others
// go on.
func caseRevoke(r *rig) {
	r.needs(writes)
	var gone atomic.Int64
	e := r.listen(rdma.ListenOptions{OnDisconnect: func(rdma.PeerID) { gone.Add(1) }})
	m := r.region(1)
	k := r.register(e, m, rdma.AccessRead)
	r.check(e.Serve(whoAmI))
	stays := r.dial(e)
	r.check(e.Grant(r.peerOf(stays), k, writes))
	rounds := int64(0)
	r.rounds(30, func() {
		rounds++
		c, err := r.dialer().Dial(r.ctx, e.Addr())
		r.check(err)
		peer := r.peerOf(c)
		r.check(e.Grant(peer, k, writes))
		const words = 256
		s := m.MustSpan(4096, (words+1)*mem.WordBytes)
		s.Zero()
		var wg sync.WaitGroup
		wg.Go(func() {
			var b rdma.Batch
			body, old := make([]uint64, words), make([]uint64, 1)
			for n := uint64(1); ; n++ {
				for i := range body {
					body[i] = n
				}
				b.Reset()
				b.Ordered = n%2 == 0
				b.Write(k, 4096, body[:words/2])
				b.Write(k, 4096+words/2*mem.WordBytes, body[words/2:])
				b.FAA(k, 4096+words*mem.WordBytes, 1, old)
				if err := rdma.Do(r.ctx, c, &b); err != nil {
					if !errors.Is(err, rdma.ErrPeerDown) {
						r.Errorf("WRITEs of a revoked peer: %v; want ErrPeerDown", err)
					}
					return
				}
			}
		})
		r.eventually("the peer writes", func() bool { return s.Load(0) != 0 })
		rest(r.rng)
		e.Revoke(peer)
		before, after := make([]uint64, words+1), make([]uint64, words+1)
		s.CopyOut(before)
		same := func(when string) {
			s.CopyOut(after)
			for i, v := range before {
				if after[i] != v {
					r.Fatalf("%s after Revoke word %d is %d, and was %d when it returned", when, i, after[i], v)
				}
			}
		}
		rest(r.rng)
		same("soon")
		wg.Wait()
		same("when the peer has seen the end,")
		r.tries("another peer stays", stays, m, k, writes)
		same("when another peer has written,")
		r.expectDown(c, k)
	})
	r.eventually("all disconnects are told", func() bool { return gone.Load() == rounds })
	time.Sleep(time.Millisecond)
	if n := gone.Load(); n != rounds {
		r.Errorf("%d peers were revoked, and %d disconnects told", rounds, n)
	}
}

// caseRevokeLarge revokes a peer with many large WRITEs in flight.
func caseRevokeLarge(r *rig) {
	r.needs(writes)
	e := r.listen(rdma.ListenOptions{})
	m := r.regionOf(1, rdma.MaxReadBytes)
	k := r.register(e, m, rdma.AccessRead)
	r.check(e.Serve(whoAmI))
	const words = rdma.MaxReadBytes / mem.WordBytes
	body := make([]uint64, words)
	r.rounds(5, func() {
		c, err := r.dialer().Dial(r.ctx, e.Addr())
		r.check(err)
		peer := r.peerOf(c)
		r.check(e.Grant(peer, k, writes))
		s := m.MustSpan(0, rdma.MaxReadBytes)
		s.Store(words-1, 0)
		for i := range body {
			body[i]++
		}
		var b rdma.Batch
		for range 16 {
			b.Write(k, 0, body)
		}
		var wg sync.WaitGroup
		wg.Go(func() { _ = rdma.Do(r.ctx, c, &b) })
		r.eventually("the peer writes", func() bool { return s.Load(0) == body[0] })
		e.Revoke(peer)
		for i := range body {
			s.Store(i, 7)
		}
		wg.Wait()
		for i := range body {
			if v := s.Load(i); v != 7 {
				r.Fatalf("after Revoke word %d is %d", i, v)
			}
		}
		r.check(c.Close())
	})
}

// caseRevokeGone: a peer that has left, or never was, can be revoked, and again.
func caseRevokeGone(r *rig) {
	e, _, k := r.server()
	c := r.dial(e)
	r.load(c, k, 64)
	r.check(c.Close())
	for _, peer := range []rdma.PeerID{0, 1, 2, 1, 1000, ^rdma.PeerID(0)} {
		e.Revoke(peer)
	}
	if v := r.load(r.dial(e), k, 64); v != Pattern(64) {
		r.Errorf("after all this a READ gives %#x", v)
	}
	r.check(e.Close())
	e.Revoke(1)
}

// caseRevokeInHandler: the handler of one peer's request revokes another peer, whose own
// request another handler may hold, and even the first.
func caseRevokeInHandler(r *rig) {
	r.needs(writes)
	gone := make(chan rdma.PeerID, 16)
	var lock sync.Mutex // the handler holds it while it revokes
	e := r.listen(rdma.ListenOptions{OnDisconnect: func(p rdma.PeerID) {
		lock.Lock()
		defer lock.Unlock()
		gone <- p
	}})
	m := r.region(1)
	k := r.register(e, m, rdma.AccessRead)
	held := make(chan *rdma.Request, 1)
	r.check(e.Serve(func(q *rdma.Request) {
		switch {
		case len(q.Body) == 0:
			whoAmI(q)
		case len(q.Body) == 1:
			held <- q // it is answered later, or never
		default:
			lock.Lock()
			e.Revoke(rdma.PeerID(binary.LittleEndian.Uint64(q.Body)))
			lock.Unlock()
			_ = q.Reply(nil) // it may be the peer's own
		}
	}))
	a, b := r.dial(e), r.dial(e)
	pa, pb := r.peerOf(a), r.peerOf(b)
	r.check(b.StartCall(r.ctx, []byte{1}))
	q := receive(r, "the request arrives", held)
	_, err := rdma.Call(r.ctx, a, binary.LittleEndian.AppendUint64(nil, uint64(pb)), nil)
	r.check(err)
	if p := receive(r, "the disconnect is told", gone); p != pb {
		r.Errorf("peer %d disconnected, %d was revoked", p, pb)
	}
	if err := q.Reply(nil); !errors.Is(err, rdma.ErrPeerDown) {
		r.Errorf("reply to a revoked peer: %v; want ErrPeerDown", err)
	}
	if _, err := b.FinishCall(r.ctx, nil); !errors.Is(err, rdma.ErrPeerDown) {
		r.Errorf("call of a revoked peer: %v; want ErrPeerDown", err)
	}
	r.untilDown(b, k)
	if _, err := rdma.Call(r.ctx, a, binary.LittleEndian.AppendUint64(nil, uint64(pa)), nil); !errors.Is(err, rdma.ErrPeerDown) {
		r.Errorf("call that revokes its own peer: %v; want ErrPeerDown", err)
	}
	if p := receive(r, "the disconnect is told", gone); p != pa {
		r.Errorf("peer %d disconnected, %d was revoked", p, pa)
	}
}

// caseSwap: a word that peers count up with CAS, and the server with Swap, in handlers and outside of
// them, has counted them all.
func caseSwap(r *rig) {
	r.needs(writes)
	const peers, each = 3, 100
	m := r.region(1)
	var e rdma.Endpoint
	var k rdma.RKey
	swap := func(from, to uint64) (bool, error) {
		return m.MustSpan(64, mem.WordBytes).CompareAndSwap(0, from, to), nil
	}
	count := func() {
		for done := false; !done; {
			was := m.MustSpan(64, mem.WordBytes).Load(0)
			var err error
			if done, err = swap(was, was+1); err != nil {
				r.Error(err)
				return
			}
		}
	}
	e = r.listen(rdma.ListenOptions{})
	k = r.register(e, m, rdma.AccessRead)
	r.check(e.Serve(func(q *rdma.Request) {
		if len(q.Body) > 0 {
			count()
		}
		whoAmI(q)
	}))
	conns := make([]rdma.Conn, peers)
	for i := range conns {
		conns[i] = r.dial(e)
		r.check(e.Grant(r.peerOf(conns[i]), k, writes))
	}
	if a, ok := e.(rdma.ApartAtomics); ok && a.AtomicsApart(r.peerOf(conns[0])) {
		swap = func(from, to uint64) (bool, error) { return a.Swap(k, 64, from, to) }
		for _, bad := range []struct {
			k    rdma.RKey
			addr uint64
		}{{k + 100, 64}, {k, 1 << 60}, {k, 68}} {
			if done, err := a.Swap(bad.k, bad.addr, 0, 1); err == nil || done {
				r.Errorf("a word at %#x of region %d was swapped: %v, %v", bad.addr, bad.k, done, err)
			}
		}
	}
	m.MustSpan(64, mem.WordBytes).Store(0, 0)
	var wg sync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			var b rdma.Batch
			old, was := make([]uint64, 1), uint64(0)
			for n := 0; n < each; {
				b.Reset()
				b.CAS(k, 64, was, was+1, old)
				if err := rdma.Do(r.ctx, c, &b); err != nil {
					r.Error(err)
					return
				}
				if old[0] == was {
					n++
				}
				was = old[0]
				if n%4 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	wg.Go(func() {
		for range each {
			count()
		}
	})
	caller := r.dial(e)
	wg.Go(func() {
		for range each {
			if _, err := rdma.Call(r.ctx, caller, []byte{1}, nil); err != nil {
				r.Error(err)
				return
			}
		}
	})
	wg.Wait()
	if got := m.MustSpan(64, mem.WordBytes).Load(0); got != (peers+2)*each && !r.Failed() {
		r.Errorf("%d were counted of %d", got, (peers+2)*each)
	}
}
