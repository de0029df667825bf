package tables

import (
	"encoding/binary"
	"fmt"
)

// A column of type Bytes has a fixed part among the other columns: the offset
// of its value in the row (32 bits) and the value's length (32). The values
// follow the fixed parts of all columns, packed, in any order. The row ends at
// a whole word.
const bytesColumnBytes = 8

// heap describes the part of a table's rows that varies in size.
type heap struct {
	fixed int   // bytes before it
	at    []int // offsets of the fixed parts of the Bytes columns
}

func (f Field) extent(r Row) (off, n int) {
	b := r[f.off:]
	return int(binary.LittleEndian.Uint32(b)), int(binary.LittleEndian.Uint32(b[4:]))
}

func setExtent(r Row, at, off, n int) {
	binary.LittleEndian.PutUint32(r[at:], uint32(off))
	binary.LittleEndian.PutUint32(r[at+4:], uint32(n))
}

// Bytes returns the value of a Bytes column, as a view of the row.
func (r Row) Bytes(f Field) []byte {
	if f.typ != Bytes {
		panic("tables: Bytes of a " + f.typ.String() + " column")
	}
	off, n := f.extent(r)
	if off < 0 || n < 0 || off > len(r)-n {
		return nil // CheckRow would refuse this row
	}
	return r[off : off+n : off+n]
}

// SetBytes writes a Bytes column and returns the row. If the value's length
// changes, the returned row has another size and may have other memory. v must
// not be a view of r unless it is the column's own value. SetBytes panics if v
// is longer than the column's size.
func (r Row) SetBytes(f Field, v []byte) Row {
	if f.typ != Bytes || len(v) > f.size {
		panic(fmt.Sprintf("tables: %d bytes for a %v column of %d", len(v), f.typ, f.size))
	}
	off, n := f.extent(r)
	if n == len(v) {
		copy(r[off:off+n], v)
		return r
	}
	end := f.heap.fixed
	for _, at := range f.heap.at {
		o, k := Field{off: at}.extent(r)
		end = max(end, o+k)
	}
	if n > 0 { // close the gap
		copy(r[off:], r[off+n:end])
		end -= n
		for _, at := range f.heap.at {
			if o, k := (Field{off: at}).extent(r); k > 0 && o > off {
				setExtent(r, at, o-n, k)
			}
		}
	}
	size := roundUp(end + len(v))
	for len(r) < size {
		r = append(r, make([]byte, size-len(r))...)
	}
	r = r[:size]
	copy(r[end:], v)
	clear(r[end+len(v):])
	if len(v) == 0 {
		end = 0
	}
	setExtent(r, f.off, end, len(v))
	return r
}

func roundUp(n int) int { return (n + 7) &^ 7 }

// check verifies the variable part of a row.
func (h *heap) check(what string, r Row, sizes []int) error {
	for i, at := range h.at {
		off, n := Field{off: at}.extent(r)
		if n > sizes[i] || n > 0 && (off < h.fixed || off > len(r)-n) {
			return fmt.Errorf("%w: %s: a value of %d bytes at %d in a row of %d", ErrRow, what, n, off, len(r))
		}
	}
	return nil
}
