//go:build verbs

package verbs

import (
	"runtime"
	"time"
)

// Spinning pays only while the other side runs at the same time. Where it does
// not, because cores are few, it is given up after some vain attempts and
// tried again once in a while.
type spinner struct {
	limit   time.Duration
	credit  int // spin while positive
	skipped int
}

const (
	spinCredit     = 8
	spinRetryEvery = 32
)

func newSpinner(limit time.Duration) spinner { return spinner{limit: limit, credit: spinCredit} }

// spin polls until there are completions or spinning does not pay any more,
// and lets other goroutines run in between: what is awaited may need one.
func (s *spinner) spin(q *completions) int {
	if s.limit <= 0 {
		return q.poll(1)
	}
	if s.credit <= 0 {
		if s.skipped++; s.skipped%spinRetryEvery != 0 {
			return q.poll(1)
		}
	}
	var start time.Time
	for {
		if n := q.poll(spinTries); n > 0 {
			s.credit = min(s.credit+2, spinCredit)
			return n
		}
		switch now := time.Now(); { // the clock is not looked at before it matters
		case start.IsZero():
			start = now
		case now.Sub(start) >= s.limit:
			s.credit = max(s.credit-1, 0)
			return 0
		}
		runtime.Gosched()
	}
}
