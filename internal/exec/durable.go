package exec

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"drtmx/internal/block"
	"drtmx/internal/placement"
)

// An answer may depend on commits that are not durable yet. A read-only transaction
// therefore ends only when the horizon of each partition has reached the newest
// commit that its answers there depend on. The validation READs the horizons with the
// epochs. So an attempt that depends on durable commits only does not wait, and posts
// no other round.
//
// Nothing is validated again after the wait. The transaction takes effect at the end
// of its last read; the wait only delays its answer. See docs/invariants.md.

// rested has the commits that an attempt depends on in one partition.
type rested struct {
	part    placement.Partition
	rests   block.CSN // the newest commit that its answers depend on
	horizon block.CSN // as read last: commits up to it are durable
}

// restedIn returns the entry of a partition, nil if there is none.
func (v *validator) restedIn(part placement.Partition) *rested {
	for i := range v.controlled {
		if r := &v.controlled[i]; r.part == part {
			return r
		}
	}
	return nil
}

// Waits between two READs of the horizons: none at first, then longer ones. A log is
// synced within tenths of a millisecond, or within milliseconds.
const (
	horizonSpins   = 16
	horizonWaitMin = 20 * time.Microsecond
	horizonWaitMax = 400 * time.Microsecond
)

// restOnTime notes that a Snapshot depends on all commits up to its tick in a
// partition that it has read. The partition had closed the tick, so no later commit
// lowers the horizon below it again.
func (v *validator) restOnTime(t *Txn, part placement.Partition) {
	r := v.restedIn(part)
	if r == nil {
		v.controlled = append(v.controlled, rested{part: part})
		r = &v.controlled[len(v.controlled)-1]
	}
	r.rests, r.horizon = block.NewCSN(t.at+1, 0)-1, v.lines.of[part].horizon()
}

// awaitDurable waits until the commits in v.controlled are durable: it READs the control
// lines until all horizons are reached.
func (v *validator) awaitDurable(t *Txn) error {
	var patience time.Duration
	for n := 0; ; n++ {
		v.late = v.late[:0]
		for i := range v.controlled {
			if r := &v.controlled[i]; r.rests > r.horizon {
				v.late = append(v.late, r.part)
			}
		}
		if len(v.late) == 0 {
			return nil
		}
		t.proved = 0
		if err := v.rest(t.ctx, n, &patience); err != nil {
			return t.fail(fmt.Errorf("partition %d: what was read is not durable yet: %w", v.late[0], err))
		}
		if err := v.lines.read(t.ctx, t, v.late); err != nil {
			return t.fail(err)
		}
		for _, p := range v.late {
			v.restedIn(p).horizon = v.lines.of[p].horizon()
		}
	}
}

// rest waits before READ n+1 of the horizons.
func (v *validator) rest(ctx context.Context, n int, patience *time.Duration) error {
	if n < horizonSpins {
		runtime.Gosched()
		return ctx.Err()
	}
	return v.db.cfg.Retry.pause(ctx, min(horizonWaitMin<<min(n-horizonSpins, 10), horizonWaitMax), patience)
}
