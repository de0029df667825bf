package rdmatest

import (
	"context"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"drtmx/rdma"
)

var lifeCases = []Case{
	{"DialToNobody", caseDialNobody},
	{"DialWithoutDescriptors", caseDialWithoutDescriptors},
	{"ListenTwice", caseListenTwice},
	{"ReconnectAtTheSameAddress", caseReconnect},
	{"CloseOfConnectionIsIdempotent", caseConnClose},
	{"CloseOfEndpointIsIdempotent", caseEndpointClose},
	{"CloseMidCall", func(r *rig) { caseDownMidCall(r, closeEndpoint) }},
	{"CloseMidBatch", func(r *rig) { caseDownMidBatch(r, closeEndpoint) }},
	{"CloseWaitsForHandlers", caseCloseWaits},
	{"CloseWithUnansweredCall", caseCloseUnanswered},
	{"KillMidCall", killing(caseDownMidCall)},
	{"KillMidBatch", killing(caseDownMidBatch)},
	{"CancelledDial", caseCancelDial},
	{"CancelledCall", caseCancelCall},
	{"CancelledWait", caseCancelWait},
	{"DisconnectIsToldOncePerPeer", caseDisconnect},
	{"DisconnectBeforeServeIsToldLater", caseDisconnectEarly},
	{"ReadsGoOnBesideOnDisconnect", caseDisconnectBeside},
	{"ReplyToGonePeerHarmsNothing", caseReplyGone},
	{"ConnectionsComeAndGo", caseChurn},
}

func closeEndpoint(r *rig, e rdma.Endpoint) { r.check(e.Close()) }

// killing is a case whose endpoint is killed, not closed.
func killing(c func(r *rig, down func(*rig, rdma.Endpoint))) func(r *rig) {
	return func(r *rig) {
		killable(r)
		c(r, func(r *rig, e rdma.Endpoint) { r.f.Kill(e) })
	}
}

func caseDialNobody(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	r.check(e.Serve(Echo))
	addr := e.Addr()
	r.check(e.Close())
	if c, err := r.dialer().Dial(r.ctx, addr); !errors.Is(err, rdma.ErrRefused) {
		r.Errorf("dial to an address without a listener: %v, %v; want ErrRefused", c, err)
	}
}

// caseDialWithoutDescriptors: in a process that can open no more files, Dial
// returns that error, at whichever step it occurs, and does not report the
// server as gone.
func caseDialWithoutDescriptors(r *rig) {
	e, _, k := r.server()
	through := 0
	spares := []int{0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 30}
	for _, spare := range spares {
		restore, err := limitDescriptors(spare)
		if err != nil {
			r.Skipf("descriptors cannot be limited here: %v", err)
		}
		ctx, cancel := context.WithTimeout(r.ctx, 300*time.Millisecond)
		c, err := r.dialer().Dial(ctx, e.Addr())
		ended := ctx.Err() != nil
		cancel()
		restore()
		switch {
		case err == nil:
			through++
			r.check(c.Close())
		case errors.Is(err, rdma.ErrExhausted):
		case ended && errors.Is(err, context.DeadlineExceeded): // the server, in this process too, accepts nobody
		case errors.Is(err, rdma.ErrPeerDown) && !errors.Is(err, rdma.ErrAddress): // it accepted, and had none for the rest
		default:
			r.Errorf("dial with %d descriptors to spare: %v; want ErrExhausted", spare, err)
		}
	}
	r.Logf("%d of %d dials went through", through, len(spares))
	if v := r.load(r.dial(e), k, 64); v != Pattern(64) {
		r.Errorf("with descriptors again a READ gives %#x", v)
	}
}

func caseListenTwice(r *rig) {
	e, _, k := r.server()
	if e2, err := r.f.Provider.Listen(e.Addr(), rdma.ListenOptions{}); !errors.Is(err, rdma.ErrAddress) {
		r.Errorf("second listen at %q: %v, %v; want ErrAddress", e.Addr(), e2, err)
	}
	if v := r.load(r.dial(e), k, 64); v != Pattern(64) {
		r.Errorf("after a second listen the first endpoint reads %#x", v)
	}
}

