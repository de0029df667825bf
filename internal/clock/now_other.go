//go:build !linux && !darwin

package clock

import "time"

var started = time.Now()

// Now is the time since the process started, by Go's monotonic clock. Safe for
// concurrent use. On Windows that clock goes on while the machine sleeps. On
// other systems it may not: machines there that run data servers or clients
// must not sleep.
func Now() time.Duration {
	if simulated != nil {
		return simulated()
	}
	return time.Since(started)
}
