package command

import (
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"drtmx/internal/cluster"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/rdma/verbs"
)

// verbsDeviceEnv names the RDMA device to test on.
const verbsDeviceEnv = "DRTMX_VERBS_DEVICE"

// haveVerbs reports whether this binary can use an RDMA device, and was told
// which.
func haveVerbs() bool { return verbs.Built && os.Getenv(verbsDeviceEnv) != "" && !testseed.Race }

func TestKilledServerOverVerbs(t *testing.T) {
	if !haveVerbs() {
		t.Skip("SKIP: not built with the tag verbs, or " + verbsDeviceEnv + " names no RDMA device")
	}
	killedServer(t, fabricVerbs)
}

// verbsdevice VAR VAR VAR sets variables to the device and to two of its
// addresses with successive ports.
func verbsDevice(ts *testscript.TestScript, _ bool, args []string) {
	device := os.Getenv(verbsDeviceEnv)
	p, err := verbs.New(verbs.Options{Device: device})
	ts.Check(err)
	ts.Setenv(args[0], device)
	for range 100 {
		addrs, err := cluster.DeviceAddrs(p, 1)
		ts.Check(err)
		host, port, _ := net.SplitHostPort(addrs[0])
		n, _ := strconv.Atoi(port)
		next := net.JoinHostPort(host, strconv.Itoa(n+1))
		if e, err := p.Listen(next, rdma.ListenOptions{}); err == nil {
			ts.Check(e.Close())
			ts.Setenv(args[1], addrs[0])
			ts.Setenv(args[2], next)
			return
		}
	}
	ts.Fatalf("no two free ports in succession")
}
