package provide

import (
	"fmt"
	"slices"
	"sync/atomic"

	"drtmx/rdma"
)

// Extra is the access that one peer has to regions beyond what all peers have: see
// rdma.Endpoint's Grant. The zero value is none. It is safe for concurrent use.
type Extra struct {
	byKey atomic.Pointer[[]rdma.Access] // by rkey-1; copied on change
}

// Of returns the access to a region.
func (x *Extra) Of(k rdma.RKey) rdma.Access {
	if all := x.byKey.Load(); all != nil && uint(k-1) < uint(len(*all)) {
		return (*all)[k-1]
	}
	return 0
}

// Add adds access to a region.
func (x *Extra) Add(k rdma.RKey, a rdma.Access) {
	for {
		old := x.byKey.Load()
		var all []rdma.Access
		if old != nil {
			all = slices.Clone(*old)
		}
		for len(all) < int(k) {
			all = append(all, 0)
		}
		all[k-1] |= a
		if x.byKey.CompareAndSwap(old, &all) {
			return
		}
	}
}

// CheckGrant refuses the grant of a region that does not exist, or to a peer that is not
// connected or may not have the access.
func (e *Endpoint) CheckGrant(peer rdma.PeerID, connected, may bool, k rdma.RKey) error {
	why := error(nil)
	switch _, ok := e.Region(k); {
	case !connected:
		why = rdma.ErrPeerDown
	case !ok:
		why = fmt.Errorf("there is no region %d: %w", k, rdma.ErrAccess)
	case !may:
		why = fmt.Errorf("the peer may not use regions so: %w", rdma.ErrAccess)
	default:
		return nil
	}
	return fmt.Errorf("%s: grant to peer %d of %q: %w", e.provider, peer, e.addr, why)
}