// untilDown uses c until it reports a dead peer, and expects that to last.
func (r *rig) untilDown(c rdma.Conn, k rdma.RKey) {
	r.Helper()
	var b rdma.Batch
	b.Read(k, 64, make([]uint64, 8))
	r.eventually("the connection reports its peer down", func() bool {
		err := rdma.Do(r.ctx, c, &b)
		if err != nil && !errors.Is(err, rdma.ErrPeerDown) {
			r.Fatalf("READ of a dead peer: %v, want ErrPeerDown", err)
		}
		return err != nil
	})
	r.expectDown(c, k)
}

func (r *rig) expectDown(c rdma.Conn, k rdma.RKey) {
	r.Helper()
	var b rdma.Batch
	b.Read(k, 64, make([]uint64, 8))
	for range 2 {
		if err := c.Post(&b); !errors.Is(err, rdma.ErrPeerDown) {
			r.Errorf("Post on a broken connection: %v, want ErrPeerDown", err)
		}
		if _, err := rdma.Call(r.ctx, c, []byte("x"), nil); !errors.Is(err, rdma.ErrPeerDown) {
			r.Errorf("call on a broken connection: %v, want ErrPeerDown", err)
		}
	}
	r.check(c.Close())
	if err := c.Post(&b); !errors.Is(err, rdma.ErrClosed) {
		r.Errorf("Post on a connection broken and closed: %v, want ErrClosed", err)
	}
}

func caseReconnect(r *rig) {
	e, _, k := r.server()
	old := r.dial(e)
	r.load(old, k, 64)
	addr := e.Addr()
	for i := range uint64(3) {
		r.check(e.Close())
		e = r.listenAt(addr, rdma.ListenOptions{})
		m := r.region(1)
		m.MustSpan(64, 8).Store(0, i)
		k2 := r.register(e, m, rdma.AccessRead)
		r.check(e.Serve(Echo))
		r.untilDown(old, k)
		old, k = r.dial(e), k2
		if v := r.load(old, k, 64); v != i {
			r.Fatalf("after reconnecting a READ gives %d, want %d", v, i)
		}
		resp, err := rdma.Call(r.ctx, old, []byte("again"), nil)
		if err != nil || string(resp) != "again" {
			r.Fatalf("call after reconnecting: %q, %v", resp, err)
		}
	}
}

func caseConnClose(r *rig) {
	e, _, k := r.server()
	c, other := r.dial(e), r.dial(e)
	r.load(c, k, 64)
	_, err := rdma.Call(r.ctx, c, []byte("x"), nil)
	r.check(err)
	before := c.Counters()
	for range 3 {
		r.check(c.Close())
	}
	var b rdma.Batch
	b.Read(k, 64, make([]uint64, 8))
	if err := c.Post(&b); !errors.Is(err, rdma.ErrClosed) {
		r.Errorf("Post after Close: %v, want ErrClosed", err)
	}
	if err := c.StartCall(r.ctx, nil); !errors.Is(err, rdma.ErrClosed) {
		r.Errorf("StartCall after Close: %v, want ErrClosed", err)
	}
	if after := c.Counters(); after != before {
		r.Errorf("counters changed from %+v to %+v after Close", before, after)
	}
	if v := r.load(other, k, 64); v != Pattern(64) {
		r.Errorf("after another connection closed a READ gives %#x", v)
	}
}

func caseEndpointClose(r *rig) {
	e, m, k := r.server()
	c := r.dial(e)
	r.load(c, k, 64)
	for range 3 {
		r.check(e.Close())
	}
	if _, err := e.Register(m, rdma.AccessRead); !errors.Is(err, rdma.ErrClosed) {
		r.Errorf("Register after Close: %v, want ErrClosed", err)
	}
	r.untilDown(c, k)
	_ = e.Counters()
}

