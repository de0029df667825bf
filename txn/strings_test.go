package txn_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// hostileKeys are key sets that an index by digests or prefixes could take for
// one another.
func hostileKeys() []string {
	keys := []string{
		"", "\x00", "\x00\x00", "\xff", strings.Repeat("\xff", 9), strings.Repeat("\xff", 1024), strings.Repeat("\x00", 1024),
		strings.Repeat("a", 1024), strings.Repeat("a", 1023), strings.Repeat("a", 1023) + "b",
	}
	long := strings.Repeat("p", 200)
	for i := range 30 {
		keys = append(keys,
			long+fmt.Sprint(i),                               // share 200 bytes
			strings.Repeat("a", i),                           // prefixes of one another
			"same-8by"+strings.Repeat("=", 40)+fmt.Sprint(i), // equal for longer than a word after any short prefix
			fmt.Sprintf("user%d", i*7919),
		)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func stringTables(t testing.TB, primary tables.IndexKind) *tables.Catalog {
	t.Helper()
	var defs []tables.Def
	for name, p := range map[string]tables.Partitioning{
		"hashed": {Kind: tables.ByHash},
		"ranged": {Kind: tables.ByRange, StringBounds: [][]byte{[]byte("aaaa"), []byte("ppq")}},
		"prefix": {Kind: tables.ByPrefix, Prefix: 3},
	} {
		defs = append(defs, tables.Def{
			Name: name, Key: tables.StringKey, Primary: primary, Partition: p,
			Columns: []tables.Column{{Name: "n", Type: tables.Int64}, {Name: "text", Type: tables.Bytes}},
		})
	}
	if primary == tables.Ordered {
		defs[0].Secondary = []tables.Secondary{{
			Name: "by_text", Include: []string{"n"}, Partition: tables.Partitioning{Kind: tables.ByHash},
			Key: []tables.KeyPart{{Column: "n", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
		}}
	}
	c, err := tables.NewCatalog(defs...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// stringModel is one table of string keys beside a map.
type stringModel struct {
	tab     *tables.Table
	n, text tables.Field
	keys    []string
	now     map[string][]byte
	scans   bool
}

func (m *stringModel) row(text []byte) tables.Row {
	row := m.tab.NewRow()
	row.SetInt(m.n, int64(len(text)))
	return row.SetBytes(m.text, text)
}

func (m *stringModel) same(row tables.Row, want []byte) bool {
	return bytes.Equal(row.Bytes(m.text), want) && row.Int(m.n) == int64(len(want))
}

// text draws a row's text, from nothing up to the longest a row can hold.
func drawText(t *rapid.T) []byte {
	n := rapid.SampledFrom([]int{0, 1, 7, 8, 50, 900, 5000, tables.MaxRowBytes - 16}).Draw(t, "length")
	return bytes.Repeat([]byte{rapid.Byte().Draw(t, "fill")}, n)
}

func (m *stringModel) step(t *rapid.T, x *txn.Txn) error {
	key := rapid.SampledFrom(m.keys).Draw(t, "key")
	old, there := m.now[key]
	fits := func(err error, mayBe bool, want error) error {
		if mayBe && err != nil || !mayBe && !errors.Is(err, want) {
			return fmt.Errorf("key %.20q, there: %v: %v", key, there, err)
		}
		return nil
	}
	op := rapid.SampledFrom([]string{"get", "scan", "put", "put", "insert", "update", "delete"}).Draw(t, "op")
	switch op {
	case "get":
		row, err := x.GetS(m.tab, []byte(key))
		if err == nil && there && !m.same(row, old) {
			return fmt.Errorf("get %.20q: a row of %d bytes, want one of %d", key, len(row.Bytes(m.text)), len(old))
		}
		return fits(err, there, txn.ErrNotFound)
	case "scan":
		if m.scans {
			return m.scan(t, x)
		}
	case "put":
		text := drawText(t)
		m.now[key] = text
		return fits(x.PutS(m.tab, []byte(key), m.row(text)), true, nil)
	case "insert":
		if there {
			return nil // would end the transaction, perhaps only at its commit
		}
		text := drawText(t)
		m.now[key] = text
		return fits(x.InsertS(m.tab, []byte(key), m.row(text)), true, nil)
	case "update":
		if there {
			text := drawText(t)
			m.now[key] = text
			return fits(x.UpdateS(m.tab, []byte(key), m.row(text)), true, nil)
		}
	case "delete":
		if there {
			delete(m.now, key)
			return fits(x.DeleteS(m.tab, []byte(key)), true, nil)
		}
	}
	return nil
}

func (m *stringModel) scan(t *rapid.T, x *txn.Txn) error {
	lo, hi := rapid.SampledFrom(m.keys).Draw(t, "lo"), rapid.SampledFrom(m.keys).Draw(t, "hi")
	end := []byte(hi)
	if rapid.Bool().Draw(t, "to the end") {
		end, hi = nil, tables.Highest
	}
	limit := rapid.IntRange(0, 9).Draw(t, "limit")
	es, err := x.ScanS(m.tab.Primary(), []byte(lo), end, limit)
	if err != nil {
		return err
	}
	i := 0
	for _, key := range m.keys {
		text, there := m.now[key]
		if !there || key < lo || key > hi || limit > 0 && i == limit {
			continue
		}
		if i >= len(es) || string(es[i].KeyBytes()) != key || !m.same(es[i].Row, text) {
			return fmt.Errorf("scan %.20q to %.20q limit %d: row %d is not that of %.20q", lo, hi, limit, i, key)
		}
		i++
	}
	if i != len(es) {
		return fmt.Errorf("scan %.20q to %.20q limit %d: %d rows, want %d", lo, hi, limit, len(es), i)
	}
	return nil
}

// TestStringTablesAgainstAMap runs random transactions, at the client, over
// hostile keys and rows of every size, beside a map.
func TestStringTablesAgainstAMap(t *testing.T) {
	for _, primary := range []tables.IndexKind{tables.Hash, tables.Ordered} {
		cat := stringTables(t, primary)
		for _, servers := range []int{1, 3} {
			cl, err := server.Embedded(context.Background(), server.EmbeddedConfig{Catalog: cat, Servers: servers, Partitions: 3})
			if err != nil {
				t.Fatal(err)
			}
			for _, tab := range cl.DB.Catalog().Tables {
				m := &stringModel{tab: tab, n: tab.Field("n"), text: tab.Field("text"), keys: hostileKeys(), scans: primary == tables.Ordered, now: map[string][]byte{}}
				rapid.Check(t, func(rt *rapid.T) { m.transactions(rt, cl.DB) })
			}
			if err := cl.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func (m *stringModel) transactions(t *rapid.T, db *txn.DB) {
	before := m.now
	steps := rapid.IntRange(1, 6).Draw(t, "steps")
	var err error
	if rapid.Bool().Draw(t, "view") {
		err = db.View(context.Background(), func(x *txn.Txn) error { return m.look(t, x, steps) })
	} else {
		err = db.Update(context.Background(), func(x *txn.Txn) error {
			m.now = maps.Clone(before) // the body may run again
			for range steps {
				if err := m.step(t, x); err != nil {
					return err
				}
			}
			return nil
		})
		if errors.Is(err, txn.ErrTooLarge) || errors.Is(err, tables.ErrKey) {
			m.now, err = before, nil // rows beyond a message, or a secondary key beyond its bound: refused, nothing written
		}
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (m *stringModel) look(t *rapid.T, x *txn.Txn, steps int) error {
	for range steps {
		key := rapid.SampledFrom(m.keys).Draw(t, "key")
		row, err := x.GetS(m.tab, []byte(key))
		if want, there := m.now[key]; there != (err == nil) || there && !m.same(row, want) {
			return fmt.Errorf("view of %.20q: %v, want %v", key, err, there)
		}
		if m.scans {
			if err := m.scan(t, x); err != nil {
				return err
			}
		}
	}
	return nil
}
