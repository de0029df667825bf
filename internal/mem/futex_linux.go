package mem

import (
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Operations of futex(2), without the private flag: several processes map the
// words.
const (
	futexWait = 0
	futexWake = 1
)

// futexWord is the low half of word i, which is what the kernel compares.
func (s Span) futexWord(i int) unsafe.Pointer {
	p := unsafe.Pointer(s.at(i))
	if !littleEndian {
		p = unsafe.Add(p, 4)
	}
	return p
}

var littleEndian = func() bool {
	v := uint16(1)
	return *(*byte)(unsafe.Pointer(&v)) == 1
}()

// FutexWait sleeps while the low half of word i equals that of v, until a
// FutexWake on the same word of the same memory, in this process or another, or
// until d has passed; d ≤ 0 means no time limit. It may also wake spuriously,
// so the caller must check its condition again. The thread blocks; other
// goroutines get its P only when the scheduler takes the P away.
func (s Span) FutexWait(i int, v uint64, d time.Duration) {
	var ts unix.Timespec
	var tp unsafe.Pointer
	if d > 0 {
		ts = unix.NsecToTimespec(int64(d))
		tp = unsafe.Pointer(&ts)
	}
	_, _, _ = syscall.Syscall6(unix.SYS_FUTEX, uintptr(s.futexWord(i)), futexWait, uintptr(uint32(v)), uintptr(tp), 0, 0)
}

// FutexWake wakes up to n sleepers on word i. It never blocks.
func (s Span) FutexWake(i, n int) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_FUTEX, uintptr(s.futexWord(i)), futexWake, uintptr(n), 0, 0, 0)
}
