package provide

import "time"

// Large messages. A connection keeps larger buffers only while it is busy.
const (
	// KeepBytes is how large the buffers are that an idle connection keeps.
	KeepBytes = 64 << 10
	// GiveBackAfter is how long a connection is idle before it gives larger
	// buffers back.
	GiveBackAfter = time.Second
)

// Idle calls a function when large buffers were not used for GiveBackAfter. The
// zero value is ready. The lock of a connection guards its methods, and the
// function takes that lock.
type Idle struct {
	used  time.Time
	timer *time.Timer // nil before the first use
}

// Used records a use of large buffers, after which f is to be called.
func (i *Idle) Used(f func()) {
	i.used = time.Now()
	if i.timer == nil {
		i.timer = time.AfterFunc(GiveBackAfter, f)
		return
	}
	i.timer.Reset(GiveBackAfter)
}

// Over reports whether the connection is idle; f calls it. If the connection is busy,
// or was used again, f is called again later.
func (i *Idle) Over(busy bool) bool {
	if busy || time.Since(i.used) < GiveBackAfter {
		i.timer.Reset(GiveBackAfter)
		return false
	}
	return true
}

// Stop ends the calls.
func (i *Idle) Stop() {
	if i.timer != nil {
		i.timer.Stop()
	}
}
