package server_test

import (
	"bytes"
	"encoding/binary"

	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// The same lists under string keys and in rows that grow by a value with every
// append. All keys share a prefix, some are prefixes of others, and four at a
// time are in one partition.

const sharedPrefix = "a prefix that all keys have in common, longer than any word "

const partitionedPrefix = len(sharedPrefix) + 8

// appendListKey appends the string key of a list.
func appendListKey(b []byte, key uint64) []byte {
	b = binary.BigEndian.AppendUint64(append(b, sharedPrefix...), key>>2)
	return append(b, bytes.Repeat([]byte{0xff}, int(key&3))...)
}

func newStringLists(room int, twin tables.Twin) *listSchema {
	columns := []tables.Column{
		{Name: "key", Type: tables.Int64},
		{Name: "count", Type: tables.Int64},
		{Name: "list", Type: tables.Bytes, Size: 8 * room},
	}
	byPrefix := tables.Partitioning{Kind: tables.ByPrefix, Prefix: uint(partitionedPrefix)}
	cat, err := tables.NewCatalog(
		tables.Def{
			Name: "hashed", Key: tables.StringKey, Primary: tables.Hash, Twin: twin, Columns: columns, Partition: byPrefix,
			Secondary: []tables.Secondary{{
				Name: "by_key", Include: []string{"key", "list"}, Partition: tables.Partitioning{Kind: tables.ByHash},
				Key: []tables.KeyPart{{Column: "key", How: tables.Sorted}},
			}},
		},
		tables.Def{
			Name: "ordered", Key: tables.StringKey, Primary: tables.Ordered, Columns: columns, Partition: byPrefix,
			Secondary: []tables.Secondary{{
				Name: "by_length", Include: []string{"key", "list"}, Partition: tables.Partitioning{Kind: tables.ByPrefix, Prefix: 2},
				Key: []tables.KeyPart{{Column: "count", Bits: 16, How: tables.Value}, {Column: tables.PrimaryKey, How: tables.Sorted}},
			}},
		},
	)
	if err != nil {
		panic(err)
	}
	s := schemaOf(cat, room)
	s.strings = true
	s.byKey.key, s.byLen.key = s.byKey.ix.Field("key"), s.byLen.ix.Field("key")
	return s
}

// newLists makes the schema that a load asks for.
func newLists(l *load) *listSchema {
	if l.Strings {
		return newStringLists(l.Room, l.Twin)
	}
	return newListSchemaOf(l.Room, l.Twin, l.Engine, l.Bare)
}

// keyOf is the key of a list.
func (s *listSchema) keyOf(key uint64) tables.Key {
	if s.strings {
		return tables.Str(appendListKey(nil, key))
	}
	return tables.Num(key)
}

func (s *listSchema) home(db *txn.DB, table int, key uint64) txn.Home {
	return server.HomeOf(db, s.tab[table], s.keyOf(key))
}

func (s *listSchema) queueGet(t *txn.Txn, table int, key uint64) *txn.QueuedGet {
	return t.QueueGet(s.tab[table], s.keyOf(key))
}

func (s *listSchema) get(t *txn.Txn, table int, key uint64) (tables.Row, error) {
	return s.queueGet(t, table, key).Row()
}

func (s *listSchema) remove(t *txn.Txn, table int, key uint64) error {
	return t.Delete(s.tab[table], s.keyOf(key))
}

func (s *listSchema) write(t *txn.Txn, st *step, fresh, insert bool, row tables.Row) error {
	tab, key := s.tab[st.table], s.keyOf(uint64(st.Key))
	switch {
	case fresh:
		return t.Put(tab, key, row)
	case insert:
		return t.Insert(tab, key, row)
	}
	return t.Update(tab, key, row)
}

// scanOrdered scans the ordered table.
func (s *listSchema) scanOrdered(t *txn.Txn, lo, hi uint64, limit int) ([]txn.Entry, error) {
	return t.QueueScan(s.tab[inOrdered].Primary(), s.keyOf(lo), s.keyOf(hi), limit).Entries()
}

// scanByKey scans the table by hash through its secondary index.
func (s *listSchema) scanByKey(t *txn.Txn, lo, hi uint64, limit int) ([]txn.Entry, error) {
	key := tables.Num
	if s.strings {
		key = func(n uint64) tables.Key { return tables.Str(tables.AppendInt(nil, int64(n))) }
	}
	return t.QueueScan(s.byKey.ix, key(lo), key(hi), limit).Entries()
}

// scanByLen reads some lists of n values.
func (s *listSchema) scanByLen(t *txn.Txn, n uint64, limit int) ([]txn.Entry, error) {
	lo, hi := tables.Num(n<<keyBits), tables.Num((n+1)<<keyBits-1)
	if s.strings {
		b := binary.BigEndian.AppendUint16(nil, uint16(n))
		lo, hi = tables.Str(b), tables.Str(append(b[:2:2], 0xff))
	}
	return t.QueueScan(s.byLen.ix, lo, hi, limit).Entries()
}

// text is the list in a row.
func (s *listSchema) text(row tables.Row, list tables.Field) []byte {
	if s.strings {
		return row.Bytes(list)
	}
	return row.Text(list)
}

func (s *listSchema) setText(row tables.Row, list tables.Field, text []byte) tables.Row {
	if s.strings {
		row.SetBytes(list, text)
	} else {
		row.SetText(list, text)
	}
	return row
}
