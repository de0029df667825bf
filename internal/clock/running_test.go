package clock_test

import (
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/clock/clocktest"
)

// TestRunning: the clock goes with its source while it is read often enough,
// and a stop of any length moves it on by one step.
func TestRunning(t *testing.T) {
	var c clocktest.Clock
	c.Advance(time.Hour)
	r := clock.NewRunning(time.Second, c.Now)
	for range 100 {
		c.Advance(100 * time.Millisecond)
		r.Now()
	}
	if got := r.Now(); got != 10*time.Second {
		t.Errorf("%v after 10 s of running", got)
	}
	c.Advance(time.Hour)
	if got := r.Now(); got != 11*time.Second {
		t.Errorf("%v after 10 s of running and a stop of an hour, want one step more", got)
	}
	c.Advance(-time.Minute) // a source never goes back by more than its error
	if got := r.Now(); got != 11*time.Second {
		t.Errorf("%v after the source went back", got)
	}
	if got := clock.NewRunning(time.Second, nil).Now(); got < 0 || got > time.Second {
		t.Errorf("a new clock shows %v", got)
	}
}