func caseDownMidCall(r *rig, down func(*rig, rdma.Endpoint)) {
	arrived := make(chan *rdma.Request, 3)
	e, k := r.serverWith(func(q *rdma.Request) { arrived <- q })
	var conns []rdma.Conn
	var reqs []*rdma.Request
	for range 3 {
		c := r.dial(e)
		conns = append(conns, c)
		r.check(c.StartCall(r.ctx, []byte("never answered")))
		reqs = append(reqs, receive(r, "the request", arrived))
	}
	results := make(chan error, 1)
	go func() { // one client is waiting as it happens
		_, err := conns[0].FinishCall(r.ctx, nil)
		results <- err
	}()
	time.Sleep(2 * time.Millisecond)
	down(r, e)
	if err := receive(r, "the end of a call to a dead peer", results); !errors.Is(err, rdma.ErrPeerDown) {
		r.Errorf("call in flight: %v, want ErrPeerDown", err)
	}
	for _, c := range conns[1:] {
		if _, err := c.FinishCall(r.ctx, nil); !errors.Is(err, rdma.ErrPeerDown) {
			r.Errorf("call in flight: %v, want ErrPeerDown", err)
		}
	}
	for _, q := range reqs {
		_ = q.Reply([]byte("too late")) // any error, no harm
	}
	for _, c := range conns {
		r.untilDown(c, k)
	}
}

func caseDownMidBatch(r *rig, down func(*rig, rdma.Endpoint)) {
	e, _, k := r.server()
	c, d := r.dial(e), r.dial(e)
	var posted rdma.Batch
	for i := range uint64(100) {
		posted.Read(k, i*64, make([]uint64, 8))
	}
	r.check(d.Post(&posted))
	var wg sync.WaitGroup
	first := make(chan struct{}) // without it statuses would be of no round
	wg.Go(func() {
		var b rdma.Batch
		for i := range uint64(64) {
			b.Read(k, i*512, make([]uint64, 64))
		}
		for rounds := 0; ; rounds++ {
			if err := rdma.Do(r.ctx, c, &b); err != nil {
				r.checkBroken(&b, err)
				return
			}
			if rounds == 0 {
				close(first)
			}
		}
	})
	receive(r, "the first round", first)
	time.Sleep(2 * time.Millisecond)
	down(r, e)
	wg.Wait()
	if err := d.Wait(r.ctx, &posted); err != nil {
		r.checkBroken(&posted, err)
	}
	for i := range posted.WRs {
		if s := posted.WRs[i].Status; s != rdma.StatusOK && s != rdma.StatusPeerDown {
			r.Fatalf("request %d posted before the peer went has status %d", i, s)
		}
		if posted.WRs[i].Status == rdma.StatusOK {
			r.checkPattern(posted.WRs[i].Buf, posted.WRs[i].Addr)
		}
	}
	r.untilDown(c, k)
	r.untilDown(d, k)
}

// checkBroken expects the error of a dead peer for a batch. If the error came
// from Post, nothing was posted and the statuses are those of the previous
// round.
func (r *rig) checkBroken(b *rdma.Batch, err error) {
	if !errors.Is(err, rdma.ErrPeerDown) {
		r.Errorf("batch of a dead peer: %v, want ErrPeerDown", err)
	}
	for i := range b.WRs {
		if s := b.WRs[i].Status; s != rdma.StatusOK && s != rdma.StatusPeerDown {
			r.Errorf("request %d of a dead peer's batch has status %d", i, s)
		}
	}
}

