package cluster

import (
	"testing"
	"time"

	"drtmx/internal/testseed"
)

// TestIdleHostsRest: hosts whose servers are all there, with copies in sync, look seldom
// whether something is to be done.
func TestIdleHostsRest(t *testing.T) {
	soon(t)
	h := startMovable(t, 3)
	h.fill(0, 20)
	for server := range 3 {
		h.inSync(server)
	}
	const window, most = 2 * time.Second, 8 // each loop; twenty without rests
	for end := time.Now().Add(testseed.Patience()); ; {
		var before, after [3][2]uint64
		turns := func(of *[3][2]uint64) {
			for i, m := range h.hosts {
				of[i] = [2]uint64{m.others.looks.Load(), m.turns.Load()}
			}
		}
		turns(&before)
		start := time.Now()
		time.Sleep(window)
		turns(&after)
		busy := 0
		for i := range after {
			for k := range after[i] {
				if after[i][k]-before[i][k] > most {
					busy++
				}
			}
		}
		if busy == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("hosts looked from %v to %v times within %v, want at most %d more", before, after, time.Since(start), most)
		}
	}
}
