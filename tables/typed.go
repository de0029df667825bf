package tables

import (
	"errors"
	"fmt"
	"iter"
	"reflect"
	"sync"
	"sync/atomic"

	"drtmx/internal/mem"
)

// Tx has the methods of a transaction that a typed table uses; *txn.Txn implements
// it.
type Tx interface {
	Get(t *Table, key Key) (Row, error)
	Lookups(t *Table) func(keys []Key) ([]Row, error)
	Insert(t *Table, key Key, row Row) error
	Put(t *Table, key Key, row Row) error
	Update(t *Table, key Key, row Row) error
	Delete(t *Table, key Key) error
	Scan(ix *Index, lo, hi Key) iter.Seq2[Entry, error]
	ScanReverse(ix *Index, lo, hi Key) iter.Seq2[Entry, error]
}

// Definer defines a table: a Def, or a TableOf.
type Definer interface {
	// Define returns the definition, or an ErrSchema that joins all its faults.
	Define() (Def, error)
}

// Define implements Definer. NewCatalog finds the faults of a Def.
func (d Def) Define() (Def, error) { return d, nil }

// CatalogOf makes a catalogue from definitions, such as typed tables. Its error joins
// all faults that it finds.
func CatalogOf(tables ...Definer) (*Catalog, error) {
	var defs []Def
	var faults []error
	for _, t := range tables {
		d, err := t.Define()
		if err != nil {
			faults = append(faults, err)
			continue
		}
		defs = append(defs, d)
	}
	if len(defs) == 0 && len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	c, err := NewCatalog(defs...)
	if err := errors.Join(append(faults, err)...); err != nil {
		return nil, err
	}
	for _, t := range tables {
		if b, ok := t.(interface{ adopt(*Catalog) }); ok {
			b.adopt(c)
		}
	}
	return c, nil
}

// TableOf is a table whose rows are values of T, a struct; see Of. It is
// immutable and safe for concurrent use.
type TableOf[T any] struct {
	m     *mapping
	table atomic.Pointer[Table] // the table of the latest catalogue made from it
	err   error
	pool  sync.Pool // of *scratch
}

// scratch is memory for encoded keys and rows.
type scratch struct {
	key []byte
	row Row
}

// Of returns a table of T. The exported fields of T are the columns of the table,
// except those tagged as the key, which together are the primary key, in their order:
//
//	type Transfer struct {
//		Account uint32 `drtmx:"key"`
//		Number  uint32 `drtmx:"key"`
//		To      uint32
//		Amount  int64
//		Note    string `drtmx:"size=40,index=by_note"`
//	}
//
//	var transfers = tables.Of[Transfer]("transfer")
//
// Fields are integers, bools, floats, strings and []byte, also those of embedded
// structs. Keys are ordered by their fields, the first one first; fields of a key are
// integers, bools, strings and []byte. Integer keys of 64 bits together are numbers,
// the fastest; with more, or with a string, the key is a string.
//
// Tags are separated by commas: key; name=column, for another name than that of
// the field in lower case; size=n, for a string or []byte of at most n bytes,
// for which each row has room (rows without other strings are faster);
// index=name, for a secondary index over the fields with that tag; added, for a
// field whose column was added to the table later, and default=value, for one
// with a default (see txn.DB.AddColumn); and - for a field that is no column.
//
// Of inspects T once. It reports faults, all together, through Define, which
// CatalogOf calls, and through every method.
func Of[T any](name string, opts ...Option) *TableOf[T] {
	t := &TableOf[T]{m: newMapping(reflect.TypeFor[T](), name, opts)}
	t.pool.New = func() any { return new(scratch) }
	var own *Catalog
	if t.err = errors.Join(t.m.faults...); t.err == nil {
		own, t.err = NewCatalog(t.m.def)
	}
	if t.err == nil {
		t.m.bind(own.Tables[0])
		t.table.Store(own.Tables[0])
	}
	return t
}

// Define implements Definer.
func (t *TableOf[T]) Define() (Def, error) { return t.m.def, t.err }

// adopt makes t pass the table of a catalogue to transactions. Transactions of that
// catalogue then need no search for their own table.
func (t *TableOf[T]) adopt(c *Catalog) {
	if own, err := c.Resolve(t.table.Load()); err == nil {
		t.table.Store(own)
	}
}

// Table returns the table, for the methods that take one; nil if its definition
// has faults.
func (t *TableOf[T]) Table() *Table { return t.table.Load() }

// Key returns the primary key of v. If the definition has faults it is the zero Key,
// which no method accepts.
func (t *TableOf[T]) Key(v T) Key {
	key, _ := t.Prefix(v, len(t.m.keys))
	return key
}

