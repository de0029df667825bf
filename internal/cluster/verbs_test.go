package cluster

import (
	"os"
	"testing"
	"time"

	"drtmx/internal/member/membertest"
	"drtmx/rdma/multi"
	"drtmx/rdma/verbs"
)

// TestTakeoverOverVerbs: a host that serves over an RDMA device is cut off from the
// store while clients write. Its memory can still be read there. Another host takes its
// data server over, at another port of the device, the clients go on, and nothing that
// was acknowledged is lost.
func TestTakeoverOverVerbs(t *testing.T) {
	device := os.Getenv("DRTMX_VERBS_DEVICE")
	if !verbs.Built || device == "" {
		t.Skip("SKIP: not built with the tag verbs, or DRTMX_VERBS_DEVICE names no RDMA device")
	}
	realServers(t)
	p, err := verbs.New(verbs.Options{Device: device})
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := DeviceAddrs(p, 2)
	if err != nil {
		t.Fatal(err)
	}
	h := &hostsOf{t: t, ctx: patience(t), members: membertest.NewLocal(), dir: t.TempDir(), addrs: addrs, replicas: 2, device: device, hosts: make([]*Member, 2)}
	for range addrs {
		h.stores = append(h.stores, &awayStore{Store: h.members.Open()})
	}
	h.startAll()
	t.Cleanup(h.close)
	h.connect()
	for i := range addrs {
		h.inSync(i)
	}
	h.fill(0, 20)
	for i, a := range h.cluster.Addrs() {
		if at, err := multi.ParseAddress(a); err != nil || at.Verbs != addrs[i] || at.TCP != "" {
			t.Fatalf("server %d is at %s, want verbs at %s: %v", i, a, addrs[i], err)
		}
	}
	w := h.write(2)
	w.goOn()
	h.inSync(1)
	began := time.Now()
	h.cutOff(1)
	eventually(t, "host 0 has server 1", func() bool { return h.at(1) == 0 })
	w.goOn()
	t.Logf("writers go on after %v", time.Since(began))
	t.Logf("%d pairs acknowledged", w.end())
	h.has(20)
}
