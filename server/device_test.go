package server

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"drtmx/index/engine"
	"drtmx/internal/mem"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// Clients that commit with atomics of a device, and the data server, which commits for others, count up
// the same rows: nothing is lost.
func TestAtomicsOfADevice(t *testing.T) {
	c := patient()
	net := inproc.New(inproc.Options{Seed: 7, Faults: inproc.Faults{Apart: 0.5}})
	cl, cat := startMixedOver(t, c, net)
	c.ServerWrites, c.Dial = true, net.Dial
	for _, s := range cl.Servers {
		c.Servers = append(c.Servers, s.Addr())
	}
	atServer, err := txn.Open(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	defer atServer.Close()
	tab := cat.MustTable("written")
	const clients, each, rows = 3, 150, 2
	var wg sync.WaitGroup
	sessions := make([]*txn.Session, 2*clients)
	for i := range sessions {
		db := cl.DB
		if i%2 == 1 {
			db = atServer
		}
		s, err := db.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sessions[i] = s
		wg.Go(func() {
			for n := range each {
				err := s.Update(t.Context(), func(tx *txn.Txn) error {
					key := tables.Num(uint64(n % rows))
					row, err := tx.Get(tab, key)
					if err != nil {
						return err
					}
					next := tab.NewRow()
					next.SetInt(tab.Field("n"), row.Int(tab.Field("n"))+1)
					return tx.Put(tab, key, next)
				})
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	want := int64(len(sessions) * each / rows)
	for key := range uint64(rows) {
		if got := valueOf(t, cl.DB, tab, key); got != want+int64(key) { // it began with its key
			t.Errorf("row %d was counted up to %d, want %d", key, got, want+int64(key))
		}
	}
	if n := sessions[0].Stats().OneSided; n == 0 {
		t.Error("no client has committed without the data server: this test shows nothing")
	}
}

// deviceEndpoint is an endpoint of which only the atomics are of interest.
type deviceEndpoint struct {
	rdma.Endpoint
	apart   map[rdma.PeerID]bool
	swap    func() (bool, error)
	revoked []rdma.PeerID
}

func (e *deviceEndpoint) AtomicsApart(p rdma.PeerID) bool { return e.apart[p] }

func (e *deviceEndpoint) Swap(rdma.RKey, uint64, uint64, uint64) (bool, error) { return e.swap() }

func (e *deviceEndpoint) Revoke(p rdma.PeerID) { e.revoked = append(e.revoked, p) }

func onDevice(t *testing.T, e *deviceEndpoint) (*oneSided, *hosted) {
	t.Helper()
	r, err := mem.New(mem.Options{MaxBytes: 1 << 20, SegmentBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return &oneSided{s: &Server{ep: e}, of: map[uint64]*clientWriter{}, peer: map[rdma.PeerID]int{}}, &hosted{leaves: &leafRegion{region: r}}
}

// An index has writers of one kind at a time, and the data server's atomics are of that kind.
func TestWritersOfOneKind(t *testing.T) {
	const own, device = rdma.PeerID(1), rdma.PeerID(2)
	swaps := 0
	e := &deviceEndpoint{apart: map[rdma.PeerID]bool{device: true}, swap: func() (bool, error) { swaps++; return true, nil }}
	os, h := onDevice(t, e)
	swapsByDevice := func() bool {
		before := swaps
		os.swapOf(h)(64, 0, 0)
		return swaps > before
	}
	if swapsByDevice() {
		t.Error("without writers the device swaps")
	}
	for i, x := range []struct {
		peer     rdma.PeerID
		admitted bool
		leaves   bool // afterwards
	}{
		{own, true, false}, {device, false, false}, {own, true, true}, {device, true, false}, {own, false, false}, {device, true, true}, {own, true, true}, {device, true, true},
	} {
		apart, refusal := os.admit(h, x.peer)
		if apart != (x.peer == device) || (refusal == "") != x.admitted {
			t.Fatalf("step %d: peer %d: apart %v, refusal %q", i, x.peer, apart, refusal)
		}
		if x.admitted {
			os.enter(&clientWriter{name: uint64(x.peer), peer: x.peer, ix: h})
			if swapsByDevice() != apart {
				t.Errorf("step %d: the atomics of peer %d are apart: %v; those of the data server are others", i, x.peer, apart)
			}
		}
		if x.leaves {
			os.leave(os.of[uint64(x.peer)])
		}
	}
}

// A device that fails now and then has swapped or not, and one that always fails loses its writers
// before the processor swaps.
func TestDeviceThatFails(t *testing.T) {
	errDevice := errors.New("the device has failed")
	e := &deviceEndpoint{apart: map[rdma.PeerID]bool{1: true, 2: true}}
	os, h := onDevice(t, e)
	for p := range rdma.PeerID(2) {
		if _, refusal := os.admit(h, p+1); refusal != "" {
			t.Fatal(refusal)
		}
		os.enter(&clientWriter{name: uint64(p + 1), peer: p + 1, ix: h, owner: engine.Owner(p + 1)})
	}
	os.enter(&clientWriter{name: 9, peer: 9, ix: &hosted{}}) // of another index
	word := h.leaves.region.MustSpan(64, mem.WordBytes)
	calls := 0
	for _, x := range []struct {
		what string
		do   func() // what the first try does, which fails
		want bool
	}{
		{"it has swapped nonetheless", func() { word.Store(0, 11) }, true},
		{"another was faster", func() { word.Store(0, 12) }, false},
		{"it has not swapped", func() {}, true},
	} {
		word.Store(0, 10)
		calls = 0
		e.swap = func() (bool, error) {
			if calls++; calls > 1 {
				return word.CompareAndSwap(0, 10, 11), nil
			}
			x.do()
			return false, errDevice
		}
		if got := os.swapOf(h)(64, 10, 11); got != x.want {
			t.Errorf("%s: %v", x.what, got)
		}
	}
	if len(e.revoked) > 0 {
		t.Errorf("%v were revoked for a device that works", e.revoked)
	}
	word.Store(0, 10)
	calls = 0
	e.swap = func() (bool, error) {
		if calls++; len(e.revoked) > 0 {
			t.Error("the device is asked after writers were revoked")
		}
		return false, errDevice
	}
	if !os.swapOf(h)(64, 10, 11) || word.Load(0) != 11 {
		t.Error("the processor has not swapped when the device failed")
	}
	slices.Sort(e.revoked)
	if !slices.Equal(e.revoked, []rdma.PeerID{1, 2}) {
		t.Errorf("%v were revoked when the device failed, want 1 and 2", e.revoked)
	}
	calls = 0
	if !os.swapOf(h)(64, 11, 12) || calls > 0 {
		t.Error("the device is still asked")
	}
	if _, refusal := os.admit(h, 1); refusal == "" {
		t.Error("there is a writer by a device that has failed")
	}
}
