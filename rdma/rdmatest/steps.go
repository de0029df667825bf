package rdmatest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"time"

	"drtmx/rdma"
)

var stepCases = []Case{
	{"ServerDiesWhileClientsConnect", caseDiesWhileConnecting},
	{"ServerDiesAtEveryStep", caseServerDies},
	{"ClientLeavesAtEveryStep", caseClientLeaves},
	{"GrantsDieWithTheirServer", caseStaleGrants},
}

// descriptors returns the files this process has open, by what they are; empty where
// the system does not tell. Memory is not among them: it lives as long as its region,
// which the test holds too.
func descriptors() (files []string) {
	const dir = "/proc/self/fd/"
	names, _ := os.ReadDir(dir)
	for _, n := range names {
		if to, err := os.Readlink(dir + n.Name()); err == nil && !strings.HasPrefix(to, "/memfd:") {
			files = append(files, to)
		}
	}
	return files
}

// noDescriptorsMore runs f and expects that it leaves no file open.
func (r *rig) noDescriptorsMore(what string, f func()) {
	r.Helper()
	before := descriptors()
	f()
	for deadline := time.Now().Add(r.patience()); len(descriptors()) > len(before); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			r.Fatalf("%s: files stay open: before %q, now %q", what, before, descriptors())
		}
	}
}

// rounds repeats f n times, or until it has taken long: where devices are
// emulated a single death takes seconds. Each round has a context of its own.
func (r *rig) rounds(n int, f func()) {
	r.Helper()
	const long = 2 * time.Second
	for start := time.Now(); n > 0 && time.Since(start) < long; n-- {
		ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
		r.ctx = ctx
		f()
		cancel()
	}
}

// expectGone expects an error of a peer that is not there, or none.
func (r *rig) expectGone(what string, err error) {
	r.Helper()
	if err != nil && !errors.Is(err, rdma.ErrPeerDown) {
		r.Errorf("%s: %v, want ErrPeerDown", what, err)
	}
}

// caseDiesWhileConnecting: at any stage of the handshake, a client gets a
// connection that turns out to be broken, or an error that says so.
func caseDiesWhileConnecting(r *rig) {
	killable(r)
	r.noDescriptorsMore("a server that died while clients connected", func() {
		r.rounds(12, func() {
			e, _, k := r.server()
			addr := e.Addr()
			const clients = 4
			conns := make([][]rdma.Conn, clients)
			var wg sync.WaitGroup
			for i := range clients {
				wg.Go(func() {
					for range 100 {
						// Some networks swallow the requests of clients; then it is
						// for the caller to say how long.
						ctx, cancel := context.WithTimeout(r.ctx, 5*time.Second)
						c, err := r.dialer().Dial(ctx, addr)
						ended := ctx.Err() != nil
						cancel()
						if err != nil {
							if !errors.Is(err, rdma.ErrRefused) && !errors.Is(err, rdma.ErrTimeout) && !(ended && errors.Is(err, context.DeadlineExceeded)) {
								r.expectGone("dial to a dying server", err)
							}
							return
						}
						conns[i] = append(conns[i], c)
					}
				})
			}
			time.Sleep(time.Duration(r.rng.Intn(1500)) * time.Microsecond)
			r.f.Kill(e)
			wg.Wait()
			for _, of := range conns {
				for _, c := range of {
					r.untilDown(c, k)
				}
			}
			r.check(e.Close())
		})
	})
}

func killable(r *rig) {
	r.Helper()
	if r.f.Kill == nil {
		r.Skipf("the fixture of provider %s cannot kill an endpoint", r.f.Provider.Name())
	}
}

// bigReply answers requests of one byte with the largest response there is,
// empty ones never, and echoes others.
func bigReply(big []byte, held chan<- *rdma.Request) rdma.Handler {
	return func(q *rdma.Request) {
		switch len(q.Body) {
		case 0:
			held <- q
		case 1:
			_ = q.Reply(big)
		default:
			_ = q.Reply(q.Body)
		}
	}
}

func bigBody() []byte {
	big := make([]byte, rdma.MaxMessageBytes)
	for i := range big {
		big[i] = byte(i * 7)
	}
	return big
}

