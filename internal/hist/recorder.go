package hist

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Recorder lets one worker record latencies while another goroutine collects
// them interval by interval. Make one with [NewRecorder] per worker. Only one
// goroutine at a time may call Record; any may call Drain. Record takes no lock,
// never waits for a collector and does not allocate.
type Recorder struct {
	// The worker stores in inside the half that it is about to write (0 for
	// none) and then loads active once more. A collector changes active and
	// then waits until inside names another half. Since atomics are
	// sequentially consistent, one of the two sees the other.
	active atomic.Uint32 // half that Record writes: 1 or 2
	inside atomic.Uint32
	halves [2]*Histogram

	mu sync.Mutex // held by a collector
}

// NewRecorder returns an empty recorder.
func NewRecorder() *Recorder {
	r := &Recorder{halves: [2]*Histogram{New(), New()}}
	r.active.Store(1)
	return r
}

// Record adds one latency; see [Histogram.Record].
func (r *Recorder) Record(d time.Duration) {
	half := r.active.Load()
	for {
		r.inside.Store(half)
		now := r.active.Load()
		if now == half {
			break
		}
		half = now
	}
	r.halves[half-1].Record(d)
	r.inside.Store(0)
}

// Drain moves everything recorded since the last Drain into the histogram into.
// A concurrent Record counts in this interval or in the next one, never in both
// and never in none.
func (r *Recorder) Drain(into *Histogram) {
	r.mu.Lock()
	defer r.mu.Unlock()
	half := r.active.Load()
	r.active.Store(3 - half)
	for r.inside.Load() == half {
		runtime.Gosched() // the worker is within a Record: nanoseconds, unless descheduled
	}
	h := r.halves[half-1]
	if h.Count() > 0 {
		into.Merge(h)
		h.Reset()
	}
}
