package rdmatest_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/rdmatest"
)

// liar is a connection that breaks the contract in the ways that are set.
type liar struct {
	rdma.Conn
	post    func(c rdma.Conn, b *rdma.Batch) error
	wait    func(c rdma.Conn, ctx context.Context, b *rdma.Batch) error
	finish  func(c rdma.Conn, ctx context.Context, resp []byte) ([]byte, error)
	count   func(rdma.Counters) rdma.Counters
	inOrder bool
}

func (l *liar) InOrder() bool { return l.inOrder || l.Conn.InOrder() }

func (l *liar) Post(b *rdma.Batch) error {
	if l.post != nil {
		return l.post(l.Conn, b)
	}
	return l.Conn.Post(b)
}

func (l *liar) Wait(ctx context.Context, b *rdma.Batch) error {
	if l.wait != nil {
		return l.wait(l.Conn, ctx, b)
	}
	return l.Conn.Wait(ctx, b)
}

func (l *liar) FinishCall(ctx context.Context, resp []byte) ([]byte, error) {
	if l.finish != nil {
		return l.finish(l.Conn, ctx, resp)
	}
	return l.Conn.FinishCall(ctx, resp)
}

func (l *liar) Counters() rdma.Counters {
	if l.count != nil {
		return l.count(l.Conn.Counters())
	}
	return l.Conn.Counters()
}

// planted makes fixtures whose connections lie.
func planted(o inproc.Options, lie func() *liar) func(testing.TB) rdmatest.Fixture {
	return decorated(o, func(d *rdmatest.Decorator) {
		d.OnDial = func(c rdma.Conn) rdma.Conn {
			l := lie()
			l.Conn = c
			return l
		}
	})
}

func decorated(o inproc.Options, set func(*rdmatest.Decorator)) func(testing.TB) rdmatest.Fixture {
	return func(t testing.TB) rdmatest.Fixture {
		o := o
		o.Seed = rdmatest.Seed(t)
		n := inproc.New(o)
		d := &rdmatest.Decorator{Provider: n}
		set(d)
		return rdmatest.Fixture{
			Provider: d,
			Grants:   rdma.AccessRead | rdma.AccessWrite | rdma.AccessAtomic,
			Kill:     func(e rdma.Endpoint) { _ = n.Kill(e.Addr()) },
		}
	}
}

// splitReads performs each READ as two, the second half first: what a provider
// that fetches in pieces might do, and yet claim to be in order.
func splitReads(c rdma.Conn, b *rdma.Batch) error {
	for i := range b.WRs {
		wr := &b.WRs[i]
		half := len(wr.Buf) / 2
		var halves rdma.Batch
		halves.Read(wr.RKey, wr.Addr+uint64(half)*8, wr.Buf[half:])
		if half > 0 {
			if err := rdma.Do(context.Background(), c, &halves); err != nil {
				return err
			}
			runtime.Gosched() // the time between two frames
			halves.Reset()
			halves.Read(wr.RKey, wr.Addr, wr.Buf[:half])
		}
		if err := rdma.Do(context.Background(), c, &halves); err != nil {
			return err
		}
		wr.Status, wr.Tail = rdma.StatusOK, halves.WRs[0].Tail
	}
	return nil
}

// halfWords fetches the two halves of each word apart.
func halfWords(c rdma.Conn, ctx context.Context, b *rdma.Batch) error {
	if err := c.Wait(ctx, b); err != nil {
		return err
	}
	for i := range b.WRs {
		wr := &b.WRs[i]
		runtime.Gosched()
		var again rdma.Batch
		low := append([]uint64(nil), wr.Buf...)
		again.Read(wr.RKey, wr.Addr, wr.Buf)
		if err := rdma.Do(ctx, c, &again); err != nil {
			return err
		}
		for j := range wr.Buf {
			wr.Buf[j] = wr.Buf[j]&^0xffffffff | low[j]&0xffffffff
		}
	}
	return nil
}

// lateWrites gives the caller its buffers back and writes to them later.
func lateWrites(c rdma.Conn, ctx context.Context, b *rdma.Batch) error {
	err := c.Wait(ctx, b)
	if err == nil {
		buf := b.WRs[0].Buf
		time.AfterFunc(200*time.Microsecond, func() { buf[0] = 1 })
	}
	return err
}

