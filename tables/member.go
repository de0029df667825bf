package tables

import (
	"bytes"
	"math"
	"reflect"

	"drtmx/internal/mem"
)

// member is a field of a mapped struct.
type member struct {
	name   string // the Go name, for errors
	column string
	off    uintptr
	kind   reflect.Kind // Slice stands for []byte
	size   int          // maximum bytes of a text; 0: no maximum of its own
	key    bool
	stored bool   // a column has it
	added  bool   // after the table was defined
	value  []byte // the default, if it was added
	field  Field
}

func (m *member) isText() bool { return m.kind == reflect.String || m.kind == reflect.Slice }

func (m *member) isFloat() bool { return m.kind == reflect.Float32 || m.kind == reflect.Float64 }

// bits returns the width of an integer.
func (m *member) bits() uint {
	switch m.kind {
	case reflect.Bool, reflect.Int8, reflect.Uint8:
		return 8
	case reflect.Int16, reflect.Uint16:
		return 16
	case reflect.Int32, reflect.Uint32:
		return 32
	}
	return 64
}

// columnType returns the type of a column that can hold all values of the member.
// Unsigned integers of 64 bits are stored as signed ones in the same order.
func (m *member) columnType() Type {
	switch m.kind {
	case reflect.String, reflect.Slice:
		if m.size > 0 {
			return Text
		}
		return Bytes
	case reflect.Float32, reflect.Float64:
		return Float64
	case reflect.Bool, reflect.Int8, reflect.Uint8, reflect.Int16:
		return Int16
	case reflect.Uint16, reflect.Int32:
		return Int32
	}
	return Int64
}

// ordered returns an integer as an unsigned number, which preserves the order.
func (m *member) ordered(s mem.Struct) uint64 {
	switch m.kind {
	case reflect.Bool:
		if *mem.FieldOf[bool](s, m.off) {
			return 1
		}
		return 0
	case reflect.Uint8:
		return uint64(*mem.FieldOf[uint8](s, m.off))
	case reflect.Uint16:
		return uint64(*mem.FieldOf[uint16](s, m.off))
	case reflect.Uint32:
		return uint64(*mem.FieldOf[uint32](s, m.off))
	case reflect.Uint64:
		return *mem.FieldOf[uint64](s, m.off)
	case reflect.Uint:
		return uint64(*mem.FieldOf[uint](s, m.off))
	case reflect.Int8:
		return uint64(uint8(*mem.FieldOf[int8](s, m.off)) ^ 1<<7)
	case reflect.Int16:
		return uint64(uint16(*mem.FieldOf[int16](s, m.off)) ^ 1<<15)
	case reflect.Int32:
		return uint64(uint32(*mem.FieldOf[int32](s, m.off)) ^ 1<<31)
	case reflect.Int64:
		return uint64(*mem.FieldOf[int64](s, m.off)) ^ 1<<63
	}
	return uint64(*mem.FieldOf[int](s, m.off)) ^ 1<<63
}

// setOrdered is the inverse of ordered. It returns false if the member's type cannot
// hold v.
func (m *member) setOrdered(s mem.Struct, v uint64) bool {
	if bits := m.bits(); bits < 64 && v>>bits != 0 || m.kind == reflect.Bool && v > 1 {
		return false
	}
	switch m.kind {
	case reflect.Bool:
		*mem.FieldOf[bool](s, m.off) = v == 1
	case reflect.Uint8:
		*mem.FieldOf[uint8](s, m.off) = uint8(v)
	case reflect.Uint16:
		*mem.FieldOf[uint16](s, m.off) = uint16(v)
	case reflect.Uint32:
		*mem.FieldOf[uint32](s, m.off) = uint32(v)
	case reflect.Uint64:
		*mem.FieldOf[uint64](s, m.off) = v
	case reflect.Uint:
		*mem.FieldOf[uint](s, m.off) = uint(v)
	case reflect.Int8:
		*mem.FieldOf[int8](s, m.off) = int8(uint8(v) ^ 1<<7)
	case reflect.Int16:
		*mem.FieldOf[int16](s, m.off) = int16(uint16(v) ^ 1<<15)
	case reflect.Int32:
		*mem.FieldOf[int32](s, m.off) = int32(uint32(v) ^ 1<<31)
	case reflect.Int64:
		*mem.FieldOf[int64](s, m.off) = int64(v ^ 1<<63)
	default:
		*mem.FieldOf[int](s, m.off) = int(v ^ 1<<63)
	}
	return true
}

// offset returns the difference between ordered and the stored number. Integers are
// stored unchanged, except unsigned ones of 64 bits, which are stored minus 2⁶³.
func (m *member) offset() uint64 {
	switch m.kind {
	case reflect.Bool, reflect.Uint8, reflect.Uint16, reflect.Uint32:
		return 0
	case reflect.Uint64, reflect.Uint:
		return 1 << 63
	}
	return 1 << (m.bits() - 1)
}

// number returns the number that the column stores for an integer.
func (m *member) number(s mem.Struct) int64 { return int64(m.ordered(s) - m.offset()) }

// text returns the bytes of a text, as a view.
func (m *member) text(s mem.Struct) []byte {
	if m.kind == reflect.String {
		return mem.StringBytes(*mem.FieldOf[string](s, m.off))
	}
	return *mem.FieldOf[[]byte](s, m.off)
}

// setText sets a text to a copy of b.
func (m *member) setText(s mem.Struct, b []byte) {
	if m.kind == reflect.Slice {
		*mem.FieldOf[[]byte](s, m.off) = bytes.Clone(b)
	} else if p := mem.FieldOf[string](s, m.off); *p != string(b) {
		*p = string(b)
	}
}

// encode sets the column of the member in a row.
func (m *member) encode(r *Row, s mem.Struct) {
	switch {
	case m.isText() && m.size > 0:
		r.SetText(m.field, m.text(s))
	case m.isText():
		r.SetBytes(m.field, m.text(s))
	case m.kind == reflect.Float64:
		r.SetFloat(m.field, *mem.FieldOf[float64](s, m.off))
	case m.kind == reflect.Float32:
		r.SetFloat(m.field, float64(*mem.FieldOf[float32](s, m.off)))
	default:
		r.SetInt(m.field, m.number(s))
	}
}

// decode sets the member from its column. It returns false if the member's type
// cannot hold the column's value.
func (m *member) decode(r Row, s mem.Struct) bool {
	switch {
	case m.isText() && m.size > 0:
		m.setText(s, r.Text(m.field))
	case m.isText():
		m.setText(s, r.Bytes(m.field))
	case m.kind == reflect.Float64:
		*mem.FieldOf[float64](s, m.off) = r.Float(m.field)
	case m.kind == reflect.Float32:
		v := r.Float(m.field)
		*mem.FieldOf[float32](s, m.off) = float32(v)
		return float64(float32(v)) == v || math.IsNaN(v)
	default:
		return m.setOrdered(s, uint64(r.Int(m.field))+m.offset())
	}
	return true
}
