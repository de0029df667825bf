package sim

import (
	"math"
	"runtime"
	"time"

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
	if p.due() {
		runtime.Gosched()
	}
}

// stall is called where a goroutine may be held up for some time.
//
//go:norace
func (p *pauses) stall() {
	if p.due() {
		time.Sleep(stallMin << (p.state >> 40 % stallDoublings))
	}
}

// A goroutine is held up for the shorter times as often as for the longer ones.
const (
	stallMin       = 20 * time.Microsecond
	stallDoublings = 11
)

// due reports whether this is the moment of a pause.
//
//go:norace
func (p *pauses) due() bool {
	if p.share == 0 {
		return false
	}
	if p.until--; p.until > 0 {
		return false
	}
	p.state += 0x9e3779b97f4a7c15 // splitmix64
	x := p.state
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	x ^= x >> 31
	p.until = 1 + int(math.Log(1-float64(x>>11)/(1<<53))/math.Log1p(-p.share))
	return true
}
