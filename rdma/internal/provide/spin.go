package provide

import "time"

// Spinner decides how long to spin before sleeping. It learns from recent waits: a side
// spins only while most waits end soon enough, and not much longer than those waits
// took. Otherwise it tries again once in a while, because a side that sleeps makes the
// waits of the other side long. One goroutine at a time uses it.
type Spinner struct {
	limit   time.Duration
	score   int           // spin while positive
	skips   int           // waits without spinning
	typical time.Duration // of the waits that ended while spinning
}

// A hit counts less than a miss: a sleep and a wake-up cost less than it does to
// spin in vain.
const (
	spinScoreMax   = 8
	spinScoreMiss  = 2
	spinRetryEvery = 32
	// spinSlack is how many typical waits a side spins.
	spinSlack = 4
	// spinFallShare is the weight of a wait that is shorter than the typical one.
	spinFallShare = 8
)

// Init sets the longest time to spin; negative or zero means never to spin.
func (s *Spinner) Init(limit time.Duration) {
	s.limit = limit
	s.score = spinScoreMax
	s.typical = limit / spinSlack
}

// Budget returns how long to spin now.
func (s *Spinner) Budget() time.Duration {
	if s.limit <= 0 {
		return 0
	}
	if s.score <= 0 {
		if s.skips++; s.skips%spinRetryEvery != 0 {
			return 0
		}
		return s.limit
	}
	return min(max(spinSlack*s.typical, s.limit/spinSlack), s.limit)
}

// Hit records that spinning for so long was enough.
func (s *Spinner) Hit(took time.Duration) {
	s.score = min(s.score+1, spinScoreMax)
	if took = min(took, s.limit); took > s.typical {
		s.typical = (s.typical + took) / 2
	} else {
		s.typical -= (s.typical - took) / spinFallShare
	}
}

// Miss records that spinning was in vain.
func (s *Spinner) Miss() { s.score = max(s.score-spinScoreMiss, 0) }
