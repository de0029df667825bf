package multi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"drtmx/internal/mem"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/rdmatest"
	"drtmx/rdma/shm"
	"drtmx/rdma/tcp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const all = rdma.AccessRead | rdma.AccessWrite | rdma.AccessAtomic

var sockets atomic.Int64

// socket is a name that no other endpoint has.
func socket() string { return fmt.Sprintf("@drtmx-multi-%d-%d", os.Getpid(), sockets.Add(1)) }

// both is a provider of tcp and of local, in the place of shared memory.
func both(t testing.TB, local rdma.Provider) *Provider {
	t.Helper()
	p, err := New(Options{}, TCP)
	if err != nil {
		t.Fatal(err)
	}
	p.Shm = local
	return p
}

func newShm(t testing.TB) rdma.Provider {
	t.Helper()
	p, err := shm.New(shm.Options{})
	if errors.Is(err, rdma.ErrUnsupported) {
		t.Skipf("SKIP: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func patience(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), testseed.Patience())
	t.Cleanup(cancel)
	return ctx
}

// The suite runs over two members at a time, and takes the way to each of them.
// The in-process fabric stands for shared memory where a region is not shared.
func TestConformance(t *testing.T) {
	local := func() rdma.Provider { return inproc.New(inproc.Options{}) }
	t.Run("inproc of inproc and tcp", func(t *testing.T) {
		rdmatest.Run(t, func(t testing.TB) rdmatest.Fixture {
			return rdmatest.Fixture{
				Provider: both(t, local()), Grants: all,
				Addr: func() string { return "tcp:127.0.0.1:0+shm:" + socket() },
			}
		})
	})
	t.Run("servers that may move", func(t *testing.T) {
		rdmatest.Run(t, func(t testing.TB) rdmatest.Fixture {
			p := both(t, local())
			p.Resolve = func(addr string) string { return addr }
			return rdmatest.Fixture{Provider: p, Grants: all, Addr: func() string { return "tcp:127.0.0.1:0+shm:" + socket() }}
		})
	})
	t.Run("tcp of inproc and tcp", func(t *testing.T) {
		rdmatest.Run(t, func(t testing.TB) rdmatest.Fixture {
			return rdmatest.Fixture{
				Provider: both(t, local()), Dialer: both(t, nil), Grants: all,
				Addr: func() string { return "tcp:127.0.0.1:0+shm:" + socket() },
			}
		})
	})
	t.Run("shm of shm and tcp", func(t *testing.T) {
		rdmatest.Run(t, func(t testing.TB) rdmatest.Fixture {
			return rdmatest.Fixture{
				Provider: both(t, newShm(t)), Grants: all,
				Addr: func() string { return "tcp:127.0.0.1:0+shm:" + socket() },
				NewRegion: func(o mem.Options) (*mem.Region, error) {
					o.Kind = mem.Shared
					return mem.New(o)
				},
			}
		})
	})
}

// listen opens an endpoint that answers its requests with the address.
func listen(t *testing.T, p rdma.Provider, addr string) rdma.Endpoint {
	t.Helper()
	e, err := p.Listen(addr, rdma.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = e.Close() })
	if err := e.Serve(func(r *rdma.Request) { _ = r.Reply([]byte(e.Addr())) }); err != nil {
		t.Fatal(err)
	}
	return e
}

// sayAddr asks the server behind a connection for its address.
func sayAddr(ctx context.Context, c rdma.Conn) (string, error) {
	b, err := rdma.Call(ctx, c, nil, nil)
	return string(b), err
}

// A client takes the network if another server is behind the socket.
func TestSocketOfAnotherServerIsNotTaken(t *testing.T) {
	local := inproc.New(inproc.Options{})
	p := both(t, local)
	p.Confirm = sayAddr
	ours := listen(t, p, "tcp:127.0.0.1:0+shm:ours")
	theirs := listen(t, p, "tcp:127.0.0.1:0+shm:theirs")
	at, err := ParseAddress(theirs.Addr())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		addr, route string
		want        error
	}{
		{ours.Addr(), Shm, nil},
		{theirs.Addr(), Shm, nil},
		{Address{TCP: at.TCP, Shm: "ours"}.String(), TCP, nil},
		{Address{TCP: "127.0.0.1:1", Shm: "ours"}.String(), "", rdma.ErrRefused},
		{Address{Verbs: "127.0.0.1:1", Shm: "ours"}.String(), "", rdma.ErrAddress},
	} {
		conn, err := p.Dial(patience(t), c.addr)
		if !errors.Is(err, c.want) || p.Route(c.addr) != c.route {
			t.Errorf("%s: over %q, %v; want %q, %v", c.addr, p.Route(c.addr), err, c.route, c.want)
		}
		if err == nil {
			conn.Close()
		}
	}
	if p.Name() != "shm+tcp" || p.Quiet().Name() != "shm+tcp" {
		t.Error(p.Name())
	}
}

// A client that has reached a server in order does not continue out of order.
func TestOrderOfReadsStays(t *testing.T) {
	p := &Provider{}
	if err := p.setRoute("a", TCP, ordered{inOrder: true}); err != nil {
		t.Fatal(err)
	}
	if err := p.setRoute("a", Verbs, ordered{}); !errors.Is(err, rdma.ErrUnsupported) {
		t.Error(err)
	}
	if err := p.setRoute("a", Shm, ordered{inOrder: true}); err != nil || p.Route("a") != Shm {
		t.Error(err, p.Route("a"))
	}
}

// ordered is a connection that only says in which order it reads.
type ordered struct {
	rdma.Conn
	inOrder bool
}

func (o ordered) InOrder() bool { return o.inOrder }

// A server that has moved is dialled at its present address.
func TestResolve(t *testing.T) {
	p := both(t, nil)
	e := listen(t, p, "127.0.0.1:0")
	p.Resolve = func(addr string) string {
		if addr == "tcp:old:1" {
			return e.Addr()
		}
		return addr
	}
	c, err := p.Dial(patience(t), "tcp:old:1")
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	if p.Route("tcp:old:1") != TCP || p.Route(e.Addr()) != "" {
		t.Errorf("routes %q, %q", p.Route("tcp:old:1"), p.Route(e.Addr()))
	}
}

func TestNew(t *testing.T) {
	if _, err := New(Options{}, "pigeon"); !errors.Is(err, ErrFabric) {
		t.Error(err)
	}
	if _, err := New(Options{TLS: &tcp.TLS{}}); !errors.Is(err, tcp.ErrCertificateFile) {
		t.Error(err)
	}
	p, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	if p.TCP == nil || p.Member(TCP) != p.TCP || p.Name() == "" {
		t.Errorf("%+v", p)
	}
	// A fabric that this process lacks is absent, and not a provider that fails.
	if _, err := New(Options{}, Verbs); (err == nil) != (p.Verbs != nil) || p.Unordered() != (p.Verbs != nil) {
		t.Errorf("verbs: %v, in the provider: %v", err, p.Verbs)
	}
	if _, err := both(t, nil).Dial(patience(t), "shm:@x"); !errors.Is(err, rdma.ErrUnsupported) {
		t.Error(err)
	}
	if _, err := both(t, nil).Listen("tcp:127.0.0.1:0+shm:@x", rdma.ListenOptions{}); !errors.Is(err, rdma.ErrUnsupported) {
		t.Error(err)
	}
}
