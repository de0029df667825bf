package rng

import (
	"errors"
	"math"
	"testing"
)

// Clause 2.1.6: the distribution of NURand(255, 0, 999) is known exactly; draw
// it and compare.
func TestNURandDistribution(t *testing.T) {
	const a, x, y, c, draws = ACLast, 0, 999, 123, 1_000_000
	exact := make([]float64, y-x+1)
	for r := 0; r <= a; r++ {
		for v := x; v <= y; v++ {
			exact[((r|v)+c)%(y-x+1)] += 1.0 / ((a + 1) * (y - x + 1))
		}
	}
	s := New(21)
	counts := make([]int, len(exact))
	for range draws {
		counts[s.NURand(a, x, y, c)]++
	}
	stat, cells := 0.0, 0
	pooledWant, pooledGot := 0.0, 0 // cells too rare for chi-square
	for i, p := range exact {
		want := p * draws
		if want < 20 {
			pooledWant += want
			pooledGot += counts[i]
			continue
		}
		stat += (float64(counts[i]) - want) * (float64(counts[i]) - want) / want
		cells++
	}
	if limit := chiSquareLimit(cells - 1); stat > limit {
		t.Errorf("chi-square %.1f over %d cells exceeds %.1f", stat, cells, limit)
	}
	if d := math.Abs(float64(pooledGot) - pooledWant); d > 6*math.Sqrt(pooledWant+1) {
		t.Errorf("%d draws of rare values, want about %.0f", pooledGot, pooledWant)
	}
}

func TestNURandBounds(t *testing.T) {
	s := New(22)
	for range 100_000 {
		if v := s.NURand(AOLIID, 1, 100_000, 8191); v < 1 || v > 100_000 {
			t.Fatalf("OL_I_ID %d", v)
		}
		if v := s.NURand(ACID, 1, 3000, 1023); v < 1 || v > 3000 {
			t.Fatalf("C_ID %d", v)
		}
	}
}

// Clause 2.1.6.1.
func TestCRunFollowsCLoad(t *testing.T) {
	s := New(23)
	deltas := map[int64]bool{}
	for range 50 {
		for cLoad := int64(0); cLoad <= ACLast; cLoad++ {
			c := RunConstants(s, cLoad)
			delta := cLoad - c.CLast
			if delta < 0 {
				delta = -delta
			}
			if delta < 65 || delta > 119 || delta == 96 || delta == 112 {
				t.Fatalf("C-Load %d, C-Run %d", cLoad, c.CLast)
			}
			if c.CLast < 0 || c.CLast > ACLast || c.CID < 0 || c.CID > ACID || c.OLIID < 0 || c.OLIID > AOLIID {
				t.Fatalf("constant out of range: %+v", c)
			}
			deltas[delta] = true
		}
	}
	if len(deltas) != 119-65+1-2 {
		t.Errorf("only %d distinct deltas drawn", len(deltas))
	}
	for _, bad := range []int64{0, 64, 96, 112, 120} {
		if ValidCDelta(130, 130-bad) || ValidCDelta(130, 130+bad) {
			t.Errorf("C-Delta %d accepted", bad)
		}
	}
}

// Clause 4.3.2.2.
func TestRandomStrings(t *testing.T) {
	s := New(24)
	chars, digits, lengths := make([]int, 62), make([]int, 10), make([]int, 13)
	where := [256]int{}
	for i := range alphanumerics {
		where[alphanumerics[i]] = i + 1
	}
	for range 30_000 {
		a := s.AString([]byte("keep"), 14, 26)
		if string(a[:4]) != "keep" || len(a) < 18 || len(a) > 30 {
			t.Fatalf("a-string [14 .. 26] gave %q", a)
		}
		lengths[len(a)-18]++
		for _, ch := range a[4:] {
			if where[ch] == 0 {
				t.Fatalf("a-string holds %q", ch)
			}
			chars[where[ch]-1]++
		}
		n := s.NString(nil, 16, 24)
		if len(n) < 16 || len(n) > 24 {
			t.Fatalf("n-string [16 .. 24] gave %q", n)
		}
		for _, ch := range n {
			if ch < '0' || ch > '9' {
				t.Fatalf("n-string holds %q", ch)
			}
			digits[ch-'0']++
		}
	}
	checkUniform(t, chars)
	checkUniform(t, digits)
	checkUniform(t, lengths)
	if got := s.NString(nil, 0, 0); len(got) != 0 {
		t.Errorf("n-string [0 .. 0] gave %q", got)
	}
}

