package model

import (
	"math"
	"math/bits"
)

// fracBits is the fixed-point scale of positions: one leaf is 1<<fracBits.
// It is fine enough to separate the keys of a leaf with thousands of slots,
// and leaves room for maxLeaves in a line's base field.
const fracBits = 12

// one is a position of one leaf.
const one = int64(1) << fracBits

// A line packs slope(32) | norm(6) | base(26, signed). Its value at distance d
// from its first key is
//
//	base + high64((d << norm) * slope)
//
// with d saturated at the largest value that survives the shift. norm is the
// number of leading zeros of the distance of the last trained key, so d keeps
// every bit it has and slope needs no more bits than a position: the product
// is exact for any uint64 key and rounds only once, downwards, which keeps the
// function monotone.
type line uint64

const (
	baseBits = 26
	normBits = 6
	baseMax  = 1<<(baseBits-1) - 1
	baseMin  = -1 << (baseBits - 1)
)

func makeLine(slope uint32, norm int, base int64) line {
	base = min(max(base, baseMin), baseMax)
	return line(uint64(slope)<<(baseBits+normBits) | uint64(norm)<<baseBits | uint64(base)&(1<<baseBits-1))
}

func (l line) base() int64 { return int64(l<<(64-baseBits)) >> (64 - baseBits) }

func (l line) withBase(base int64) line {
	return makeLine(uint32(l>>(baseBits+normBits)), int(l>>baseBits&(1<<normBits-1)), base)
}

// at returns the position at distance d from the line's first key.
func (l line) at(d uint64) int64 {
	norm := uint(l>>baseBits) & (1<<normBits - 1)
	d = min(d, ^uint64(0)>>norm)
	rise, _ := bits.Mul64(d<<norm, uint64(l>>(baseBits+normBits)))
	return l.base() + int64(rise)
}

// quantise returns the integer form of a fitted line. slope is in position units per
// key, base is the value at the first key, reach the distance of the last trained
// key. Error bounds are computed from the integer form, so they include its rounding.
func quantise(slope, base float64, reach uint64) line {
	norm := min(bits.LeadingZeros64(reach), 63)
	full := math.Round(math.Ldexp(slope, 64-norm))
	if !(full > 0) { // also NaN
		full = 0
	}
	s := uint32(math.MaxUint32)
	if full < math.MaxUint32 {
		s = uint32(full)
	}
	b := math.Round(base)
	if !(b > baseMin) {
		b = baseMin
	}
	return makeLine(s, norm, int64(min(b, baseMax)))
}
