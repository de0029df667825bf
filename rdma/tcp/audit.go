package tcp

import "drtmx/rdma"

var _ rdma.Auditor = (*endpoint)(nil)

// Refusals is rdma.Auditor's: what Stats holds, by reason.
func (e *endpoint) Refusals() []rdma.Refusal {
	s := e.Stats()
	return []rdma.Refusal{
		{Reason: "no_room", Count: s.RefusedConnections},
		{Reason: "handshake", Count: s.FailedHandshakes},
		{Reason: "authentication", Count: s.AuthFailures},
		{Reason: "protocol", Count: s.ProtocolErrors},
		{Reason: "stalled", Count: s.Stalled},
		{Reason: "capability", Count: s.RefusedCapability},
		{Reason: "right", Count: s.RefusedRight},
		{Reason: "bounds", Count: s.RefusedBounds},
		{Reason: "verb", Count: s.RefusedVerbs},
	}
}
