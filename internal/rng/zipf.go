package rng

import (
	"errors"
	"math"
)

// ThetaYCSB is the skew that YCSB's core workloads use.
const ThetaYCSB = 0.99

// ErrZipf is returned when a Zipf distribution is asked for over no items, or
// with a theta outside (0, 1), where the method of Gray et al. does not apply.
var ErrZipf = errors.New("rng: Zipf needs at least one item and a theta within (0, 1)")

// Zipf draws ranks in [0, n), rank 0 being the most popular, rank i having a
// probability proportional to 1/(i+1)^theta. It is the approximation of Gray et
// al. ("Quickly Generating Billion-Record Synthetic Databases", SIGMOD 1994)
// that YCSB uses: exact for the two most popular ranks, a continuous inverse
// for the others.
//
// A Zipf holds no randomness: Draw takes a stream. Draws may run concurrently
// with each other, each on its own stream, but not with Grow. Copying is fine.
type Zipf struct {
	theta  float64
	items  uint64
	alpha  float64
	eta    float64
	zetaN  float64
	second float64 // cumulative weight of the two most popular ranks
}

// NewZipf returns the distribution over n items, or [ErrZipf]. It takes constant
// time whatever n is.
func NewZipf(n uint64, theta float64) (Zipf, error) {
	if n == 0 || !(theta > 0 && theta < 1) {
		return Zipf{}, ErrZipf
	}
	z := Zipf{theta: theta, alpha: 1 / (1 - theta), second: 1 + math.Pow(0.5, theta)}
	z.Grow(n)
	return z, nil
}

// Items returns n, the number of ranks.
func (z *Zipf) Items() uint64 { return z.items }

// Grow changes the number of items to n, as inserts do in YCSB's workloads. A
// smaller n than before is ignored: YCSB's key space never shrinks.
func (z *Zipf) Grow(n uint64) {
	if n <= z.items {
		return
	}
	z.items = n
	z.zetaN = zeta(n, z.theta)
	z.eta = (1 - math.Pow(2/float64(n), 1-z.theta)) / (1 - z.second/z.zetaN)
}

// Draw returns a rank in [0, Items()).
func (z *Zipf) Draw(s *Stream) uint64 {
	u := s.Float64()
	switch uz := u * z.zetaN; {
	case uz < 1 || z.items == 1:
		return 0
	case uz < z.second || z.items == 2:
		return 1
	}
	rank := uint64(float64(z.items) * math.Pow(z.eta*u-z.eta+1, z.alpha))
	return min(rank, z.items-1) // u just below 1 can round up to n
}

// zetaExact is how many terms of the generalised harmonic sum are added one by
// one; beyond it the Euler–Maclaurin remainder is below float64 precision.
const zetaExact = 256

// zeta returns the sum of 1/i^theta for i in [1, n]. Summing term by term, as
// YCSB does, takes minutes for its ten billion items; the Euler–Maclaurin
// formula takes microseconds, which also makes growing n cheap.
func zeta(n uint64, theta float64) float64 {
	sum := 0.0
	for i := min(n, zetaExact); i > 0; i-- { // small terms first, to keep their bits
		sum += math.Pow(float64(i), -theta)
	}
	if n <= zetaExact {
		return sum
	}
	a, b := float64(zetaExact), float64(n)
	fa, fb := math.Pow(a, -theta), math.Pow(b, -theta)
	integral := (b*fb - a*fa) / (1 - theta)
	ends := (fb - fa) / 2                        // half the end terms, a's own being in sum
	slope := theta * (fa/a - fb/b) / 12          // B2/2! · (f'(b) - f'(a))
	third := theta * (theta + 1) * (theta + 2) * // B4/4! · (f'''(b) - f'''(a))
		(fb/(b*b*b) - fa/(a*a*a)) / 720
	return sum + integral + ends + slope + third
}

// scrambledItems is the number of ranks behind a scrambled draw, as in YCSB: so
// many that the popularity of a rank does not depend on the number of keys.
const scrambledItems = 10_000_000_000

// ScrambledZipf spreads a Zipf distribution over [0, n) so that popular items
// are scattered instead of adjacent, as YCSB's "zipfian" request distribution
// does: a rank out of ten billion is hashed (FNV-1a) and reduced modulo n. The
// rules of concurrency are those of [Zipf].
type ScrambledZipf struct {
	ranks Zipf
	items uint64
}

// NewScrambledZipf returns the distribution over n items, or [ErrZipf].
func NewScrambledZipf(n uint64, theta float64) (ScrambledZipf, error) {
	if n == 0 {
		return ScrambledZipf{}, ErrZipf
	}
	z, err := NewZipf(scrambledItems, theta)
	return ScrambledZipf{ranks: z, items: n}, err
}

// Draw returns an item in [0, n).
func (z *ScrambledZipf) Draw(s *Stream) uint64 {
	// YCSB takes the absolute value of a signed hash before reducing; clearing
	// the sign bit would pick other items than two's-complement negation does.
	h := int64(fnv1a(z.ranks.Draw(s)))
	if h < 0 {
		h = -h
	}
	return uint64(h) % z.items
}

// fnv1a is the 64-bit FNV-1a hash of the eight bytes of v, lowest first.
func fnv1a(v uint64) uint64 {
	const offset, prime = 0xcbf29ce484222325, 0x100000001b3
	h := uint64(offset)
	for range 8 {
		h = (h ^ v&0xff) * prime
		v >>= 8
	}
	return h
}
