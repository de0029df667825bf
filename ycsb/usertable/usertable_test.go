package usertable

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/magiconair/properties"

	"drtmx/tables"
	"drtmx/ycsb/props"
)

func with(pairs ...string) *properties.Properties {
	m := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		m[pairs[i]] = pairs[i+1]
	}
	return properties.LoadMap(m)
}

func layout(t *testing.T, pairs ...string) *Layout {
	t.Helper()
	l, err := Read(with(pairs...))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func catalog(t *testing.T, l *Layout, partitions int) *tables.Catalog {
	t.Helper()
	c, err := l.Catalog(partitions)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// All partitions get about the same number of records, however keys are made.
func TestPartitionsAreEqual(t *testing.T) {
	const records = 20_000
	for _, pairs := range [][]string{
		{"recordcount", "20000"},
		{"recordcount", "20000", "insertorder", "ordered"},
		{"recordcount", "20000", "insertorder", "ordered", "zeropadding", "12"},
		{"recordcount", "20000", "drtmx.partitioning", "hash"},
		{"recordcount", "20000", "keyprefix", "", "zeropadding", "20"},
		{"drtmx.primary", "hash"},
	} {
		for _, parts := range []int{1, 2, 3, 7, 64} {
			l := layout(t, pairs...)
			p := catalog(t, l, parts).MustTable("usertable").Primary().Partition
			counts := make([]int, parts)
			for i := range int64(records) {
				counts[p.Of(tables.Str(l.Keys.Name(i)), parts)]++
			}
			want := float64(records) / float64(parts)
			if lo, hi := float64(slices.Min(counts)), float64(slices.Max(counts)); lo < want*0.7 || hi > want*1.3 {
				t.Errorf("%q in %d partitions: %.0f to %.0f records in one, want about %.0f", pairs, parts, lo, hi, want)
			}
		}
	}
}

func TestFewRecordsInManyPartitions(t *testing.T) {
	l := layout(t, "recordcount", "3", "insertorder", "ordered")
	catalog(t, l, 64)
}

func TestWorkloadNameCarriesTheCatalogue(t *testing.T) {
	c := catalog(t, layout(t, "fieldcount", "3", "table", "people"), 4)
	name, err := WorkloadName(c)
	if err != nil || !IsWorkload(name) || IsWorkload("tpcc") {
		t.Fatal(name, err)
	}
	again, err := ParseWorkload(name)
	if err != nil {
		t.Fatal(err)
	}
	if name2, err := WorkloadName(again); err != nil || name2 != name {
		t.Errorf("%q, %v; want %q", name2, err, name)
	}
	for _, bad := range []string{"tpcc", "ycsb ", "ycsb {}", "ycsb []"} {
		if _, err := ParseWorkload(bad); err == nil {
			t.Errorf("workload %q was accepted", bad)
		}
	}
}

func TestTablesThatDoNotFit(t *testing.T) {
	def := func(change func(*tables.Def)) *tables.Catalog {
		d := catalog(t, layout(t), 1).MustTable("usertable").Def()
		d.Columns = slices.Clone(d.Columns)
		change(&d)
		c, err := tables.NewCatalog(d)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	for want, c := range map[string]*tables.Catalog{
		"has no table usertable": def(func(d *tables.Def) { d.Name = "other" }),
		"has numbers for keys, the properties want drtmx.keys string":    def(func(d *tables.Def) { d.Key = tables.NumberKey }),
		"has 7 fields, the properties want fieldcount 10":                def(func(d *tables.Def) { d.Columns = d.Columns[:7] }),
		"has a column field9 (text), the properties want field9 (bytes)": def(func(d *tables.Def) { d.Columns[9].Type, d.Columns[9].Size = tables.Text, 9 }),
		"fields of at most 50 bytes, the properties want fieldlength 100": def(func(d *tables.Def) {
			for i := range d.Columns {
				d.Columns[i].Size = 50
			}
		}),
		"has the primary index hash, the properties want drtmx.primary ordered": def(func(d *tables.Def) { d.Primary = tables.Hash }),
	} {
		_, err := layout(t).Fits(c, "here", true)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "here") {
			t.Errorf("%v, want %q", err, want)
		}
	}
	larger := def(func(d *tables.Def) { d.Columns = append(d.Columns, tables.Column{Name: "more", Type: tables.Int64}) })
	if _, err := layout(t).Fits(larger, "here", true); err != nil {
		t.Errorf("a table with more columns: %v", err)
	}
	if _, err := layout(t, "scanproportion", "0.5").Fits(def(func(d *tables.Def) { d.Primary = tables.Hash }), "here", false); err == nil {
		t.Error("scans of a hash index were accepted")
	}
}

// Records whose numbers are neighbours have keys far apart if these are spread, and close together if
// they are numbers: the hash of YCSB does not spread them.
func TestSpreadKeys(t *testing.T) {
	near := func(kind string) int {
		l, last, n := layout(t, "drtmx.keys", kind, "recordcount", "1000"), uint64(0), 0
		for i := range int64(256) {
			k, err := l.Key(l.Keys.Name(i))
			if err != nil {
				t.Fatal(err)
			}
			if far := k.Num() - last; i > 0 && min(far, -far) < 1<<44 {
				n++
			}
			last = k.Num()
		}
		return n
	}
	if numbers, spread := near("number"), near("spread"); numbers < 200 || spread > 0 {
		t.Errorf("%d of 255 numbers and %d spread ones are close to the one before, want most and none", numbers, spread)
	}
}

func TestBadLayouts(t *testing.T) {
	for _, pairs := range [][]string{
		{"fieldcount", "0"},
		{"fieldcount", strconv.Itoa(tables.MaxColumns + 1)},
		{"fieldlength", "-1"},
		{"fieldlength", strconv.Itoa(tables.MaxRowBytes)},
		{"drtmx.primary", "tree"},
		{"drtmx.keys", "hashed"},
		{"drtmx.primary", "hash", "drtmx.partitioning", "range"},
		{"drtmx.primary", "hash", "scanproportion", "0.1"},
		{"insertorder", "random"},
		{"zeropadding", "1000"},
	} {
		if _, err := Read(with(pairs...)); !errors.Is(err, props.ErrProperty) {
			t.Errorf("%q: %v", pairs, err)
		}
	}
	for _, name := range []string{"", "A", "a-b", strings.Repeat("a", 100)} {
		if _, err := layout(t, "table", name).Catalog(1); !errors.Is(err, tables.ErrSchema) {
			t.Errorf("table %q: %v", name, err)
		}
	}
}
