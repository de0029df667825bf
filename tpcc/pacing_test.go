package tpcc

import (
	"math"
	"slices"
	"testing"
	"time"

	"drtmx/internal/rng"
)

// Think times are negative exponential: their mean, and the share below each
// of some bounds, are that distribution's; none exceeds ten means.
func TestThinkTimes(t *testing.T) {
	const n = 200_000
	p := NewPacing(rng.New(5), 1)
	for _, ty := range Types {
		mean := ty.Terms().ThinkMean
		sum, most := 0.0, time.Duration(0)
		drawn := make([]time.Duration, n)
		for i := range drawn {
			drawn[i] = p.Think(ty)
			sum += drawn[i].Seconds()
			most = max(most, drawn[i])
		}
		slices.Sort(drawn)
		if drawn[0] < 0 || most > 10*mean || most < 8*mean {
			t.Errorf("%v: times from %v to %v, want 0 to 10 × %v", ty, drawn[0], most, mean)
		}
		// The standard error of the mean is mean/√n.
		if got, want := sum/n, mean.Seconds(); math.Abs(got-want) > 5*want/math.Sqrt(n) {
			t.Errorf("%v: mean %v s, want %v", ty, got, want)
		}
		// Kolmogorov-Smirnov: the distance exceeds 1.95/√n once in a thousand.
		distance := 0.0
		for i, d := range drawn {
			distance = max(distance, math.Abs(float64(i)/n-(1-math.Exp(-float64(d)/float64(mean)))))
		}
		if distance > 1.95/math.Sqrt(n) {
			t.Errorf("%v: distribution is off by %v", ty, distance)
		}
	}
}

// One in e^10 think times is cut at ten means, none is longer.
func TestThinkTimeIsCut(t *testing.T) {
	p := NewPacing(rng.New(6), 1)
	cut := 0
	for range 2_000_000 {
		if d := p.Think(Delivery); d == 50*time.Second {
			cut++
		} else if d > 50*time.Second {
			t.Fatalf("think time %v, want at most 50 s", d)
		}
	}
	// e^-10 of them, 91 ± 10.
	if cut < 40 || cut > 140 {
		t.Errorf("%d of 2,000,000 are cut at ten means, want about 91", cut)
	}
}

func TestKeyingAndScale(t *testing.T) {
	whole, tenth := NewPacing(rng.New(7), 1), NewPacing(rng.New(7), 0.1)
	for ty, want := range map[Type]time.Duration{
		NewOrder: 18 * time.Second, Payment: 3 * time.Second, OrderStatus: 2 * time.Second, Delivery: 2 * time.Second, StockLevel: 2 * time.Second,
	} {
		if whole.Keying(ty) != want || tenth.Keying(ty) != want/10 {
			t.Errorf("%v: keying %v and %v, want %v and a tenth", ty, whole.Keying(ty), tenth.Keying(ty), want)
		}
		a, b := whole.Think(ty), tenth.Think(ty)
		if math.Abs(float64(a)-10*float64(b)) > 20 {
			t.Errorf("%v: think %v and %v, want a tenth", ty, a, b)
		}
	}
}

func TestTerminalHomes(t *testing.T) {
	seen := map[[2]int64]int{}
	for id := range 40 {
		w, d := TerminalHome(id, 4)
		seen[[2]int64{w, d}]++
		if id < 4 && (w != int64(id)+1 || d != 1) {
			t.Errorf("terminal %d is at %d.%d, want the first ones at different warehouses", id, w, d)
		}
	}
	if len(seen) != 40 {
		t.Errorf("40 terminals share %d homes, want 4 × 10", len(seen))
	}
	if w, d := TerminalHome(40, 4); w != 1 || d != 1 {
		t.Errorf("terminal 41 of 4 warehouses is at %d.%d, want 1.1 again", w, d)
	}
}
