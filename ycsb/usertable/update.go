package usertable

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"drtmx/internal/wire"
	"drtmx/tables"
	"drtmx/txn"
)

// ProcUpdate is the name of the procedure that writes fields of a record at its home
// server, where no other write can come between the read of the record and its write.
// See Update.
const ProcUpdate = "ycsb.update"

// ErrMessage reports malformed arguments of ProcUpdate.
var ErrMessage = errors.New("usertable: malformed update")

// Update is the argument of ProcUpdate: the fields to write, and whether to
// return the record as it was before.
//
//	flags 1 | table length 1, table | key length 2, key | (field 2, length 4, value)…
type Update struct {
	Table, Key []byte
	Return     bool
	Fields     []FieldValue
}

// FieldValue is a value for the field with a number.
type FieldValue struct {
	Field int
	Value []byte
}

// AppendKey appends the encoding of a record's key: the bytes of a string, or the eight
// bytes of a number.
func AppendKey(dst []byte, k tables.Key) []byte {
	if k.Is(tables.NumberKey) {
		return binary.LittleEndian.AppendUint64(dst, k.Num())
	}
	return append(dst, k.Bytes()...)
}

// keyOf decodes a key of a table.
func keyOf(tab *tables.Table, b []byte) (tables.Key, error) {
	if tab.Def().Key == tables.StringKey {
		return tables.Str(b), nil
	}
	if len(b) != 8 {
		return tables.Key{}, fmt.Errorf("%w: a number of %d bytes", ErrMessage, len(b))
	}
	return tables.Num(binary.LittleEndian.Uint64(b)), nil
}

// Append appends the encoding of u to dst.
func (u *Update) Append(dst []byte) []byte {
	flags := byte(0)
	if u.Return {
		flags = 1
	}
	dst = append(dst, flags, byte(len(u.Table)))
	dst = append(dst, u.Table...)
	dst = binary.LittleEndian.AppendUint16(dst, uint16(len(u.Key)))
	dst = append(dst, u.Key...)
	for _, f := range u.Fields {
		dst = binary.LittleEndian.AppendUint16(dst, uint16(f.Field))
		dst = binary.LittleEndian.AppendUint32(dst, uint32(len(f.Value)))
		dst = append(dst, f.Value...)
	}
	return dst
}

// Decode decodes an Update; its fields are views of b. It fails with
// ErrMessage.
func (u *Update) Decode(b []byte) error {
	d := wire.NewDecoder(b)
	flags := d.U8()
	u.Return = flags == 1
	u.Table = d.Take(int(d.U8()))
	u.Key = d.Take(int(d.U16()))
	u.Fields = u.Fields[:0]
	for d.Left() > 0 {
		field := int(d.U16())
		u.Fields = append(u.Fields, FieldValue{field, d.Bytes()})
	}
	if d.Err() != nil || flags > 1 {
		return fmt.Errorf("%w of %d bytes", ErrMessage, len(b))
	}
	return nil
}

// Statuses of a result, its first byte. If requested, the record as it was
// before follows.
const (
	StatusOK      = 0
	StatusMissing = 1 // the record does not exist
)

// Procedures returns the procedures of data servers that serve a catalogue of
// YCSB tables.
func Procedures(c *tables.Catalog) []txn.Procedure {
	bodies := sync.Pool{New: func() any { return &updater{c: c} }}
	return []txn.Procedure{{
		Name: ProcUpdate,
		Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
			u := bodies.Get().(*updater)
			defer bodies.Put(u)
			return u.run(t, args)
		},
	}}
}

// Longest returns the length in bytes of the longest value that a column can hold, or
// a negative number for a column that is not a field.
func Longest(c tables.Column) int {
	switch {
	case c.Type != tables.Bytes && c.Type != tables.Text:
		return -1
	case c.Size == 0:
		return tables.MaxRowBytes
	}
	return c.Size
}

// updater has the buffers of a body of ProcUpdate.
type updater struct {
	c   *tables.Catalog
	in  Update
	row tables.Row
}

func (u *updater) run(t *txn.Txn, args []byte) ([]byte, error) {
	if err := u.in.Decode(args); err != nil {
		return nil, err
	}
	tab, err := u.c.Table(string(u.in.Table))
	if err != nil {
		return nil, err
	}
	columns := tab.Def().Columns
	for _, f := range u.in.Fields {
		if f.Field >= len(columns) || len(f.Value) > Longest(columns[f.Field]) {
			return nil, fmt.Errorf("%w: field %d with %d bytes", ErrMessage, f.Field, len(f.Value))
		}
	}
	key, err := keyOf(tab, u.in.Key)
	if err != nil {
		return nil, err
	}
	old, err := t.Get(tab, key)
	if errors.Is(err, txn.ErrNotFound) {
		return []byte{StatusMissing}, nil
	}
	if err != nil {
		return nil, err
	}
	result := []byte{StatusOK}
	if u.in.Return {
		result = append(result, old...)
	}
	u.row = append(u.row[:0], old...)
	for _, f := range u.in.Fields {
		set(&u.row, columns[f.Field].Type, tab.Field(columns[f.Field].Name), f.Value)
	}
	return result, t.Update(tab, key, u.row)
}
