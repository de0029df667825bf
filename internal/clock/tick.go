package clock

import (
	"math"
	"time"
)

// Tick is a moment of the cluster's logical time, in units of TickLength.
// Every transaction commits at one tick, and conflicting transactions never at
// falling ones: see [Logical]. Ticks of different servers compare.
type Tick uint64

// TickLength is the length of a tick by a server's own clock.
const TickLength = 10 * time.Millisecond

// Time returns the end of the tick, by the clock of the server that was first in
// it.
func (t Tick) Time() time.Time { return origin.Add(time.Duration(t) * TickLength) }

// TickAt returns the last tick whose Time is not after t, 0 if there is none.
func TickAt(t time.Time) Tick { return Tick(max(t.Sub(origin), 0) / TickLength) }

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
// time. Of several readings of both clocks it takes the one that took the least
// time, so that servers that start on one machine agree.
func NewTicks() Ticks {
	var t Ticks
	best := time.Duration(math.MaxInt64)
	for range 16 {
		before := Fast()
		wall := time.Since(origin)
		if took := Fast() - before; took < best {
			best, t = took, Ticks{wall: max(wall, 0), boot: before}
		}
	}
	if skew != nil {
		t.wall = max(t.wall+skew(), 0)
	}
	return t
}

// Now returns the present tick. It is never 0. It may go back by the slip of
// Fast.
func (t Ticks) Now() Tick { return 1 + Tick(max(t.wall+Fast()-t.boot, 0)/TickLength) }
