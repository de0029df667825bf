package shm

import (
	"errors"
	"fmt"
	"sync/atomic"

	"drtmx/rdma"
)

var _ rdma.Auditor = (*endpoint)(nil)

// errFull reports an endpoint with as many links as it may have.
var errFull = errors.New("shm: no room for another client process")

// errRole reports a process that claimed to be a data server.
var errRole = fmt.Errorf("%w: shm: a process claimed to be a data server of the cluster", rdma.ErrRole)

// refusals count why peers were turned away.
type refusals struct{ user, role, room, handshake, protocol atomic.Uint64 }

// refused tells who listens why a peer was turned away; nil at the endpoint's end.
func (e *endpoint) refused(reason error) {
	if reason == nil || e.Closed() {
		return
	}
	switch {
	case errors.Is(reason, errPeerUser):
		e.refusals.user.Add(1)
	case errors.Is(reason, errRole):
		e.refusals.role.Add(1)
	case errors.Is(reason, errFull):
		e.refusals.room.Add(1)
	default:
		e.refusals.handshake.Add(1)
	}
	if e.opts.OnRefuse != nil {
		e.opts.OnRefuse(reason)
	}
}

// Refusals is rdma.Auditor's. Protocol is connections ended because their
// client broke the protocol; verbs are carried out, and refused, by clients.
func (e *endpoint) Refusals() []rdma.Refusal {
	r := &e.refusals
	return []rdma.Refusal{
		{Reason: "other_user", Count: r.user.Load()},
		{Reason: "role_not_proved", Count: r.role.Load()},
		{Reason: "no_room", Count: r.room.Load()},
		{Reason: "handshake", Count: r.handshake.Load()},
		{Reason: "protocol", Count: r.protocol.Load()},
	}
}
