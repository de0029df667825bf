package server

import (
	"sync"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

// device says who performs the atomics of an index's writers, and so also the data server's own.
// Those of a device and those of the processor are not atomic with each other (rdma.ApartAtomics),
// so an index has writers of one kind at a time.
//
// Invariant: while a writer has access to the region, headers in it are changed in one way.
type device struct {
	mu     sync.RWMutex // held shared while a header is changed, by whatever way
	writes bool         // the atomics of writers are the device's
	failed bool         // the device did not perform the data server's: it has no writers any more
}

// Refusals of writers.
const (
	otherAtomics = "the index has writers by a fabric whose atomics are not atomic with those of this one"
	deviceFailed = "the device has not performed an atomic of the data server's own"
)

// admit reports why a peer may not become a writer of an index, if so, and whether its atomics are
// the device's. If it is the first writer, headers change from then on as its atomics do. The
// partition's lock is held.
func (os *oneSided) admit(h *hosted, peer rdma.PeerID) (apart bool, refusal string) {
	if a, ok := os.s.ep.(rdma.ApartAtomics); ok {
		apart = a.AtomicsApart(peer)
	}
	d := &h.leaves.device
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case apart && d.failed:
		return apart, deviceFailed
	case apart != d.writes && os.hasWriters(h):
		return apart, otherAtomics
	}
	d.writes = apart
	return apart, ""
}

// hasWriters reports whether anybody may write an index.
func (os *oneSided) hasWriters(h *hosted) bool {
	os.mu.Lock()
	defer os.mu.Unlock()
	for _, w := range os.of {
		if w.ix == h {
			return true
		}
	}
	return false
}

// swapOf returns what changes a header of an index's leaves, nil if the processor always does.
func (os *oneSided) swapOf(h *hosted) func(addr, from, to uint64) bool {
	a, ok := os.s.ep.(rdma.ApartAtomics)
	if !ok {
		return nil
	}
	return func(addr, from, to uint64) bool { return os.swap(a, h, addr, from, to) }
}

// swapTries is how often a device is asked before it counts as failed.
const swapTries = 3

// swap changes a header. The index's lock is held.
func (os *oneSided) swap(a rdma.ApartAtomics, h *hosted, addr, from, to uint64) bool {
	done, failed := h.leaves.swap(a, addr, from, to)
	if failed {
		os.withoutDevice(h)
		done, _ = h.leaves.swap(a, addr, from, to)
	}
	return done
}

func (l *leafRegion) swap(a rdma.ApartAtomics, addr, from, to uint64) (done, failed bool) {
	l.device.mu.RLock()
	defer l.device.mu.RUnlock()
	header := l.region.MustSpan(addr, mem.WordBytes)
	if !l.device.writes {
		return header.CompareAndSwap(0, from, to), false
	}
	for range swapTries {
		done, err := a.Swap(l.key, addr, from, to)
		if err == nil {
			return done, false
		}
		// While the lock is held nobody else makes such changes, so one that has happened is this one.
		if now := header.Load(0); now != from {
			return now == to, false
		}
	}
	return false, true
}

// withoutDevice takes all writers of an index their access: then the processor may change headers,
// though the device does not. There are no more writers by the device until the data server is
// started again.
func (os *oneSided) withoutDevice(h *hosted) {
	d := &h.leaves.device
	d.mu.Lock()
	d.failed = true // first: who becomes a writer from here on looks at it afterwards
	d.mu.Unlock()
	os.mu.Lock()
	var peers []rdma.PeerID
	for _, w := range os.of {
		if w.ix == h {
			peers = append(peers, w.peer)
		}
	}
	os.mu.Unlock()
	for _, p := range peers {
		os.s.ep.Revoke(p)
	}
	d.mu.Lock()
	d.writes = false
	d.mu.Unlock()
}

// hasFailed reports whether the device did not perform what it was asked.
func (d *device) hasFailed() bool {
	d.mu.RLock()
	defer d.mu.RUnlock()
	return d.failed
}
