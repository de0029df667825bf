// Package rng gives every part of drtmx its own reproducible source of
// randomness, and the distributions that the TPC-C and YCSB workloads are
// defined by.
//
// A [Stream] is a deterministic generator. A run has one root seed; every
// worker, table loader and fault injector derives its own stream from it by
// name or number with [Stream.Split] and [Stream.SplitN]. Deriving consumes
// nothing and does not depend on what was drawn before, so adding a draw in
// one place does not shift the numbers seen in another, and a failing run is
// replayed from its root seed alone.
//
// The sequences are part of the package's contract: the same seed gives the
// same numbers on every platform and Go release. That is why the bounded draws
// are written here rather than taken from math/rand/v2, which promises
// stability for its sources only. Nothing here is fit for cryptography.
//
// No draw allocates.
package rng

import (
	"math/bits"
	"math/rand/v2"
)

// Stream is a deterministic sequence of pseudo-random numbers. Make one with
// [New] or by splitting another: all zero values give one and the same sequence.
// A copy repeats what the original draws. Two goroutines must not use one Stream
// at once. It implements the Source interface of math/rand/v2.
type Stream struct {
	pcg rand.PCG
	key uint64 // identity of the stream; children derive from it, never from pcg
}

// New returns the root stream of a seed. Any seed, zero included, is as good as
// any other.
func New(seed uint64) *Stream {
	return fromKey(mix(seed ^ rootSalt))
}

const (
	rootSalt   = 0x6472746d78_726e67 // keeps New(n) apart from SplitN(n)
	nameSalt   = 0xa24baed4963ee407
	numberSalt = 0x9fb21c651e98df25
	goldenStep = 0x9e3779b97f4a7c15 // 2^64 divided by the golden ratio, odd
)

func fromKey(key uint64) *Stream {
	s := &Stream{key: key}
	key += goldenStep
	s.pcg.Seed(mix(key), mix(key+goldenStep))
	return s
}

// mix is a bijection of 64-bit words in which every input bit affects every
// output bit (the finaliser of SplitMix64, Steele et al., OOPSLA 2014).
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// Split returns the child stream of that name. The same parent and name always
// give the same child, however much the parent has drawn.
func (s *Stream) Split(name string) *Stream {
	key := mix(s.key ^ nameSalt)
	for i := 0; i < len(name); i++ {
		key = mix(key + goldenStep + uint64(name[i]))
	}
	return fromKey(key)
}

// SplitN returns the child stream of that number, such as a worker's index. The
// same parent and number always give the same child, however much the parent
// has drawn.
func (s *Stream) SplitN(n uint64) *Stream {
	return fromKey(mix(mix(s.key^numberSalt) + n*goldenStep))
}

// Uint64 returns a uniformly distributed 64-bit word.
func (s *Stream) Uint64() uint64 { return s.pcg.Uint64() }

// Uint64n returns a uniform number in [0, n). It panics if n is zero.
func (s *Stream) Uint64n(n uint64) uint64 {
	if n == 0 {
		panic("rng: Uint64n of an empty range")
	}
	// Multiply-shift with rejection of the partial last interval (Lemire,
	// "Fast Random Integer Generation in an Interval", 2019): unbiased, and a
	// division only when the first draw lands near the boundary.
	hi, lo := bits.Mul64(s.pcg.Uint64(), n)
	if lo < n {
		for threshold := -n % n; lo < threshold; {
			hi, lo = bits.Mul64(s.pcg.Uint64(), n)
		}
	}
	return hi
}

// Intn returns a uniform number in [0, n). It panics unless n is positive.
func (s *Stream) Intn(n int) int {
	if n <= 0 {
		panic("rng: Intn of an empty range")
	}
	return int(s.Uint64n(uint64(n)))
}

// Range returns a uniform number in [lo, hi], both ends included, as TPC-C
// clause 2.1.5 means by "random(x .. y)". It panics if lo > hi. The whole int64
// range is allowed.
func (s *Stream) Range(lo, hi int64) int64 {
	if lo > hi {
		panic("rng: Range with lo > hi")
	}
	span := uint64(hi) - uint64(lo) + 1
	if span == 0 {
		return int64(s.pcg.Uint64())
	}
	return int64(uint64(lo) + s.Uint64n(span))
}

// Float64 returns a uniform number in [0, 1), a multiple of 2^-53.
func (s *Stream) Float64() float64 {
	return float64(s.pcg.Uint64()>>11) * 0x1p-53
}

// Bool returns true with probability p: never for p <= 0, always for p >= 1.
func (s *Stream) Bool(p float64) bool { return s.Float64() < p }

// Integer is any integer type that Perm can fill.
type Integer interface {
	~int | ~int8 | ~int16 | ~int32 | ~int64 | ~uint | ~uint8 | ~uint16 | ~uint32 | ~uint64
}

// Perm fills dst with a uniformly random permutation of first, first+1, …,
// first+len(dst)-1 (TPC-C clause 4.3.3.1 wants one of the customer numbers,
// counted from 1). The caller must ensure that T can hold the last of them.
func Perm[T Integer](s *Stream, dst []T, first T) {
	for i := range dst {
		j := s.Intn(i + 1)
		dst[i] = dst[j]
		dst[j] = first + T(i)
	}
}

// Shuffle puts v in a uniformly random order.
func Shuffle[T any](s *Stream, v []T) {
	for i := len(v) - 1; i > 0; i-- {
		j := s.Intn(i + 1)
		v[i], v[j] = v[j], v[i]
	}
}