// breaksWhenLate closes the connection of a call that is given up.
func breaksWhenLate(c rdma.Conn, ctx context.Context, resp []byte) ([]byte, error) {
	resp, err := c.FinishCall(ctx, resp)
	if ctx.Err() != nil {
		c.Close()
	}
	return resp, err
}

// forgetful returns an empty response for a call that was given up before.
type forgetful struct{ late bool }

func (f *forgetful) finish(c rdma.Conn, ctx context.Context, resp []byte) ([]byte, error) {
	if f.late {
		f.late = false
		return resp[:0], nil
	}
	resp, err := c.FinishCall(ctx, resp)
	f.late = err != nil
	return resp, err
}

// goneTwice tells of every peer's end twice.
func goneTwice(t testing.TB) rdmatest.Fixture {
	return decorated(inproc.Options{}, func(d *rdmatest.Decorator) {
		d.Options = func(o rdma.ListenOptions) rdma.ListenOptions {
			if f := o.OnDisconnect; f != nil {
				o.OnDisconnect = func(p rdma.PeerID) { f(p); f(p) }
			}
			return o
		}
	})(t)
}

// readsWait does not READ while OnDisconnect runs.
func readsWait(t testing.TB) rdmatest.Fixture {
	telling := make(chan struct{}, 1)
	return decorated(inproc.Options{}, func(d *rdmatest.Decorator) {
		d.Options = func(o rdma.ListenOptions) rdma.ListenOptions {
			if f := o.OnDisconnect; f != nil {
				o.OnDisconnect = func(p rdma.PeerID) {
					telling <- struct{}{}
					f(p)
					<-telling
				}
			}
			return o
		}
		d.OnDial = func(c rdma.Conn) rdma.Conn {
			return &liar{Conn: c, wait: func(c rdma.Conn, ctx context.Context, b *rdma.Batch) error {
				telling <- struct{}{}
				<-telling
				return c.Wait(ctx, b)
			}}
		}
	})(t)
}

// grantsAnybody is an endpoint that says of every grant that it holds.
type grantsAnybody struct{ rdma.Endpoint }

func (e grantsAnybody) Grant(p rdma.PeerID, k rdma.RKey, a rdma.Access) error {
	_ = e.Endpoint.Grant(p, k, a)
	return nil
}

// redialer makes connections that silently reconnect when their peer is gone,
// to any server that now listens there.
type redialer struct{ rdma.Provider }

func (p redialer) Dial(ctx context.Context, addr string) (rdma.Conn, error) {
	c, err := p.Provider.Dial(ctx, addr)
	return &redialed{c, p, addr}, err
}

type redialed struct {
	rdma.Conn
	p    redialer
	addr string
}

func (c *redialed) Post(b *rdma.Batch) error {
	err := c.Conn.Post(b)
	if !errors.Is(err, rdma.ErrPeerDown) {
		return err
	}
	anew, derr := c.p.Provider.Dial(context.Background(), c.addr)
	if derr != nil {
		return err
	}
	_ = c.Close()
	c.Conn = anew
	return c.Conn.Post(b)
}

func redials(t testing.TB) rdmatest.Fixture {
	f := decorated(inproc.Options{}, func(*rdmatest.Decorator) {})(t)
	f.Provider = redialer{f.Provider}
	return f
}

// cached answers a READ of an address with what it gave before.
func cached() *liar {
	seen := map[uint64][]uint64{}
	return &liar{wait: func(c rdma.Conn, ctx context.Context, b *rdma.Batch) error {
		err := c.Wait(ctx, b)
		for i := range b.WRs {
			if old := seen[b.WRs[i].Addr]; old != nil {
				copy(b.WRs[i].Buf, old)
			}
			seen[b.WRs[i].Addr] = append([]uint64(nil), b.WRs[i].Buf...)
		}
		return err
	}}
}

