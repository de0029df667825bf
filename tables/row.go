package tables

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"
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
	// Since is 0 for a column that the table has had from its beginning. The
	// n-th column that is added to the table has Since n, and comes last.
	Since int `json:"since,omitempty"`
	// Default is the value of an added column in rows that were written before:
	// a number in decimals, or the bytes of a text. Nil is zero, or empty.
	Default []byte `json:"default,omitempty"`
}

// Field is the place of a column in an encoded row. Get it from a Table once and use
// it for every row of that table. With a field of another table, a setter reports a
// fault if the sizes of the rows differ; otherwise getters and setters access the
// wrong bytes.
type Field struct {
	off  int
	size int // Text, Bytes: capacity
	typ  Type
	lay  *layout
}

// Type returns the type of the column.
func (f Field) Type() Type { return f.typ }

// Name returns the name of the column.
func (f Field) Name() string {
	if f.lay != nil {
		for i, at := range f.lay.offs {
			if at == f.off {
				return f.lay.names[i]
			}
		}
	}
	return "none"
}

// layout describes the rows of a table, or the entries of an index.
type layout struct {
	names []string
	offs  []int // by column
	fixed int   // size in bytes of a row without the values of Bytes columns
	at    []int // offsets of the Bytes columns
	sizes []int // of the Bytes columns
	grows bool  // columns may be added
	// formats are the earlier formats of rows, before columns were added: sizes in
	// bytes without the values of Bytes columns.
	formats []int
	added   []addedField
}

// varies reports whether rows have variable size.
func (l *layout) varies() bool { return l.at != nil }

const textLengthBytes = 2

// newLayout assigns offsets in declaration order, without padding between
// fields, since fields are loaded as little-endian bytes. The size of a row
// without the values of Bytes columns is a multiple of a word.
func newLayout(cols []Column) (fields []Field, l *layout) {
	l = &layout{}
	since := 0
	for _, c := range cols {
		if c.Since != since { // rows of the previous format end at a whole word
			since = c.Since
			l.fixed = roundUp(l.fixed)
			l.formats = append(l.formats, l.fixed)
		}
		f := Field{off: l.fixed, typ: c.Type, size: c.Size, lay: l}
		l.names, l.offs = append(l.names, c.Name), append(l.offs, l.fixed)
		switch c.Type {
		case Int64, Float64:
			l.fixed += 8
		case Int32:
			l.fixed += 4
		case Int16:
			l.fixed += 2
		case Text:
			l.fixed += textLengthBytes + c.Size
		case Bytes:
			if f.size == 0 {
				f.size = MaxRowBytes
			}
			l.at, l.sizes = append(l.at, l.fixed), append(l.sizes, f.size)
			l.fixed += bytesColumnBytes
		}
		if c.Since > 0 {
			l.added = append(l.added, addedField{f, c.Default})
		}
		fields = append(fields, f)
	}
	l.fixed = roundUp(l.fixed)
	l.grows = l.varies()
	return fields, l
}

// Row is an encoded row: the bytes that the indexes store.
//
// A Row that a transaction returns is a view of memory that is reused. It is valid
// until the transaction's body returns (in a range loop over a scan, until the loop's
// next step) and must not be written: Clone it to keep or change it. In builds for
// the race detector a transaction overwrites the rows that it returned when its body
// has ended, so that tests detect rows that are kept too long.
//
// A setter that cannot store its value, because the column has another type or not
// enough room, replaces the row by one that holds the fault. Later setters leave such
// a row unchanged, and Insert, Put, Update and Loader.Add return the fault as an
// ErrRow. Setters may also move the row to other memory. In both cases they change
// the variable on which they are called: a function that sets columns of its caller's
// row must take a *Row.
//
// A getter for a column of another type, or in a row too short for the column,
// returns zero or nil.
type Row []byte

// Clone copies the row.
func (r Row) Clone() Row { return append(Row(nil), r...) }

// faultMark begins a row that holds a fault. Such a row has an odd number of
// bytes, and a row of a table never has.
const faultMark = "\xfftables: fault: "

// Err returns the fault of a setter, an ErrRow, or nil if there was none.
func (r Row) Err() error {
	if text := r.faultText(); text != "" {
		return fmt.Errorf("%w: %s", ErrRow, text)
	}
	return nil
}

