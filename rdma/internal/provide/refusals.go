package provide

import (
	"sync/atomic"

	"drtmx/rdma"
)

// Audit counts refusals by reason. Reasons are numbered in the order in
// which Count is given their names.
type Audit struct {
	reasons []string
	counts  []atomic.Uint64
}

// Count sets the names of the reasons.
func (r *Audit) Count(reasons ...string) {
	r.reasons, r.counts = reasons, make([]atomic.Uint64, len(reasons))
}

// Refuse counts one refusal.
func (r *Audit) Refuse(reason int) { r.counts[reason].Add(1) }

// Refused returns how many refusals there were for a reason.
func (r *Audit) Refused(reason int) uint64 { return r.counts[reason].Load() }

// Refusals is rdma.Auditor's.
func (r *Audit) Refusals() []rdma.Refusal {
	all := make([]rdma.Refusal, len(r.reasons))
	for i, reason := range r.reasons {
		all[i] = rdma.Refusal{Reason: reason, Count: r.Refused(i)}
	}
	return all
}
