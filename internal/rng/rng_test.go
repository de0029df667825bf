package rng

import (
	"math"
	"math/rand/v2"
	"testing"
)

var _ rand.Source = (*Stream)(nil)

// chiSquareLimit is a bound that a chi-square statistic of df degrees of
// freedom exceeds with a probability below 1e-6 (Wilson and Hilferty).
func chiSquareLimit(df int) float64 {
	const z = 4.8
	k := 2 / (9 * float64(df))
	return float64(df) * math.Pow(1-k+z*math.Sqrt(k), 3)
}

func checkUniform(t *testing.T, counts []int) {
	t.Helper()
	total := 0
	for _, c := range counts {
		total += c
	}
	want := float64(total) / float64(len(counts))
	stat := 0.0
	for _, c := range counts {
		stat += (float64(c) - want) * (float64(c) - want) / want
	}
	if limit := chiSquareLimit(len(counts) - 1); stat > limit {
		t.Errorf("chi-square %.1f over %d cells exceeds %.1f", stat, len(counts), limit)
	}
}

// The sequences are contract: recorded seeds must replay after an upgrade.
func TestSequenceIsStable(t *testing.T) {
	root := New(42)
	got := []uint64{root.Uint64(), root.Split("worker").Uint64(), root.SplitN(7).Uint64(), root.Uint64n(1000)}
	want := []uint64{0xb9ebf9aeaa2d9075, 0x997e9d25c1b68366, 0xeba726c496f15089, 0x12}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("draw %d: got %#x, want %#x", i, got[i], want[i])
		}
	}
}

func TestSplitIgnoresDraws(t *testing.T) {
	a, b := New(1), New(1)
	for range 10 {
		a.Uint64()
	}
	if a.Split("x").Uint64() != b.Split("x").Uint64() || a.SplitN(3).Uint64() != b.SplitN(3).Uint64() {
		t.Error("a child stream depends on what its parent drew")
	}
}

func TestStreamsDiffer(t *testing.T) {
	seen := map[uint64]string{}
	note := func(name string, s *Stream) {
		v := s.Uint64()
		if other, dup := seen[v]; dup {
			t.Errorf("streams %s and %s start alike", name, other)
		}
		seen[v] = name
	}
	for seed := range uint64(200) {
		root := New(seed)
		note("root", root)
		for n := range uint64(50) {
			note("number", root.SplitN(n))
			note("grandchild", root.SplitN(n).SplitN(seed))
		}
		for _, name := range []string{"", "a", "b", "ab", "ba", "\x00", "\x00\x00"} {
			note("name "+name, root.Split(name))
		}
	}
}

// Neighbouring streams must not be correlated: XOR of their words is uniform.
func TestSiblingsIndependent(t *testing.T) {
	root := New(5)
	counts := make([]int, 64)
	for n := range uint64(2000) {
		a, b := root.SplitN(n), root.SplitN(n+1)
		for range 32 {
			counts[(a.Uint64()^b.Uint64())>>58]++
		}
	}
	checkUniform(t, counts)
}

func TestUniformRanges(t *testing.T) {
	s := New(7)
	counts := make([]int, 100)
	for range 200_000 {
		counts[s.Range(-50, 49)+50]++
	}
	checkUniform(t, counts)

	// A range just above 3/4 of 2^64 exposes a biased reduction.
	n := uint64(3) << 62
	thirds := make([]int, 3)
	for range 100_000 {
		thirds[s.Uint64n(n)>>62]++
	}
	checkUniform(t, thirds)

	floats := make([]int, 50)
	for range 100_000 {
		floats[int(s.Float64()*50)]++
	}
	checkUniform(t, floats)
}

func TestRangeEnds(t *testing.T) {
	s := New(8)
	if v := s.Range(9, 9); v != 9 {
		t.Errorf("Range(9, 9) = %d", v)
	}
	seenLow, seenHigh := false, false
	for range 1000 {
		v := s.Range(math.MaxInt64-1, math.MaxInt64)
		seenLow, seenHigh = seenLow || v == math.MaxInt64-1, seenHigh || v == math.MaxInt64
		s.Range(math.MinInt64, math.MaxInt64)
	}
	if !seenLow || !seenHigh {
		t.Error("an end of the range is never drawn")
	}
}

func TestEmptyRangesPanic(t *testing.T) {
	s := New(1)
	for name, f := range map[string]func(){
		"Range":        func() { s.Range(2, 1) },
		"Uint64n":      func() { s.Uint64n(0) },
		"Intn":         func() { s.Intn(0) },
		"RunConstants": func() { RunConstants(s, 256) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s accepted an empty range", name)
				}
			}()
			f()
		}()
	}
}

func TestBool(t *testing.T) {
	s := New(3)
	hits := 0
	for range 100_000 {
		if s.Bool(0) || !s.Bool(1) {
			t.Fatal("Bool(0) was true or Bool(1) false")
		}
		if s.Bool(0.1) {
			hits++
		}
	}
	if hits < 9_500 || hits > 10_500 {
		t.Errorf("Bool(0.1) was true %d times of 100000", hits)
	}
}

func TestPermAndShuffle(t *testing.T) {
	s := New(11)
	seen := make([]int, 24) // all orders of four elements, by rank
	for range 48_000 {
		var p [4]int16
		Perm(s, p[:], 5)
		present := 0
		for _, v := range p {
			present |= 1 << (v - 5)
		}
		if present != 0b1111 {
			t.Fatalf("%v is no permutation of 5..8", p)
		}
		seen[orderRank(p)]++
	}
	checkUniform(t, seen)

	clear(seen)
	for range 48_000 {
		p := [4]int16{5, 6, 7, 8}
		Shuffle(s, p[:])
		seen[orderRank(p)]++
	}
	checkUniform(t, seen)
}

func orderRank(p [4]int16) int {
	rank := 0
	for i := range p {
		smaller := 0
		for _, v := range p[i+1:] {
			if v < p[i] {
				smaller++
			}
		}
		rank = rank*(len(p)-i) + smaller
	}
	return rank
}

func TestDrawsDoNotAllocate(t *testing.T) {
	s := New(2)
	z, _ := NewZipf(1000, ThetaYCSB)
	scrambled, _ := NewScrambledZipf(1000, ThetaYCSB)
	buf := make([]byte, 0, 64)
	perm := make([]int, 16)
	allocs := testing.AllocsPerRun(100, func() {
		s.Range(1, 10)
		s.Float64()
		s.NURand(ACID, 1, 3000, 17)
		buf = s.AString(buf[:0], 26, 50)
		buf = s.NString(buf[:0], 16, 16)
		Perm(s, perm, 0)
		z.Draw(s)
		scrambled.Draw(s)
		z.Grow(z.Items() + 1)
	})
	if allocs != 0 {
		t.Errorf("%v allocations per draw", allocs)
	}
}

func BenchmarkUint64(b *testing.B) {
	s := New(1)
	for b.Loop() {
		s.Uint64()
	}
}

func BenchmarkNURand(b *testing.B) {
	s := New(1)
	for b.Loop() {
		s.NURand(AOLIID, 1, 100_000, 99)
	}
}

func BenchmarkAString50(b *testing.B) {
	s := New(1)
	buf := make([]byte, 0, 64)
	for b.Loop() {
		buf = s.AString(buf[:0], 50, 50)
	}
}

func BenchmarkScrambledZipf(b *testing.B) {
	s := New(1)
	z, _ := NewScrambledZipf(1_000_000, ThetaYCSB)
	for b.Loop() {
		z.Draw(s)
	}
}
