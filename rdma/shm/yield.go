package shm

import (
	"runtime"
	"time"
)

// A goroutine about to block its thread in the kernel takes its P along: what
// is runnable there waits until another P steals it or the scheduler takes
// the P back, up to 10 ms later. So others should go first. But in a process
// with an idle P, runtime.Gosched starts a thread to look for work, which
// costs as much as the round trip itself, and then there is no need of it. A
// yielder yields when told that others are runnable and otherwise ever more
// rarely, as long as nobody turns out to run meanwhile.
type yielder struct {
	every, skipped int
}

const (
	yieldEveryMax = 64
	// yieldRan tells a yield during which others ran from one that only
	// started a thread.
	yieldRan = 20 * time.Microsecond
)

func (y *yielder) yield(due bool) {
	if !due {
		if y.skipped++; y.skipped < y.every {
			return
		}
	}
	y.skipped = 0
	start := now()
	runtime.Gosched()
	if now()-start > yieldRan {
		y.every = 1
	} else if !due {
		y.every = min(2*max(y.every, 1), yieldEveryMax)
	}
}

// now is a cheap monotonic clock.
func now() time.Duration { return time.Since(clockBase) }

var clockBase = time.Now()
