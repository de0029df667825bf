package hash

import (
	"math/bits"

	"drtmx/index"
)

// unshift undoes x ^ x>>n.
func unshift(x uint64, n uint) uint64 {
	y := x
	for s := n; s < 64; s += n {
		y = x ^ y>>n
	}
	return y
}

// inverse is the multiplicative inverse of an odd number, modulo 2^64.
func inverse(a uint64) uint64 {
	x := a
	for range 6 {
		x *= 2 - a*x
	}
	return x
}

// Unhash is the key of a hash: tests choose where keys go.
func Unhash(h uint64) uint64 {
	h = unshift(h, 31) * inverse(0x94d049bb133111eb)
	h = unshift(h, 27) * inverse(0xbf58476d1ce4e5b9)
	return unshift(h, 30)
}

// RoundsMax is the bound on the rounds of one lookup.
const RoundsMax = roundsMax

// LevelWanted is a level with which the bucket that op reads would cover its hash.
func LevelWanted(op index.GetOp) uint8 { return uint8(bits.Len64(op.(*getOp).num)) }
