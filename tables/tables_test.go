package tables

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"testing"

	"drtmx/internal/testseed"

	"pgregory.net/rapid"
)

func people() Def {
	return Def{
		Name: "people", Primary: Hash, Partition: Partitioning{Kind: ByHash},
		Columns: []Column{
			{Name: "id", Type: Int32},
			{Name: "age", Type: Int16},
			{Name: "cents", Type: Int64},
			{Name: "rate", Type: Float64},
			{Name: "last", Type: Text, Size: 16},
			{Name: "memo", Type: Text, Size: 500},
		},
		Secondary: []Secondary{{
			Name: "by_last", Include: []string{"last", "age", "rate"}, Partition: Partitioning{Kind: ByHash},
			Key: []KeyPart{{"last", 24, Digest}, {"age", 8, Descending}, {"id", 32, Value}},
		}},
	}
}

func TestRowRoundTrip(t *testing.T) {
	c, err := NewCatalog(people())
	if err != nil {
		t.Fatal(err)
	}
	p := c.MustTable("people")
	testseed.Check(t, func(t *rapid.T) {
		r := p.NewRow()
		id, age := rapid.Int32().Draw(t, "id"), rapid.Int16().Draw(t, "age")
		cents, rate := rapid.Int64().Draw(t, "cents"), rapid.Float64().Draw(t, "rate")
		last := rapid.SliceOfN(rapid.Byte(), 0, 16).Draw(t, "last")
		memo := rapid.SliceOfN(rapid.Byte(), 0, 500).Draw(t, "memo")
		r.SetText(p.Field("memo"), make([]byte, 500))
		r.SetInt(p.Field("id"), int64(id))
		r.SetInt(p.Field("age"), int64(age))
		r.SetInt(p.Field("cents"), cents)
		r.SetFloat(p.Field("rate"), rate)
		r.SetText(p.Field("last"), last)
		r.SetText(p.Field("memo"), memo)
		if r.Int(p.Field("id")) != int64(id) || r.Int(p.Field("age")) != int64(age) || r.Int(p.Field("cents")) != cents ||
			math.Float64bits(r.Float(p.Field("rate"))) != math.Float64bits(rate) ||
			string(r.Text(p.Field("last"))) != string(last) || string(r.Text(p.Field("memo"))) != string(memo) {
			t.Fatal("row does not round-trip")
		}
	})
}

func TestSecondaryEntry(t *testing.T) {
	c, err := NewCatalog(people())
	if err != nil {
		t.Fatal(err)
	}
	p := c.MustTable("people")
	ix := p.Secondary("by_last")
	r := p.NewRow()
	r.SetInt(p.Field("id"), 7)
	r.SetInt(p.Field("age"), 40)
	r.SetText(p.Field("last"), []byte("BARBARBAR"))
	key, e, err := ix.Entry(Num(99), r, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := DigestBytes([]byte("BARBARBAR"))&(1<<24-1)<<40 | (255-40)<<32 | 7
	if key != Num(want) || e.Int(ix.Field(PrimaryKey)) != 99 || e.Int(ix.Field("age")) != 40 || string(e.Text(ix.Field("last"))) != "BARBARBAR" {
		t.Fatalf("key %#x want %#x, entry %v", key, want, e)
	}
	r.SetInt(p.Field("age"), 256)
	if _, _, err := ix.Entry(Num(99), r, nil); !errors.Is(err, ErrRow) {
		t.Fatalf("a value that overflows its key part: %v", err)
	}
	r.SetInt(p.Field("age"), -1)
	if _, _, err := ix.Entry(Num(99), r, nil); !errors.Is(err, ErrRow) {
		t.Fatalf("a negative key part: %v", err)
	}
}

func TestCatalogRefusesBadSchemas(t *testing.T) {
	for name, change := range map[string]func(*Def){
		"name":            func(d *Def) { d.Name = "Bad Name" },
		"no columns":      func(d *Def) { d.Columns = nil },
		"repeated column": func(d *Def) { d.Columns[1].Name = "id" },
		"type":            func(d *Def) { d.Columns[0].Type = 77 },
		"text size":       func(d *Def) { d.Columns[4].Size = 0 },
		"row size":        func(d *Def) { d.Columns[4].Size = 65000; d.Columns[5].Size = 65000 },
		"primary":         func(d *Def) { d.Primary = 0 },
		"partition":       func(d *Def) { d.Partition.Kind = 9 },
		"bounds":          func(d *Def) { d.Partition = Partitioning{Kind: ByRange, Bounds: []Key{Num(5), Num(5)}} },
		"shift":           func(d *Def) { d.Partition = Partitioning{Kind: ByBits, Shift: 64} },
		"key column":      func(d *Def) { d.Secondary[0].Key[0].Column = "nope" },
		"key bits":        func(d *Def) { d.Secondary[0].Key[0].Bits = 40 },
		"text as value":   func(d *Def) { d.Secondary[0].Key[0].How = Value },
		"include":         func(d *Def) { d.Secondary[0].Include[0] = "nope" },
		"replicated":      func(d *Def) { d.Partition.Kind = Replicated },
		"load fill":       func(d *Def) { d.LoadFill = 49 },
		"too full":        func(d *Def) { d.LoadFill = 101 },
	} {
		d := people()
		d.Columns = append([]Column(nil), d.Columns...)
		change(&d)
		if _, err := NewCatalog(d); !errors.Is(err, ErrSchema) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := NewCatalog(people(), people()); !errors.Is(err, ErrSchema) {
		t.Errorf("same table twice: %v", err)
	}
}

func TestCatalogCrossesTheNetwork(t *testing.T) {
	c, _ := NewCatalog(people())
	b, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	d, err := ParseCatalog(b)
	if err != nil {
		t.Fatal(err)
	}
	if d.MustTable("people").RowBytes() != c.MustTable("people").RowBytes() || len(d.Indexes) != 2 {
		t.Fatal("layouts differ")
	}
	if _, err := d.Table("nope"); !errors.Is(err, ErrNoTable) {
		t.Fatal(err)
	}
}

func FuzzParseCatalog(f *testing.F) {
	c, _ := NewCatalog(people())
	b, _ := json.Marshal(c)
	f.Add(b)
	f.Add([]byte(`[{"name":"a"}]`))
	d := documents()
	d.Partition = Partitioning{Kind: ByRange, Bounds: []Key{Str("k")}}
	c, _ = NewCatalog(d)
	b, _ = json.Marshal(c)
	f.Add(b)
	f.Add(bytes.Replace(b, []byte(`"aw=="`), []byte("null,-1"), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		if c, err := ParseCatalog(b); err == nil && len(c.Tables) == 0 {
			t.Fatal("an empty catalogue was accepted")
		}
	})
}
