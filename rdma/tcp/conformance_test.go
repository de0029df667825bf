package tcp

import (
	"net"
	"testing"

	"go.uber.org/goleak"

	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newProvider(t testing.TB, o Options) *Provider {
	t.Helper()
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func fixture(o Options) func(testing.TB) rdmatest.Fixture {
	return func(t testing.TB) rdmatest.Fixture {
		return rdmatest.Fixture{
			Provider: newProvider(t, o),
			Grants:   rdma.AccessRead | rdma.AccessWrite | rdma.AccessAtomic,
			Performs: true,
			Kill:     func(e rdma.Endpoint) { e.(*endpoint).stop() },
			Drop:     reset,
		}
	}
}

// reset ends a connection as the kernel does for a process that died with
// unread data: what it has sent may be lost too.
func reset(c rdma.Conn) {
	nc := c.(*conn).socket.(*net.TCPConn)
	_ = nc.SetLinger(0)
	_ = nc.Close()
}

func TestConformance(t *testing.T) { rdmatest.Run(t, fixture(Options{})) }
