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
func (s *Session) restedIn(part placement.Partition) *rested {
	for i := range s.controlled {
		if r := &s.controlled[i]; r.part == part {
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

// awaitDurable waits until the commits in s.controlled are durable.
func (s *Session) awaitDurable(t *Txn) error {
	for i := range s.controlled {
		if r := &s.controlled[i]; r.rests > r.horizon {
			return s.awaitHorizons(t)
		}
	}
	return nil
}

// restOnTime notes that a Snapshot depends on all commits up to its tick in a
// partition that it has read. The partition had closed the tick, so no later commit
// lowers the horizon below it again.
func (s *Session) restOnTime(t *Txn, part placement.Partition) {
	r := s.restedIn(part)
	if r == nil {
		s.controlled = append(s.controlled, rested{part: part})
		r = &s.controlled[len(s.controlled)-1]
	}
	r.rests, r.horizon = block.NewCSN(t.at+1, 0)-1, block.CSN(s.snap.lines[part][lineHorizon])
}

// awaitHorizons READs the control lines until all horizons are reached.
func (s *Session) awaitHorizons(t *Txn) error {
	sn := &s.snap
	t.proved = 0
	var patience time.Duration
	for n := 0; ; n++ {
		sn.list = sn.list[:0]
		for i := range s.controlled {
			if r := &s.controlled[i]; r.rests > r.horizon {
				sn.list = append(sn.list, r.part)
			}
		}
		if len(sn.list) == 0 {
			return nil
		}
		if err := s.rest(t.ctx, n, &patience); err != nil {
			return t.fail(fmt.Errorf("partition %d: what was read is not durable yet: %w", sn.list[0], err))
		}
		if err := s.readLines(t.ctx, t); err != nil {
			return t.fail(err)
		}
		for _, p := range sn.list {
			s.restedIn(p).horizon = block.CSN(sn.lines[p][lineHorizon])
		}
	}
}

// rest waits before READ n+1 of the horizons.
func (s *Session) rest(ctx context.Context, n int, patience *time.Duration) error {
	if n < horizonSpins {
		runtime.Gosched()
		return ctx.Err()
	}
	return s.pause(ctx, min(horizonWaitMin<<min(n-horizonSpins, 10), horizonWaitMax), patience)
}
