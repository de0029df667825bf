package tables

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"drtmx/index"
)

func documents() Def {
	return Def{
		Name: "documents", Key: StringKey, Primary: Ordered, Partition: Partitioning{Kind: ByHash},
		Columns: []Column{
			{Name: "stars", Type: Int32},
			{Name: "title", Type: Bytes, Size: 40},
			{Name: "tag", Type: Text, Size: 8},
			{Name: "body", Type: Bytes},
			{Name: "note", Type: Bytes, Size: 300},
		},
		Secondary: []Secondary{{
			Name: "by_title", Include: []string{"stars", "title"}, Partition: Partitioning{Kind: ByPrefix, Prefix: 2},
			Key: []KeyPart{{Column: "title", How: Sorted}, {Column: "stars", How: Sorted}, {Column: PrimaryKey, How: Sorted}},
		}, {
			Name: "by_stars", Partition: Partitioning{Kind: ByHash},
			Key: []KeyPart{{"stars", 16, Descending}, {"body", 40, Digest}},
		}},
	}
}

func TestVariableRowsAgainstAMap(t *testing.T) {
	c, err := NewCatalog(documents())
	if err != nil {
		t.Fatal(err)
	}
	tab := c.MustTable("documents")
	fields := []Field{tab.Field("title"), tab.Field("body"), tab.Field("note")}
	rapid.Check(t, func(t *rapid.T) {
		r := tab.NewRow()
		want := make([][]byte, len(fields))
		for range rapid.IntRange(0, 12).Draw(t, "writes") {
			i := rapid.IntRange(0, len(fields)-1).Draw(t, "column")
			v := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "value")
			r, want[i] = r.SetBytes(fields[i], v), v
			r.SetInt(tab.Field("stars"), -5)
			r.SetText(tab.Field("tag"), []byte("draft"))
			for j, f := range fields {
				if !bytes.Equal(r.Bytes(f), want[j]) {
					t.Fatalf("column %d is %q, want %q", j, r.Bytes(f), want[j])
				}
			}
			if r.Int(tab.Field("stars")) != -5 || string(r.Text(tab.Field("tag"))) != "draft" {
				t.Fatal("a fixed column has changed")
			}
			total := tab.RowBytes()
			for _, w := range want {
				total += len(w)
			}
			if err := tab.CheckRow(r); err != nil || len(r) != roundUp(total) {
				t.Fatalf("%v; %d bytes, want %d", err, len(r), roundUp(total))
			}
		}
	})
}

func TestRowsThatDoNotFitAreRefused(t *testing.T) {
	c, _ := NewCatalog(documents())
	tab := c.MustTable("documents")
	body := tab.Field("body")
	good := tab.NewRow().SetBytes(body, make([]byte, 100))
	for name, row := range map[string]Row{
		"short":       good[:8],
		"ragged":      good[:len(good)-3],
		"too long":    tab.NewRow().SetBytes(body, make([]byte, MaxRowBytes)),
		"past end":    good[:len(good)-16],
		"wild offset": func() Row { r := good.Clone(); setExtent(r, body.off, 1<<31, 5); return r }(),
		"into fixed":  func() Row { r := good.Clone(); setExtent(r, body.off, 0, 5); return r }(),
		"above size":  func() Row { r := good.Clone(); setExtent(r, tab.Field("title").off, tab.rowBytes, 41); return r }(),
	} {
		if err := tab.CheckRow(row); !errors.Is(err, ErrRow) {
			t.Errorf("%s: %v", name, err)
		}
		if len(row) >= tab.rowBytes {
			_ = row.Bytes(body) // does not panic
		}
	}
}

func TestSortedKeysOrderAsTheirColumns(t *testing.T) {
	c, _ := NewCatalog(documents())
	tab := c.MustTable("documents")
	ix := tab.Secondary("by_title")
	if ix.Key != StringKey || !ix.Strings || tab.Secondary("by_stars").Key != NumberKey || !tab.Secondary("by_stars").Strings {
		t.Fatal("kinds of the secondary keys")
	}
	type doc struct {
		title, key []byte
		stars      int32
	}
	alphabet := rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 0xfe, 0xff}), 0, 5)
	draw := func(t *rapid.T) doc {
		return doc{alphabet.Draw(t, "title"), alphabet.Draw(t, "key"), rapid.Int32().Draw(t, "stars")}
	}
	key := func(t *rapid.T, d doc) index.Key {
		r := tab.NewRow()
		r.SetInt(tab.Field("stars"), int64(d.stars))
		r = r.SetBytes(tab.Field("title"), d.title)
		k, e, err := ix.Entry(index.Str(string(d.key)), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(e.Bytes(ix.Field(PrimaryKey)), d.key) || e.Int(ix.Field("stars")) != int64(d.stars) || !bytes.Equal(e.Bytes(ix.Field("title")), d.title) {
			t.Fatal("entry does not hold its row's columns")
		}
		return k
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw(t), draw(t)
		want := bytes.Compare(a.title, b.title)
		if want == 0 && a.stars != b.stars {
			if want = 1; a.stars < b.stars {
				want = -1
			}
		}
		if want == 0 {
			want = bytes.Compare(a.key, b.key)
		}
		if got := key(t, a).Compare(key(t, b)); got != want {
			t.Fatalf("%+v and %+v: keys compare %d, want %d", a, b, got, want)
		}
	})
	long := tab.NewRow().SetBytes(tab.Field("title"), make([]byte, 40))
	if _, _, err := ix.Entry(index.Str(strings.Repeat("k", index.MaxKeyBytes)), long, nil); !errors.Is(err, ErrKey) {
		t.Errorf("a secondary key above the bound: %v", err)
	}
}