func caseCloseWaits(r *rig) {
	arrived, gate, closed := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	e, _ := r.serverWith(func(q *rdma.Request) {
		close(arrived)
		<-gate
		_ = q.Reply([]byte("done"))
	})
	c := r.dial(e)
	r.check(c.StartCall(r.ctx, nil))
	receive(r, "the request", arrived)
	go func() { closed <- e.Close() }()
	select {
	case <-closed:
		r.Error("Close returned while a handler ran")
	case <-time.After(20 * time.Millisecond):
	}
	close(gate)
	r.check(receive(r, "Close", closed))
	if resp, err := c.FinishCall(r.ctx, nil); err == nil && string(resp) != "done" || err != nil && !errors.Is(err, rdma.ErrPeerDown) {
		r.Errorf("call handled during Close: %q, %v", resp, err)
	}
}

func caseCloseUnanswered(r *rig) {
	requests := make(chan *rdma.Request, 1)
	e, k := r.serverWith(func(q *rdma.Request) { requests <- q })
	c := r.dial(e)
	r.check(c.StartCall(r.ctx, nil))
	q := receive(r, "the request", requests)
	r.check(e.Close()) // does not wait for answers to come
	_ = q.Reply(nil)
	if _, err := c.FinishCall(r.ctx, nil); !errors.Is(err, rdma.ErrPeerDown) {
		r.Errorf("unanswered call after Close: %v, want ErrPeerDown", err)
	}
	r.untilDown(c, k)
}

func caseCancelDial(r *rig) {
	e, _, _ := r.server()
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	if c, err := r.dialer().Dial(ctx, e.Addr()); !errors.Is(err, context.Canceled) {
		r.Errorf("dial with a cancelled context: %v, %v", c, err)
	}
}

// caseCancelCall: a call whose context ends stays outstanding. It can be
// finished later, and a connection can be closed with it.
func caseCancelCall(r *rig) {
	requests := make(chan *rdma.Request, 1)
	gone := make(chan rdma.PeerID, 16)
	e := r.listen(rdma.ListenOptions{OnDisconnect: func(p rdma.PeerID) { gone <- p }})
	k := r.register(e, r.region(1), rdma.AccessRead)
	r.check(e.Serve(func(q *rdma.Request) {
		if len(q.Body) > 0 {
			_ = q.Reply(q.Body)
			return
		}
		requests <- q
	}))
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	c := r.dial(e)
	if err := c.StartCall(ended, nil); !errors.Is(err, context.Canceled) {
		r.Errorf("StartCall with a context that has ended: %v", err)
	}
	for turn, after := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond} {
		r.check(c.StartCall(r.ctx, nil))
		q := receive(r, "the request", requests)
		resp := []byte{1, 2, 3, 4, 5, 6, 7, 8}
		for range turn + 1 {
			ctx, cancel := context.WithTimeout(r.ctx, after)
			if _, err := c.FinishCall(ctx, resp); !errors.Is(err, context.DeadlineExceeded) {
				r.Errorf("call whose context ended: %v", err)
			}
			cancel()
		}
		if err := c.StartCall(r.ctx, []byte("second")); err == nil || errors.Is(err, rdma.ErrPeerDown) {
			r.Errorf("a second call beside an outstanding one: %v", err)
		}
		if v := r.load(c, k, 64); v != Pattern(64) {
			r.Errorf("READ beside an outstanding call gives %#x", v)
		}
		_ = q.Reply([]byte("later"))
		time.Sleep(time.Millisecond)
		for i, v := range resp {
			if v != byte(i+1) {
				r.Fatal("a late response was written into the buffer of a call given up")
			}
		}
		if out, err := c.FinishCall(r.ctx, resp); err != nil || string(out) != "later" {
			r.Errorf("call finished later: %q, %v", out, err)
		}
		if out, err := rdma.Call(r.ctx, c, []byte("x"), nil); err != nil || string(out) != "x" {
			r.Errorf("call after one that was late: %q, %v", out, err)
		}
	}
	r.check(c.StartCall(r.ctx, nil))
	q := receive(r, "the request", requests)
	if _, err := c.FinishCall(ended, nil); !errors.Is(err, context.Canceled) {
		r.Errorf("call whose context ended: %v", err)
	}
	r.check(c.Close())
	if p := receive(r, "OnDisconnect", gone); p != q.Peer {
		r.Errorf("peer %d is reported gone, want %d", p, q.Peer)
	}
	_ = q.Reply(nil)
	if len(gone) != 0 {
		r.Errorf("peer %d is reported gone again", <-gone)
	}
}

