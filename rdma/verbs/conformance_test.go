//go:build verbs

package verbs

import (
	"errors"
	"os"
	"testing"

	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

// deviceEnv names the device to test on; without it any will do, and none is
// reason to skip.
const deviceEnv = "DRTMX_VERBS_DEVICE"

// newProvider skips the test, with a message, on a machine without an RDMA
// device.
func newProvider(t testing.TB, o Options) *Provider {
	t.Helper()
	o.Device = os.Getenv(deviceEnv)
	p, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.deviceAddr(); errors.Is(err, rdma.ErrUnsupported) && o.Device == "" {
		t.Skipf("SKIP: %v", err)
	}
	return p
}

func mappedRegion(o mem.Options) (*mem.Region, error) {
	o.Kind = mem.Shared
	return mem.New(o)
}

func fixture(o Options) func(testing.TB) rdmatest.Fixture {
	return func(t testing.TB) rdmatest.Fixture {
		return rdmatest.Fixture{
			Provider:  newProvider(t, o),
			NewRegion: mappedRegion,
			Grants:    rdma.AccessRead | rdma.AccessWrite | rdma.AccessAtomic,
			Kill:      func(e rdma.Endpoint) { e.(*endpoint).stop() },
		}
	}
}

func TestConformance(t *testing.T) { rdmatest.Run(t, fixture(Options{})) }
