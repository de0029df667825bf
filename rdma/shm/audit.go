package shm

import (
	"errors"
	"fmt"

	"drtmx/rdma"
)

var _ rdma.Auditor = (*endpoint)(nil)

// errFull reports an endpoint with as many links as it may have.
var errFull = errors.New("shm: no room for another client process")

// errRole reports a process that claimed to be a data server.
var errRole = fmt.Errorf("%w: shm: a process claimed to be a data server of the cluster", rdma.ErrRole)

// Reasons of refusals. Clients perform READs themselves, so that the server sees none to
// refuse.
const (
	refusedUser = iota
	refusedRole
	refusedRoom
	refusedHandshake
	refusedProtocol // a connection was ended because its client broke the protocol
	refusedRight    // a verb that is not granted
	refusedBounds   // a verb outside its region
	refusedVerb     // a verb that does not exist, or is not the agent's
)

var refusalNames = []string{"other_user", "role_not_proved", "no_room", "handshake", "protocol", "right", "bounds", "verb"}

// noteRefusal counts and reports why a peer was refused. A nil reason means that
// the endpoint was closed.
func (e *endpoint) noteRefusal(reason error) {
	if reason == nil || e.Closed() {
		return
	}
	switch {
	case errors.Is(reason, errPeerUser):
		e.Refuse(refusedUser)
	case errors.Is(reason, errRole):
		e.Refuse(refusedRole)
	case errors.Is(reason, errFull):
		e.Refuse(refusedRoom)
	default:
		e.Refuse(refusedHandshake)
	}
	if e.opts.OnRefuse != nil {
		e.opts.OnRefuse(reason)
	}
}
