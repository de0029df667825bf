package tables

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	"drtmx/internal/testseed"

	"pgregory.net/rapid"
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
	testseed.Check(t, func(t *rapid.T) {
		r := tab.NewRow()
		want := make([][]byte, len(fields))
		for range rapid.IntRange(0, 12).Draw(t, "writes") {
			i := rapid.IntRange(0, len(fields)-1).Draw(t, "column")
			v := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "value")
			r.SetBytes(fields[i], v)
			want[i] = v
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
	sized := func(f Field, n int) Row {
		r := tab.NewRow()
		r.SetBytes(f, make([]byte, n))
		return r
	}
	good := sized(body, 100)
	for name, row := range map[string]Row{
		"short":       good[:8],
		"ragged":      good[:len(good)-3],
		"too long":    sized(body, MaxRowBytes),
		"past end":    good[:len(good)-16],
		"wild offset": func() Row { r := good.Clone(); setExtent(r, body.off, 1<<31, 5); return r }(),
		"into fixed":  func() Row { r := good.Clone(); setExtent(r, body.off, 0, 5); return r }(),
		"above size":  func() Row { r := good.Clone(); setExtent(r, tab.Field("title").off, tab.RowBytes(), 41); return r }(),
	} {
		if err := tab.CheckRow(row); !errors.Is(err, ErrRow) {
			t.Errorf("%s: %v", name, err)
		}
		if len(row) >= tab.RowBytes() {
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
	key := func(t *rapid.T, d doc) Key {
		r := tab.NewRow()
		r.SetInt(tab.Field("stars"), int64(d.stars))
		r.SetBytes(tab.Field("title"), d.title)
		k, e, err := ix.Entry(Str(d.key), r, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(e.Bytes(ix.Field(PrimaryKey)), d.key) || e.Int(ix.Field("stars")) != int64(d.stars) || !bytes.Equal(e.Bytes(ix.Field("title")), d.title) {
			t.Fatal("entry does not hold its row's columns")
		}
		return k
	}
	testseed.Check(t, func(t *rapid.T) {
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
	long := tab.NewRow()
	long.SetBytes(tab.Field("title"), make([]byte, 40))
	if _, _, err := ix.Entry(Str(strings.Repeat("k", MaxKeyBytes)), long, nil); !errors.Is(err, ErrKey) {
		t.Errorf("a secondary key above the bound: %v", err)
	}
}

func TestPartitionSpanAgreesWithOf(t *testing.T) {
	for kind, c := range map[KeyKind]struct {
		partitions []Partitioning
		key        *rapid.Generator[Key]
	}{
		NumberKey: {[]Partitioning{
			{Kind: ByHash}, {Kind: ByBits, Shift: 8, Base: 1}, {Kind: ByBits, Shift: 40}, {Kind: ByRange, Bounds: []Key{Num(100), Num(5000), Num(1 << 40)}},
		}, rapid.Map(rapid.OneOf(rapid.Uint64Range(0, 1<<42), rapid.Uint64Range(0, 1<<12)), Num)},
		StringKey: {[]Partitioning{
			{Kind: ByHash}, {Kind: ByPrefix, Prefix: 2}, {Kind: ByRange, Bounds: []Key{Str("b"), Str("ba"), Str("z")}},
		}, rapid.Map(rapid.SliceOfN(rapid.SampledFrom([]byte("abz")), 0, 4), Str[[]byte])},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			testseed.Check(t, func(t *rapid.T) {
				n := rapid.IntRange(1, 9).Draw(t, "n")
				p := rapid.SampledFrom(c.partitions).Draw(t, "p")
				keys := []Key{c.key.Draw(t, "a"), c.key.Draw(t, "b"), c.key.Draw(t, "c")}
				slices.SortFunc(keys, Key.Compare)
				lo, k, hi := keys[0], keys[1], keys[2]
				if rapid.Bool().Draw(t, "from the first") {
					lo = First
				}
				if rapid.Bool().Draw(t, "to the last") {
					hi = Last
				}
				first, last := p.Span(lo, hi, n)
				if of := p.Of(k, n); of < first || of > last || first < 0 || last >= n {
					t.Fatalf("key %v is in partition %d, the span of [%v, %v] is %d to %d of %d", k, of, lo, hi, first, last, n)
				}
				if first, last := p.Span(k, k, n); first != last {
					t.Fatalf("key %v alone is in partitions %d to %d", k, first, last)
				}
			})
		})
	}
}

func TestStringSchemas(t *testing.T) {
	for name, change := range map[string]func(*Def){
		"key kind":          func(d *Def) { d.Key = 7 },
		"bits of a string":  func(d *Def) { d.Partition = Partitioning{Kind: ByBits} },
		"number bounds":     func(d *Def) { d.Partition = Partitioning{Kind: ByRange, Bounds: []Key{Num(4)}} },
		"bounds":            func(d *Def) { d.Partition = Partitioning{Kind: ByRange, Bounds: []Key{Str("2"), Str("1")}} },
		"open bound":        func(d *Def) { d.Partition = Partitioning{Kind: ByRange, Bounds: []Key{Last}} },
		"no bound":          func(d *Def) { d.Partition = Partitioning{Kind: ByRange, Bounds: []Key{{}}} },
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
	b, _ := json.Marshal(c)
	again, err := ParseCatalog(b)
	if err != nil {
		t.Fatal(err)
	}
	if b2, _ := json.Marshal(again); !bytes.Equal(b, b2) || again.Indexes[1].Key != StringKey {
		t.Error("the catalogue changes on its way through the network")
	}
}