// caseCancelWait: a batch whose context ends stays in flight, and a later Wait
// completes it. Then its buffers belong to the caller again.
func caseCancelWait(r *rig) {
	e, _, k := r.server()
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	c := r.dial(e)
	for range 20 {
		var b rdma.Batch
		for i := range uint64(32) {
			b.Read(k, 4096+i*2048, make([]uint64, 256))
		}
		r.check(c.Post(&b))
		if err := c.Wait(ctx, &b); err != nil { // nil: complete before anyone looked at ctx
			if !errors.Is(err, context.Canceled) {
				r.Fatalf("Wait with a cancelled context: %v", err)
			}
			r.check(c.Wait(r.ctx, &b))
		}
		for i := range b.WRs {
			r.checkPattern(b.WRs[i].Buf, b.WRs[i].Addr)
			for j := range b.WRs[i].Buf { // ours again
				b.WRs[i].Buf[j] = canary
			}
		}
		time.Sleep(time.Millisecond)
		r.load(c, k, 64)
		for i := range b.WRs {
			for _, v := range b.WRs[i].Buf {
				if v != canary {
					r.Fatalf("request %d was written after Wait returned", i)
				}
			}
		}
	}
}

func caseDisconnect(r *rig) {
	var mu sync.Mutex
	gone := map[rdma.PeerID]int{}
	e := r.listen(rdma.ListenOptions{OnDisconnect: func(p rdma.PeerID) {
		mu.Lock()
		defer mu.Unlock()
		gone[p]++
	}})
	k := r.register(e, r.region(1), rdma.AccessRead)
	r.check(e.Serve(func(q *rdma.Request) { _ = q.Reply(binary.BigEndian.AppendUint64(nil, uint64(q.Peer))) }))
	const peers = 6
	ids := map[rdma.PeerID]bool{}
	var stay rdma.Conn
	for i := range peers {
		c := r.dial(e)
		if i%2 == 0 { // the others never call
			resp, err := rdma.Call(r.ctx, c, nil, nil)
			r.check(err)
			ids[rdma.PeerID(binary.BigEndian.Uint64(resp))] = true
		} else {
			r.load(c, k, 64)
		}
		if i == peers-1 {
			stay = c
			break
		}
		r.check(c.Close())
		r.check(c.Close())
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(gone)
	}
	r.eventually("all closed peers are reported", func() bool { return count() >= peers-1 })
	time.Sleep(10 * time.Millisecond)
	r.load(stay, k, 64)
	mu.Lock()
	defer mu.Unlock()
	if len(gone) != peers-1 {
		r.Errorf("%d peers are reported gone, want %d", len(gone), peers-1)
	}
	for p, n := range gone {
		if n != 1 {
			r.Errorf("peer %d was reported gone %d times", p, n)
		}
		delete(ids, p)
	}
	if len(ids) != 0 {
		r.Errorf("peers %v called, closed, and were not reported under their ids", ids)
	}
}

// caseDisconnectBeside: while OnDisconnect waits for something, other connections of the same
// process READ, even regions that are new to it.
func caseDisconnectBeside(r *rig) {
	gone, release := make(chan rdma.PeerID, 2), make(chan struct{})
	e := r.listen(rdma.ListenOptions{OnDisconnect: func(p rdma.PeerID) {
		gone <- p
		<-release
	}})
	defer close(release)
	k := r.register(e, r.region(1), rdma.AccessRead)
	r.check(e.Serve(Echo))
	leaves, stays := r.dial(e), r.dial(e)
	r.load(leaves, k, 64)
	r.load(stays, k, 64)
	r.check(leaves.Close())
	receive(r, "OnDisconnect", gone)
	for _, k := range []rdma.RKey{k, r.register(e, r.region(1), rdma.AccessRead)} {
		done := make(chan error, 1)
		go func() {
			var b rdma.Batch
			b.Read(k, 64, make([]uint64, 1))
			done <- rdma.Do(r.ctx, stays, &b)
		}()
		select {
		case err := <-done:
			r.check(err)
		case <-time.After(r.patience()):
			r.Fatalf("a READ of region %d waits for OnDisconnect", k)
		}
	}
}

