package cluster

import (
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// serverSlice is how long a data server's thread asks to run at a time.
const serverSlice = 100 * time.Microsecond

// shortSlices asks the kernel for short turns for this process's threads, and
// so for those they start. A data server has a few microseconds of work at a
// time; who waits for it are clients, and others of them may be busy on all
// cores. A thread with short turns gets the core of one with long turns as
// soon as it has work, rather than when the other's turn is over, and its share
// of the machine stays what it is. Linux before 6.12 has one length for all.
func shortSlices() {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return
	}
	for _, t := range threads {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		a, err := unix.SchedGetAttr(tid, 0)
		if err != nil || a.Policy != unix.SCHED_NORMAL {
			continue // a policy that somebody chose for the process
		}
		a.Runtime = uint64(serverSlice)
		_ = unix.SchedSetAttr(tid, a, 0)
	}
}
