package mem

import (
	"sync/atomic"
	"unsafe"
)

// Span is a bounded run of words in a region. It is a value, cheap to copy,
// and valid while its region lives. Word indices are checked.
type Span struct {
	p unsafe.Pointer
	n int
}

// Words returns the length of the span in words.
func (s Span) Words() int { return s.n }

func (s Span) at(i int) *uint64 {
	if uint(i) >= uint(s.n) {
		panic("mem: word index out of span")
	}
	return (*uint64)(unsafe.Add(s.p, i*WordBytes))
}

// Load reads word i atomically.
func (s Span) Load(i int) uint64 {
	pause()
	return atomic.LoadUint64(s.at(i))
}

// Store writes word i atomically and in order with all other accesses.
func (s Span) Store(i int, v uint64) {
	pause()
	atomic.StoreUint64(s.at(i), v)
}

// Put writes word i atomically, after all earlier accesses and before all later
// stores. A later load of another word may come before it: Put is not for words
// by which two writers exclude each other.
func (s Span) Put(i int, v uint64) { storeWord(s.at(i), v) }

// CompareAndSwap replaces old by new in word i atomically and reports whether
// it did.
func (s Span) CompareAndSwap(i int, old, new uint64) bool {
	pause()
	return atomic.CompareAndSwapUint64(s.at(i), old, new)
}

// Add adds delta to word i atomically and returns the new value.
func (s Span) Add(i int, delta uint64) uint64 {
	pause()
	return atomic.AddUint64(s.at(i), delta)
}

// Slice returns the n words from word i.
func (s Span) Slice(i, n int) Span {
	if i < 0 || n < 0 || i+n > s.n {
		panic("mem: slice out of span")
	}
	if n == 0 {
		return Span{s.p, 0} // behind the last word begins another object
	}
	return Span{unsafe.Add(s.p, i*WordBytes), n}
}

// CopyOut loads the first len(dst) words into dst, in ascending order, each
// atomically. dst is private memory.
func (s Span) CopyOut(dst []uint64) {
	if len(dst) > s.n {
		panic("mem: copy out of span")
	}
	if len(dst) > 0 {
		loadWords(unsafe.Pointer(&dst[0]), s.p, len(dst))
	}
}

// CopyIn stores src over the first len(src) words, in ascending order, each
// atomically. A reader that sees a later Store on the span also sees all of
// them.
func (s Span) CopyIn(src []uint64) {
	if len(src) > s.n {
		panic("mem: copy into span")
	}
	if len(src) > 0 {
		storeWords(s.p, unsafe.Pointer(&src[0]), len(src))
	}
}

// CopySpan stores the words of src, which has no other writer, over the first
// words of s, as CopyIn does.
func (s Span) CopySpan(src Span) {
	if src.n > s.n {
		panic("mem: copy into span")
	}
	storeWords(s.p, src.p, src.n)
}

// zeros is what Zero copies from.
var zeros [128]uint64

// Zero stores zero in every word, as CopyIn does.
func (s Span) Zero() {
	for at := 0; at < s.n; at += len(zeros) {
		n := min(len(zeros), s.n-at)
		s.Slice(at, n).CopyIn(zeros[:n])
	}
}

// Bytes views private words as bytes in memory order. It is for private memory
// only, never for a region's memory.
func Bytes(words []uint64) []byte {
	if len(words) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*WordBytes)
}

// String views private bytes as a string. The caller must not change them while
// the string is in use. A string it returns as it is: the header of a slice
// begins with that of a string.
func String[S ~string | ~[]byte](s S) string { return *(*string)(unsafe.Pointer(&s)) }

// StringBytes views a string as bytes. The caller must not change them.
func StringBytes(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// WordString views the first n bytes of private words, in memory order, as a
// string. The caller must not change the words while the string is in use.
func WordString(words []uint64, n int) string { return String(Bytes(words)[:n]) }

// AppendString appends the bytes of s as words in memory order, the last one
// padded with zeros.
func AppendString(dst []uint64, s string) []uint64 {
	at := len(dst)
	for n := (len(s) + WordBytes - 1) / WordBytes; n > 0; n-- {
		dst = append(dst, 0)
	}
	copy(Bytes(dst[at:]), s)
	return dst
}
