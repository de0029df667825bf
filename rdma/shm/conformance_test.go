package shm

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		os.Exit(childMain(role))
	}
	goleak.VerifyTestMain(m)
}

func newProvider(t testing.TB, o Options) *Provider {
	t.Helper()
	p, err := New(o)
	if errors.Is(err, rdma.ErrUnsupported) {
		t.Skipf("SKIP: %v", err)
	}
	if err != nil {
		t.Fatal(err) // anything else is a fault of the provider
	}
	return p
}

var addrCount atomic.Int64

// freeAddr is an address nobody uses. Test names are too long for a path.
func freeAddr() string {
	return fmt.Sprintf("@drtmx-shm-%d-%d", os.Getpid(), addrCount.Add(1))
}

func sharedRegion(o mem.Options) (*mem.Region, error) {
	o.Kind = mem.Shared
	return mem.New(o)
}

func fixture(o Options, addr func(testing.TB) string) func(testing.TB) rdmatest.Fixture {
	return func(t testing.TB) rdmatest.Fixture {
		return rdmatest.Fixture{
			Provider:  newProvider(t, o),
			Addr:      func() string { return addr(t) },
			NewRegion: sharedRegion,
			Grants:    rdma.AccessRead | rdma.AccessWrite | rdma.AccessAtomic,
			Performs:  true,
			Kill:      func(e rdma.Endpoint) { e.(*endpoint).stop() },
		}
	}
}

func abstractAddr(testing.TB) string { return freeAddr() }

func TestConformance(t *testing.T) {
	rdmatest.Run(t, fixture(Options{}, abstractAddr))
}

func TestConformanceOfVariants(t *testing.T) {
	t.Run("socket file", func(t *testing.T) {
		rdmatest.Run(t, fixture(Options{}, func(t testing.TB) string {
			dir, err := os.MkdirTemp("", "shm")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			return filepath.Join(dir, "s")
		}))
	})
	t.Run("3 pollers", func(t *testing.T) {
		rdmatest.Run(t, fixture(Options{Pollers: 3}, abstractAddr))
	})
	t.Run("no spinning", func(t *testing.T) {
		rdmatest.Run(t, fixture(Options{Spin: -1}, abstractAddr))
	})
}
