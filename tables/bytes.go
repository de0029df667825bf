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
	if f.typ != Bytes || f.in(r, bytesColumnBytes) == nil {
		return nil
	}
	off, n := f.extent(r)
	if off > len(r)-n {
		return nil // CheckRow returns an error for this row
	}
	return r[off : off+n : off+n]
}

// SetBytes writes a Bytes column. If the value's length changes, the row changes its
// size and may move to other memory. v must not be a view of the row unless it is the
// column's own value. A value longer than the column's size is a fault; see Row.
func (r *Row) SetBytes(f Field, v []byte) {
	switch {
	case !r.takes(f):
	case f.typ != Bytes:
		r.fault(f, "bytes for type %v", f.typ)
	case len(v) > f.size:
		r.fault(f, "%d bytes for a column of at most %d", len(v), f.size)
	default:
		if off, n := f.extent(*r); n == len(v) && n > 0 && off <= len(*r)-n {
			copy((*r)[off:off+n], v)
			return
		}
		if err := f.lay.check(*r); err != nil {
			r.fault(f, "%v", err)
			return
		}
		*r = f.put(*r, v)
	}
}

// put replaces the value of a Bytes column of a valid row, whatever its length.
func (f Field) put(r Row, v []byte) Row {
	off, n := f.extent(r)
	end := f.lay.fixed
	for _, at := range f.lay.at {
		o, k := Field{off: at}.extent(r)
		end = max(end, o+k)
	}
	if n > 0 { // close the gap
		copy(r[off:], r[off+n:end])
		end -= n
		for _, at := range f.lay.at {
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

// check verifies the variable part of a row. Its values begin where its fixed part
// ends, which determines its format: see layout.format.
func (l *layout) check(r Row) error {
	begin := len(r)
	for i, at := range l.at {
		off, n := Field{off: at}.extent(r)
		if n > l.sizes[i] || n > 0 && (off < l.fixed || off > len(r)-n) {
			return fmt.Errorf("a value of %d bytes at %d in a row of %d", n, off, len(r))
		}
		if n > 0 {
			begin = min(begin, off)
		}
	}
	if begin != l.fixed {
		return fmt.Errorf("values from byte %d on, want from %d on", begin, l.fixed)
	}
	return nil
}
