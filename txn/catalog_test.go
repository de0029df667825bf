package txn_test

import (
	"errors"
	"testing"

	"drtmx/tables"
	"drtmx/txn"
)

// TestTablesOfAnotherCatalogue uses tables that the database does not have, in
// the places of tables that it has. Every method refuses them, and the
// transaction goes on. A table that is defined alike in another catalogue is
// the database's own.
func TestTablesOfAnotherCatalogue(t *testing.T) {
	r := newRig(t, 1, txn.Config{}, nil)
	def := tables.Def{
		Name: "pale", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: r.wide.Def().Columns,
	}
	wide := r.wide.Def()
	wide.Primary = tables.Hash
	alike, err := tables.NewCatalog(r.text.Def(), r.wide.Def()) // in another order
	if err != nil {
		t.Fatal(err)
	}
	other, err := tables.NewCatalog(def, wide)
	if err != nil {
		t.Fatal(err)
	}
	key, row := tables.Num(7), r.wide.NewRow()
	for _, tab := range append(other.Tables, nil) {
		name, ix := "nil", (*tables.Index)(nil)
		if tab != nil {
			name, ix = tab.Name(), tab.Primary()
		}
		refused := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, tables.ErrCatalog) {
				t.Errorf("%s of table %s: %v", what, name, err)
			}
		}
		if err := r.DB.Update(t.Context(), func(x *txn.Txn) error {
			_, err := x.Get(tab, key)
			refused("Get", err)
			_, err = x.QueueGet(tab, key).Row()
			refused("QueueGet", err)
			_, err = x.QueueScan(ix, tables.First, tables.Last, 0).Entries()
			refused("Scan", err)
			refused("Insert", x.Insert(tab, key, row))
			refused("Put", x.Put(tab, key, row))
			refused("Update", x.Update(tab, key, row))
			refused("Delete", x.Delete(tab, key))
			return x.Put(alike.MustTable("wide"), tables.Num(9), row)
		}); err != nil {
			t.Fatal(err)
		}
		_, err := r.DB.Home(tab, key)
		refused("Home", err)
		_, err = r.DB.NewLoader(t.Context(), tab)
		refused("NewLoader", err)
	}
	if err := r.DB.View(t.Context(), func(x *txn.Txn) error {
		for _, tab := range r.Cluster.DB.Catalog().Tables {
			rows, err := x.QueueScan(tab.Primary(), tables.First, tables.Last, 0).Entries()
			if err != nil {
				return err
			}
			if tab.Name() == "wide" && (len(rows) != 1 || rows[0].Key != tables.Num(9)) || tab.Name() != "wide" && len(rows) > 0 {
				t.Errorf("table %s holds %v", tab.Name(), rows)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
