// Package clock measures how old things are: leases, proofs, memory in
// quarantine. Its time goes on while the machine sleeps, as Go's monotonic
// clock does not, and is never set, as the wall clock is. It says nothing about
// the time of day, and times of two machines do not compare.
//
// Code that waits for time to pass takes a [Source], so that tests can move
// the time by hand: see package clocktest.
package clock

import (
	"fmt"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Source tells the time since some fixed moment. It never goes back. Safe for
// concurrent use.
type Source func() time.Duration

// Or returns s, or Now if s is nil.
func (s Source) Or(def Source) Source {
	if s == nil {
		return def
	}
	return s
}

// Now is the time since the machine booted, sleep included (CLOCK_BOOTTIME).
// It costs a system call, about 0.3 µs. Safe for concurrent use.
func Now() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("clock: CLOCK_BOOTTIME: %v", err)) // Linux has had it since 2.6.39
	}
	return time.Duration(ts.Nano())
}

// Bounds of Fast.
const (
	// syncEvery is the longest that Fast goes without asking the kernel.
	syncEvery = time.Second
	// slip is how far wall and monotonic clock may drift apart before Fast
	// takes it for a sleep. Clocks that are slewed drift 0.5 ms a second.
	slip = time.Millisecond
)

// reading is one moment by all clocks.
type reading struct {
	mono     time.Duration // since base
	wallNano int64
	boot     time.Duration
}

var base = time.Now()

var last atomic.Pointer[reading]

// Fast is Now at a third of its price, for code that runs once a transaction.
// It may be behind by up to a millisecond, and may go back by as much.
//
// It adds the monotonic time that has passed since the latest reading of Now.
// A sleep shows in the wall clock, which the kernel moves on together with
// CLOCK_BOOTTIME: if wall and monotonic time have drifted apart, or a second
// has passed, Fast takes a new reading. A sleep is missed only if somebody
// sets the wall clock back by the length of the sleep, to the millisecond,
// before that second of running time is over.
func Fast() time.Duration {
	t := time.Now()
	if r := last.Load(); r != nil {
		mono := t.Sub(base) - r.mono
		if inStep(mono, time.Duration(t.UnixNano()-r.wallNano)) {
			return r.boot + mono
		}
	}
	return read(t)
}

// read asks the kernel, and keeps the answer for others. t is the present time.
func read(t time.Time) time.Duration {
	boot := Now()
	if time.Since(t) < slip { // else this goroutine was held up in between
		last.Store(&reading{mono: t.Sub(base), wallNano: t.UnixNano(), boot: boot})
	}
	return boot
}

// Mark is the beginning of an interval. The zero Mark is no moment.
type Mark struct{ boot, mono time.Duration }

// Start is the present moment, at half the price of Fast. It does not see a
// sleep since the latest reading of Fast: the first interval after one may come
// out too long, by the length of the sleep, and none ever comes out too short.
func Start() Mark {
	r := last.Load()
	if r == nil {
		return Mark{boot: Fast(), mono: time.Since(base)}
	}
	mono := time.Since(base)
	return Mark{boot: r.boot + mono - r.mono, mono: mono}
}

// Time is the moment of m on the clock of Fast.
func (m Mark) Time() time.Duration { return m.boot }

// Age is the time since m, sleep included. It is never less than that, but for
// the error of Fast.
func (m Mark) Age() time.Duration { return max(Fast()-m.boot, 0) }

// Awake is the time since m for which the machine was awake.
func (m Mark) Awake() time.Duration { return time.Since(base) - m.mono }

// inStep reports whether a reading may still be used when so much monotonic
// and wall time has passed since.
func inStep(mono, wall time.Duration) bool {
	drift := wall - mono
	return 0 <= mono && mono < syncEvery && -slip < drift && drift < slip
}
