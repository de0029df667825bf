package load

import (
	"time"

	"golang.org/x/sys/unix"
)

func nanosleep(d time.Duration) {
	ts := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&ts, nil)
}
