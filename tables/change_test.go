package tables_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"drtmx/internal/testseed"
	"drtmx/tables"
)

func changeDef(name string, k tables.IndexKind) tables.Def {
	return tables.Def{
		Name: name, Primary: k, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "a", Type: tables.Int64}, {Name: "b", Type: tables.Text, Size: 8}},
		Secondary: []tables.Secondary{{
			Name: "by_a", Partition: tables.Partitioning{Kind: tables.ByHash},
			Key: []tables.KeyPart{{Column: "a", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
		}},
	}
}

func encode(t *testing.T, c *tables.Catalog) []byte {
	t.Helper()
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestCatalogVersions: a change keeps tables and the numbers of indexes, and
// every version can be sent.
func TestCatalogVersions(t *testing.T) {
	first, err := tables.NewCatalog(changeDef("x", tables.Hash), changeDef("y", tables.Ordered))
	if err != nil {
		t.Fatal(err)
	}
	versions := []*tables.Catalog{first}
	for i := range 3 {
		d := changeDef(fmt.Sprint("t", i), tables.Ordered)
		next, err := versions[i].With(tables.Change{Table: &d})
		if err != nil {
			t.Fatal(err)
		}
		if again, err := next.With(tables.Change{Table: &d}); again != next || err != nil {
			t.Errorf("the same change again: %v, %v", again, err)
		}
		versions = append(versions, next)
	}
	for v, c := range versions {
		if c.Version() != v || len(c.Tables) != 2+v {
			t.Errorf("version %d is numbered %d and has %d tables", v, c.Version(), len(c.Tables))
		}
		for id, ix := range c.Indexes {
			if ix.ID != id {
				t.Errorf("version %d has index %d as number %d", v, ix.ID, id)
			}
		}
		for _, o := range versions {
			for _, tab := range o.Tables {
				own, err := c.Resolve(tab)
				if has := tab.Primary().ID < len(c.Indexes); has && own != tab || !has && !errors.Is(err, tables.ErrCatalog) {
					t.Errorf("version %d has of version %d table %s: %v, %v", v, o.Version(), tab.Name(), own, err)
				}
				ix := tab.Secondary("by_a")
				if got, err := c.ResolveIndex(ix); err == nil && got != ix {
					t.Errorf("version %d has index %s as %s", v, ix.Name, got.Name)
				}
			}
			got, err := c.Follow(encode(t, o))
			if want := versions[max(v, o.Version())]; err != nil || got.Version() != want.Version() {
				t.Fatalf("version %d follows %d: %v, %v", v, o.Version(), got, err)
			}
			for i, tab := range c.Tables {
				if got.Tables[i] != tab {
					t.Errorf("version %d follows %d: table %s is another", v, o.Version(), tab.Name())
				}
			}
			parsed, err := tables.ParseCatalog(encode(t, o))
			if err != nil || parsed.Version() != o.Version() || len(parsed.Indexes) != len(o.Indexes) {
				t.Errorf("version %d is read as %v, %v", o.Version(), parsed, err)
			}
		}
	}
}

// TestBadChanges: what contradicts the catalogue, or is no catalogue of the same
// origin, is refused.
func TestBadChanges(t *testing.T) {
	c, err := tables.NewCatalog(changeDef("x", tables.Hash))
	if err != nil {
		t.Fatal(err)
	}
	other, replicated, bad := changeDef("x", tables.Ordered), changeDef("z", tables.Ordered), changeDef("Z", tables.Ordered)
	replicated.Partition.Kind, replicated.Secondary = tables.Replicated, nil
	for _, ch := range []tables.Change{{}, {Table: &other}, {Table: &replicated}, {Table: &bad}} {
		if next, err := c.With(ch); !errors.Is(err, tables.ErrSchema) {
			t.Errorf("change %v: %v, %v", ch, next, err)
		}
	}
	foreign, err := tables.NewCatalog(other)
	if err != nil {
		t.Fatal(err)
	}
	if next, err := c.Follow(encode(t, foreign)); !errors.Is(err, tables.ErrCatalog) {
		t.Errorf("another catalogue is followed: %v, %v", next, err)
	}
	full := c
	for i := 1; i < tables.MaxTables; i++ {
		d := changeDef(fmt.Sprint("t", i), tables.Hash)
		if full, err = full.With(tables.Change{Table: &d}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := full.With(tables.Change{Table: &tables.Def{}}); !errors.Is(err, tables.ErrSchema) {
		t.Errorf("one table too many: %v", err)
	}
	for _, text := range []string{"", "[]", `{"tables":[]}`, `{"changes":[{}]}`} {
		if _, err := tables.ParseCatalog([]byte(text)); !errors.Is(err, tables.ErrSchema) {
			t.Errorf("%q is a catalogue: %v", text, err)
		}
	}
	b := string(encode(t, c))
	twice := b[:len(b)-1] + `,"changes":[{"table":` + string(must(json.Marshal(changeDef("x", tables.Hash)))) + `}]}`
	if _, err := tables.ParseCatalog([]byte(twice)); !errors.Is(err, tables.ErrSchema) {
		t.Errorf("a change that changes nothing: %v", err)
	}
}

func must(b []byte, err error) []byte {
	if err != nil {
		panic(err)
	}
	return b
}

// TestGrownRows converts random rows between the formats of a table and compares
// their columns with a model.
func TestGrownRows(t *testing.T) {
	seed := testseed.Of(t)
	rnd := rand.New(rand.NewPCG(seed, 1))
	types := []tables.Type{tables.Int64, tables.Int32, tables.Int16, tables.Float64, tables.Text, tables.Bytes}
	for range 300 {
		column := func(i int) tables.Column {
			c := tables.Column{Name: fmt.Sprint("c", i), Type: types[rnd.IntN(len(types))]}
			if c.Type >= tables.Text {
				c.Size = 1 + rnd.IntN(20)
			}
			return c
		}
		d := tables.Def{Name: "t", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash}, Grows: true}
		for i := range 1 + rnd.IntN(4) {
			d.Columns = append(d.Columns, column(i))
		}
		c, err := tables.NewCatalog(d)
		if err != nil {
			t.Fatal(err)
		}
		formats := []*tables.Table{c.Tables[0]}
		for i := range 1 + rnd.IntN(4) {
			col := column(len(d.Columns) + i)
			if rnd.IntN(3) > 0 {
				col.Default = []byte("5")
			}
			if c, err = c.With(tables.Change{Column: &tables.AddedColumn{Table: "t", Column: col}}); err != nil {
				t.Fatal(err)
			}
			formats = append(formats, c.Tables[0])
		}
		now := formats[len(formats)-1]
		from, as := formats[rnd.IntN(len(formats))], formats[rnd.IntN(len(formats))]
		row, model := randomRow(rnd, from)
		arena, grown := now.Upgrade([]byte("before"), row)
		_, seen := now.ToEarlier(as, arena, grown)
		for tab, got := range map[*tables.Table]tables.Row{now: grown, as: seen} {
			if err := tab.CheckRow(got); err != nil {
				t.Fatalf("row of %v as %v: %v", from.Def().Columns, tab.Def().Columns, err)
			}
			for _, col := range tab.Def().Columns {
				want, ok := model[col.Name]
				if !ok {
					want = string(col.Default)
				}
				if text := columnText(got, tab.Field(col.Name)); text != want && (text != "0" || want != "") {
					t.Fatalf("row of %v as %v: column %s is %q, want %q", from.Def().Columns, tab.Def().Columns, col.Name, text, want)
				}
			}
		}
		changed, changes := randomRow(rnd, as)
		merged := now.MergeEarlier(as, changed, grown)
		for _, col := range now.Def().Columns {
			want, ok := changes[col.Name]
			if !ok {
				want = columnText(grown, now.Field(col.Name))
			}
			if text := columnText(merged, now.Field(col.Name)); text != want {
				t.Fatalf("a row of %v merged into one of %v: column %s is %q, want %q", as.Def().Columns, now.Def().Columns, col.Name, text, want)
			}
		}
	}
}

func randomRow(rnd *rand.Rand, tab *tables.Table) (tables.Row, map[string]string) {
	row, model := tab.NewRow(), map[string]string{}
	for _, i := range rnd.Perm(len(tab.Def().Columns)) {
		col := tab.Def().Columns[i]
		f := tab.Field(col.Name)
		switch col.Type {
		case tables.Text:
			row.SetText(f, make([]byte, rnd.IntN(col.Size+1)))
		case tables.Bytes:
			row.SetBytes(f, []byte(strings.Repeat("x", rnd.IntN(col.Size+1))))
		case tables.Float64:
			row.SetFloat(f, rnd.Float64())
		default:
			row.SetInt(f, rnd.Int64N(1<<15))
		}
		model[col.Name] = columnText(row, f)
	}
	return row, model
}

func columnText(row tables.Row, f tables.Field) string {
	switch f.Type() {
	case tables.Text:
		return string(row.Text(f))
	case tables.Bytes:
		return string(row.Bytes(f))
	case tables.Float64:
		return fmt.Sprint(row.Float(f))
	}
	return fmt.Sprint(row.Int(f))
}
