// Package keysets draws sets of 8-byte keys on which figures of the ordered index
// are given: tests and benchmarks use it, and results/indexes.
package keysets

import (
	"math"
	"math/rand/v2"
	"slices"
)

// A Set has a name and draws about n keys, ascending and without duplicates.
type Set struct {
	Name string
	Draw func(r *rand.Rand, n int) []uint64
}

// All are the sets that figures are given for.
var All = []Set{
	{"uniform", Uniform},
	{"lognormal", Lognormal},
	{"clustered", Clustered},
	{"tpcc", OrderLines},
}

// Of returns n draws in ascending order, without duplicates.
func Of(n int, draw func() uint64) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = draw()
	}
	return sortedUnique(keys)
}

func sortedUnique(keys []uint64) []uint64 {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// Uniform draws from all numbers of 64 bits.
func Uniform(r *rand.Rand, n int) []uint64 {
	return Of(n, r.Uint64)
}

// Lognormal follows the literature on learned indexes: exp of N(0, 2), scaled to
// integers.
func Lognormal(r *rand.Rand, n int) []uint64 {
	return Of(n, func() uint64 { return uint64(min(math.Exp(2*r.NormFloat64())*1e13, 1<<63)) })
}

// Clustered has 1 cluster for 10,000 keys, normal within, of widths that
// differ by orders of magnitude, at random places.
func Clustered(r *rand.Rand, n int) []uint64 {
	clusters := max(1, n/10000)
	keys := make([]uint64, 0, n)
	for c := range clusters {
		at := r.Uint64()>>1 + 1<<62
		width := math.Exp(r.Float64()*14) * 1e6
		for range n/clusters + min(1, max(0, n%clusters-c)) {
			keys = append(keys, at+uint64(int64(r.NormFloat64()*width)))
		}
	}
	return sortedUnique(keys)
}

// OrderLines has the keys of TPC-C's ORDER-LINE: (w<<36 | d<<32 | o<<4 | ol), 10
// districts for each warehouse, 3,000 orders of 5 to 15 lines for each district.
func OrderLines(r *rand.Rand, n int) []uint64 {
	keys := make([]uint64, 0, n)
	for w := uint64(1); ; w++ {
		for d := uint64(1); d <= 10; d++ {
			for o := uint64(1); o <= 3000; o++ {
				for ol := range 5 + r.Uint64N(11) {
					keys = append(keys, w<<36|d<<32|o<<4|(ol+1)&15)
					if len(keys) == n {
						return sortedUnique(keys)
					}
				}
			}
		}
	}
}
