package hash

import (
	"encoding/binary"
	"math/bits"

	"drtmx/index"
	"github.com/zeebo/xxh3"
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

// UnhashStr is a key of eight bytes with the given hash: it undoes XXH3 of
// inputs of four to eight bytes, which is a bijection for those of eight.
func UnhashStr(h uint64) string {
	x := unavalanche(Unhash(h)) ^ unavalanche(xxh3.Hash(make([]byte, 8)))
	x = bits.RotateLeft64(x, 32) // the first four bytes are the high half
	return string(binary.LittleEndian.AppendUint64(nil, x))
}

// unavalanche undoes the last step of XXH3 of eight bytes (rrmxmx).
func unavalanche(x uint64) uint64 {
	const prime, length = 0x9fb21c651e98df25, 8
	x = unshift(x, 28) * inverse(prime)
	x = (x ^ (x>>35 + length)) * inverse(prime)
	// x ^ rotl(x, 49) ^ rotl(x, 24) to the 64th power is the identity.
	for range 63 {
		x ^= bits.RotateLeft64(x, 49) ^ bits.RotateLeft64(x, 24)
	}
	return x
}

// RoundsMax is the bound on the rounds of one lookup.
const RoundsMax = roundsMax

// LevelWanted is a level with which the bucket that op reads would cover its hash.
func LevelWanted(op index.GetOp) uint8 { return uint8(bits.Len64(op.(*getOp).num)) }
