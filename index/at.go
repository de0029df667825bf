package index

import "drtmx/internal/clock"

// AsOf makes an answer about the present one about the end of a tick. If what
// the answer rests on is newer, the status becomes Gone: the present does not
// tell what was there before.
func (r *GetResult) AsOf(at clock.Tick) {
	r.Proofs = r.Proofs[:0]
	if (r.Status == Found || r.Status == NotFound) && r.Rests.Tick() > at {
		r.Status = Gone
	}
}

// AsOf is GetResult.AsOf for a scan.
func (r *ScanResult) AsOf(at clock.Tick) {
	r.Quick, r.Gaps = r.Quick[:0], r.Gaps[:0]
	if (r.Status == Found || r.Status == NotFound) && r.Rests.Tick() > at {
		r.Status = Gone
	}
}