// caseDisconnectEarly: what OnDisconnect touches may be created between Listen and
// Serve, and no request of a peer comes after its disconnect.
func caseDisconnectEarly(r *rig) {
	var mu sync.Mutex
	served, gone, handled := false, map[rdma.PeerID]bool{}, map[rdma.PeerID]bool{}
	e := r.listen(rdma.ListenOptions{OnDisconnect: func(p rdma.PeerID) {
		mu.Lock()
		defer mu.Unlock()
		if !served {
			r.Errorf("peer %d is reported gone before Serve", p)
		}
		gone[p] = true
	}})
	for i := range 6 {
		c := r.dial(e)
		if i%2 == 0 { // the others never call
			r.check(c.StartCall(r.ctx, []byte("early")))
		}
		if i%3 == 0 {
			time.Sleep(time.Millisecond) // the server may receive the request first
		}
		r.check(c.Close())
	}
	time.Sleep(10 * time.Millisecond)
	mu.Lock()
	served = true
	mu.Unlock()
	r.check(e.Serve(func(q *rdma.Request) {
		mu.Lock()
		if gone[q.Peer] {
			r.Errorf("a request of peer %d is handled after its disconnect", q.Peer)
		}
		handled[q.Peer] = true
		mu.Unlock()
		_ = q.Reply(q.Body) // fails if the peer has disconnected
	}))
	c := r.dial(e)
	if out, err := rdma.Call(r.ctx, c, []byte("now"), nil); err != nil || string(out) != "now" {
		r.Errorf("a call after Serve: %q, %v", out, err)
	}
	r.check(c.Close())
	r.eventually("all peers that called are reported", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for p := range handled {
			if !gone[p] {
				return false
			}
		}
		return len(handled) > 0
	})
}

func caseReplyGone(r *rig) {
	requests := make(chan *rdma.Request, 1)
	e, _ := r.serverWith(func(q *rdma.Request) {
		if len(q.Body) > 0 {
			_ = q.Reply(q.Body)
			return
		}
		requests <- q
	})
	other := r.dial(e)
	for range 10 {
		c := r.dial(e)
		r.check(c.StartCall(r.ctx, nil))
		q := receive(r, "the request", requests)
		r.check(c.Close())
		_ = q.Reply(make([]byte, 1000))
		if resp, err := rdma.Call(r.ctx, other, []byte("fine"), nil); err != nil || string(resp) != "fine" {
			r.Fatalf("another client's call: %q, %v", resp, err)
		}
	}
}

func caseChurn(r *rig) {
	e, _, k := r.server()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 25 {
				c, err := r.dialer().Dial(r.ctx, e.Addr())
				if err != nil {
					r.Error(err)
					return
				}
				var b rdma.Batch
				b.Read(k, 64, make([]uint64, 8))
				if err := rdma.Do(r.ctx, c, &b); err != nil {
					r.Error(err)
				}
				if i%2 == 0 {
					if _, err := rdma.Call(r.ctx, c, []byte("x"), nil); err != nil {
						r.Error(err)
					}
				} else if i%3 == 0 { // leave without waiting for the answer
					_ = c.StartCall(r.ctx, []byte("x"))
				}
				if err := c.Close(); err != nil {
					r.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if n := e.Counters().RPCs; n < 4*13 {
		r.Errorf("the endpoint forgot RPCs of connections that are gone: it counts %d", n)
	}
}
