package tables

import (
	"fmt"
	"strings"
)

// Error is an error with the objects that it concerns; get it with errors.As. Fields
// that do not apply are zero, and Partition is -1.
type Error struct {
	// Err is the kind of the error: one of the errors of this package or of package
	// txn, or an error of a lower layer.
	Err error
	// Table and Index are names. Index is only set for a secondary index.
	Table, Index string
	// Key is the key of a row or entry.
	Key Key
	// Partition is a partition's number, -1 if the error does not concern a single
	// partition.
	Partition int
	// Server is the address of a data server.
	Server string
	// Limit names the bound that Size exceeds, as a constant of package tables or
	// txn or a field of a Config. Max is its value, in the unit of Size.
	Limit     string
	Max, Size int64
	// Detail is further text.
	Detail string
	// Cause is the underlying error, nil if there is none.
	Cause error
}

// Error returns the kind, followed by the objects that the error concerns.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprint(&b, e.Err)
	sep := ": "
	add := func(format string, args ...any) {
		b.WriteString(sep)
		fmt.Fprintf(&b, format, args...)
		sep = ", "
	}
	if e.Table != "" {
		add("table %s", e.Table)
	}
	if e.Index != "" {
		add("index %s", e.Index)
	}
	if e.Key != (Key{}) {
		key := e.Key.String()
		if len(key) > keyTextMax {
			key = key[:keyTextMax] + "…"
		}
		add("key %s", key)
	}
	if e.Partition >= 0 {
		add("partition %d", e.Partition)
	}
	if e.Server != "" {
		add("server %s", e.Server)
	}
	if e.Detail != "" {
		sep = ": "
		add("%s", e.Detail)
	}
	if e.Limit != "" {
		sep = ": "
		add("%d, limit %d (%s)", e.Size, e.Max, e.Limit)
	}
	if e.Cause != nil {
		fmt.Fprintf(&b, ": %v", e.Cause)
	}
	return b.String()
}

// keyTextMax bounds a key in an error's text.
const keyTextMax = 80

// Unwrap matches the kind and the cause.
func (e *Error) Unwrap() []error {
	if e.Cause == nil {
		return []error{e.Err}
	}
	return []error{e.Err, e.Cause}
}

// Concerns returns an error about an index, and about one of its keys unless
// the key is zero. It copies the key.
func (ix *Index) Concerns(kind error, key Key) *Error {
	e := &Error{Err: kind, Table: ix.Table.Name(), Key: key.Clone(), Partition: -1}
	if ix.IsMaintained() {
		e.Index = ix.Name
	}
	return e
}
