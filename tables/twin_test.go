package tables_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"drtmx/tables"
)

// Twins are refused where they make no sense, are part of the definition, and survive changes of the
// table.
func TestTwinDefinitions(t *testing.T) {
	def := func(change func(d *tables.Def)) tables.Def {
		d := tables.Def{
			Name: "t", Primary: tables.Hash, Twin: tables.TwinNext, Partition: tables.Partitioning{Kind: tables.ByHash}, Grows: true,
			Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
		}
		change(&d)
		return d
	}
	for _, c := range []struct {
		d    tables.Def
		want string // of the error; empty: it is fine
	}{
		{def(func(*tables.Def) {}), ""},
		{def(func(d *tables.Def) { d.Twin = tables.TwinLocal }), ""},
		{def(func(d *tables.Def) { d.Twin, d.Key = tables.TwinSync, tables.StringKey }), ""},
		{def(func(d *tables.Def) { d.Twin = "far" }), `table t: twin "far", want "local", "sync" or "next"`},
		{def(func(d *tables.Def) { d.Primary = tables.Ordered }), "a twin of an index that is ordered itself"},
		{def(func(d *tables.Def) { d.Partition.Kind = tables.Replicated }), "a twin of a replicated table"},
	} {
		_, err := tables.NewCatalog(c.d)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, tables.ErrSchema) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}

	cat, err := tables.NewCatalog(def(func(*tables.Def) {}), def(func(d *tables.Def) { d.Name = "u" }))
	if err != nil {
		t.Fatal(err)
	}
	was := cat.MustTable("t").Twin()
	for _, ch := range []tables.Change{
		{Column: &tables.AddedColumn{Table: "t", Column: tables.Column{Name: "m", Type: tables.Int64}}},
		{Index: &tables.AddedIndex{Table: "t", Index: tables.Secondary{
			Name: "by_n", Partition: tables.Partitioning{Kind: tables.ByHash},
			Key: []tables.KeyPart{{Column: "n", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
		}}},
		{Built: &tables.BuiltIndex{Table: "t", Index: "by_n"}},
	} {
		if cat, err = cat.With(ch); err != nil {
			t.Fatal(err)
		}
	}
	b, err := json.Marshal(cat)
	if err != nil {
		t.Fatal(err)
	}
	if cat, err = tables.ParseCatalog(b); err != nil {
		t.Fatal(err)
	}
	tab := cat.MustTable("t")
	ix := tab.Twin()
	switch {
	case ix.ID != was.ID, cat.Indexes[ix.ID] != ix, !ix.IsTwin(), ix.Table != tab, tab.Primary().Ranges() != ix:
		t.Errorf("the twin is index %d, %+v, after changes; it was index %d", ix.ID, ix, was.ID)
	case ix.KeepsVersions(), !ix.KeepsInMemory(), !ix.ShipsTwin(), ix.HasEarlierRows():
		t.Error("a twin of the kind next keeps versions, or can be on disk")
	case len(tab.Maintained()) != 2, tab.Maintained()[1] != ix:
		t.Errorf("maintained are %d indexes", len(tab.Maintained()))
	}
	if own, err := cat.ResolveIndex(was); err != nil || own != ix {
		t.Errorf("the twin of an earlier version resolves to %v: %v", own, err)
	}
}

// The twin's keys are in the next partition, and a range of them is looked for wherever they may be.
func TestTwinPartitions(t *testing.T) {
	for name, p := range map[string]tables.Partitioning{
		"hash":   {Kind: tables.ByHash},
		"bits":   {Kind: tables.ByBits, Shift: 4},
		"ranges": {Kind: tables.ByRange, Bounds: []tables.Key{tables.Num(100), tables.Num(200), tables.Num(300)}},
	} {
		for _, twin := range []tables.Twin{tables.TwinLocal, tables.TwinNext} {
			cat, err := tables.NewCatalog(tables.Def{
				Name: "t", Primary: tables.Hash, Twin: twin, Partition: p, Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
			})
			if err != nil {
				t.Fatal(err)
			}
			tab := cat.MustTable("t")
			own, ix := &tab.Primary().Partition, &tab.Twin().Partition
			for n := 1; n <= 5; n++ {
				for k := uint64(0); k < 400; k += 7 {
					want := own.Of(tables.Num(k), n)
					if twin == tables.TwinNext {
						want = (want + 1) % n
					}
					if got := ix.Of(tables.Num(k), n); got != want {
						t.Fatalf("%s, %s, %d partitions: key %d is in %d, want %d", name, twin, n, k, got, want)
					}
					for _, hi := range []uint64{k, k + 5, k + 150} {
						first, last := ix.Span(tables.Num(k), tables.Num(hi), n)
						for x := k; x <= hi; x++ {
							if at := ix.Of(tables.Num(x), n); at < first || at > last {
								t.Fatalf("%s, %s, %d partitions: %d of %d to %d is in %d, not %d to %d", name, twin, n, x, k, hi, at, first, last)
							}
						}
						if end, ok := ix.Bound(tables.Num(k), n); ok && (end.Num() <= k || ix.Of(tables.Num(end.Num()-1), n) != ix.Of(tables.Num(k), n)) {
							t.Fatalf("%s, %d partitions: the range of key %d ends at %v", name, n, k, end)
						}
					}
				}
			}
		}
	}
}
