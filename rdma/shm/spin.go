package shm

import (
	"sync/atomic"
	"time"
)

// spinner decides whether to spin before sleeping. On a busy machine the
// other side cannot answer while this one holds the core, so spinning is kept
// up only while it succeeds; once in a while it is tried again.
type spinner struct {
	limit time.Duration
	score atomic.Int32 // spin while positive
	skips atomic.Int32
}

const (
	spinScoreMax   = 8
	spinScoreHit   = 2
	spinRetryEvery = 32
)

func (s *spinner) init(limit time.Duration) {
	s.limit = limit
	s.score.Store(spinScoreMax)
}

// budget is how long to spin now.
func (s *spinner) budget() time.Duration {
	if s.limit <= 0 {
		return 0
	}
	if s.score.Load() <= 0 && s.skips.Add(1)%spinRetryEvery != 0 {
		return 0
	}
	return s.limit
}

func (s *spinner) hit() {
	if v := s.score.Load(); v < spinScoreMax {
		s.score.Store(min(v+spinScoreHit, spinScoreMax))
	}
}

func (s *spinner) miss() {
	if v := s.score.Load(); v > 0 {
		s.score.Store(v - 1)
	}
}

// now is a cheap monotonic clock.
func now() time.Duration { return time.Since(clockBase) }

var clockBase = time.Now()
