package tables

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

// TestSettersReportFaultsWhenTheRowIsWritten sets columns of other types and
// values that do not fit. No setter panics; the row is refused with the first
// fault, whatever is set after it.
func TestSettersReportFaultsWhenTheRowIsWritten(t *testing.T) {
	c, err := NewCatalog(people(), documents())
	if err != nil {
		t.Fatal(err)
	}
	p, d := c.MustTable("people"), c.MustTable("documents")
	for want, fill := range map[string]func(*Row){
		"people: column age: the integer 32768 for type int16":         func(r *Row) { r.SetInt(p.Field("age"), 1<<15) },
		"people: column id: the integer -2147483649 for type int32":    func(r *Row) { r.SetInt(p.Field("id"), -1<<31-1) },
		"people: column last: the integer 1 for type text":             func(r *Row) { r.SetInt(p.Field("last"), 1) },
		"people: column rate: the integer 1 for type float64":          func(r *Row) { r.SetInt(p.Field("rate"), 1) },
		"people: column cents: a floating-point number for type int64": func(r *Row) { r.SetFloat(p.Field("cents"), 1) },
		"people: column id: a text for type int32":                     func(r *Row) { r.SetText(p.Field("id"), []byte("x")) },
		"people: column last: 17 bytes for a text of at most 16":       func(r *Row) { r.SetText(p.Field("last"), make([]byte, 17)) },
		"people: column last: bytes for type text":                     func(r *Row) { r.SetBytes(p.Field("last"), nil) },
		"people: column cents: the row of 40 bytes is not of its table": func(r *Row) {
			*r = d.NewRow()
			r.SetInt(p.Field("cents"), 1)
		},
		"people: column none: the row of 544 bytes is not of its table": func(r *Row) { r.SetInt(Field{}, 1) },
	} {
		row := p.NewRow()
		fill(&row)
		row.SetInt(p.Field("age"), 7)
		row.SetBytes(p.Field("age"), nil)
		row.SetFloat(p.Field("last"), 7)
		row.SetText(p.Field("last"), nil)
		if err := p.CheckRow(row); !errors.Is(err, ErrRow) || err.Error() != ErrRow.Error()+": table "+want {
			t.Errorf("want %s, got %v", want, err)
		}
		if err := row.Clone().Err(); !errors.Is(err, ErrRow) {
			t.Errorf("%s: Err of a clone is %v", want, err)
		}
	}
	row := d.NewRow()
	row.SetBytes(d.Field("title"), make([]byte, 41))
	if err := d.CheckRow(row); !errors.Is(err, ErrRow) || !strings.Contains(err.Error(), "documents: column title: 41 bytes for a column of at most 40") {
		t.Error(err)
	}
	row = d.NewRow()
	setExtent(row, d.Field("title").off, 1<<20, 4)
	row.SetBytes(d.Field("body"), []byte("x"))
	if err := row.Err(); !errors.Is(err, ErrRow) {
		t.Errorf("a value set in a row with a wild offset: %v", err)
	}
	if err := d.NewRow().Err(); err != nil {
		t.Errorf("a new row has the fault %v", err)
	}
}

