package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// What must hold when a column is added:
//
//   - A row that has not been written since has the default in it, for every
//     reader.
//   - A program that does not know the column reads the others as before.
//   - What a program that does not know the column writes changes nothing in it.

// growing are tables of every kind to which columns can be added.
func growing() (defs []tables.Def) {
	for _, primary := range []tables.IndexKind{tables.Hash, tables.Ordered} {
		for _, key := range []tables.KeyKind{tables.NumberKey, tables.StringKey} {
			for _, bytes := range []bool{false, true} {
				d := tables.Def{
					Name: fmt.Sprintf("g%d%d%v", primary, key, bytes), Primary: primary, Key: key,
					Partition: tables.Partitioning{Kind: tables.ByHash}, Grows: !bytes,
					Columns: []tables.Column{{Name: "a", Type: tables.Int64}, {Name: "b", Type: tables.Text, Size: 7}},
				}
				if bytes {
					d.Columns = append(d.Columns, tables.Column{Name: "c", Type: tables.Bytes, Size: 40})
					d.Secondary = []tables.Secondary{{
						Name: "by_a", Partition: tables.Partitioning{Kind: tables.ByHash}, Include: []string{"c"},
						Key: []tables.KeyPart{{Column: "a", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
					}}
				}
				defs = append(defs, d)
			}
		}
	}
	return defs
}

// later are the columns that the test adds.
var later = []tables.Column{
	{Name: "d", Type: tables.Int16, Default: []byte("-7")},
	{Name: "e", Type: tables.Text, Size: 5, Default: []byte("later")},
	{Name: "f", Type: tables.Bytes, Default: []byte("of any length")},
	{Name: "g", Type: tables.Float64, Default: []byte("0.5")},
	{Name: "h", Type: tables.Bytes},
	{Name: "i", Type: tables.Int64},
}

func growKey(tab *tables.Table, id uint64) tables.Key {
	if tab.Def().Key == tables.StringKey {
		return tables.Str(fmt.Sprintf("key %04d", id))
	}
	return tables.Num(id)
}

// oldRow is a row of the columns of the beginning.
func oldRow(tab *tables.Table, id uint64, a int64) tables.Row {
	row := tab.NewRow()
	row.SetInt(tab.Field("a"), a)
	row.SetText(tab.Field("b"), fmt.Append(nil, "b", id))
	if f, ok := tab.Lookup("c"); ok {
		row.SetBytes(f, fmt.Appendf(nil, "%0*d", id%40, id))
	}
	return row
}

// isOld checks the columns of the beginning.
func isOld(tab *tables.Table, row tables.Row, id uint64, a int64) error {
	want := oldRow(tab, id, a)
	for _, c := range []string{"a", "b", "c"} {
		f, ok := tab.Lookup(c)
		if ok && (row.Int(f) != want.Int(f) || string(row.Text(f)) != string(want.Text(f)) || string(row.Bytes(f)) != string(want.Bytes(f))) {
			return fmt.Errorf("table %s, row %d: column %s: %d %q %q, want %d %q %q", tab.Name(), id, c,
				row.Int(f), row.Text(f), row.Bytes(f), want.Int(f), want.Text(f), want.Bytes(f))
		}
	}
	return tab.CheckRow(row)
}

// hasDefaults checks the columns that were added.
func hasDefaults(tab *tables.Table, row tables.Row, id uint64, d int64) error {
	f := tab.Field
	if row.Int(f("d")) != d || string(row.Text(f("e"))) != "later" || string(row.Bytes(f("f"))) != "of any length" ||
		row.Float(f("g")) != 0.5 || len(row.Bytes(f("h"))) > 0 || row.Int(f("i")) != 0 {
		return fmt.Errorf("table %s, row %d: %d %q %q %v %q %d, want %d and defaults", tab.Name(), id, row.Int(f("d")), row.Text(f("e")),
			row.Bytes(f("f")), row.Float(f("g")), row.Bytes(f("h")), row.Int(f("i")), d)
	}
	return nil
}

const grownRows = 40

// readGrown reads all rows of a table in every way a transaction has.
func readGrown(x *txn.Txn, tab *tables.Table, check func(id uint64, row tables.Row) error) error {
	var keys []tables.Key
	for id := range uint64(grownRows) {
		keys = append(keys, growKey(tab, id))
		row, err := x.Get(tab, keys[id])
		if err = errors.Join(err, check(id, row)); err != nil {
			return err
		}
	}
	rows, err := x.GetMany(tab, keys)
	if err != nil {
		return err
	}
	for id, row := range rows {
		if err := check(uint64(id), row); err != nil {
			return err
		}
	}
	if !tab.Primary().Ordered {
		return nil
	}
	id := uint64(0)
	for e, err := range x.Scan(tab.Primary(), tables.First, tables.Last) {
		if err = errors.Join(err, check(id, e.Row)); err != nil {
			return fmt.Errorf("scan: %w", err)
		}
		id++
	}
	for e, err := range x.ScanReverse(tab.Primary(), tables.First, tables.Last) {
		id--
		if err = errors.Join(err, check(id, e.Row)); err != nil {
			return fmt.Errorf("reverse scan: %w", err)
		}
	}
	es, err := x.QueueScan(tab.Primary(), tables.First, tables.Last, 0).Entries()
	if err != nil || len(es) != grownRows {
		return fmt.Errorf("%d rows, %w", len(es), err)
	}
	for id, e := range es {
		if err := check(uint64(id), e.Row); err != nil {
			return fmt.Errorf("scan of all: %w", err)
		}
	}
	return nil
}

// TestAddColumn adds columns of every type to tables of every kind, beside a
// client that does not hear of it and writes on, and one that writes the new
// columns.
func TestAddColumn(t *testing.T) {
	t.Parallel()
	const untouched = grownRows - 1 // this row stays as it was before the columns
	alterFabrics(t, func(t *testing.T, r *alterRig) {
		db := r.open(t, rdma.RoleLoader, txn.Config{})
		var before []*tables.Table
		for _, d := range growing() {
			tab, err := db.AddTable(t.Context(), d)
			if err != nil {
				t.Fatal(err)
			}
			before = append(before, tab)
			if err := db.Update(t.Context(), func(x *txn.Txn) error {
				for id := range uint64(grownRows) {
					if err := x.Insert(tab, growKey(tab, id), oldRow(tab, id, 0)); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		old := r.open(t, rdma.RoleWriter, txn.Config{})
		a := make([][grownRows]int64, len(before)) // what the old client has written
		var done atomic.Bool
		var wg sync.WaitGroup
		stop := func() { done.Store(true); wg.Wait() }
		defer stop()
		writes := 0
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(3, 4))
			for ; !done.Load(); writes++ {
				i, id := rnd.IntN(len(before)), rnd.Uint64N(untouched)
				tab, v := before[i], a[i][id]+1
				if err := old.Update(context.Background(), func(x *txn.Txn) error { return writeOld(x, tab, id, v, writes%3) }); err != nil {
					t.Errorf("the old client: table %s, row %d, way %d: %v", tab.Name(), id, writes%3, err)
					return
				}
				a[i][id] = v
			}
		})
		var after []*tables.Table
		for _, tab := range before {
			var grown *tables.Table
			for _, c := range later {
				var err error
				if grown, err = db.AddColumn(t.Context(), tab.Name(), c); err != nil {
					t.Fatal(err)
				}
			}
			after = append(after, grown)
		}
		d := make([][grownRows]int64, len(before))
		for i := range d {
			for id := range d[i] {
				d[i][id] = -7
			}
		}
		rnd := rand.New(rand.NewPCG(5, 6))
		for n := range int64(300) {
			i, id := rnd.IntN(len(after)), rnd.Uint64N(untouched)
			tab := after[i]
			if err := db.Update(t.Context(), func(x *txn.Txn) error {
				row, err := x.Get(tab, growKey(tab, id))
				if err != nil {
					return err
				}
				row = row.Clone()
				row.SetInt(tab.Field("d"), n)
				return x.Update(tab, growKey(tab, id), row)
			}); err != nil {
				t.Fatal(err)
			}
			d[i][id] = n
		}
		stop()
		for i, tab := range before { // each row once more in each way, over what the new client has written
			for id := range uint64(untouched) {
				for way := range 3 {
					a[i][id]++
					if err := old.Update(t.Context(), func(x *txn.Txn) error { return writeOld(x, tab, id, a[i][id], way) }); err != nil {
						t.Fatalf("the old client: table %s, row %d, way %d: %v", tab.Name(), id, way, err)
					}
				}
			}
		}
		t.Logf("%d writes of the old client beside the change", writes)
		for _, c := range []*txn.DB{db, old, r.open(t, rdma.RoleWriter, txn.Config{}), r.open(t, rdma.RoleWriter, txn.Config{Reads: txn.OrderedByRPC})} {
			look := func(x *txn.Txn) error {
				for i := range after {
					if err := readGrown(x, before[i], func(id uint64, row tables.Row) error { return isOld(before[i], row, id, a[i][id]) }); err != nil {
						return fmt.Errorf("with the definition of before: %w", err)
					}
					if err := readGrown(x, after[i], func(id uint64, row tables.Row) error {
						return errors.Join(isOld(after[i], row, id, a[i][id]), hasDefaults(after[i], row, id, d[i][id]))
					}); err != nil {
						return err
					}
				}
				return nil
			}
			if err := errors.Join(c.View(t.Context(), look), c.Snapshot(t.Context(), look), c.Update(t.Context(), look)); err != nil {
				t.Error(err)
			}
		}
	})
}

// writeOld sets a column with a definition of before others were added.
func writeOld(x *txn.Txn, tab *tables.Table, id uint64, v int64, way int) error {
	key := growKey(tab, id)
	switch way {
	case 0:
		return x.Put(tab, key, oldRow(tab, id, v))
	case 1:
		return x.Update(tab, key, oldRow(tab, id, v))
	}
	row, err := x.Get(tab, key)
	if err != nil {
		return err
	}
	row = row.Clone()
	row.SetInt(tab.Field("a"), v)
	if f, ok := tab.Lookup("c"); ok {
		row.SetBytes(f, nil)
		row.SetBytes(f, oldRow(tab, id, v).Bytes(f))
	}
	return x.Update(tab, key, row)
}

type price struct {
	ID     uint64 `drtmx:"key"`
	Amount int64
}

type priceWithUnit struct {
	ID     uint64 `drtmx:"key"`
	Amount int64
	Unit   string `drtmx:"size=8,default=euro"`
	Digits int32  `drtmx:"added"`
}

var (
	prices      = tables.Of[price]("price", tables.WithGrowth())
	priceTables = tables.Of[priceWithUnit]("price", tables.WithGrowth())
)

// columnProcedures change prices, with the struct of before and that of after
// columns were added. Each uses two rows, which two servers may hold.
func columnProcedures() []txn.Procedure {
	return []txn.Procedure{{Name: "old", Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
		for id := range uint64(2) {
			v := price{ID: binary.LittleEndian.Uint64(args) + id}
			if err := prices.Get(t, &v); err != nil {
				return nil, err
			}
			v.Amount++
			if err := prices.Update(t, &v); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}}, {Name: "new", Body: func(_ context.Context, t *txn.Txn, args []byte) ([]byte, error) {
		for id := range uint64(2) {
			v := priceWithUnit{ID: binary.LittleEndian.Uint64(args) + id}
			if err := priceTables.Get(t, &v); err != nil {
				return nil, err
			}
			v.Digits++
			if err := priceTables.Update(t, &v); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}}}
}

// TestAddColumnToStructs: programs with the struct of before and of after share
// a table, as clients and in procedures.
func TestAddColumnToStructs(t *testing.T) {
	r := inprocRig(t, 1<<26, 1<<26)
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	if _, err := db.AddTable(t.Context(), prices); err != nil {
		t.Fatal(err)
	}
	const n = 16
	load, err := db.NewLoader(t.Context(), prices.Table())
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(n) {
		if err := prices.Add(load, &price{ID: id, Amount: 100}); err != nil {
			t.Fatal(err)
		}
	}
	if err := load.Close(); err != nil {
		t.Fatal(err)
	}
	late, err := db.NewLoader(t.Context(), prices.Table())
	if err != nil {
		t.Fatal(err)
	}
	call := func(db *txn.DB, proc string, from uint64) {
		t.Helper()
		h, err := db.Home(prices.Table(), tables.Num(from))
		if err == nil {
			_, err = db.Call(t.Context(), h, proc, binary.LittleEndian.AppendUint64(nil, from))
		}
		if err != nil {
			t.Errorf("procedure %s of %d: %v", proc, from, err)
		}
	}
	old, blind := r.open(t, rdma.RoleWriter, txn.Config{}), r.open(t, rdma.RoleWriter, txn.Config{})
	for id := range uint64(n - 1) {
		call(old, "old", id)
	}
	cols := priceTables.Table().Def().Columns
	for range 2 { // repeated
		for _, c := range cols[1:] {
			c.Since = 0
			if _, err := db.AddColumn(t.Context(), "price", c); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := r.agree(3); err != nil {
		t.Error(err)
	}
	for id := range uint64(n - 1) {
		call(old, "old", id)
		call(old, "new", id)
	}
	if blind.Catalog().Version() != 1 {
		t.Errorf("a client that did nothing has version %d", blind.Catalog().Version())
	}
	if err := blind.Update(t.Context(), func(x *txn.Txn) error { return prices.Put(x, &price{ID: 5, Amount: 104}) }); err != nil {
		t.Errorf("a blind write by a client of before: %v", err)
	}
	if err := old.View(t.Context(), func(x *txn.Txn) error {
		for id := range uint64(n) {
			touched := int64(2)
			if id == 0 || id == n-1 {
				touched = 1
			}
			v, was := priceWithUnit{ID: id}, price{ID: id}
			if err := errors.Join(priceTables.Get(x, &v), prices.Get(x, &was)); err != nil {
				return err
			}
			if v != (priceWithUnit{id, 100 + 2*touched, "euro", int32(touched)}) || was.Amount != v.Amount {
				t.Errorf("price %v, %v", v, was)
			}
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if err := errors.Join(prices.Add(late, &price{ID: 1}), late.Close()); !errors.Is(err, tables.ErrCatalog) {
		t.Errorf("a loader of before the change: %v", err)
	}
}

// TestBadColumns: columns that a table cannot have are refused, and a column is
// added once.
func TestBadColumns(t *testing.T) {
	r := inprocRig(t, 1<<26, 1<<26)
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	if _, err := db.AddTable(t.Context(), prices); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]tables.Column{
		"account": {Name: "unit", Type: tables.Int64}, // its rows have one size
		"nothing": {Name: "unit", Type: tables.Int64},
		"price":   {Name: "amount", Type: tables.Int64},
	} {
		if _, err := db.AddColumn(t.Context(), name, c); !errors.Is(err, tables.ErrSchema) {
			t.Errorf("a column of table %s: %v", name, err)
		}
	}
	for _, c := range []tables.Column{
		{Name: "x", Type: tables.Int16, Default: []byte("40000")},
		{Name: "x", Type: tables.Int64, Default: []byte("one")},
		{Name: "x", Type: tables.Float64, Default: []byte("")},
		{Name: "x", Type: tables.Text, Size: 2, Default: []byte("abc")},
		{Name: "x", Type: tables.Text},
		{Name: "X", Type: tables.Int64},
		{Name: "x"},
	} {
		if _, err := db.AddColumn(t.Context(), "price", c); !errors.Is(err, tables.ErrSchema) {
			t.Errorf("column %+v: %v", c, err)
		}
	}
	if err := r.agree(1); err != nil {
		t.Error(err)
	}
}

// TestOldVersionIsRefused sends commits of several versions of the catalogue to
// a partition: those that do not know a column, or know one that the partition
// does not, must not write the table.
func TestOldVersionIsRefused(t *testing.T) {
	r := inprocRig(t, 1<<26, 1<<26)
	db := r.open(t, rdma.RoleLoader, txn.Config{})
	tab, err := db.AddTable(t.Context(), prices)
	if err == nil {
		_, err = db.AddColumn(t.Context(), "price", tables.Column{Name: "unit", Type: tables.Int64})
	}
	if err != nil {
		t.Fatal(err)
	}
	p, entry := r.servers[0].parts.of[0], r.cat.MustTable("entry").Primary()
	for version := range uint32(5) {
		row := make([]byte, 8)
		writes := map[string]wire.Write{
			"price": {Index: uint16(tab.Primary().ID), Op: wire.Put, Row: row, Strings: true},
			"entry": {Index: uint16(entry.ID), Op: wire.Put, Row: row},
		}
		for name, w := range writes {
			if w.Strings {
				w.Key.Str = fmt.Sprintf("%08d", version)
			} else {
				w.Key.Num = uint64(version)
			}
			part := &wire.Part{Catalog: version, Writes: []wire.Write{w}}
			p.mu.Lock()
			v := p.commit(part)
			p.mu.Unlock()
			if ok := version == 2 || name == "entry" && version < 2; v.ok() != ok {
				t.Errorf("a write of version %d to table %s: %v", version, name, v)
			}
		}
	}
}
