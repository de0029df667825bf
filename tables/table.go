package tables

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/zeebo/xxh3"

	"drtmx/index"
)

// Errors of definitions and lookups. The errors returned wrap these and name
// the table or index.
var (
	// ErrSchema reports an invalid definition.
	ErrSchema = errors.New("tables: bad schema")
	// ErrNoTable reports a table that the catalogue does not have.
	ErrNoTable = errors.New("tables: no such table")
	// ErrRow reports a row that does not fit its table.
	ErrRow = errors.New("tables: row does not fit table")
	// ErrCatalog reports a table or index that does not belong to the catalogue of
	// the database in which it is used.
	ErrCatalog = errors.New("tables: not of the database's catalogue")
	// ErrKey reports a key whose kind is not that of its table or index, or one that
	// is too long.
	ErrKey = errors.New("tables: key does not fit")
)

// Bounds of a schema.
const (
	MaxColumns  = 256
	MaxKeyBytes = index.MaxKeyBytes // of a string key
	MaxRowBytes = 64 << 10
	MaxTables   = 256
	// MaxRolexRowBytes bounds a row of the engine Rolex, whose writers describe a change of
	// several rows in 16 KiB.
	MaxRolexRowBytes = 2 << 10
	MaxText          = 1<<16 - 1
)

// IndexKind is the kind of a table's primary index.
type IndexKind uint8

// Kinds of primary index.
const (
	Hash    IndexKind = 1 + iota // point access
	Ordered                      // point and range access through the learned index
)

// Engine is how a table's primary index is made, and who changes it.
type Engine string

// Engines. The empty Engine is XStore.
const (
	// XStore is the default: data servers apply all writes, and keep older versions for
	// Snapshots.
	XStore Engine = "xstore"
	// Rolex has rows in leaves that are proved as a whole, and that clients may write one-sided.
	// It keeps no older versions, and data is in memory only. It is for ordered primary indexes
	// with number keys, and for rows of one size up to MaxRolexRowBytes.
	Rolex Engine = "rolex"
	// FineStore has models over arrays that do not change when keys come: those go to small bins.
	// It keeps no older versions. It is for ordered primary indexes with number keys, and for rows
	// of one size.
	FineStore Engine = "finestore"
)

// Twin is where the twin of a table is, and when it changes. The twin is an ordered index of the keys
// of a table whose primary index is Hash: with it the rows can be read by ranges of keys. It has the
// keys alone, and the rows come from the primary index, in one more round of READs for each.
// Source: HStore (Han and Jiang, SYSTOR 2023), section 3.
type Twin string

// Twins. The empty Twin is none.
const (
	// TwinLocal has the keys of a partition in the same partition: an insert changes one partition.
	TwinLocal Twin = "local"
	// TwinSync has the keys of a partition in the next partition, which is at the next data server.
	// That data server takes part in each transaction that inserts or deletes rows.
	TwinSync Twin = "sync"
	// TwinNext is TwinSync without that: a transaction of one partition is committed there, and the
	// data server sends the keys to the next one, those of many transactions in one message. Data is
	// in memory only, and no Snapshot reads ranges.
	TwinNext Twin = "next"
)

// Def defines a table.
type Def struct {
	Name      string       `json:"name"`
	Key       KeyKind      `json:"key,omitempty"`
	Columns   []Column     `json:"columns"`
	Primary   IndexKind    `json:"primary"`
	Partition Partitioning `json:"partition"`
	Secondary []Secondary  `json:"secondary,omitempty"`
	// Grows says that columns may be added to the table. A table with a Bytes column
	// can grow without it. Rows of other tables have one size, which is faster with
	// number keys.
	Grows bool `json:"grows,omitempty"`
	// LoadFill is how full loading makes the leaves of the ordered indexes if keys come in
	// ascending order, in percent from 50 to 100; 0 means 100. Free places are worth their
	// memory if rows with keys in between are inserted later: in full leaves each of the
	// first such inserts splits a leaf. Rows that come in the order of their keys need none.
	LoadFill int `json:"load_fill,omitempty"`
	// Twin makes the rows of a table whose primary index is Hash readable by ranges of keys.
	Twin Twin `json:"twin,omitempty"`
	// Engine makes the primary index. Secondary indexes are always of XStore.
	Engine Engine `json:"engine,omitempty"`
}

