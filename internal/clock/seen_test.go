package clock

import (
	"sync"
	"testing"
)

// TestSeen: it never goes back, with several goroutines that note ticks.
func TestSeen(t *testing.T) {
	var s Seen
	var wg sync.WaitGroup
	for g := range Tick(4) {
		wg.Go(func() {
			for i := range Tick(1000) {
				had := s.Tick()
				s.Saw((i * 7919 % 1000) + g)
				if now := s.Tick(); now < had {
					t.Errorf("%d after %d", now, had)
				}
			}
		})
	}
	if wg.Wait(); s.Tick() != 999+3 {
		t.Errorf("%d, want %d", s.Tick(), 999+3)
	}
}
