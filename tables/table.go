package tables

import (
	"errors"
	"fmt"

	"drtmx/index"
)

// Errors of definitions and look-ups; all are wrapped with the names involved.
var (
	// ErrSchema reports a definition that cannot be served.
	ErrSchema = errors.New("tables: bad schema")
	// ErrNoTable reports a table the catalogue does not have.
	ErrNoTable = errors.New("tables: no such table")
	// ErrRow reports a row that does not fit its table.
	ErrRow = errors.New("tables: row does not fit the table")
)

// Bounds of a schema.
const (
	MaxColumns  = 256
	MaxRowBytes = 64 << 10
	MaxTables   = 256
	MaxText     = 1<<16 - 1
)

// IndexKind is the kind of a table's primary index.
type IndexKind uint8

// Kinds of primary index.
const (
	Hash    IndexKind = 1 + iota // point access
	Ordered                      // point and range access through the learned index
)

// Def defines a table.
type Def struct {
	Name      string       `json:"name"`
	Key       KeyKind      `json:"key,omitempty"`
	Columns   []Column     `json:"columns"`
	Primary   IndexKind    `json:"primary"`
	Partition Partitioning `json:"partition"`
	Secondary []Secondary  `json:"secondary,omitempty"`
}

// Secondary defines a secondary index: an ordered index whose key is
// assembled from columns, the first part in the highest bits. The parts
// together must make the key unique; two rows with one key fail the
// transaction that would make them so.
//
// The key is a number of the parts' bits, unless a part is Sorted: then it is
// a string of the parts' encodings. A part that names PrimaryKey, last, makes
// the key unique whatever the columns hold.
type Secondary struct {
	Name      string       `json:"name"`
	Key       []KeyPart    `json:"key"`
	Include   []string     `json:"include,omitempty"` // columns copied into the index, readable without the row
	Partition Partitioning `json:"partition"`
}

// KeyPart puts one column into a number of bits of a key.
type KeyPart struct {
	Column string    `json:"column"`
	Bits   uint      `json:"bits,omitempty"` // not of a Sorted part
	How    Transform `json:"how"`
}

// Transform says how a column becomes bits.
type Transform uint8

// Transforms of a key part.
const (
	Value      Transform = 1 + iota // the integer itself; it must fit
	Descending                      // all ones minus the integer: larger values sort first
	Digest                          // a fixed hash of the bytes: equality only; readers compare the column itself
	Sorted                          // the whole column, text or integer, in its order; see AppendText and AppendInt
)

// Table is a table of a catalogue. It is immutable and safe for concurrent use.
type Table struct {
	def       Def
	index     *Index
	secondary []*Index
	fields    map[string]Field
	rowBytes  int // of a row without Bytes
	heap      *heap
	sizes     []int // of the Bytes columns
}

// Index is one index of a catalogue: a table's primary or a secondary.
// Immutable.
type Index struct {
	ID        int    // position in Catalog.Indexes
	Name      string // table, or table.secondary
	Ordered   bool
	Key       KeyKind // as the index's users know it
	Strings   bool    // the engine's keys are strings and its rows vary in size
	RowBytes  int     // payload, whole words; the most there may be if Strings
	Partition Partitioning
	Table     *Table
	// of a secondary index:
	second  *Secondary
	parts   []keyPart
	include []copyField
	fields  map[string]Field
	fixed   int // bytes of an entry without Bytes
}

type keyPart struct {
	f    Field
	bits uint
	how  Transform
	key  bool // the primary key itself
}

type copyField struct{ from, to Field }

// PrimaryKey is the field, in an entry of a secondary index, that holds the row's primary key.
const PrimaryKey = "_key"

// Name is the table's name.
func (t *Table) Name() string { return t.def.Name }

// Def is the definition; its slices must not be changed.
func (t *Table) Def() Def { return t.def }

// Primary is the table's primary index.
func (t *Table) Primary() *Index { return t.index }

// Secondaries lists the secondary indexes in order of definition.
func (t *Table) Secondaries() []*Index { return t.secondary }

// Secondary finds a secondary index by name; nil if there is none.
func (t *Table) Secondary(name string) *Index {
	for _, ix := range t.secondary {
		if ix.second.Name == name {
			return ix
		}
	}
	return nil
}

// RowBytes is the size of every encoded row, without what is in Bytes columns.
func (t *Table) RowBytes() int { return t.rowBytes }

// Replicated reports whether every partition has a copy; such a table is
// filled by loading and read-only afterwards.
func (t *Table) Replicated() bool { return t.def.Partition.Kind == Replicated }

// NewRow is a zero row.
func (t *Table) NewRow() Row { return make(Row, t.rowBytes) }

// Field finds a column. It panics on a name the table does not have: fields
// are looked up once, from constants. Lookup is for names that come from input.
func (t *Table) Field(name string) Field {
	f, ok := t.fields[name]
	if !ok {
		panic("tables: table " + t.def.Name + " has no column " + name)
	}
	return f
}

// Lookup finds a column by a name that may not exist.
func (t *Table) Lookup(name string) (Field, bool) {
	f, ok := t.fields[name]
	return f, ok
}

// Field finds a column of an index entry: any column of the table for a
// primary index, PrimaryKey and the included columns for a secondary one.
func (ix *Index) Field(name string) Field {
	f, ok := ix.fields[name]
	if !ok {
		panic("tables: index " + ix.Name + " has no column " + name)
	}
	return f
}

