package keysets

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Sets are ascending, have hardly fewer keys than asked for, and are the same for the
// same source.
func TestSets(t *testing.T) {
	const n = 30_000
	for _, s := range All {
		draw := func() []uint64 { return s.Draw(rand.New(rand.NewPCG(1, 2)), n) }
		keys := draw()
		if len(keys) > n || len(keys) < n*99/100 {
			t.Errorf("%s: %d keys, want %d or few less", s.Name, len(keys), n)
		}
		for i := range keys[1:] {
			if keys[i] >= keys[i+1] {
				t.Errorf("%s: key %d is not below the next one", s.Name, i)
				break
			}
		}
		if !slices.Equal(keys, draw()) {
			t.Errorf("%s: other keys from the same source", s.Name)
		}
	}
}
