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

	"drtmx/internal/testseed"
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
		"ranged": {Kind: tables.ByRange, Bounds: []tables.Key{tables.Str("aaaa"), tables.Str("ppq")}},
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
	row.SetBytes(m.text, text)
	return row
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
		row, err := x.Get(m.tab, tables.Str(key))
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
		return fits(x.Put(m.tab, tables.Str(key), m.row(text)), true, nil)
	case "insert":
		if there {
			return nil // would end the transaction, perhaps only at its commit
		}
		text := drawText(t)
		m.now[key] = text
		return fits(x.Insert(m.tab, tables.Str(key), m.row(text)), true, nil)
	case "update":
		if there {
			text := drawText(t)
			m.now[key] = text
			return fits(x.Update(m.tab, tables.Str(key), m.row(text)), true, nil)
		}
	case "delete":
		if there {
			delete(m.now, key)
			return fits(x.Delete(m.tab, tables.Str(key)), true, nil)
		}
	}
	return nil
}

func (m *stringModel) scan(t *rapid.T, x *txn.Txn) error {
	lo, hi := rapid.SampledFrom(m.keys).Draw(t, "lo"), rapid.SampledFrom(m.keys).Draw(t, "hi")
	start, end := tables.Str(lo), tables.Str(hi)
	above, below := rapid.Bool().Draw(t, "above lo"), rapid.Bool().Draw(t, "below hi")
	if above {
		start = tables.After(start)
	}
	switch {
	case rapid.Bool().Draw(t, "to the end"):
		end, hi, below = tables.Last, m.keys[len(m.keys)-1], false
	case below:
		end = tables.Before(end)
	}
	limit := rapid.IntRange(0, 9).Draw(t, "limit")
	es, err := x.QueueScan(m.tab.Primary(), start, end, limit).Entries()
	if err != nil {
		return err
	}
	i := 0
	for _, key := range m.keys {
		text, there := m.now[key]
		if !there || key < lo || key > hi || above && key == lo || below && key == hi || limit > 0 && i == limit {
			continue
		}
		if i >= len(es) || string(es[i].Key.Bytes()) != key || !m.same(es[i].Row, text) {
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
				testseed.Check(t, func(rt *rapid.T) { m.transactions(rt, cl.DB) })
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
		row, err := x.Get(m.tab, tables.Str(key))
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

// TestKeysThatDoNotFit uses keys of the wrong kind, bounds and no key at all
// where a key is needed. Every method refuses them, and the transaction goes on.
func TestKeysThatDoNotFit(t *testing.T) {
	r := newRig(t, 1, txn.Config{}, nil)
	for name, c := range map[string]struct {
		tab  *tables.Table
		row  tables.Row
		good tables.Key
		bad  []tables.Key
	}{
		"numbers": {r.wide, r.wide.NewRow(), tables.Num(0), []tables.Key{tables.Str("x"), {}, tables.First, tables.Last}},
		"strings": {r.text, body(r.text, 3), tables.Str(""), []tables.Key{tables.Num(0), {}, tables.First, tables.Last, tables.Str(make([]byte, tables.MaxKeyBytes+1))}},
	} {
		t.Run(name, func(t *testing.T) {
			refused := func(what string, key tables.Key, err error) {
				t.Helper()
				if !errors.Is(err, tables.ErrKey) || !strings.Contains(err.Error(), "table "+c.tab.Name()) {
					t.Errorf("%s %.20v: %v", what, key, err)
				}
			}
			err := r.DB.Update(t.Context(), func(x *txn.Txn) error {
				for _, key := range c.bad {
					_, err := x.Get(c.tab, key)
					refused("Get", key, err)
					refused("Insert", key, x.Insert(c.tab, key, c.row))
					refused("Put", key, x.Put(c.tab, key, c.row))
					refused("Update", key, x.Update(c.tab, key, c.row))
					refused("Delete", key, x.Delete(c.tab, key))
					if key == tables.First || key == tables.Last {
						continue
					}
					_, err = x.QueueScan(c.tab.Primary(), key, tables.Last, 1).Entries()
					refused("Scan from", key, err)
					_, err = x.QueueScan(c.tab.Primary(), tables.First, key, 1).Entries()
					refused("Scan to", key, err)
				}
				return x.Put(c.tab, c.good, c.row)
			})
			if err != nil {
				t.Fatal(err)
			}
			l, err := r.DB.NewLoader(t.Context(), c.tab)
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range c.bad {
				refused("Add", key, l.Add(key, c.row))
				_, err := r.DB.Home(c.tab, key)
				refused("Home", key, err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			if err := r.DB.View(t.Context(), func(x *txn.Txn) error {
				es, err := x.QueueScan(c.tab.Primary(), tables.First, tables.Last, 0).Entries()
				if err == nil && (len(es) != 1 || es[0].Key != c.good) {
					err = fmt.Errorf("the table holds %v", es)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
}
