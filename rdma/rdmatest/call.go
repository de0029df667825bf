package rdmatest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"drtmx/rdma"
)

var callCases = []Case{
	{"CallEchoOfEverySize", caseCallSizes},
	{"CallTooLarge", caseCallTooLarge},
	{"CallBuffersAreFreeOnReturn", caseCallBuffers},
	{"CallFromManyClients", caseCallClients},
	{"CallAnsweredLaterFromElsewhere", caseCallDeferred},
	{"CallAnsweredOutOfOrder", caseCallOutOfOrder},
	{"CallWithSlowHandler", caseCallSlow},
	{"CallAndBatchesTogether", caseCallAndBatches},
	{"CallSeesPeerIDOfItsConnection", caseCallPeers},
}

func caseCallSizes(r *rig) {
	e, _, _ := r.server()
	c := r.dial(e)
	req := make([]byte, rdma.MaxMessageBytes)
	for i := range req {
		req[i] = byte(r.rng.Uint64())
	}
	var resp []byte
	sizes := []int{0, 1, 2, 7, 8, 9, 63, 64, 65, 511, 4095, 4096, 4097, 65535, 65536, 65537, rdma.MaxMessageBytes - 1, rdma.MaxMessageBytes}
	for range 20 {
		sizes = append(sizes, r.rng.Intn(1<<r.rng.Intn(21)+1))
	}
	for _, n := range append(sizes, 0, rdma.MaxMessageBytes, 1) {
		out, err := rdma.Call(r.ctx, c, req[:n], resp)
		if err != nil {
			r.Fatalf("call with %d bytes: %v", n, err)
		}
		if !bytes.Equal(out, req[:n]) {
			r.Fatalf("echo of %d bytes differs, %d bytes came back", n, len(out))
		}
		if n > 0 && cap(resp) >= n && &out[0] != &resp[:1][0] {
			r.Fatalf("response of %d bytes was not put into the caller's %d", n, cap(resp))
		}
		resp = out
	}
}

func caseCallTooLarge(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	refusals := make(chan error, 1)
	r.check(e.Serve(func(q *rdma.Request) {
		if string(q.Body) != "big" {
			_ = q.Reply(q.Body)
			return
		}
		refusals <- q.Reply(make([]byte, rdma.MaxMessageBytes+1))
		_ = q.Reply([]byte("smaller"))
	}))
	c := r.dial(e)
	if err := c.StartCall(r.ctx, make([]byte, rdma.MaxMessageBytes+1)); !errors.Is(err, rdma.ErrTooLarge) {
		r.Fatalf("request of MaxMessageBytes+1: %v, want ErrTooLarge", err)
	}
	resp, err := rdma.Call(r.ctx, c, []byte("big"), nil)
	if err != nil || string(resp) != "smaller" {
		r.Fatalf("after a refused response: %q, %v", resp, err)
	}
	if err := <-refusals; !errors.Is(err, rdma.ErrTooLarge) {
		r.Errorf("response of MaxMessageBytes+1: %v, want ErrTooLarge", err)
	}
	if resp, err = rdma.Call(r.ctx, c, []byte("next"), nil); err != nil || string(resp) != "next" {
		r.Errorf("next call: %q, %v", resp, err)
	}
}

func caseCallBuffers(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	var wrong sync.Map
	handled := 0
	r.check(e.Serve(func(q *rdma.Request) {
		body := append([]byte(nil), q.Body...)
		_ = q.Reply(body)
		for i := range body { // free to reuse
			body[i] = 0xff
		}
		// The request's body is the handler's until it returns, even though
		// the client may be a call ahead; some handlers take so long that a
		// provider may look after its connections meanwhile.
		time.Sleep(50 * time.Microsecond)
		if handled++; handled%20 == 0 {
			time.Sleep(3 * time.Millisecond)
		}
		for i, v := range q.Body {
			if v != q.Body[0] {
				wrong.Store(i, v)
			}
		}
	}))
	c := r.dial(e)
	req := make([]byte, 3000)
	var resp []byte
	for i := range 100 {
		for j := range req {
			req[j] = byte(i)
		}
		r.check(c.StartCall(r.ctx, req))
		for j := range req { // free to reuse
			req[j] = 0xee
		}
		var err error
		resp, err = c.FinishCall(r.ctx, resp)
		r.check(err)
		for _, v := range resp {
			if len(resp) != len(req) || v != byte(i) {
				r.Fatalf("call %d: response of %d bytes contains %#x", i, len(resp), v)
			}
		}
	}
	r.check(e.Close())
	wrong.Range(func(i, v any) bool {
		r.Errorf("byte %d of a request changed to %#x before its handler returned", i, v)
		return false
	})
}

func caseCallClients(r *rig) {
	e, _, k := r.server()
	const clients, calls = 8, 100
	var wg sync.WaitGroup
	for i := range clients {
		c := r.dial(e)
		wg.Go(func() {
			var resp []byte
			var b rdma.Batch
			b.Read(k, uint64(i)*4096, make([]uint64, 16))
			for j := range calls {
				req := binary.BigEndian.AppendUint64(nil, uint64(i)<<32|uint64(j))
				req = append(req, make([]byte, j*7)...)
				var err error
				if resp, err = rdma.Call(r.ctx, c, req, resp); err != nil || !bytes.Equal(resp, req) {
					r.Errorf("client %d, call %d: %d bytes of %d, %v", i, j, len(resp), len(req), err)
					return
				}
				if err := rdma.Do(r.ctx, c, &b); err != nil {
					r.Error(err)
					return
				}
				if _, ok := HasPattern(b.WRs[0].Buf, b.WRs[0].Addr); !ok {
					r.Errorf("client %d: wrong content", i)
				}
			}
		})
	}
	wg.Wait()
	if n := e.Counters().RPCs; n != clients*calls {
		r.Errorf("the endpoint counts %d RPCs of %d", n, clients*calls)
	}
}