// bigBatch is READs that take some time to be carried.
func bigBatch(k rdma.RKey) *rdma.Batch {
	b := new(rdma.Batch)
	for i := range uint64(64) {
		b.Read(k, i%2*segmentBytes, make([]uint64, segmentBytes/8))
	}
	return b
}

// caseServerDies kills the server after each step of what a client does, and
// expects typed errors, or whole answers, from there on.
func caseServerDies(r *rig) {
	killable(r)
	big := bigBody()
	steps := map[string]func(c rdma.Conn, k rdma.RKey, held <-chan *rdma.Request, kill func()){
		"connected":        func(_ rdma.Conn, _ rdma.RKey, _ <-chan *rdma.Request, kill func()) { kill() },
		"between batches":  func(c rdma.Conn, k rdma.RKey, _ <-chan *rdma.Request, kill func()) { r.load(c, k, 64); kill() },
		"READs on the way": func(c rdma.Conn, k rdma.RKey, _ <-chan *rdma.Request, kill func()) { r.dieInBatch(c, k, kill) },
		"request sent": func(c rdma.Conn, _ rdma.RKey, _ <-chan *rdma.Request, kill func()) {
			r.check(c.StartCall(r.ctx, nil))
			kill()
			_, err := c.FinishCall(r.ctx, nil)
			if err == nil {
				r.Error("a call was answered that nobody has answered")
			}
			r.expectGone("request sent", err)
		},
		"request half sent": func(c rdma.Conn, _ rdma.RKey, _ <-chan *rdma.Request, kill func()) {
			time.AfterFunc(time.Duration(r.rng.Intn(300))*time.Microsecond, kill)
			for range 1000 { // until the server dies
				resp, err := rdma.Call(r.ctx, c, big, nil)
				r.expectGone("a large request", err)
				if err != nil {
					return
				}
				if !bytes.Equal(resp, big) {
					r.Fatalf("a dying server echoes %d other bytes", len(resp))
				}
			}
		},
		"response half sent": func(c rdma.Conn, _ rdma.RKey, _ <-chan *rdma.Request, kill func()) {
			r.check(c.StartCall(r.ctx, []byte{1}))
			time.Sleep(time.Duration(r.rng.Intn(600)) * time.Microsecond)
			kill()
			resp, err := c.FinishCall(r.ctx, nil)
			r.expectGone("a large response", err)
			if err == nil && !bytes.Equal(resp, big) {
				r.Errorf("a dying server's response has %d bytes, or others than it sent", len(resp))
			}
		},
		"request handled, not answered": func(c rdma.Conn, _ rdma.RKey, held <-chan *rdma.Request, kill func()) {
			r.check(c.StartCall(r.ctx, nil))
			q := receive(r, "the request", held)
			kill()
			_ = q.Reply([]byte("too late"))
			_, err := c.FinishCall(r.ctx, nil)
			r.expectGone("request held", err)
		},
	}
	for name, step := range steps {
		r.rounds(3, func() {
			r.noDescriptorsMore(name, func() {
				held := make(chan *rdma.Request, 1)
				e, k := r.serverWith(bigReply(big, held))
				c := r.dial(e)
				killed := make(chan struct{})
				step(c, k, held, sync.OnceFunc(func() { r.f.Kill(e); close(killed) }))
				receive(r, "the kill", killed)
				r.untilDown(c, k)
				r.check(e.Close())
			})
		})
	}
}

func (r *rig) dieInBatch(c rdma.Conn, k rdma.RKey, kill func()) {
	b := bigBatch(k)
	r.check(c.Post(b))
	kill()
	if err := c.Wait(r.ctx, b); err != nil {
		r.checkBroken(b, err)
	}
	for i := range b.WRs {
		if b.WRs[i].Status == rdma.StatusOK {
			r.checkPattern(b.WRs[i].Buf, b.WRs[i].Addr)
		}
	}
}