// IsSecondary reports whether the index is kept by the engine for another.
func (ix *Index) IsSecondary() bool { return ix.second != nil }

// CheckRow reports whether row is one of the table's: of its size, if it is
// fixed, else whole, with every value inside it and none above its size.
func (t *Table) CheckRow(row Row) error {
	if t.heap != nil {
		if len(row) < t.rowBytes || len(row)%8 != 0 || len(row) > MaxRowBytes {
			return fmt.Errorf("%w: table %s has rows of %d to %d bytes, got %d", ErrRow, t.def.Name, t.rowBytes, MaxRowBytes, len(row))
		}
		return t.heap.check("table "+t.def.Name, row, t.sizes)
	}
	if len(row) != t.rowBytes {
		return fmt.Errorf("%w: table %s has rows of %d bytes, got %d", ErrRow, t.def.Name, t.rowBytes, len(row))
	}
	return nil
}

// Entry computes the secondary index entry of a row: its key, and its
// payload, for which it uses the memory of dst. It fails if a column's value
// does not fit the bits of its key part, or the key or the entry is too long.
func (ix *Index) Entry(primary index.Key, row, dst Row) (index.Key, Row, error) {
	key, err := ix.KeyOf(primary, row)
	if err != nil {
		return index.Key{}, nil, err
	}
	dst = append(dst[:0], make(Row, ix.fixed)...)
	if f := ix.fields[PrimaryKey]; f.typ == Bytes {
		dst = dst.SetBytes(f, []byte(primary.Str))
	} else {
		dst.SetInt(f, int64(ix.Table.index.Number(primary)))
	}
	for _, c := range ix.include {
		switch c.from.typ {
		case Text:
			dst.SetText(c.to, row.Text(c.from))
		case Bytes:
			dst = dst.SetBytes(c.to, row.Bytes(c.from))
		case Float64:
			dst.SetFloat(c.to, row.Float(c.from))
		default:
			dst.SetInt(c.to, row.Int(c.from))
		}
	}
	if len(dst) > MaxRowBytes {
		return index.Key{}, nil, fmt.Errorf("%w: %s: an entry of %d bytes, want at most %d", ErrRow, ix.Name, len(dst), MaxRowBytes)
	}
	return key, dst, nil
}

// KeyOf is the key of Entry alone.
func (ix *Index) KeyOf(primary index.Key, row Row) (index.Key, error) {
	if ix.Key == StringKey {
		return ix.stringKey(primary, row)
	}
	key, err := ix.EntryKey(row)
	if err != nil {
		return index.Key{}, err
	}
	if ix.Strings {
		return index.Str(string(index.AppendNum(nil, key))), nil
	}
	return index.Num(key), nil
}

// EntryKey is the key of Entry in an index with number keys.
func (ix *Index) EntryKey(row Row) (uint64, error) {
	var key uint64
	for i, p := range ix.parts {
		v, err := ix.bitsOf(i, row)
		if err != nil {
			return 0, err
		}
		key = key<<p.bits | v
	}
	return key, nil
}

// bitsOf is the value of a key part that takes bits.
func (ix *Index) bitsOf(i int, row Row) (uint64, error) {
	p := &ix.parts[i]
	limit := uint64(1)<<p.bits - 1 // all ones for 64 bits too
	if p.how == Digest {
		return digest(row, p.f) & limit, nil
	}
	n := row.Int(p.f)
	if n < 0 || uint64(n) > limit {
		return 0, fmt.Errorf("%w: %s: column %s is %d, its key part holds 0 to %d",
			ErrRow, ix.Name, ix.second.Key[i].Column, n, limit)
	}
	if p.how == Descending {
		return limit - uint64(n), nil
	}
	return uint64(n), nil
}

// stringKey is the key of an index with a Sorted part.
func (ix *Index) stringKey(primary index.Key, row Row) (index.Key, error) {
	var b []byte
	for i := range ix.parts {
		switch p := &ix.parts[i]; {
		case p.key && ix.Table.index.Key == StringKey && i == len(ix.parts)-1:
			b = append(b, primary.Str...) // nothing follows that could change its order
		case p.key && ix.Table.index.Key == StringKey:
			b = AppendText(b, []byte(primary.Str))
		case p.key:
			b = index.AppendNum(b, ix.Table.index.Number(primary))
		case p.how == Sorted && p.f.typ == Text:
			b = AppendText(b, row.Text(p.f))
		case p.how == Sorted && p.f.typ == Bytes:
			b = AppendText(b, row.Bytes(p.f))
		case p.how == Sorted:
			b = AppendInt(b, row.Int(p.f))
		default:
			v, err := ix.bitsOf(i, row)
			if err != nil {
				return index.Key{}, err
			}
			for n := int(p.bits+7) / 8; n > 0; n-- {
				b = append(b, byte(v>>(8*(n-1))))
			}
		}
	}
	if len(b) > index.MaxKeyBytes {
		return index.Key{}, fmt.Errorf("%w: %s: a key of %d bytes, want at most %d", ErrKey, ix.Name, len(b), index.MaxKeyBytes)
	}
	return index.Str(string(b)), nil
}

func digest(row Row, f Field) uint64 {
	switch f.typ {
	case Text:
		return DigestBytes(row.Text(f))
	case Bytes:
		return DigestBytes(row.Bytes(f))
	}
	return Mix(uint64(row.Int(f)))
}
