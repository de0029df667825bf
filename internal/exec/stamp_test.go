package exec

import (
	"math/rand/v2"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/testseed"
)

// TestHeardIsNoLater: what a client takes for a server's time at some moment is never
// later than what the server's clock showed, however long the answers took, however
// often the server was stopped, and at whatever rates the clocks ran.
func TestHeardIsNoLater(t *testing.T) {
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 2000 {
		// True time is that of the server's machine, and the client's clock is as much
		// faster or slower as clocks may be.
		rate := 1 + rng.Float64()/clock.Drift
		if rng.IntN(2) == 0 {
			rate = 1 / rate
		}
		type moment struct{ client, server time.Duration }
		var moments []moment
		var at, server time.Duration
		for range 2 + rng.IntN(30) {
			step := time.Duration(rng.ExpFloat64() * float64([]time.Duration{time.Microsecond, time.Second, time.Hour}[rng.IntN(3)]))
			at += step
			if rng.IntN(3) > 0 { // else it was stopped
				server += step - time.Duration(rng.Float64()*float64(step)/1000)
			}
			moments = append(moments, moment{time.Duration(float64(at) * rate), server})
		}
		for range 20 {
			asked := rng.IntN(len(moments))
			got := asked + rng.IntN(len(moments)-asked)
			h := clockReading{moments[asked].server, moments[got].client}
			for i, m := range moments {
				if s := h.before(m.client); s > m.server {
					t.Fatalf("moment %d of %d, answer of moment %d received at %d: the server's clock is taken to show %v, and shows %v", i, len(moments), asked, got, s, m.server)
				}
			}
		}
	}
}