// TestGettersOfOtherTypes reads columns by getters of other types, and short
// rows: all return zero.
func TestGettersOfOtherTypes(t *testing.T) {
	c, err := NewCatalog(people(), documents())
	if err != nil {
		t.Fatal(err)
	}
	full := Row(bytes.Repeat([]byte{1, 0}, 400))
	for _, tab := range c.Tables {
		for _, col := range tab.Def().Columns {
			f := tab.Field(col.Name)
			if f.Name() != col.Name || f.Type() != col.Type {
				t.Errorf("field %s has the name %s and the type %v", col.Name, f.Name(), f.Type())
			}
			for n := 0; n <= tab.RowBytes(); n += 4 {
				r := full[:n]
				number := col.Type == Int16 || col.Type == Int32 || col.Type == Int64
				if got := r.Int(f); got != 0 && (!number || n <= f.off) {
					t.Errorf("Int of %s in %d bytes: %d", col.Name, n, got)
				}
				if got := r.Float(f); got != 0 && (col.Type != Float64 || n <= f.off) {
					t.Errorf("Float of %s in %d bytes: %v", col.Name, n, got)
				}
				if got := r.Text(f); got != nil && (col.Type != Text || n <= f.off) {
					t.Errorf("Text of %s in %d bytes: %v", col.Name, n, got)
				}
				if got := r.Bytes(f); got != nil && (col.Type != Bytes || n <= f.off) {
					t.Errorf("Bytes of %s in %d bytes: %v", col.Name, n, got)
				}
			}
		}
	}
	for _, k := range []Key{{}, First, Last, Str("x")} {
		if k.Num() != 0 || k.Is(NumberKey) {
			t.Errorf("%v as a number: %d", k, k.Num())
		}
	}
	for _, k := range []Key{{}, First, Last, Num(7)} {
		if k.Bytes() != nil || k.Is(StringKey) {
			t.Errorf("%v as bytes: %v", k, k.Bytes())
		}
	}
	if !Num(0).Is(NumberKey) || !Str("").Is(StringKey) {
		t.Error("keys are not of their own kinds")
	}
}

// TestCatalogReportsAllFaults checks that one error names every fault.
func TestCatalogReportsAllFaults(t *testing.T) {
	d := people()
	d.Columns = append([]Column(nil), d.Columns...)
	d.Columns[1].Type = 77
	d.Columns[4].Size = 0
	d.Primary, d.Partition.Kind = 0, 9
	d.Secondary = []Secondary{{Name: "Bad", Include: []string{"nope"}, Key: []KeyPart{{"gone", 4, Value}, {"rate", 4, Value}}}}
	_, err := NewCatalog(d, people(), Def{Name: "Empty"})
	if !errors.Is(err, ErrSchema) {
		t.Fatal(err)
	}
	for _, want := range []string{
		"column age: type 77", "column last: text of 0 bytes", "people: primary index kind 0", "people: partition kind 9",
		"people.Bad: name is malformed", `people.Bad: included column "nope"`, `key part "gone": no such column`,
		`key part "rate": a floating-point number`, "people is defined twice", `table name "Empty"`, "Empty: 0 columns",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q:\n%v", want, err)
		}
	}
}

// TestCatalogOwnsItsTables asks a catalogue for its own table of a table or
// index of another one.
func TestCatalogOwnsItsTables(t *testing.T) {
	catalog := func(defs ...Def) *Catalog {
		c, err := NewCatalog(defs...)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	other := people()
	other.Columns = append([]Column{{Name: "first", Type: Int64}}, other.Columns...)
	c := catalog(people(), documents())
	for name, foreign := range map[string]*Catalog{"same": c, "equal": catalog(people(), documents()), "turned": catalog(documents(), people())} {
		for _, tab := range foreign.Tables {
			own, err := c.Resolve(tab)
			if err != nil || own != c.MustTable(tab.Name()) {
				t.Errorf("%s: table %s: %v, %v", name, tab.Name(), own, err)
			}
			for i, ix := range tab.Secondaries() {
				if own, err := c.ResolveIndex(ix); err != nil || own != c.MustTable(tab.Name()).Secondaries()[i] {
					t.Errorf("%s: index %s: %v, %v", name, ix.Name, own, err)
				}
			}
			if own, err := c.ResolveIndex(tab.Primary()); err != nil || own != c.MustTable(tab.Name()).Primary() {
				t.Errorf("%s: primary of %s: %v, %v", name, tab.Name(), own, err)
			}
		}
	}
	for _, tab := range []*Table{nil, catalog(other).MustTable("people"), catalog(Def{
		Name: "x", Primary: Hash,
		Partition: Partitioning{Kind: ByHash}, Columns: people().Columns,
	}).MustTable("x")} {
		if own, err := c.Resolve(tab); !errors.Is(err, ErrCatalog) {
			t.Errorf("table of another catalogue: %v, %v", own, err)
		}
	}
	for _, ix := range []*Index{nil, catalog(other).MustTable("people").Secondary("by_last")} {
		if own, err := c.ResolveIndex(ix); !errors.Is(err, ErrCatalog) {
			t.Errorf("index of another catalogue: %v, %v", own, err)
		}
	}
}