func caseCallDeferred(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	var wg sync.WaitGroup
	defer wg.Wait()
	r.check(e.Serve(func(q *rdma.Request) {
		body := append([]byte(nil), q.Body...)
		wg.Go(func() {
			if len(body)%3 == 0 {
				time.Sleep(200 * time.Microsecond)
			}
			if err := q.Reply(body); err != nil {
				r.Errorf("late reply: %v", err)
			}
		})
	}))
	var clients sync.WaitGroup
	for i := range 4 {
		c := r.dial(e)
		clients.Go(func() {
			for j := range 50 {
				req := bytes.Repeat([]byte{byte(i), byte(j)}, j)
				if resp, err := rdma.Call(r.ctx, c, req, nil); err != nil || !bytes.Equal(resp, req) {
					r.Errorf("client %d, call %d: %d bytes of %d, %v", i, j, len(resp), len(req), err)
					return
				}
			}
		})
	}
	clients.Wait()
}

func caseCallOutOfOrder(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	const clients = 4
	waiting := make(chan *rdma.Request, clients)
	r.check(e.Serve(func(q *rdma.Request) { waiting <- q }))
	conns := make([]rdma.Conn, clients)
	reqs := make([]*rdma.Request, clients)
	for i := range conns {
		conns[i] = r.dial(e)
		r.check(conns[i].StartCall(r.ctx, []byte{byte(i)}))
		reqs[i] = receive(r, "the request", waiting)
	}
	for i := clients - 1; i >= 0; i-- {
		r.check(reqs[i].Reply([]byte{byte(i), 1}))
		resp, err := conns[i].FinishCall(r.ctx, nil)
		if err != nil || !bytes.Equal(resp, []byte{byte(i), 1}) {
			r.Fatalf("connection %d: %v, %v", i, resp, err)
		}
	}
}

func caseCallSlow(r *rig) {
	e, k := r.serverWith(func(q *rdma.Request) {
		time.Sleep(20 * time.Millisecond)
		_ = q.Reply(q.Body)
	})
	c, d := r.dial(e), r.dial(e)
	for range 3 {
		start := time.Now()
		r.check(c.StartCall(r.ctx, []byte("slow")))
		for range 10 { // READs do not need the server's CPU, nor its handler
			r.load(c, k, 64)
			r.load(d, k, 64)
		}
		resp, err := c.FinishCall(r.ctx, nil)
		if err != nil || string(resp) != "slow" {
			r.Fatalf("slow call: %q, %v", resp, err)
		}
		if d := time.Since(start); d < 20*time.Millisecond {
			r.Errorf("answered after %v, before the handler was done", d)
		}
	}
}

func caseCallAndBatches(r *rig) {
	gate := make(chan struct{})
	e, k := r.serverWith(func(q *rdma.Request) {
		<-gate
		_ = q.Reply(q.Body)
	})
	c := r.dial(e)
	for range 10 {
		r.check(c.StartCall(r.ctx, []byte("x")))
		var b rdma.Batch
		b.Read(k, 64, make([]uint64, 8))
		r.check(c.Post(&b))
		r.check(c.Wait(r.ctx, &b))
		r.checkPattern(b.WRs[0].Buf, 64)
		r.check(c.Post(&b))
		gate <- struct{}{}
		resp, err := c.FinishCall(r.ctx, nil)
		if err != nil || string(resp) != "x" {
			r.Fatalf("call with a batch in flight: %q, %v", resp, err)
		}
		r.check(c.Wait(r.ctx, &b))
		r.checkPattern(b.WRs[0].Buf, 64)
	}
}

// serverWith is server with a handler of the case's own.
func (r *rig) serverWith(h rdma.Handler) (rdma.Endpoint, rdma.RKey) {
	r.Helper()
	e := r.listen(rdma.ListenOptions{})
	m := r.region(2)
	k := r.register(e, m, rdma.AccessRead)
	r.check(e.Serve(h))
	return e, k
}

func caseCallPeers(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	r.check(e.Serve(func(q *rdma.Request) { _ = q.Reply(binary.BigEndian.AppendUint64(nil, uint64(q.Peer))) }))
	ids := map[uint64]bool{}
	for range 5 {
		c := r.dial(e)
		var first uint64
		for j := range 3 {
			resp, err := rdma.Call(r.ctx, c, nil, nil)
			r.check(err)
			id := binary.BigEndian.Uint64(resp)
			if j == 0 {
				first = id
			} else if id != first {
				r.Fatalf("one connection has PeerIDs %d and %d", first, id)
			}
		}
		if ids[first] {
			r.Fatalf("PeerID %d was given twice", first)
		}
		ids[first] = true
		r.check(c.Close()) // its id is not used again
	}
}
