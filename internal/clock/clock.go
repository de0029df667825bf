// Package clock measures how old things are: leases, proofs, memory in
// quarantine. Its time goes on while the machine sleeps, as Go's monotonic
// clock does not, and is never set, as the wall clock is. It says nothing about
// the time of day, and times of two machines do not compare.
//
// Code that waits for time to pass takes a [Source], so that tests can move
// the time by hand: see package clocktest.
package clock

import (
	"sync/atomic"
	"time"
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

// simulated, if set, is the clock of this process, and skew how much the wall
// clock of a server that starts is ahead: see Simulate.
var (
	simulated Source
	skew      func() time.Duration
)

// Simulate makes s the clock of this process, for as long as it runs. A
// simulator calls it before anything reads the clock. s never returns 0. ahead is
// called for each server that starts, and may differ from call to call: it is how
// much the server's wall clock is ahead.
func Simulate(s Source, ahead func() time.Duration) { simulated, skew, function = s, ahead, 0 }

// Simulated reports whether the clock of this process is simulated. Nothing that
// a real clock measures, such as processor time, may then decide what happens.
func Simulated() bool { return simulated != nil }

// direct is Now without a system call, or 0 where that is impossible.
func direct() time.Duration {
	if function == 0 {
		if simulated != nil {
			return simulated()
		}
		return 0
	}
	return time.Duration(call(function))
}

const (
	// Drift bounds how fast clocks run: while one counts d, any other one counts
	// between d-d/Drift and d+d/Drift. Nothing else is assumed of clocks of
	// different machines. A virtual machine whose clock stands still while it is
	// suspended does not keep it.
	Drift = 100
	// Slip bounds how far Fast may be behind Now.
	Slip = slip
)

// Bounds of infer.
const (
	// syncEvery is the longest that infer goes without asking the kernel.
	syncEvery = time.Second
	// slip is how far wall and monotonic clock may drift apart before infer
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

// Fast is Now at a fraction of its price, for code that runs once a transaction.
// Where the kernel's function for it cannot be called directly, Fast may be
// behind by up to a millisecond, and may go back by as much: see infer.
func Fast() time.Duration {
	if t := direct(); t != 0 {
		return t
	}
	return infer()
}

// infer adds the monotonic time that has passed since the latest reading of Now.
// A sleep shows in the wall clock, which the kernel moves on together with
// CLOCK_BOOTTIME: if wall and monotonic time have drifted apart, or a second
// has passed, infer takes a new reading. A sleep is missed only if somebody
// sets the wall clock back by the length of the sleep, to the millisecond,
// before that second of running time is over.
func infer() time.Duration {
	t := time.Now()
	if r := last.Load(); r != nil {
		mono := t.Sub(base) - r.mono
		if inStep(mono, time.Duration(t.UnixNano()-r.wallNano)) {
			return r.boot + mono
		}
	}
	return read(t).boot
}

// read asks the kernel, and keeps the answer for others. t is the present time.
func read(t time.Time) *reading {
	r := &reading{mono: t.Sub(base), wallNano: t.UnixNano(), boot: Now()}
	if time.Since(t) < slip { // else this goroutine was held up in between
		last.Store(r)
	}
	return r
}

// Mark is the beginning of an interval. The zero Mark is no moment.
type Mark struct {
	boot  time.Duration
	ahead time.Duration // of boot over the monotonic time since base
}

// Start is the present moment, at the price of Fast or less. Where the kernel's
// function cannot be called directly, it does not see a sleep since the latest
// reading of Fast: the first interval after one may come out too long, by the
// length of the sleep. None ever comes out too short.
func Start() Mark {
	if simulated != nil { // machines of simulated clusters do not sleep
		return Mark{boot: simulated()}
	}
	r := last.Load()
	if r == nil {
		r = read(time.Now())
		return Mark{boot: r.boot, ahead: r.boot - r.mono}
	}
	ahead := r.boot - r.mono
	if boot := direct(); boot != 0 {
		return Mark{boot, ahead}
	}
	return Mark{time.Since(base) + ahead, ahead}
}

// Time is the moment of m on the clock of Fast.
func (m Mark) Time() time.Duration { return m.boot }

// Age is the time since m, sleep included. It is never less than that, but for
// the error of Fast.
func (m Mark) Age() time.Duration { return max(Fast()-m.boot, 0) }

// Awake is the time since m for which the machine was awake. It asks the kernel.
// A sleep before m that no call of Awake has seen yet is taken for one after m.
func (m Mark) Awake() time.Duration {
	if simulated != nil {
		return m.Age()
	}
	r := read(time.Now())
	return r.boot - m.boot - (r.boot - r.mono - m.ahead)
}

// inStep reports whether a reading may still be used when so much monotonic
// and wall time has passed since.
func inStep(mono, wall time.Duration) bool {
	drift := wall - mono
	return 0 <= mono && mono < syncEvery && -slip < drift && drift < slip
}
