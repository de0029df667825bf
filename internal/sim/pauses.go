package sim

import (
	"math"
	"runtime"

	"drtmx/internal/rng"
)

// pauses are moments at which a goroutine lets others run, although it need not
// wait. One goroutine of a bubble runs at a time and nothing takes it off, so they
// need no lock.
type pauses struct {
	rng   *rng.Stream
	share float64 // of what can be paused before
	until int     // the next pause
}

// pause is called before something that others may come before.
func (p *pauses) pause() {
	if p.share == 0 {
		return
	}
	if p.until--; p.until > 0 {
		return
	}
	p.until = 1 + int(math.Log(1-p.rng.Float64())/math.Log1p(-p.share))
	runtime.Gosched()
}