// Secondary defines a secondary index: an ordered index whose key is assembled
// from columns, the first part in the highest bits. The parts together must
// make the key unique: a transaction that would give two rows the same key
// fails.
//
// The key is a number that consists of the parts' bits. If a part is Sorted, the key
// is instead a string that consists of the parts' encodings. A last part that names
// PrimaryKey makes the key unique whatever the values of the columns.
type Secondary struct {
	Name      string       `json:"name"`
	Key       []KeyPart    `json:"key"`
	Include   []string     `json:"include,omitempty"` // columns copied into the index, readable without the row
	Partition Partitioning `json:"partition"`
}

// KeyPart encodes one column in a number of bits of a key.
type KeyPart struct {
	Column string    `json:"column"`
	Bits   uint      `json:"bits,omitempty"` // ignored for a Sorted part
	How    Transform `json:"how"`
}

// Transform says how a column is encoded in a key.
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
	twin      *Index // nil: there is none
	fields    map[string]Field
	lay       *layout
	catalog   *Catalog
	digest    xxh3.Uint128 // of the definition
	since     int          // the version of the catalogue that changed the table last
	building  []*Index     // indexes that writers maintain, and that cannot be read yet; the twin among them
	was       []*Table     // the table in earlier versions
}

// Index is one index of a catalogue: a table's primary or a secondary.
// Immutable.
type Index struct {
	ID        int    // position in Catalog.Indexes
	Name      string // table, or table.secondary, or table._twin
	Ordered   bool
	Key       KeyKind // the kind in the API
	Strings   bool    // the engine's keys are strings and its rows vary in size
	RowBytes  int     // payload, in whole words; the maximum if Strings
	Engine    Engine  // never empty
	Partition Partitioning
	Table     *Table
	hidden    bool // it is being built, or was withdrawn
	twin      bool // it has the keys of a table whose primary index is Hash
	leaving   bool // a twin that is being taken away
	// of a secondary index:
	second  *Secondary
	parts   []keyPart
	include []copyField
	fields  map[string]Field
	lay     *layout // of entries
}

type keyPart struct {
	f    Field
	bits uint
	how  Transform
	key  bool // the primary key itself
}

type copyField struct{ from, to Field }

// PrimaryKey is the name of the field of a secondary index's entries that holds the
// row's primary key.
const PrimaryKey = "_key"

// Name returns the table's name.
func (t *Table) Name() string { return t.def.Name }

// Def returns the definition. The caller must not modify its slices.
func (t *Table) Def() Def { return t.def }

// Primary returns the table's primary index.
func (t *Table) Primary() *Index { return t.index }

// Secondaries lists the secondary indexes in order of definition.
func (t *Table) Secondaries() []*Index { return t.secondary }

// NameInTable returns the index's name without that of the table, empty for a primary index.
func (ix *Index) NameInTable() string {
	return strings.TrimPrefix(ix.Name[len(ix.Table.def.Name):], ".")
}

// Twin returns the ordered index of the table's keys, nil if there is none: see Def.Twin. It may be one
// that is being built. Its entries have no columns. Bodies read the primary index, and the rows are found with its twin.
func (t *Table) Twin() *Index { return t.twin }

// Maintained lists the indexes whose entries follow from the rows, but for those that are being
// built: the secondary indexes and the twin.
func (t *Table) Maintained() []*Index {
	if t.twin == nil || t.twin.hidden {
		return t.secondary
	}
	return append(t.secondary[:len(t.secondary):len(t.secondary)], t.twin)
}

// Building lists the secondary indexes that are being built, and the twin if it is being built
// or taken away: transactions that write maintain them, and none reads them.
func (t *Table) Building() []*Index { return t.building }

// IsWithdrawn reports whether the index was taken away, or its build has failed: nothing maintains it.
func (ix *Index) IsWithdrawn() bool { return ix.hidden && !ix.IsBuilding() }

// IsLeaving reports whether the index is a twin that is being taken away.
func (ix *Index) IsLeaving() bool { return ix.leaving }

// IsBuilding reports whether the index is among those that its table is building.
func (ix *Index) IsBuilding() bool { return ix.hidden && slices.Contains(ix.Table.building, ix) }

// Indexed reports whether rows have entries of secondary indexes, including those
// that are being built. The twin does not count: its entries do not depend on columns.
func (t *Table) Indexed() bool {
	n := len(t.secondary) + len(t.building)
	if t.twin != nil && t.twin.hidden {
		n--
	}
	return n > 0
}

// Secondary returns the secondary index with a name, nil if there is none.
func (t *Table) Secondary(name string) *Index {
	for _, ix := range t.secondary {
		if ix.second.Name == name {
			return ix
		}
	}
	return nil
}

// RowBytes returns the size of an encoded row without the values of Bytes
// columns.
func (t *Table) RowBytes() int { return t.lay.fixed }