// onWait lies about the outcome of every awaited batch.
func onWait(lie func(*rdma.Batch) error) func() *liar {
	return func() *liar {
		return &liar{wait: func(c rdma.Conn, ctx context.Context, b *rdma.Batch) error {
			_ = c.Wait(ctx, b)
			return lie(b)
		}}
	}
}

var (
	paused    = inproc.Options{Faults: inproc.Faults{Pause: 0.2}}
	scrambled = inproc.Options{Faults: inproc.Faults{Scramble: 1, Pause: 0.2}}
)

// lie is a provider that breaks one promise, and the case that is to notice.
type lie struct {
	name, caught string
	racy         bool // the lie is itself a race, or unseen under the detector
	mk           func(testing.TB) rdmatest.Fixture
}

var (
	sink   []byte
	never  chan struct{} // closed when all lies are told
	leakMu sync.Mutex
	leaked []*os.File
)

var lies = []lie{
	{
		"SplitReads", "OrderHeaderBeforeAndAfterProvesBody", false,
		planted(inproc.Options{}, func() *liar { return &liar{post: splitReads, wait: waitNothing} }),
	},
	{
		"SplitReads", "OrderLoadsAscend", false,
		planted(inproc.Options{}, func() *liar { return &liar{post: splitReads, wait: waitNothing} }),
	},
	{
		"ScrambledClaimsInOrder", "OrderHeaderBeforeAndAfterProvesBody", false,
		planted(scrambled, func() *liar { return &liar{inOrder: true} }),
	},
	{
		"ScrambledClaimsInOrder", "OrderLoadsAscend", false,
		planted(scrambled, func() *liar { return &liar{inOrder: true} }),
	},
	{
		"TailIsWordZero", "OrderHeaderBeforeAndAfterProvesBody", false,
		planted(paused, onWait(func(b *rdma.Batch) error {
			for i := range b.WRs {
				b.WRs[i].Tail = b.WRs[i].Buf[0]
			}
			return b.Err()
		})),
	},
	{
		"NoTail", "ReadContentAtEveryAlignment", false,
		planted(inproc.Options{}, onWait(func(b *rdma.Batch) error {
			for i := range b.WRs {
				b.WRs[i].Tail = 0
			}
			return b.Err()
		})),
	},
	{
		"HalfWords", "OrderWordsAreWhole", false,
		planted(inproc.Options{}, func() *liar { return &liar{wait: halfWords} }),
	},
	{"Cached", "ReadSeesEarlierStores", false, planted(inproc.Options{}, cached)},
	{
		"OneWordShort", "ReadContentAtRandom", false,
		planted(inproc.Options{}, onWait(func(b *rdma.Batch) error {
			buf := b.WRs[0].Buf
			buf[len(buf)-1] = 0
			return b.Err()
		})),
	},
	{
		"ErrorsHidden", "BadAddressesCompleteWithErrorAlone", false,
		planted(inproc.Options{}, onWait(func(b *rdma.Batch) error {
			for i := range b.WRs {
				b.WRs[i].Status = rdma.StatusOK
			}
			return nil
		})),
	},
	{
		"OneBadFailsAll", "BadRKeys", false,
		planted(inproc.Options{}, onWait(func(b *rdma.Batch) error {
			if b.Err() != nil {
				for i := range b.WRs {
					b.WRs[i].Status = rdma.StatusAccess
				}
			}
			return b.Err()
		})),
	},
	{
		"FaultsUncounted", "BadWholeBatch", false,
		planted(inproc.Options{}, func() *liar {
			return &liar{count: func(n rdma.Counters) rdma.Counters { n.Faults = 0; return n }}
		}),
	},
	{
		"RoundPerRequest", "CountersOfAKnownScript", false,
		planted(inproc.Options{}, func() *liar {
			return &liar{count: func(n rdma.Counters) rdma.Counters { n.Rounds = n.Reads; return n }}
		}),
	},
	{
		"ResponseCutAt64K", "CallEchoOfEverySize", false,
		planted(inproc.Options{}, func() *liar {
			return &liar{finish: func(c rdma.Conn, ctx context.Context, resp []byte) ([]byte, error) {
				resp, err := c.FinishCall(ctx, resp)
				return resp[:min(len(resp), 1<<16)], err
			}}
		}),
	},
	{
		"PeerDownAsTimeout", "CloseMidCall", false,
		planted(inproc.Options{}, func() *liar {
			return &liar{finish: func(c rdma.Conn, ctx context.Context, resp []byte) ([]byte, error) {
				resp, err := c.FinishCall(ctx, resp)
				if err != nil {
					err = errors.New("timed out")
				}
				return resp, err
			}}
		}),
	},
	{"LateWrites", "CancelledWait", true, planted(inproc.Options{}, func() *liar { return &liar{wait: lateWrites} })},
	{"BreaksWhenLate", "CancelledCall", false, planted(inproc.Options{}, func() *liar { return &liar{finish: breaksWhenLate} })},
	{"ForgetsWhenLate", "CancelledCall", false, planted(inproc.Options{}, func() *liar { return &liar{finish: new(forgetful).finish} })},
	{
		"Allocates", "NoAllocationPerBatch", true,
		planted(inproc.Options{}, func() *liar {
			return &liar{post: func(c rdma.Conn, b *rdma.Batch) error {
				sink = make([]byte, 8)
				return c.Post(b)
			}}
		}),
	},
	{"GoneTwice", "DisconnectIsToldOncePerPeer", false, goneTwice},
	{"ReadsWaitForOnDisconnect", "ReadsGoOnBesideOnDisconnect", false, readsWait},
	{
		"ResponseOfTheDead", "ServerDiesAtEveryStep", false,
		planted(inproc.Options{}, func() *liar {
			return &liar{finish: func(c rdma.Conn, ctx context.Context, resp []byte) ([]byte, error) {
				if resp, err := c.FinishCall(ctx, resp); err == nil {
					return resp, nil
				}
				return resp[:0], nil // what had arrived of it
			}}
		}),
	},
	{
		"DownAsTimeout", "ServerDiesAtEveryStep", false,
		planted(inproc.Options{}, func() *liar {
			return &liar{post: func(c rdma.Conn, b *rdma.Batch) error {
				if err := c.Post(b); err != nil {
					return errors.New("timed out")
				}
				return nil
			}}
		}),
	},
	{
		"LeaksDescriptor", "ServerDiesWhileClientsConnect", false,
		planted(inproc.Options{}, func() *liar {
			if f, err := os.Open(os.DevNull); err == nil {
				leakMu.Lock()
				defer leakMu.Unlock()
				leaked = append(leaked, f)
			}
			return &liar{}
		}),
	},
	{"GoneTwice", "ClientLeavesAtEveryStep", false, goneTwice},
	{"Redials", "GrantsDieWithTheirServer", false, redials},
	{
		"GrantsAnybody", "NoGrantAfterDisconnect", false,
		decorated(inproc.Options{}, func(d *rdmatest.Decorator) {
			d.OnListen = func(e rdma.Endpoint) rdma.Endpoint { return grantsAnybody{e} }
		}),
	},
	{
		"LeaksGoroutine", "DialToNobody", false,
		decorated(inproc.Options{}, func(d *rdmatest.Decorator) {
			d.OnListen = func(e rdma.Endpoint) rdma.Endpoint {
				go func(end <-chan struct{}) { <-end }(never)
				return e
			}
		}),
	},
}

// TestCasesCanFail plants every lie.
func TestCasesCanFail(t *testing.T) {
	never = make(chan struct{})
	defer close(never)
	for _, l := range lies {
		t.Run(l.name+"/"+l.caught, func(t *testing.T) {
			if l.racy && rdmatest.RaceEnabled {
				t.Skip("not under the race detector")
			}
			defer func() {
				for _, f := range leaked {
					f.Close()
				}
				leaked = nil
			}()
			t.Logf("caught: %s", rdmatest.Catches(t, l.caught, l.mk))
		})
	}
}

func waitNothing(_ rdma.Conn, _ context.Context, b *rdma.Batch) error { return b.Err() }

// TestCasesPassUndecorated is the control: the decorator itself changes nothing.
func TestCasesPassUndecorated(t *testing.T) {
	rdmatest.Run(t, planted(inproc.Options{}, func() *liar { return &liar{} }))
}