func TestStringSpanAgreesWithPartition(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 7).Draw(t, "n")
		ix := &Index{Key: StringKey, Strings: true, Partition: rapid.SampledFrom([]Partitioning{
			{Kind: ByHash}, {Kind: ByPrefix, Prefix: 2}, {Kind: ByRange, StringBounds: [][]byte{[]byte("b"), []byte("ba"), []byte("z")}}, {Kind: Replicated},
		}).Draw(t, "p")}
		key := func(name string) index.Key {
			return index.Str(string(rapid.SliceOfN(rapid.SampledFrom([]byte("abz")), 0, 4).Draw(t, name)))
		}
		lo, hi, k := key("lo"), key("hi"), key("k")
		if lo.Compare(hi) > 0 {
			lo, hi = hi, lo
		}
		first, last, _ := ix.Span(lo, hi, n)
		part := ix.PartitionOf(k, n)
		if k.Compare(lo) >= 0 && k.Compare(hi) <= 0 && ix.Partition.Kind != Replicated && (part < first || part > last) {
			t.Fatalf("%v lies in partition %d, the span of %v to %v is %d to %d", k, part, lo, hi, first, last)
		}
	})
}

func TestNumberKeysOfVariableRows(t *testing.T) {
	d := documents()
	d.Key, d.Secondary = NumberKey, nil
	c, err := NewCatalog(d)
	if err != nil {
		t.Fatal(err)
	}
	ix := c.MustTable("documents").Primary()
	rapid.Check(t, func(t *rapid.T) {
		a, b := rapid.Uint64().Draw(t, "a"), rapid.Uint64().Draw(t, "b")
		ka, kb := index.Str(string(index.AppendNum(nil, a))), index.Str(string(index.AppendNum(nil, b)))
		if ix.Number(ka) != a || ix.PartitionOf(ka, 5) != ix.Partition.Of(a, 5) || ka.Compare(kb) != index.Num(a).Compare(index.Num(b)) {
			t.Fatalf("%d and %d", a, b)
		}
	})
	if err := ix.CheckKey([]byte("k")); !errors.Is(err, ErrKey) {
		t.Error(err)
	}
}

func TestStringSchemas(t *testing.T) {
	for name, change := range map[string]func(*Def){
		"key kind":          func(d *Def) { d.Key = 7 },
		"bits of a string":  func(d *Def) { d.Partition = Partitioning{Kind: ByBits} },
		"number bounds":     func(d *Def) { d.Partition = Partitioning{Kind: ByRange, Bounds: []uint64{4}} },
		"bounds":            func(d *Def) { d.Partition = Partitioning{Kind: ByRange, StringBounds: [][]byte{{2}, {1}}} },
		"prefix":            func(d *Def) { d.Partition = Partitioning{Kind: ByPrefix} },
		"prefix of numbers": func(d *Def) { d.Key, d.Partition = NumberKey, Partitioning{Kind: ByPrefix, Prefix: 2} },
		"size":              func(d *Def) { d.Columns[1].Size = MaxRowBytes + 1 },
		"sorted bits":       func(d *Def) { d.Secondary[0].Key[0].Bits = 8 },
		"key as a value":    func(d *Def) { d.Secondary[0].Key[2].How = Value },
		"no parts":          func(d *Def) { d.Secondary[0].Key = nil },
		"second's prefix":   func(d *Def) { d.Secondary[0].Partition.Prefix = 0 },
	} {
		d := documents()
		d.Columns = append([]Column(nil), d.Columns...)
		change(&d)
		if _, err := NewCatalog(d); !errors.Is(err, ErrSchema) {
			t.Errorf("%s: %v", name, err)
		}
	}
	c, err := NewCatalog(documents())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Indexes[0].CheckNumber(3); !errors.Is(err, ErrKey) {
		t.Error(err)
	}
	if err := c.Indexes[0].CheckKey(make([]byte, index.MaxKeyBytes+1)); !errors.Is(err, ErrKey) {
		t.Error(err)
	}
	b, _ := json.Marshal(c)
	again, err := ParseCatalog(b)
	if err != nil {
		t.Fatal(err)
	}
	if b2, _ := json.Marshal(again); !bytes.Equal(b, b2) || again.Indexes[1].Key != StringKey {
		t.Error("the catalogue changes on its way through the network")
	}
}