// Prefix returns the bounds of the keys whose first n fields are those of v.
func (t *TableOf[T]) Prefix(v T, n int) (lo, hi Key) {
	s := mem.StructOf(&v)
	switch n = min(max(n, 0), len(t.m.keys)); {
	case t.err != nil:
		return Key{}, Key{}
	case n == 0:
		return First, Last
	case t.m.def.Key == NumberKey:
		lo, hi := t.m.numberKey(s, n)
		return Num(lo), Num(hi)
	case n == len(t.m.keys):
		key := Str(t.m.appendKey(nil, s, n))
		return key, key
	}
	return Prefix(t.m.appendKey(nil, s, n))
}

// key returns the primary key of s in the memory of b.
func (t *TableOf[T]) key(b *scratch, s mem.Struct) Key {
	if t.m.def.Key == NumberKey {
		n, _ := t.m.numberKey(s, len(t.m.keys))
		return Num(n)
	}
	b.key = t.m.appendKey(b.key[:0], s, len(t.m.keys))
	return Str(b.key)
}

// Get reads the row with the key of v into v. It returns txn.ErrNotFound if
// there is none. v shares no memory with the transaction.
func (t *TableOf[T]) Get(tx Tx, v *T) error {
	if t.err != nil {
		return t.err
	}
	b := t.pool.Get().(*scratch)
	defer t.pool.Put(b)
	row, err := tx.Get(t.table.Load(), t.key(b, mem.StructOf(v)))
	if err != nil {
		return err
	}
	return t.m.decodeRow(mem.StructOf(v), row)
}

// Insert adds v. If its key exists, Insert or the commit returns txn.ErrExists.
func (t *TableOf[T]) Insert(tx Tx, v *T) error { return t.write(tx.Insert, v) }

// Put inserts v or overwrites the row with its key.
func (t *TableOf[T]) Put(tx Tx, v *T) error { return t.write(tx.Put, v) }

// Update overwrites the row with the key of v. If there is none, Update or the
// commit returns txn.ErrNotFound.
func (t *TableOf[T]) Update(tx Tx, v *T) error { return t.write(tx.Update, v) }

// Add adds v to a *txn.Loader of the table.
func (t *TableOf[T]) Add(l interface{ Add(Key, Row) error }, v *T) error {
	return t.write(func(_ *Table, key Key, row Row) error { return l.Add(key, row) }, v)
}

func (t *TableOf[T]) write(do func(*Table, Key, Row) error, v *T) error {
	if t.err != nil {
		return t.err
	}
	b := t.pool.Get().(*scratch)
	defer t.pool.Put(b)
	s, table := mem.StructOf(v), t.table.Load()
	t.m.encode(&b.row, s, table.lay.fixed)
	return do(table, t.key(b, s), b.row)
}

// Delete removes the row with the key of v. If there is none, Delete or the
// commit returns txn.ErrNotFound.
func (t *TableOf[T]) Delete(tx Tx, v *T) error {
	if t.err != nil {
		return t.err
	}
	b := t.pool.Get().(*scratch)
	defer t.pool.Put(b)
	return tx.Delete(t.table.Load(), t.key(b, mem.StructOf(v)))
}

// Scan returns an iterator over the rows with lo ≤ key ≤ hi, in key order; see
// Key, Prefix, First and Last. The values share no memory with the transaction.
// An error ends the loop.
func (t *TableOf[T]) Scan(tx Tx, lo, hi Key) iter.Seq2[T, error] {
	return t.decoded(func() iter.Seq2[Entry, error] { return tx.Scan(t.Table().Primary(), lo, hi) })
}

// ScanReverse returns an iterator over the same rows as Scan, from hi down to lo.
func (t *TableOf[T]) ScanReverse(tx Tx, lo, hi Key) iter.Seq2[T, error] {
	return t.decoded(func() iter.Seq2[Entry, error] { return tx.ScanReverse(t.Table().Primary(), lo, hi) })
}

// ScanPrefix returns an iterator, as Scan does, over the rows whose first n key
// fields are those of v.
func (t *TableOf[T]) ScanPrefix(tx Tx, v T, n int) iter.Seq2[T, error] {
	lo, hi := t.Prefix(v, n)
	return t.Scan(tx, lo, hi)
}

// decoded returns an iterator over the values of entries of the primary index.
func (t *TableOf[T]) decoded(entries func() iter.Seq2[Entry, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		if t.err != nil {
			var none T
			yield(none, t.err)
			return
		}
		for e, err := range entries() {
			var v T
			if err == nil {
				err = t.decode(&v, e.Key, e.Row)
			}
			if !yield(v, err) || err != nil {
				return
			}
		}
	}
}

