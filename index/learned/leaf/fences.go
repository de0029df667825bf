package leaf

import (
	"strings"

	"drtmx/internal/mem"
)

// Shape is the layout of the fences of a leaf of string keys: lengths in bytes.
// Low and High include the prefix.
type Shape struct {
	Apart             bool // in their own block
	Prefix, Low, High uint16
}

const apartFlag = 1 << 63

// ShapeOf returns the shape of fences with these lengths in bytes.
func ShapeOf(prefix, low, high int) Shape {
	s := Shape{Prefix: uint16(prefix), Low: uint16(low), High: uint16(high)}
	s.Apart = s.Bytes() > InlineFenceBytes
	return s
}

// Pack encodes a shape word.
func (s Shape) Pack() uint64 {
	w := uint64(s.Prefix)<<24 | uint64(s.Low)<<12 | uint64(s.High)
	if s.Apart {
		w |= apartFlag
	}
	return w
}

// UnpackShape decodes a shape word; false for lengths that no leaf has.
func UnpackShape(w uint64) (Shape, bool) {
	s := shapeIn(w)
	ok := w&^(apartFlag|1<<36-1) == 0 && s.Low <= MaxKeyBytes && s.High <= MaxKeyBytes && s.Prefix <= min(s.Low, s.High)
	return s, ok
}

func shapeIn(w uint64) Shape {
	return Shape{w&apartFlag != 0, uint16(w >> 24 & 0xfff), uint16(w >> 12 & 0xfff), uint16(w & 0xfff)}
}

// Bytes returns the length of the prefix and of both rests.
func (s Shape) Bytes() int { return int(s.Low) + int(s.High) - int(s.Prefix) }

// BlockWords is the size of the fence block, if the fences are apart.
func (s Shape) BlockWords() int { return WholeLines(FencesAtWord + (s.Bytes()+7)/8) }

// FencePointer returns a pointer to a fence block: address in lines(42) | lines(22).
func FencePointer(addr uint64, words int) uint64 {
	return addr/mem.LineBytes<<22 | uint64(WholeLines(words)/lineWords)
}

// FenceBlockAt decodes a fence pointer; the address is 0 if the pointer is 0.
func FenceBlockAt(p uint64) (addr uint64, words int) {
	return p >> 22 * mem.LineBytes, int(p&(1<<22-1)) * lineWords
}

// Fences are the bounds of a leaf of string keys: a common prefix and two rests.
type Fences struct {
	Prefix    string
	low, high string // the rests, after the prefix
	last      bool
}

// Low is a copy of the low fence, inclusive.
func (f *Fences) Low() string { return strings.Clone(f.Prefix + f.low) } // + may not copy

// High is a copy of the high fence, exclusive, and false if there is none.
func (f *Fences) High() (string, bool) { return strings.Clone(f.Prefix + f.high), !f.last }

// compare orders a key and Prefix + rest.
func (f *Fences) compare(key, rest string) int {
	n := len(f.Prefix)
	if len(key) < n || key[:n] != f.Prefix {
		return strings.Compare(key, f.Prefix) // the key differs within the prefix, or is a part of it
	}
	return strings.Compare(key[n:], rest)
}

// StartsAt reports whether the key is not above the low fence.
func (f *Fences) StartsAt(key string) bool { return f.compare(key, f.low) <= 0 }

// Below reports whether the key is below the low fence.
func (f *Fences) Below(key string) bool { return f.compare(key, f.low) < 0 }

// Above reports whether the key is at or above the high fence.
func (f *Fences) Above(key string) bool { return !f.last && f.compare(key, f.high) >= 0 }

// AppendHigh appends the high fence.
func (f *Fences) AppendHigh(b []byte) []byte { return append(append(b, f.Prefix...), f.high...) }

// split views the bytes of a leaf or fence block as fences.
func (s Shape) split(b string, last bool) Fences {
	return Fences{b[:s.Prefix], b[s.Prefix:s.Low], b[s.Low:s.Bytes()], last}
}
