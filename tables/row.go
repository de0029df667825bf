package tables

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Type is the type of a column.
type Type uint8

// Column types. All but Bytes have a fixed width. Text stores its length first.
const (
	Int64   Type = 1 + iota // 8 bytes, signed
	Int32                   // 4 bytes, signed
	Int16                   // 2 bytes, signed
	Float64                 // 8 bytes
	Text                    // up to Size bytes, any content; the row always has room for Size bytes
	Bytes                   // up to Size bytes, any content; the row takes only the bytes of the value
)

func (t Type) String() string {
	switch t {
	case Int64:
		return "int64"
	case Int32:
		return "int32"
	case Int16:
		return "int16"
	case Float64:
		return "float64"
	case Text:
		return "text"
	case Bytes:
		return "bytes"
	}
	return fmt.Sprintf("Type(%d)", uint8(t))
}

// Column is one column of a table.
type Column struct {
	Name string `json:"name"`
	Type Type   `json:"type"`
	Size int    `json:"size,omitempty"` // Text, Bytes: maximum number of bytes; for Bytes 0 means MaxRowBytes
}

// Field is the place of a column in an encoded row. Get it from a Table once
// and use it for every row of that table. Using it on a row of another table is
// a programming error: it reads the wrong bytes or panics.
type Field struct {
	off  int
	size int // Text, Bytes: capacity
	typ  Type
	heap *heap // Bytes
}

const textLengthBytes = 2

// layout assigns offsets in declaration order, without padding between fields,
// since fields are loaded as little-endian bytes. The size of a row without the
// values of Bytes columns is a multiple of a word. The heap is nil if there is
// no Bytes column.
func layout(cols []Column) (fields []Field, rowBytes int, h *heap) {
	for _, c := range cols {
		f := Field{off: rowBytes, typ: c.Type, size: c.Size}
		switch c.Type {
		case Int64, Float64:
			rowBytes += 8
		case Int32:
			rowBytes += 4
		case Int16:
			rowBytes += 2
		case Text:
			rowBytes += textLengthBytes + c.Size
		case Bytes:
			if h == nil {
				h = &heap{}
			}
			h.at = append(h.at, rowBytes)
			if f.heap = h; f.size == 0 {
				f.size = MaxRowBytes
			}
			rowBytes += bytesColumnBytes
		}
		fields = append(fields, f)
	}
	if rowBytes = roundUp(rowBytes); h != nil {
		h.fixed = rowBytes
	}
	return fields, rowBytes, h
}

// Row is an encoded row: the bytes that the indexes store. A Row that a
// transaction returns is a view. It is valid until the transaction's body
// returns and must not be written; Clone it to keep or change it.
type Row []byte

// Clone copies the row.
func (r Row) Clone() Row { return append(Row(nil), r...) }

// Int reads an integer column.
func (r Row) Int(f Field) int64 {
	b := r[f.off:]
	switch f.typ {
	case Int64:
		return int64(binary.LittleEndian.Uint64(b))
	case Int32:
		return int64(int32(binary.LittleEndian.Uint32(b)))
	case Int16:
		return int64(int16(binary.LittleEndian.Uint16(b)))
	}
	panic("tables: Int of a " + f.typ.String() + " column")
}

// SetInt writes an integer column. It panics if the value is outside the
// column's range, because the column would store another number.
func (r Row) SetInt(f Field, v int64) {
	b := r[f.off:]
	switch {
	case f.typ == Int64:
		binary.LittleEndian.PutUint64(b, uint64(v))
	case f.typ == Int32 && v == int64(int32(v)):
		binary.LittleEndian.PutUint32(b, uint32(v))
	case f.typ == Int16 && v == int64(int16(v)):
		binary.LittleEndian.PutUint16(b, uint16(v))
	default:
		panic(fmt.Sprintf("tables: value %d for a %v column", v, f.typ))
	}
}

// Float reads a Float64 column.
func (r Row) Float(f Field) float64 {
	if f.typ != Float64 {
		panic("tables: Float of a " + f.typ.String() + " column")
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(r[f.off:]))
}

// SetFloat writes a Float64 column.
func (r Row) SetFloat(f Field, v float64) {
	if f.typ != Float64 {
		panic("tables: SetFloat of a " + f.typ.String() + " column")
	}
	binary.LittleEndian.PutUint64(r[f.off:], math.Float64bits(v))
}

// Text returns the value of a Text column, as a view of the row.
func (r Row) Text(f Field) []byte {
	if f.typ != Text {
		panic("tables: Text of a " + f.typ.String() + " column")
	}
	n := min(int(binary.LittleEndian.Uint16(r[f.off:])), f.size)
	start := f.off + textLengthBytes
	return r[start : start+n : start+n]
}

// SetText replaces the value of a Text column. It panics if v is longer than
// the column's size.
func (r Row) SetText(f Field, v []byte) {
	if f.typ != Text || len(v) > f.size {
		panic(fmt.Sprintf("tables: %d bytes for a %v column of %d", len(v), f.typ, f.size))
	}
	binary.LittleEndian.PutUint16(r[f.off:], uint16(len(v)))
	start := f.off + textLengthBytes
	clear(r[start+copy(r[start:start+f.size], v) : start+f.size])
}
