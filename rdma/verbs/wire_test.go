package verbs

import (
	"bytes"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"drtmx/rdma"
	"drtmx/rdma/rdmatest"
)

func TestHandshakeRoundTrip(t *testing.T) {
	h := hello{version: 7, client: [16]byte{1, 2, 15: 16}, role: rdma.RoleServer, stamp: 1 << 40, proof: [16]byte{3, 15: 4}}
	b := h.encode()
	// The fabric pads private data.
	if got, err := decodeHello(append(b[:], make([]byte, 8)...)); err != nil || got != h {
		t.Errorf("hello: %+v, %v", got, err)
	}
	for r := reasonNone; r < reasonMax; r++ {
		a := answer{7, r, 1 << 50, [challengeNonce]byte{5, 15: 6}}
		b := a.encode()
		if got, err := decodeAnswer(b[:]); err != nil || got != a {
			t.Errorf("answer: %+v, %v", got, err)
		}
		if (r.err() == nil) != (r == reasonNone) {
			t.Errorf("reason %d: error %v", r, r.err())
		}
	}
	strange := hello{role: rdma.RoleServer + 1}
	sb := strange.encode()
	if _, err := decodeHello(sb[:]); !errors.Is(err, errWire) {
		t.Errorf("an unknown role: %v", err)
	}
	for _, bad := range [][]byte{nil, {1}, make([]byte, 64), bytes.Repeat([]byte{0xff}, 64)} {
		if _, err := decodeHello(bad); !errors.Is(err, errWire) {
			t.Errorf("hello %x: %v", bad, err)
		}
		if _, err := decodeAnswer(bad); !errors.Is(err, errWire) {
			t.Errorf("answer %x: %v", bad, err)
		}
	}
}

