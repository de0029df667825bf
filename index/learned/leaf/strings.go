package leaf

import (
	"math/bits"
	"strings"

	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// KeyWords returns the number of words that a string key takes.
func KeyWords(key string) int { return (len(key) + mem.WordBytes - 1) / mem.WordBytes }

// StrBlockWords returns the size in words of a row block for a string key and so many
// words of payload.
func StrBlockWords(key string, words int) int { return StrKeyWord + KeyWords(key) + words }

// StrBlockWordsMax returns the size in words of the largest row block with a payload
// of at most so many words.
func StrBlockWordsMax(words int) int { return StrKeyWord + MaxKeyBytes/mem.WordBytes + words }

// Pointer refers to a row block: tag(16) | class(6) | address in lines(42).
type Pointer uint64

// NewPointer points to a row block.
func NewPointer(tag uint16, class block.Class, addr uint64) Pointer {
	return Pointer(tag)<<48 | Pointer(class)<<42 | Pointer(addr/mem.LineBytes)
}

// Addr is the address of the row block.
func (p Pointer) Addr() uint64 { return uint64(p) & (1<<42 - 1) * mem.LineBytes }

// Tag is the hash tag of the row's key.
func (p Pointer) Tag() uint16 { return uint16(p >> 48) }

// Class is the size class of the row block.
func (p Pointer) Class() block.Class { return block.Class(p >> 42 & 63) }

// Words is the size of the row block.
func (p Pointer) Words() int { return p.Class().Words() }

// largest is the class of the largest possible row.
var largest = block.ClassFor(StrBlockWordsMax(MaxRowWords))

// Valid reports whether a pointer may be followed.
func (p Pointer) Valid() bool { return p.Addr() != 0 && p.Class() > 0 && p.Class() <= largest }

// Tag is the hash tag of a key.
func Tag(key string) uint16 { return uint16(Hash(key) >> 48) }

// Hash is a fixed 64-bit hash, because it is part of published memory.
func Hash(s string) uint64 {
	h := uint64(len(s))*0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d
	for ; len(s) >= 8; s = s[8:] {
		h = fold(h^load8(s), 0xd6e8feb86659fd93)
	}
	return fold(h^Digest(s)^0x94d049bb133111eb, 0xff51afd7ed558ccd)
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo ^ a>>32
}

func load8(s string) uint64 {
	return uint64(s[0])<<56 | uint64(s[1])<<48 | uint64(s[2])<<40 | uint64(s[3])<<32 |
		uint64(s[4])<<24 | uint64(s[5])<<16 | uint64(s[6])<<8 | uint64(s[7])
}

// Digest returns the first eight bytes of s, first byte highest, padded with zeros.
func Digest(s string) uint64 {
	if len(s) >= 8 {
		return load8(s)
	}
	var d uint64
	for i := range len(s) {
		d |= uint64(s[i]) << (56 - 8*i)
	}
	return d
}

// DigestAt returns the digest of a key without its first n bytes.
func DigestAt(key string, n int) uint64 {
	if n >= len(key) {
		return 0
	}
	return Digest(key[n:])
}

// DigestAfter returns the digest of a key after a prefix. Keys below all those with
// the prefix have the least digest, keys above them the greatest. So digests never
// fall as keys rise.
func DigestAfter(prefix, key string) uint64 {
	if strings.HasPrefix(key, prefix) {
		return Digest(key[len(prefix):])
	}
	if key < prefix {
		return 0
	}
	return ^uint64(0)
}

// Common returns the number of leading bytes that two strings share.
func Common(a, b string) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if x := load8(a[i:]) ^ load8(b[i:]); x != 0 {
			return i + bits.LeadingZeros64(x)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// Separator returns the shortest string that is above a and not above b. b must be
// above a.
func Separator(a, b string) string { return b[:Common(a, b)+1] }

// WordAt returns word i of the bytes of s in memory order, padded with zeros.
func WordAt(s string, i int) uint64 {
	if s = s[i*mem.WordBytes:]; len(s) >= 8 {
		return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	}
	var w uint64
	for j := range len(s) {
		w |= uint64(s[j]) << (8 * j)
	}
	return w
}