// Replicated reports whether every partition has a copy of the table. Such a
// table is filled by loading and is read-only afterwards.
func (t *Table) Replicated() bool { return t.def.Partition.Kind == Replicated }

// NewRow returns a zero row.
func (t *Table) NewRow() Row { return make(Row, t.lay.fixed) }

// Field returns the field of a column. It panics on an unknown name, because
// programs look fields up once, by constant names. Use Lookup for names that
// come from input.
func (t *Table) Field(name string) Field {
	f, ok := t.fields[name]
	if !ok {
		panic("tables: table " + t.def.Name + " has no column " + name)
	}
	return f
}

// Lookup returns the field of a column; it reports false if the table has no
// such column.
func (t *Table) Lookup(name string) (Field, bool) {
	f, ok := t.fields[name]
	return f, ok
}

// Field returns the field of a column of an index entry. A primary index has
// all columns of the table, a secondary index has PrimaryKey and the included
// columns. Field panics on an unknown name.
func (ix *Index) Field(name string) Field {
	f, ok := ix.fields[name]
	if !ok {
		panic("tables: index " + ix.Name + " has no column " + name)
	}
	return f
}

// EntryOf returns the primary key that an entry of a secondary index holds, as
// a view of the entry.
func (ix *Index) EntryOf(entry Row) Key {
	f := ix.fields[PrimaryKey]
	if f.typ == Bytes {
		return Str(entry.Bytes(f))
	}
	return Num(uint64(entry.Int(f)))
}

// Readable returns an ErrCatalog for an index that is being built, or was
// withdrawn.
func (ix *Index) Readable() error {
	if !ix.hidden {
		return nil
	}
	e := ix.Concerns(ErrCatalog, Key{})
	e.Detail = "it is being built, or its build has failed"
	if ix.leaving {
		e.Detail = "it is being taken away"
	}
	return e
}

// IsMaintained reports whether the entries follow from the rows of a table: it is a secondary index,
// or a twin.
func (ix *Index) IsMaintained() bool { return ix.second != nil || ix.twin }

// IsTwin reports whether this is the twin of a table: see Table.Twin.
func (ix *Index) IsTwin() bool { return ix.twin }

// Ranges returns the index that finds the rows of a range of keys: a twin for a primary index that has
// one, else the index itself.
func (ix *Index) Ranges() *Index {
	if !ix.Ordered && ix.Table.twin != nil {
		return ix.Table.twin
	}
	return ix
}

// KeepsVersions reports whether Snapshots can read the index: that it keeps the versions of
// rows that are overwritten, if the data servers do.
func (ix *Index) KeepsVersions() bool { return ix.Engine == XStore && !(ix.twin && ix.ShipsTwin()) }

// ClientWritten reports whether clients may change the index themselves, one-sided.
func (ix *Index) ClientWritten() bool { return ix.Engine == Rolex }

// KeepsInMemory reports whether the index can only be in memory: a data server with a data
// directory refuses it.
func (ix *Index) KeepsInMemory() bool { return ix.Engine == Rolex || ix.twin && ix.ShipsTwin() }

// MadeBy names what makes the index, for messages: its engine, or that it is a twin.
func (ix *Index) MadeBy() string {
	if ix.twin {
		return "twin " + string(ix.Table.def.Twin)
	}
	return "engine " + string(ix.Engine)
}

// ShipsTwins reports whether a table of the catalogue has a twin that gets its keys so: see
// Index.ShipsTwin.
func (c *Catalog) ShipsTwins() bool {
	return slices.ContainsFunc(c.Tables, func(t *Table) bool { return t.def.Twin == TwinNext })
}

// ShipsTwin reports whether the index is the primary index of a table, or its twin, whose twin gets the
// keys of transactions of one partition from the data server: see TwinNext.
func (ix *Index) ShipsTwin() bool { return ix.second == nil && ix.Table.def.Twin == TwinNext }

// LoadFill is how full loading makes the leaves of an ordered index, in percent.
func (ix *Index) LoadFill() int {
	if n := ix.Table.def.LoadFill; n != 0 {
		return n
	}
	return 100
}

// CheckRow returns an error unless row is a valid row of the table. A row of
// fixed size must have that size. In other rows every value must lie inside the
// row and must not exceed its column's size.
func (t *Table) CheckRow(row Row) error {
	if t.lay.varies() {
		if len(row) < t.lay.fixed || len(row)%8 != 0 || len(row) > MaxRowBytes {
			return t.rowError(row, fmt.Sprintf("%d to %d", t.lay.fixed, MaxRowBytes))
		}
		if err := t.lay.check(row); err != nil {
			e := t.index.Concerns(ErrRow, Key{})
			e.Cause = err
			return e
		}
		return nil
	}
	if len(row) != t.lay.fixed {
		return t.rowError(row, strconv.Itoa(t.lay.fixed))
	}
	return nil
}