// caseClientLeaves ends a client after each of its steps: the server reports it once,
// serves others, and keeps nothing.
func caseClientLeaves(r *rig) {
	big := bigBody()
	held := make(chan *rdma.Request, 1)
	gone := make(chan rdma.PeerID, 64)
	e := r.listen(rdma.ListenOptions{OnDisconnect: func(p rdma.PeerID) { gone <- p }})
	k := r.register(e, r.region(2), rdma.AccessRead)
	r.check(e.Serve(bigReply(big, held)))
	other := r.dial(e)
	leave := r.f.Drop
	if leave == nil {
		leave = func(c rdma.Conn) { r.check(c.Close()) }
	}
	steps := map[string]func(c rdma.Conn) *rdma.Request{
		"connected":       func(rdma.Conn) *rdma.Request { return nil },
		"between batches": func(c rdma.Conn) *rdma.Request { r.load(c, k, 64); return nil },
		"READs on the way": func(c rdma.Conn) *rdma.Request {
			r.check(c.Post(bigBatch(k)))
			return nil
		},
		"request held": func(c rdma.Conn) *rdma.Request {
			r.check(c.StartCall(r.ctx, nil))
			return receive(r, "the request", held)
		},
		"response on the way": func(c rdma.Conn) *rdma.Request {
			r.check(c.StartCall(r.ctx, []byte{1}))
			time.Sleep(time.Duration(r.rng.Intn(300)) * time.Microsecond)
			return nil
		},
		"READs and response on the way": func(c rdma.Conn) *rdma.Request {
			r.check(c.StartCall(r.ctx, []byte{1}))
			r.check(c.Post(bigBatch(k)))
			return nil
		},
	}
	for name, step := range steps {
		r.rounds(4, func() {
			r.noDescriptorsMore(name, func() {
				c, err := r.dialer().Dial(r.ctx, e.Addr())
				r.check(err)
				q := step(c)
				leave(c)
				receive(r, "OnDisconnect after "+name, gone)
				if q != nil {
					_ = q.Reply(big) // any error, no harm
				}
				r.check(c.Close())
			})
			r.load(other, k, 64)
			if resp, err := rdma.Call(r.ctx, other, []byte("others"), nil); err != nil || string(resp) != "others" {
				r.Fatalf("%s: another client's call: %q, %v", name, resp, err)
			}
		})
	}
	if len(gone) != 0 {
		r.Errorf("peer %d is reported gone again, or was not to go", <-gone)
	}
}

// caseStaleGrants: a server's grants end with it. An old connection must not read the
// memory of another server at the same address, which grants only what it has.
func caseStaleGrants(r *rig) {
	e := r.listen(rdma.ListenOptions{})
	var keys []rdma.RKey
	for range 3 {
		keys = append(keys, r.register(e, r.region(1), rdma.AccessRead|r.f.Grants))
	}
	r.check(e.Serve(Echo))
	old := r.dial(e)
	for _, k := range keys {
		if v := r.load(old, k, 64); v != Pattern(64) {
			r.Fatalf("READ gives %#x", v)
		}
	}
	r.check(e.Close())
	e = r.listenAt(e.Addr(), rdma.ListenOptions{})
	m := r.region(1)
	const secret = 0x5ec2e7
	m.MustSpan(512, 8).Store(0, secret)
	k := r.register(e, m, rdma.AccessRead|r.f.Grants)
	r.check(e.Serve(Echo))
	for _, stale := range append(keys, k) {
		var b rdma.Batch
		b.Read(stale, 512, make([]uint64, 1))
		b.Write(stale, 512, []uint64{1})
		err := rdma.Do(r.ctx, old, &b)
		if err == nil || b.WRs[0].Buf[0] == secret {
			r.Errorf("rkey %d over a connection to a server that is gone: %v, read %#x", stale, err, b.WRs[0].Buf[0])
		}
	}
	r.untilDown(old, keys[0])
	fresh := r.dial(e)
	for _, stale := range keys {
		if stale != k {
			r.mustFail(fresh, k, rdma.ErrAccess, rdma.WR{Op: rdma.OpRead, RKey: stale, Addr: 128, Buf: make([]uint64, 1)})
		}
	}
	if v := r.load(fresh, k, 512); v != secret {
		r.Errorf("the new server's word is %#x", v)
	}
}
