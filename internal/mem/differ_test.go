package mem

import (
	"math/rand/v2"
	"testing"
)

// TestDiffer compares it with a comparison word by word.
func TestDiffer(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	whole := newRegion(t, Heap).MustSpan(0, 512*WordBytes)
	for range 20000 {
		row := make([]uint64, r.IntN(200))
		at := r.IntN(100)
		s := whole.Slice(at, len(row))
		for i := range row {
			row[i] = r.Uint64()
		}
		s.CopyIn(row)
		lo, hi := len(row), len(row)
		for i := range r.IntN(3) * min(len(row), 1) {
			at := r.IntN(len(row))
			row[at]++
			if i == 0 {
				hi = 0
			}
			lo, hi = min(lo, at), max(hi, at+1)
		}
		if gotLo, gotHi := s.Differ(row); gotLo != lo || gotHi != hi {
			t.Fatalf("%d words: %d to %d, want %d to %d", len(row), gotLo, gotHi, lo, hi)
		}
	}
}
