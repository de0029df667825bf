package tables_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"drtmx/tables"
)

// Each engine takes only the tables that it can have, and says why.
func TestEngines(t *testing.T) {
	number := []tables.Column{{Name: "n", Type: tables.Int64}}
	def := func(change func(d *tables.Def)) tables.Def {
		d := tables.Def{Name: "t", Primary: tables.Ordered, Engine: tables.Rolex, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: number}
		change(&d)
		return d
	}
	for _, c := range []struct {
		name string
		d    tables.Def
		want string // of the error; empty: it is fine
	}{
		{"rolex", def(func(*tables.Def) {}), ""},
		{"xstore by name", def(func(d *tables.Def) { d.Engine, d.Key = tables.XStore, tables.StringKey }), ""},
		{"unknown", def(func(d *tables.Def) { d.Engine = "btree" }), `table t: engine "btree", want "xstore", "rolex" or "finestore"`},
		{"hash", def(func(d *tables.Def) { d.Primary = tables.Hash }), "engine rolex has ordered primary indexes only"},
		{"string keys", def(func(d *tables.Def) { d.Key = tables.StringKey }), "engine rolex has number keys only"},
		{"bytes", def(func(d *tables.Def) { d.Columns = []tables.Column{{Name: "b", Type: tables.Bytes}} }), "engine rolex has rows of one size only"},
		{"growing", def(func(d *tables.Def) { d.Grows = true }), "engine rolex has rows of one size only"},
		{"large rows", def(func(d *tables.Def) { d.Columns = []tables.Column{{Name: "s", Type: tables.Text, Size: 3000}} }), "rows of at most 2048 bytes, and these have 30"},
		{"finestore", def(func(d *tables.Def) {
			d.Engine, d.LoadFill, d.Columns = tables.FineStore, 80, []tables.Column{{Name: "s", Type: tables.Text, Size: 3000}}
		}), ""},
		{"hash with finestore", def(func(d *tables.Def) { d.Engine, d.Primary = tables.FineStore, tables.Hash }), "engine finestore has ordered primary indexes only"},
		{"finestore with string keys", def(func(d *tables.Def) { d.Engine, d.Key = tables.FineStore, tables.StringKey }), "engine finestore has number keys only"},
		{"load fill", def(func(d *tables.Def) { d.LoadFill = 80 }), "engine rolex has no load fill"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := tables.NewCatalog(c.d)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (!errors.Is(err, tables.ErrSchema) || !strings.Contains(err.Error(), c.want)):
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}

	cat, err := tables.NewCatalog(def(func(d *tables.Def) {
		d.Secondary = []tables.Secondary{{
			Name: "by_n", Partition: tables.Partitioning{Kind: tables.ByHash},
			Key: []tables.KeyPart{{Column: "n", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
		}}
	}))
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(cat)
	if err != nil {
		t.Fatal(err)
	}
	if cat, err = tables.ParseCatalog(b); err != nil {
		t.Fatal(err)
	}
	tab := cat.MustTable("t")
	if ix := tab.Primary(); ix.Engine != tables.Rolex || ix.KeepsVersions() || !ix.KeepsInMemory() {
		t.Errorf("the primary index after a round trip is of engine %q", ix.Engine)
	}
	if ix := tab.Secondary("by_n"); ix.Engine != tables.XStore || !ix.KeepsVersions() || ix.KeepsInMemory() {
		t.Errorf("the secondary index is of engine %q", ix.Engine)
	}
	_, err = cat.With(tables.Change{Index: &tables.AddedIndex{Table: "t", Index: tables.Secondary{
		Name: "later", Partition: tables.Partitioning{Kind: tables.ByHash}, Key: []tables.KeyPart{{Column: "n", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
	}}})
	if want := "an index cannot be added later to a table of engine rolex"; !errors.Is(err, tables.ErrSchema) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}

	same, err := tables.NewCatalog(tables.Def{Name: "t", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: number})
	if err != nil {
		t.Fatal(err)
	}
	named, err := tables.NewCatalog(def(func(d *tables.Def) { d.Engine = tables.XStore }))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := same.Resolve(named.MustTable("t")); err != nil {
		t.Errorf("the default engine by its name: %v", err)
	}
	if other, err := tables.NewCatalog(def(func(*tables.Def) {})); err != nil {
		t.Error(err)
	} else if _, err := same.Resolve(other.MustTable("t")); !errors.Is(err, tables.ErrCatalog) {
		t.Errorf("a table of another engine passes for the same: %v", err)
	}
}
