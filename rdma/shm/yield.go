package shm

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// yieldProcessor lets another thread that is ready to run have this core. If no
// thread waits for the core, it costs a short system call. The runtime sees that
// call, and gives the goroutines of this P to another thread if it takes long.
func yieldProcessor() { _, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// yielder decides when to let other goroutines run before blocking the thread in
// the kernel. A goroutine that blocks its thread keeps its P: the goroutines that
// are runnable there wait until another P steals them, or the scheduler takes
// the P back, up to 10 ms later. Therefore others should run first. But in a
// process with an idle P, runtime.Gosched starts a thread to look for work, which
// costs as much as the round trip itself and is not needed. A yielder yields when
// its caller knows that others are runnable. Otherwise it yields ever more
// rarely, until it finds that others have run meanwhile.
type yielder struct {
	every, skipped int
}

const (
	yieldEveryMax = 64
	// yieldRan distinguishes a yield during which others ran from one that only
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