// rowError returns the error for a row of the wrong size.
func (t *Table) rowError(row Row, want string) error {
	e := t.index.Concerns(ErrRow, Key{})
	e.Size = int64(len(row))
	if e.Detail = strings.TrimPrefix(row.faultText(), t.def.Name+": "); e.Detail == "" {
		e.Detail = fmt.Sprintf("it has rows of %s bytes, got %d", want, len(row))
	}
	if len(row) > MaxRowBytes {
		e.Limit, e.Max = "MaxRowBytes", MaxRowBytes
	}
	return e
}

// EntryBuffer is memory for an entry of a secondary index. The zero value is ready for
// use. A buffer may be used again for any index.
type EntryBuffer struct {
	key     []byte
	payload Row
}

// Entry computes the secondary index entry of a row: its key and its payload. Both are
// views of b until its next use; a nil b makes new memory. Entry fails if a column's
// value does not fit the bits of its key part, or the key or the entry is too long.
func (ix *Index) Entry(primary Key, row Row, b *EntryBuffer) (Key, Row, error) {
	if err := ix.Table.index.CheckKey(primary); err != nil {
		return Key{}, nil, err
	}
	if b == nil {
		b = &EntryBuffer{}
	}
	if ix.twin {
		b.payload = append(b.payload[:0], make(Row, ix.RowBytes)...)
		return primary, b.payload, nil
	}
	key, err := ix.entryKey(primary, row, b)
	if err != nil {
		return Key{}, nil, err
	}
	dst := append(b.payload[:0], make(Row, ix.lay.fixed)...)
	if f := ix.fields[PrimaryKey]; f.typ == Bytes {
		dst.SetBytes(f, primary.Bytes())
	} else {
		dst.SetInt(f, int64(primary.num))
	}
	for _, c := range ix.include {
		copyColumn(&dst, c.to, row, c.from)
	}
	if err := dst.Err(); err != nil {
		return Key{}, nil, fmt.Errorf("%s: %w", ix.Name, err)
	}
	if len(dst) > MaxRowBytes {
		e := ix.Concerns(ErrRow, key)
		e.Detail, e.Limit, e.Max, e.Size = "bytes of an entry", "MaxRowBytes", MaxRowBytes, int64(len(dst))
		return Key{}, nil, e
	}
	b.payload = dst
	return key, dst, nil
}

// EntryKey computes only the key that Entry returns. It uses the primary key
// only if PrimaryKey is a part of the index's key.
func (ix *Index) EntryKey(primary Key, row Row) (Key, error) {
	if ix.twin {
		return primary, nil
	}
	return ix.entryKey(primary, row, &EntryBuffer{})
}

func (ix *Index) entryKey(primary Key, row Row, b *EntryBuffer) (Key, error) {
	if ix.Key == StringKey {
		var err error
		b.key, err = ix.appendKey(b.key[:0], primary, row)
		key := Str(b.key)
		return key, cmp.Or(err, ix.CheckKey(key))
	}
	var key uint64
	for i, p := range ix.parts {
		v, err := ix.bitsOf(i, row)
		if err != nil {
			return Key{}, err
		}
		key = key<<p.bits | v
	}
	return Num(key), nil
}

// bitsOf computes the value of a key part that takes bits.
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

// appendKey appends the key of an entry of an index with a Sorted part.
func (ix *Index) appendKey(b []byte, primary Key, row Row) ([]byte, error) {
	for i := range ix.parts {
		switch p := &ix.parts[i]; {
		case p.key && primary.kind == number:
			b = index.AppendNum(b, primary.num)
		case p.key && i == len(ix.parts)-1:
			b = append(b, primary.str...) // it is the last part, so it needs no terminator
		case p.key:
			b = AppendText(b, primary.Bytes())
		case p.how == Sorted && p.f.typ == Text:
			b = AppendText(b, row.Text(p.f))
		case p.how == Sorted && p.f.typ == Bytes:
			b = AppendText(b, row.Bytes(p.f))
		case p.how == Sorted:
			b = AppendInt(b, row.Int(p.f))
		default:
			v, err := ix.bitsOf(i, row)
			if err != nil {
				return b, err
			}
			for n := int(p.bits+7) / 8; n > 0; n-- {
				b = append(b, byte(v>>(8*(n-1))))
			}
		}
	}
	return b, nil
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