func (r Row) faultText() string {
	if len(r)%2 == 0 || !bytes.HasPrefix(r, []byte(faultMark)) {
		return ""
	}
	return strings.TrimSuffix(string(r[len(faultMark):]), "\n")
}

// fault replaces the row by one that holds the fault, unless it already holds one.
func (r *Row) fault(f Field, format string, args ...any) {
	if r.faultText() != "" {
		return
	}
	b := append(Row(faultMark), "column "+f.Name()+": "...)
	if b = fmt.Appendf(b, format, args...); len(b)%2 == 0 {
		b = append(b, '\n')
	}
	*r = b
}

// takes reports whether the row has the right size for the field. Otherwise it makes
// the row hold a fault.
func (r *Row) takes(f Field) bool {
	return f.lay != nil && len(*r) == f.lay.fixed || r.takesMore(f)
}

func (r *Row) takesMore(f Field) bool {
	if f.lay != nil && len(*r) > f.lay.fixed && f.lay.varies() && len(*r)%8 == 0 {
		return true
	}
	r.fault(f, "the row of %d bytes is not of its table", len(*r))
	return false
}

// in returns the bytes of the row from the field on, or nil if there are fewer than
// n.
func (f Field) in(r Row, n int) []byte {
	if len(r)-f.off < n {
		return nil
	}
	return r[f.off:]
}

// Int reads an integer column.
func (r Row) Int(f Field) int64 {
	switch f.typ {
	case Int64:
		if b := f.in(r, 8); b != nil {
			return int64(binary.LittleEndian.Uint64(b))
		}
	case Int32:
		if b := f.in(r, 4); b != nil {
			return int64(int32(binary.LittleEndian.Uint32(b)))
		}
	case Int16:
		if b := f.in(r, 2); b != nil {
			return int64(int16(binary.LittleEndian.Uint16(b)))
		}
	}
	return 0
}

// SetInt writes an integer column. A value outside the column's range is a
// fault; see Row.
func (r *Row) SetInt(f Field, v int64) {
	switch {
	case !r.takes(f):
	case f.typ == Int64:
		binary.LittleEndian.PutUint64((*r)[f.off:], uint64(v))
	case f.typ == Int32 && v == int64(int32(v)):
		binary.LittleEndian.PutUint32((*r)[f.off:], uint32(v))
	case f.typ == Int16 && v == int64(int16(v)):
		binary.LittleEndian.PutUint16((*r)[f.off:], uint16(v))
	default:
		r.fault(f, "the integer %d for type %v", v, f.typ)
	}
}

// Float reads a Float64 column.
func (r Row) Float(f Field) float64 {
	b := f.in(r, 8)
	if f.typ != Float64 || b == nil {
		return 0
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}

// SetFloat writes a Float64 column. Another type is a fault; see Row.
func (r *Row) SetFloat(f Field, v float64) {
	switch {
	case !r.takes(f):
	case f.typ != Float64:
		r.fault(f, "a floating-point number for type %v", f.typ)
	default:
		binary.LittleEndian.PutUint64((*r)[f.off:], math.Float64bits(v))
	}
}

// Text returns the value of a Text column, as a view of the row.
func (r Row) Text(f Field) []byte {
	b := f.in(r, textLengthBytes+f.size)
	if f.typ != Text || b == nil {
		return nil
	}
	n := min(int(binary.LittleEndian.Uint16(b)), f.size)
	return b[textLengthBytes : textLengthBytes+n : textLengthBytes+n]
}

// SetText replaces the value of a Text column. A value longer than the column's
// size is a fault; see Row.
func (r *Row) SetText(f Field, v []byte) {
	switch {
	case !r.takes(f):
	case f.typ != Text:
		r.fault(f, "a text for type %v", f.typ)
	case len(v) > f.size:
		r.fault(f, "%d bytes for a text of at most %d", len(v), f.size)
	default:
		b := (*r)[f.off:]
		binary.LittleEndian.PutUint16(b, uint16(len(v)))
		b = b[textLengthBytes : textLengthBytes+f.size]
		clear(b[copy(b, v):])
	}
}
