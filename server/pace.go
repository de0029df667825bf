package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
)

// pace lets the loops of a server that look for work rest longer when nobody has sent
// it a request for a while, so that an idle server takes next to no processor time. The
// first request wakes them all. READs are not seen: they make no work.
type pace struct {
	last    atomic.Int64 // when a request came last, by clock.Fast; within paceStep
	resting atomic.Int32 // loops to be woken
	turns   atomic.Uint64
	mu      sync.Mutex
	wake    chan struct{} // closed by the next request, if a loop rests
}

const (
	// awakeFor is how long loops go on as before after a request: what it leaves to be
	// done later, such as training, mostly is done by then.
	awakeFor = 2 * time.Second
	paceStep = 10 * time.Millisecond
	// idleRest is how long a loop rests in an idle server, unless its own rest is longer.
	idleRest = time.Second
)

// request notes that a request has come.
func (p *pace) request() {
	if now := int64(clock.Fast()); now-p.last.Load() > int64(paceStep) {
		p.last.Store(now)
	}
	if p.resting.Load() > 0 {
		p.mu.Lock()
		if p.wake != nil {
			close(p.wake)
			p.wake = nil
		}
		p.resting.Store(0)
		p.mu.Unlock()
	}
}

// untilBeat returns the time until a multiple of every that is at least d away. So all
// loops of an idle process wake up at one moment: most of what a wake-up costs is that
// of a sleeping processor and runtime, whatever runs then.
func untilBeat(d, every time.Duration) time.Duration {
	until := every - clock.Fast()%every
	if until < d {
		until += (d - until + every - 1) / every * every
	}
	return until
}

func (p *pace) idle() bool { return int64(clock.Fast())-p.last.Load() > int64(awakeFor) }

// rest waits for d, or for long if the server is idle and the loop has nothing to do
// soon. It returns false if ctx has ended.
func (p *pace) rest(ctx context.Context, t *time.Timer, d, long time.Duration, soon bool) bool {
	var wake chan struct{}
	if !soon && p.idle() {
		p.mu.Lock()
		if p.wake == nil {
			p.wake = make(chan struct{})
		}
		wake = p.wake
		p.resting.Add(1)
		p.mu.Unlock()
		if p.idle() { // or else a request came before this loop could be woken
			d = untilBeat(d, long)
		}
	}
	p.turns.Add(1)
	t.Reset(d)
	select {
	case <-ctx.Done():
		return false
	case <-wake:
	case <-t.C:
	}
	return true
}
