package mem

import "unsafe"

// differPart is how many words Differ compares at a time.
const differPart = 8

// Differ returns the smallest range, from lo up to hi, that contains all words in which
// the first words of s differ from row. s must have no other writer.
func (s Span) Differ(row []uint64) (lo, hi int) {
	if len(row) > s.n {
		panic("mem: compare out of span")
	}
	if len(row) == 0 {
		return 0, 0
	}
	own := unsafe.Slice((*uint64)(s.p), len(row))
	hi = len(row)
	for lo+differPart <= hi && *(*[differPart]uint64)(own[lo:]) == *(*[differPart]uint64)(row[lo:]) {
		lo += differPart
	}
	for lo < hi && own[lo] == row[lo] {
		lo++
	}
	for hi-differPart >= lo && *(*[differPart]uint64)(own[hi-differPart:]) == *(*[differPart]uint64)(row[hi-differPart:]) {
		hi -= differPart
	}
	for hi > lo && own[hi-1] == row[hi-1] {
		hi--
	}
	return lo, hi
}
