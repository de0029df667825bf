package read

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"drtmx/index"
	"drtmx/index/learned"
	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
)

// TestBefore checks that the guesses of a trained client are good: the number
// of rows from the guess to the key is near the number asked for.
func TestBefore(t *testing.T) {
	const rows = 40_000
	for name, text := range map[string]func(uint64) string{
		"numbers": nil,
		"strings": func(k uint64) string { return fmt.Sprintf("user/%08d/profile", k) },
	} {
		t.Run(name, func(t *testing.T) {
			g := newRig(t, learned.Options{RowWords: 32, Strings: text != nil}, Options{}, inproc.Options{}, false)
			g.text = text
			if guess := g.c.Before(g.at(7), 3); guess != (index.Key{}) {
				t.Errorf("a client that has read nothing guesses %v", guess)
			}
			for k := range uint64(rows) {
				g.put(k, 1)
			}
			g.train()
			g.refresh()
			seed := testseed.Of(t)
			r := rand.New(rand.NewPCG(seed, 0))
			near, asked := 0, 0
			for range 200 {
				k, n := r.Uint64N(rows), 50+r.IntN(1000)
				guess := g.c.Before(g.at(k), n)
				if guess.Compare(g.at(k)) > 0 {
					t.Fatalf("the guess %v is above %v", guess, g.at(k))
				}
				lo, hi := uint64(0), k
				for lo < hi { // the first row not below the guess
					if mid := (lo + hi) / 2; g.at(mid).Compare(guess) < 0 {
						lo = mid + 1
					} else {
						hi = mid
					}
				}
				got := int(k - lo + 1)
				if asked++; got >= n/3 && got <= 3*n || lo == 0 {
					near++
				}
			}
			t.Logf("%d of %d guesses within a factor of 3", near, asked)
			if near < asked*2/3 {
				t.Errorf("%d of %d guesses within a factor of 3", near, asked)
			}
		})
	}
}
