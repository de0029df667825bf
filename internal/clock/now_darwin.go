package clock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time since some moment, sleep included (CLOCK_MONOTONIC).
// It costs a system call, about 0.3 µs. Safe for concurrent use.
func Now() time.Duration {
	if simulated != nil {
		return simulated()
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(fmt.Sprintf("clock: CLOCK_MONOTONIC: %v", err)) // macOS has had it since 10.12
	}
	return time.Duration(ts.Nano())
}
