package clock

import "time"

// Tick is a moment of the cluster's logical time, in units of TickLength.
// Every transaction commits at one tick, and conflicting transactions never at
// falling ones: see [Logical]. Ticks of different servers compare.
type Tick uint64

// TickLength is the length of a tick by a server's own clock.
const TickLength = 10 * time.Millisecond

// origin is the beginning of tick 0.
var origin = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Ticks is a server's own clock: the wall clock as it was at the beginning,
// carried on by Fast. So it does not stand still while the machine sleeps, and
// is never set. How far the clocks of two servers are apart decides only how
// long they wait for each other.
type Ticks struct {
	wall time.Duration // since origin, when boot was read
	boot time.Duration
}

// NewTicks reads the wall clock, which counts as origin if it shows an earlier
// time.
func NewTicks() Ticks {
	return Ticks{wall: max(time.Since(origin), 0), boot: Fast()}
}

// Now returns the present tick. It is never 0. It may go back by the slip of
// Fast.
func (t Ticks) Now() Tick { return 1 + Tick(max(t.wall+Fast()-t.boot, 0)/TickLength) }
