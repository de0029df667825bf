package provide

import (
	"sync/atomic"
	"time"
)

// Spinner decides whether to spin before sleeping. On a busy machine the other
// side cannot answer while this one holds the core, so a side spins only while
// spinning succeeds, and tries again once in a while.
type Spinner struct {
	limit time.Duration
	score atomic.Int32 // spin while positive
	skips atomic.Int32
}

const (
	spinScoreMax   = 8
	spinScoreHit   = 2
	spinRetryEvery = 32
)

// Init sets the longest time to spin; negative or zero means never to spin.
func (s *Spinner) Init(limit time.Duration) {
	s.limit = limit
	s.score.Store(spinScoreMax)
}

// Budget returns how long to spin now.
func (s *Spinner) Budget() time.Duration {
	if s.limit <= 0 {
		return 0
	}
	if s.score.Load() <= 0 && s.skips.Add(1)%spinRetryEvery != 0 {
		return 0
	}
	return s.limit
}

// Hit records that spinning was enough.
func (s *Spinner) Hit() {
	if v := s.score.Load(); v < spinScoreMax {
		s.score.Store(min(v+spinScoreHit, spinScoreMax))
	}
}

// Miss records that spinning was in vain.
func (s *Spinner) Miss() {
	if v := s.score.Load(); v > 0 {
		s.score.Store(v - 1)
	}
}