func TestFragmentHeaders(t *testing.T) {
	var b [fragmentBytes]byte
	for _, h := range []header{
		{fragRequest, 0, 100, 1}, {fragMore, credits, rdma.MaxMessageBytes, 1 << 31}, {fragCredit, 3, 0, 0},
	} {
		h.encode(b[:])
		n := min(int(h.total), 50)
		got, payload, err := decodeHeader(b[:headerBytes+n])
		if err != nil || got != h || len(payload) != n {
			t.Errorf("%+v: %+v, %d bytes, %v", h, got, len(payload), err)
		}
	}
	for name, h := range map[string]header{
		"no kind": {0, 0, 100, 1}, "kind": {fragMax, 0, 100, 1}, "credits": {fragRequest, credits + 1, 100, 1},
		"too long": {fragRequest, 0, rdma.MaxMessageBytes + 1, 1}, "longer than its message": {fragRequest, 0, 99, 1},
	} {
		h.encode(b[:])
		if _, _, err := decodeHeader(b[:headerBytes+100]); !errors.Is(err, errWire) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, _, err := decodeHeader(b[:headerBytes-1]); !errors.Is(err, errWire) {
		t.Errorf("short: %v", err)
	}
}

func TestToldRoundTrip(t *testing.T) {
	x := segmentList{key: 3, access: rdma.AccessRead | rdma.AccessWrite, segment: 1 << 16, max: 1 << 26, first: 7, keys: make([]uint32, segmentKeysMax)}
	for i := range x.keys {
		x.keys[i] = uint32(i) * 0x9e3779b9
	}
	b := x.encode(nil)
	if len(b) > payloadBytes {
		t.Errorf("a description of %d bytes does not fit into a fragment", len(b))
	}
	if got, err := decodeSegments(b); err != nil || !reflect.DeepEqual(got, x) {
		t.Errorf("%+v, %v", got, err)
	}
	for name, bad := range map[string]segmentList{
		"segment of no power of two": {segment: 100, max: 1 << 20},
		"no segment":                 {max: 1 << 20},
		"maximum":                    {segment: 1 << 16, max: 1<<20 + 1},
		"past the maximum":           {segment: 1 << 16, max: 1 << 16, first: 1, keys: []uint32{1}},
		"access":                     {access: 64, segment: 1 << 16, max: 1 << 20},
		"reason":                     {reason: reasonMax},
	} {
		if got, err := decodeSegments(bad.encode(nil)); !errors.Is(err, errWire) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if _, err := decodeSegments(b[:len(b)-1]); !errors.Is(err, errWire) {
		t.Errorf("cut off: %v", err)
	}
}

// fragments are what a peer may send.
func fragments() [][]byte {
	x := segmentList{key: 3, segment: 1 << 16, max: 1 << 20, keys: []uint32{1, 2}}
	h, a := hello{version: 1}, answer{version: 1}
	hb, ab := h.encode(), a.encode()
	all := [][]byte{hb[:], ab[:]}
	for _, p := range [][]byte{x.encode(nil), nil, make([]byte, queryBytes)} {
		b := make([]byte, headerBytes)
		h := header{fragSegments, 1, uint32(len(p)), 9}
		h.encode(b)
		all = append(all, append(b, p...))
	}
	return all
}

// What a peer sends may be anything.
func FuzzFragment(f *testing.F) {
	for _, b := range fragments() {
		f.Add(b)
	}
	f.Fuzz(checkFragment)
}

func TestMutatedFragments(t *testing.T) {
	rdmatest.Mutated(t, 100000, fragments(), func(b []byte) { checkFragment(t, b) })
}

func checkFragment(t *testing.T, b []byte) {
	_, _ = decodeHello(b)
	if a, err := decodeAnswer(b); err == nil && a.reason >= reasonMax {
		t.Errorf("answer %+v", a)
	}
	h, payload, err := decodeHeader(b)
	if err != nil {
		return
	}
	again := make([]byte, headerBytes)
	h.encode(again)
	if !bytes.Equal(again[:12], b[:12]) || len(payload) > int(h.total) {
		t.Errorf("header %+v of %x", h, b[:headerBytes])
	}
	if a, err := decodeQuery(payload); err == nil {
		if e := a.encode(); !bytes.Equal(e[:], payload) {
			t.Errorf("query %+v of %x", a, payload)
		}
	}
	if x, err := decodeSegments(payload); err == nil && x.reason == reasonNone {
		if !bytes.Equal(x.encode(nil), payload) {
			t.Errorf("list %+v of %x", x, payload)
		}
	}
}

func TestStatuses(t *testing.T) {
	for s := range wcStatus(32) {
		w := rdma.StatusPeerDown
		if s == wcSuccess {
			w = rdma.StatusOK
		}
		if s.status() != w {
			t.Errorf("%v: %d, want %d", s, s.status(), w)
		}
		if _, named := wcNames[s]; named != (s <= 21) || s.String() == "" {
			t.Errorf("completion status %d is called %q", uint32(s), s)
		}
	}
}

func TestOptions(t *testing.T) {
	for name, o := range map[string]Options{
		"pollers": {Pollers: MaxPollers + 1}, "no pollers": {Pollers: -1}, "depth": {QueueDepth: MaxQueueDepth + 1}, "no depth": {QueueDepth: -1},
	} {
		if _, err := New(o); !errors.Is(err, rdma.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if p, err := New(Options{}); Built != (err == nil) || !Built && !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("built %v, but New gives %v, %v", Built, p, err)
	}
}

func TestDeviceAddress(t *testing.T) {
	sys := t.TempDir()
	netdev := func(device, gid, name string) {
		dir := filepath.Join(sys, device, "ports", "1", "gid_attrs", "ndevs")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, gid), []byte(name+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addrs := map[string][]netip.Addr{
		"eth1": {netip.MustParseAddr("fe80::1")},
		"eth2": {netip.MustParseAddr("fe80::2"), netip.MustParseAddr("10.1.2.3")},
		"ib0":  {netip.MustParseAddr("10.9.9.9")},
	}
	find := func(device string) (netip.Addr, error) {
		return deviceAddr(sys, device, func(n string) []netip.Addr { return addrs[n] })
	}
	if _, err := find(""); !errors.Is(err, rdma.ErrUnsupported) {
		t.Errorf("without devices: %v", err)
	}
	netdev("mlx5_0", "0", "eth1")
	if _, err := find(""); !errors.Is(err, rdma.ErrAddress) {
		t.Errorf("without an IPv4 address: %v", err)
	}
	netdev("mlx5_1", "3", "eth2")
	if err := os.MkdirAll(filepath.Join(sys, "mlx5_2", "device", "net", "ib0"), 0o700); err != nil {
		t.Fatal(err)
	}
	for device, want := range map[string]string{"": "10.1.2.3", "mlx5_1": "10.1.2.3", "mlx5_2": "10.9.9.9"} {
		if a, err := find(device); err != nil || a.String() != want {
			t.Errorf("device %q: %v, %v; want %s", device, a, err, want)
		}
	}
	if _, err := find("mlx5_7"); !errors.Is(err, rdma.ErrAddress) {
		t.Errorf("device that is not there: %v", err)
	}
}

func TestAddresses(t *testing.T) {
	own := netip.MustParseAddr("10.1.2.3")
	for addr, want := range map[string]string{
		"": "10.1.2.3:0", ":7": "10.1.2.3:7", "10.0.0.1:99": "10.0.0.1:99", "[fe80::1%3]:5": "[fe80::1%3]:5",
	} {
		a, err := parseAddr(t.Context(), addr, func() (netip.Addr, error) { return own, nil })
		if err != nil || a.String() != want {
			t.Errorf("%q: %v, %v; want %s", addr, a, err, want)
		}
	}
	for _, bad := range []string{"x", "10.0.0.1", "10.0.0.1:x", "10.0.0.1:65536", "10.0.0.1:-1", "1:2:3"} {
		if a, err := parseAddr(t.Context(), bad, nil); !errors.Is(err, rdma.ErrAddress) {
			t.Errorf("%q: %v, %v", bad, a, err)
		}
	}
}
