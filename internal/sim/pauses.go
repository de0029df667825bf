package sim

import (
	"math"
	"runtime"

	"drtmx/internal/rng"
)

// pauses are moments at which a goroutine lets others run, although it need not wait.
// One goroutine of a bubble runs at a time and is never preempted, so pauses need no
// lock. A lock would order all goroutines for the race detector. Instead the detector
// does not see these fields: see pause.
type pauses struct {
	share float64 // of what can be paused before
	state uint64  // of a generator
	until int     // the next pause
}

func newPauses(s *rng.Stream, share float64) pauses { return pauses{share: share, state: s.Uint64()} }

// pause is called before something that others may come before.
//
//go:norace
func (p *pauses) pause() {
	if p.share == 0 {
		return
	}
	if p.until--; p.until > 0 {
		return
	}
	p.state += 0x9e3779b97f4a7c15 // splitmix64
	x := p.state
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	p.until = 1 + int(math.Log(1-float64(x>>11)/(1<<53))/math.Log1p(-p.share))
	runtime.Gosched()
}
