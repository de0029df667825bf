package mem

import (
	"sync/atomic"
	"unsafe"
)

// Or sets the bits of mask in word i atomically and returns the old value.
func (s Span) Or(i int, mask uint64) uint64 {
	pause()
	return atomic.OrUint64(s.at(i), mask)
}

// Swap stores v in word i atomically and returns the old value.
func (s Span) Swap(i int, v uint64) uint64 {
	pause()
	return atomic.SwapUint64(s.at(i), v)
}

// CopyBytesIn stores b at the start of the span. It promises no order and no
// atomic unit. Use it for memory that a protocol gives to one side at a time.
func (s Span) CopyBytesIn(b []byte) {
	if len(b) > s.n*WordBytes {
		panic("mem: copy into span")
	}
	if len(b) > 0 {
		copy(unsafe.Slice((*byte)(s.p), len(b)), b)
	}
}

// CopyBytesOut loads the first len(b) bytes of the span. It promises no order
// and no atomic unit. Use it for memory that a protocol gives to one side at a
// time; if the other side breaks the protocol, b holds a mixture of old and new
// bytes.
func (s Span) CopyBytesOut(b []byte) {
	if len(b) > s.n*WordBytes {
		panic("mem: copy out of span")
	}
	if len(b) > 0 {
		copy(b, unsafe.Slice((*byte)(s.p), len(b)))
	}
}