func TestZetaMatchesSum(t *testing.T) {
	for _, theta := range []float64{0.01, 0.5, 0.8, 0.99, 0.999} {
		sum := 0.0
		for i := uint64(1); i <= 300_000; i++ {
			sum += math.Pow(float64(i), -theta)
			switch i {
			case 1, 2, 255, 256, 257, 1000, 300_000:
				if got := zeta(i, theta); math.Abs(got-sum)/sum > 1e-11 {
					t.Errorf("zeta(%d, %v) = %v, want %v", i, theta, got, sum)
				}
			}
		}
	}
	// The constant that YCSB's ScrambledZipfianGenerator carries for ten billion.
	if got := zeta(scrambledItems, ThetaYCSB); math.Abs(got-26.46902820178302) > 1e-6 {
		t.Errorf("zeta of ten billion is %.10f", got)
	}
}

func TestZipfDistribution(t *testing.T) {
	const n, draws = 10_000, 1_000_000
	s := New(31)
	z, err := NewZipf(n, ThetaYCSB)
	if err != nil {
		t.Fatal(err)
	}
	counts := make([]int, n)
	for range draws {
		counts[z.Draw(s)]++
	}
	// Ranks 0 and 1 are exact; further down the method approximates, so compare
	// cumulative shares.
	sum := zeta(n, ThetaYCSB)
	for rank := range 2 {
		want := draws * math.Pow(float64(rank+1), -ThetaYCSB) / sum
		if d := math.Abs(float64(counts[rank]) - want); d > 5*math.Sqrt(want) {
			t.Errorf("rank %d drawn %d times, want %.0f", rank, counts[rank], want)
		}
	}
	cumulative, exact := 0.0, 0.0
	for rank := range n {
		cumulative += float64(counts[rank]) / draws
		exact += math.Pow(float64(rank+1), -ThetaYCSB) / sum
		if math.Abs(cumulative-exact) > 0.02 {
			t.Fatalf("share of ranks up to %d is %.3f, want %.3f", rank, cumulative, exact)
		}
	}
}

// Growing step by step must be the same as starting with the final size.
func TestZipfGrow(t *testing.T) {
	grown, _ := NewZipf(1, ThetaYCSB)
	for n := uint64(2); n <= 5000; n++ {
		grown.Grow(n)
	}
	whole, _ := NewZipf(5000, ThetaYCSB)
	a, b := New(1), New(1)
	for range 1000 {
		if x, y := grown.Draw(a), whole.Draw(b); x != y {
			t.Fatalf("grown draws %d, whole %d", x, y)
		}
	}
	grown.Grow(10)
	if grown.Items() != 5000 {
		t.Errorf("Grow shrank to %d items", grown.Items())
	}
}

func TestZipfSmallAndBounds(t *testing.T) {
	s := New(33)
	for n := uint64(1); n <= 20; n++ {
		for _, theta := range []float64{0.01, 0.5, 0.99} {
			z, _ := NewZipf(n, theta)
			sc, _ := NewScrambledZipf(n, theta)
			for range 2000 {
				if z.Draw(s) >= n || sc.Draw(s) >= n {
					t.Fatalf("draw outside [0, %d)", n)
				}
			}
		}
	}
	for _, theta := range []float64{0, 1, -1, 2, math.NaN()} {
		if _, err := NewZipf(10, theta); !errors.Is(err, ErrZipf) {
			t.Errorf("theta %v: %v", theta, err)
		}
	}
	if _, err := NewScrambledZipf(0, 0.5); !errors.Is(err, ErrZipf) {
		t.Errorf("no items: %v", err)
	}
}

func TestScrambledZipfScatters(t *testing.T) {
	const n, draws = 1000, 400_000
	s := New(34)
	z, _ := NewScrambledZipf(n, ThetaYCSB)
	counts := make([]int, n)
	for range draws {
		counts[z.Draw(s)]++
	}
	h := int64(fnv1a(0))
	if h < 0 {
		h = -h
	}
	first := int(uint64(h) % n)
	share := float64(counts[first]) / draws
	if want := 1 / zeta(scrambledItems, ThetaYCSB); share < want || share > want+0.01 {
		t.Errorf("the most popular item has a share of %.4f, want a little above %.4f", share, want)
	}
	for i, c := range counts {
		if c == 0 {
			t.Errorf("item %d never drawn", i)
		}
	}
}
