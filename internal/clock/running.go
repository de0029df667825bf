package clock

import (
	"sync"
	"sync/atomic"
	"time"
)

// Running counts the time for which a process is seen to run. It is a [Source]
// that a stop of the process, or a sleep of the machine, moves on by no more
// than a step, however long it is: what the rest of the world had meanwhile put
// into the process's queues gets no older by it. It is never ahead of the clock
// on which it is built. Something must read it more often than once a step, or
// it falls behind. Safe for concurrent use.
type Running struct {
	source Source
	step   time.Duration

	mu        sync.Mutex
	last, sum time.Duration
	read      atomic.Int64 // sum
}

// NewRunning returns a Running on top of a clock; nil means Now.
func NewRunning(step time.Duration, s Source) *Running {
	s = s.Or(Now)
	return &Running{source: s, step: step, last: s()}
}

// Now is a Source.
func (r *Running) Now() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.source()
	r.sum += min(max(now-r.last, 0), r.step)
	r.last = now
	r.read.Store(int64(r.sum))
	return r.sum
}

// Last returns what Now returned last, to anyone. It costs next to nothing.
func (r *Running) Last() time.Duration { return time.Duration(r.read.Load()) }
