//go:build unix

package server

import (
	"time"

	"golang.org/x/sys/unix"

	"drtmx/internal/clock"
)

// threadTime returns the processor time of the calling thread. Simulated work
// takes none.
func threadTime() time.Duration {
	if clock.Simulated() {
		return 0
	}
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// cpuTimeOfProcess returns the processor time of the process, of users and system.
func cpuTimeOfProcess() time.Duration {
	if clock.Simulated() {
		return 0
	}
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return time.Duration(ru.Utime.Nano() + ru.Stime.Nano())
}
