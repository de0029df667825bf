package model

import (
	"math/big"
	"math/rand/v2"
	"testing"

	"drtmx/internal/keysets"
	"drtmx/internal/testseed"

	"pgregory.net/rapid"
)

// stabbed says by all pairs, in exact arithmetic, whether one line meets all
// intervals: each pair bounds the slope from both sides, and a slope within
// all bounds has a line.
func stabbed(xs []uint64, lo, hi []int64) bool {
	var least, most *big.Rat
	for j := range xs {
		for i := range j {
			dx := new(big.Int).SetUint64(xs[j] - xs[i])
			a := new(big.Rat).SetFrac(big.NewInt(lo[j]-hi[i]), dx)
			b := new(big.Rat).SetFrac(big.NewInt(hi[j]-lo[i]), dx)
			if least == nil || a.Cmp(least) > 0 {
				least = a
			}
			if most == nil || b.Cmp(most) < 0 {
				most = b
			}
		}
	}
	return least == nil || least.Cmp(most) <= 0
}

// TestPLAIsOptimal: a point is refused exactly when no line exists, so greedy
// segments are as few as can be (O'Rourke 1981).
func TestPLAIsOptimal(t *testing.T) {
	testseed.Check(t, func(t *rapid.T) {
		l := drawLeaves(t, 25)
		eps := rapid.SampledFrom([]int64{0, 1, one / 2, one, 4 * one}).Draw(t, "eps")
		var p pla
		var lo, hi []int64
		for i, x := range l.fences {
			y := int64(i) << fracBits
			lo, hi = append(lo, y-eps), append(hi, y+eps)
			if want := stabbed(l.fences[:i+1], lo, hi); p.add(x, y-eps, y+eps) != want {
				t.Fatalf("point %d of %v: a line exists: %v", i, l.fences[:i+1], want)
			} else if !want {
				return
			}
		}
	})
}

// TestPiecewiseKeepsItsBound: every fence is within eps but for the rounding
// of a line's integer form.
func TestPiecewiseKeepsItsBound(t *testing.T) {
	const rounding = 4
	testseed.Check(t, func(t *rapid.T) {
		l := drawLeaves(t, 300)
		eps := rapid.SampledFrom([]int64{one / 8, one / 2, one, 4 * one}).Draw(t, "eps")
		var p pla
		segs, ok := piecewise(nil, &p, fencePoints(nil, l.fences), eps, len(l.fences))
		if !ok {
			t.Fatalf("%d segments for %d fences", len(segs), len(l.fences))
		}
		var s SubModel
		s.begin(0, 0, PLR, segs)
		for i, f := range l.fences {
			if d := s.position(f) - int64(i+1)<<fracBits; d > eps+rounding || d < -eps-rounding {
				t.Fatalf("fence %d is off by %d, bound %d, %d segments", i, d, eps, len(segs))
			}
		}
		if n := len(segs); n > 1 {
			if _, ok = piecewise(segs[:0], &p, fencePoints(nil, l.fences), eps, n-1); ok {
				t.Fatalf("%d segments needed, %d were enough", n, n-1)
			}
		}
	})
}

// TestCompositePartition: sub-models of TPC-C keys end where districts do, so
// that one line each suffices.
func TestCompositePartition(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	keys := keysets.OrderLines(r, 200_000)
	l := fillLeaves(r, keys)
	district := func(k uint64) uint64 { return k >> 32 }
	starts := Partition(l.fences, 256)
	next := map[uint64]bool{}
	for _, s := range starts {
		next[s] = true
	}
	for i := 1; i < len(l.fences); i++ {
		if district(l.fences[i]) != district(l.fences[i-1]) && i > 1 && !next[l.fences[i]] {
			t.Errorf("no sub-model starts at fence %x of a new district", l.fences[i])
		}
	}
	_, q, err := build(Options{Family: RMI}, l, 256)
	if err != nil {
		t.Fatal(err)
	}
	if q.FirstLeafWrong*1000 > q.Keys {
		t.Errorf("%+v", q)
	}
}
