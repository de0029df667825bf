//go:build verbs

package verbs

import (
	"runtime"
	"time"

	"drtmx/rdma/internal/provide"
)

// spin polls until there are completions or spinning no longer pays, and lets
// other goroutines run in between, because the completion may depend on one.
func (q *completions) spin(s *provide.Spinner) int {
	budget := s.Budget()
	if budget == 0 {
		return q.poll(1)
	}
	var start time.Time
	var took time.Duration
	for {
		if n := q.poll(spinTries); n > 0 {
			s.Hit(took)
			return n
		}
		switch now := time.Now(); { // the clock is not looked at before it matters
		case start.IsZero():
			start = now
		default:
			if took = now.Sub(start); took >= budget {
				s.Miss()
				return 0
			}
		}
		runtime.Gosched()
	}
}
