package mem

import "unsafe"

// Struct is the address of a Go struct, for access to its fields by offsets that
// reflection has found once.
type Struct struct{ p unsafe.Pointer }

// StructOf returns the address of a struct.
func StructOf[T any](v *T) Struct { return Struct{unsafe.Pointer(v)} }

// FieldOf returns the field at an offset. The struct must have a field of type F
// there.
func FieldOf[F any](s Struct, off uintptr) *F { return (*F)(unsafe.Add(s.p, off)) }
