package twophase

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/maphash"
	"reflect"
	"slices"
)

// states are the states of a scene that were explored, each with how many choices were
// free from there on. A state that was explored as deep as that before has nothing new,
// whatever led to it.
type states struct {
	seed maphash.Seed
	left map[uint64]int
	buf  []byte
	cut  int // paths that ended in a known state
}

func newStates() *states { return &states{seed: maphash.MakeSeed(), left: map[uint64]int{}} }

// known reports whether the state of w was explored with as many free choices, and
// otherwise notes it.
func (s *states) known(w *world, free int) bool {
	s.buf = appendState(s.buf[:0], w)
	at := maphash.Bytes(s.seed, s.buf)
	if was, ok := s.left[at]; ok && was >= free {
		s.cut++
		return true
	}
	s.left[at] = free
	return false
}

// appendState encodes all of a world but its trace. Two worlds have the same encoding if
// the same can happen in both, in the same order.
func appendState(b []byte, w *world) []byte {
	v := reflect.ValueOf(w).Elem()
	for i := range v.NumField() {
		switch v.Type().Field(i).Name {
		case "t", "trace", "loud":
		default:
			b = appendValue(b, v.Field(i))
		}
	}
	return b
}

func appendValue(b []byte, v reflect.Value) []byte {
	switch v.Kind() {
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1)
		}
		return append(b, 0)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return binary.AppendVarint(b, v.Int())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return binary.AppendUvarint(b, v.Uint())
	case reflect.String:
		return append(binary.AppendUvarint(b, uint64(v.Len())), v.String()...)
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, 0)
		}
		return appendValue(append(b, 1), v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			b = appendValue(b, v.Field(i))
		}
		return b
	case reflect.Slice, reflect.Array:
		b = binary.AppendUvarint(b, uint64(v.Len()))
		for i := range v.Len() {
			b = appendValue(b, v.Index(i))
		}
		return b
	case reflect.Map:
		keys := v.MapKeys()
		return appendSorted(b, len(keys), func(b []byte, i int) []byte {
			return appendValue(appendValue(b, keys[i]), v.MapIndex(keys[i]))
		})
	}
	panic(fmt.Sprintf("a state has a %v", v.Type())) // nothing that a hash could leave out
}

// appendSorted encodes n parts that have no order.
func appendSorted(b []byte, n int, appendPart func(b []byte, i int) []byte) []byte {
	parts := make([][]byte, n)
	for i := range parts {
		parts[i] = appendPart(nil, i)
	}
	slices.SortFunc(parts, bytes.Compare)
	b = binary.AppendUvarint(b, uint64(n))
	for _, p := range parts {
		b = append(binary.AppendUvarint(b, uint64(len(p))), p...)
	}
	return b
}
