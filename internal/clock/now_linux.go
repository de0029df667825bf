package clock

import (
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// Now is the time since the machine booted, sleep included (CLOCK_BOOTTIME).
// It costs a system call, about 0.3 µs. Safe for concurrent use.
func Now() time.Duration {
	if simulated != nil {
		return simulated()
	}
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(fmt.Sprintf("clock: CLOCK_BOOTTIME: %v", err)) // Linux has had it since 2.6.39
	}
	return time.Duration(ts.Nano())
}