func (t *TableOf[T]) decode(v *T, key Key, row Row) error {
	s := mem.StructOf(v)
	if err := t.m.decodeKey(s, key); err != nil {
		return err
	}
	return t.m.decodeRow(s, row)
}

// IndexOf is a secondary index of a typed table. Its iterators look up the row of each
// entry.
type IndexOf[T any] struct {
	t   *TableOf[T]
	at  int
	err error
}

// Index returns the secondary index with a name. If there is none, its iterators
// return an ErrSchema.
func (t *TableOf[T]) Index(name string) *IndexOf[T] {
	ix := &IndexOf[T]{t: t, err: t.err}
	for i, s := range t.m.def.Secondary {
		if s.Name == name {
			ix.at = i
			return ix
		}
	}
	ix.err = errors.Join(ix.err, fmt.Errorf("%w: table %s has no index %q", ErrSchema, t.m.def.Name, name))
	return ix
}

// Prefix returns the bounds of the entries whose first n fields are those of v.
func (x *IndexOf[T]) Prefix(v T, n int) (lo, hi Key) {
	if x.err != nil {
		return Key{}, Key{}
	}
	m, s := x.t.m, mem.StructOf(&v)
	parts := m.parts[x.at]
	var b []byte
	for _, at := range parts[:min(max(n, 0), len(parts))] {
		if f := &m.members[at]; f.isText() {
			b = AppendText(b, f.text(s))
		} else {
			b = AppendInt(b, f.number(s))
		}
	}
	return Prefix(b)
}

// Scan returns an iterator over the rows of the entries from lo to hi, in the order
// of the index; see Prefix, First and Last. It reads the rows in groups.
func (x *IndexOf[T]) Scan(tx Tx, lo, hi Key) iter.Seq2[T, error] { return x.rows(tx, lo, hi, Tx.Scan) }

// ScanReverse returns an iterator over the same rows as Scan, from hi down to lo.
func (x *IndexOf[T]) ScanReverse(tx Tx, lo, hi Key) iter.Seq2[T, error] {
	return x.rows(tx, lo, hi, Tx.ScanReverse)
}

// ScanPrefix is Scan of the rows whose first n fields of the index are those of
// v.
func (x *IndexOf[T]) ScanPrefix(tx Tx, v T, n int) iter.Seq2[T, error] {
	lo, hi := x.Prefix(v, n)
	return x.Scan(tx, lo, hi)
}

// Sizes of the groups of rows. The first one is small, because the loop may break.
const (
	fetchMin = 8
	fetchMax = 256
)

func (x *IndexOf[T]) rows(tx Tx, lo, hi Key, scan func(Tx, *Index, Key, Key) iter.Seq2[Entry, error]) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var none T
		if x.err != nil {
			yield(none, x.err)
			return
		}
		table := x.t.Table()
		ix, lookup := table.secondary[x.at], tx.Lookups(table)
		primary := ix.Field(PrimaryKey)
		keys, most := make([]Key, 0, fetchMin), fetchMin
		var texts []byte // of the keys of a group
		for e, err := range scan(tx, ix, lo, hi) {
			if err != nil {
				yield(none, err)
				return
			}
			if primary.typ == Bytes {
				at := len(texts)
				texts = append(texts, e.Row.Bytes(primary)...)
				keys = append(keys, Str(texts[at:len(texts):len(texts)]))
			} else {
				keys = append(keys, Num(uint64(e.Row.Int(primary))))
			}
			if len(keys) < most {
				continue
			}
			if !x.fetch(lookup, keys, yield) {
				return
			}
			keys, texts, most = keys[:0], texts[:0], min(2*most, fetchMax)
		}
		if len(keys) > 0 {
			x.fetch(lookup, keys, yield)
		}
	}
}

// fetch yields the rows of keys, and returns false if the loop is over. If an entry
// has no row, the transaction has read an inconsistent state and will not commit;
// fetch leaves the row out.
func (x *IndexOf[T]) fetch(lookup func([]Key) ([]Row, error), keys []Key, yield func(T, error) bool) bool {
	rows, err := lookup(keys)
	if err != nil {
		var none T
		yield(none, err)
		return false
	}
	for i, row := range rows {
		if row == nil {
			continue
		}
		var v T
		err := x.t.decode(&v, keys[i], row)
		if !yield(v, err) || err != nil {
			return false
		}
	}
	return true
}
