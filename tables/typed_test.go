package tables

import (
	"bytes"
	"cmp"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"drtmx/internal/mem"
	"drtmx/internal/testseed"
	"pgregory.net/rapid"
)

type everything struct {
	A    int8   `drtmx:"key"`
	B    string `drtmx:"key"`
	C    uint64 `drtmx:"key,index=by_c"`
	D    []byte `drtmx:"key"`
	Flag bool   `drtmx:"index=by_flag"`
	I    int
	I16  int16
	I32  int32
	I64  int64
	U    uint   `drtmx:"index=by_c"`
	U8   uint8  `drtmx:"name=tiny"`
	U16  uint16 `drtmx:"index=by_flag"`
	U32  uint32
	F32  float32
	F64  float64
	Text string `drtmx:"size=12"`
	Name string `drtmx:"index=by_c"`
	Raw  []byte
	inner
	Skipped chan int `drtmx:"-"`
	_       int
}

type inner struct{ InnerID uint64 }

type packed struct {
	A uint16 `drtmx:"key"`
	B int32  `drtmx:"key"`
	C bool   `drtmx:"key"`
	V int64
}

type single struct {
	Name string `drtmx:"key"`
}

type wide struct {
	A int64  `drtmx:"key"`
	B uint64 `drtmx:"key"`
	C int8   `drtmx:"key"`
	V int64
}

var alphabet = rapid.SliceOfN(rapid.SampledFrom([]byte{0, 1, 'a', 0xfe, 0xff}), 0, 4)

// edge draws integers, the ends of their range often.
func edge[T int8 | int32 | int64 | uint16 | uint64](t *rapid.T, label string, g *rapid.Generator[T], ends ...T) T {
	return rapid.OneOf(g, rapid.SampledFrom(ends)).Draw(t, label)
}

func drawEverything(t *rapid.T) everything {
	v := everything{
		A: edge(t, "A", rapid.Int8(), -128, -1, 0, 127), B: string(alphabet.Draw(t, "B")),
		C: edge(t, "C", rapid.Uint64(), 0, 1<<63-1, 1<<63, math.MaxUint64), D: alphabet.Draw(t, "D"),
		Flag: rapid.Bool().Draw(t, "Flag"), I: rapid.Int().Draw(t, "I"), I16: rapid.Int16().Draw(t, "I16"), I32: rapid.Int32().Draw(t, "I32"),
		I64: rapid.Int64().Draw(t, "I64"), U: rapid.Uint().Draw(t, "U"), U8: rapid.Uint8().Draw(t, "U8"), U16: rapid.Uint16().Draw(t, "U16"),
		U32: rapid.Uint32().Draw(t, "U32"), F32: rapid.Float32().Draw(t, "F32"), F64: rapid.Float64().Draw(t, "F64"),
		Text: string(alphabet.Draw(t, "Text")), Name: string(alphabet.Draw(t, "Name")), Raw: alphabet.Draw(t, "Raw"),
	}
	v.InnerID = rapid.Uint64().Draw(t, "InnerID")
	return v
}

// same compares values, an empty []byte being as good as nil.
func same[T any](a, b T) bool {
	x, y := reflect.ValueOf(&a).Elem(), reflect.ValueOf(&b).Elem()
	for i := range x.NumField() {
		if f, g := x.Field(i), y.Field(i); f.Kind() == reflect.Slice && f.Len() == 0 && g.Len() == 0 {
			f.SetZero()
			g.SetZero()
		}
	}
	return reflect.DeepEqual(a, b)
}

// roundTrip encodes v and decodes it again.
func roundTrip[T any](t *rapid.T, table *TableOf[T], v T) {
	var row Row
	s := mem.StructOf(&v)
	table.m.encode(&row, s, table.Table().RowBytes())
	if err := table.Table().CheckRow(row); err != nil {
		t.Fatal(err)
	}
	var got T
	if err := table.decode(&got, table.Key(v), row); err != nil || !same(got, v) {
		t.Fatalf("%+v becomes %+v, %v", v, got, err)
	}
}

func order(parts ...int) int { return cmp.Or(parts...) }

func TestTypedRowsRoundTrip(t *testing.T) {
	all, few, one, big := Of[everything]("a"), Of[packed]("b"), Of[single]("c"), Of[wide]("d")
	if _, err := CatalogOf(all, few, one, big, people()); err != nil {
		t.Fatal(err)
	}
	testseed.Check(t, func(t *rapid.T) {
		v := drawEverything(t)
		roundTrip(t, all, v)
		roundTrip(t, few, packed{uint16(v.U16), v.I32, v.Flag, v.I64})
		roundTrip(t, one, single{v.B})
		roundTrip(t, big, wide{v.I64, v.C, v.A, v.I64})
	})
}

// TestTypedKeysOrderAsTheirFields compares the order of encoded keys, and of
// entries of secondary indexes, with that of the fields, and the bounds of
// prefixes with equality.
func TestTypedKeysOrderAsTheirFields(t *testing.T) {
	all, few, big := Of[everything]("a"), Of[packed]("b"), Of[wide]("c")
	if all.Table().Def().Key != StringKey || few.Table().Def().Key != NumberKey || big.Table().Def().Key != StringKey {
		t.Fatal("kinds of keys")
	}
	flag := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	entry := func(t *rapid.T, v everything, at int) Key {
		var row Row
		all.m.encode(&row, mem.StructOf(&v), all.Table().RowBytes())
		k, _, err := all.Table().Secondaries()[at].Entry(all.Key(v), row, nil)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	within := func(t *rapid.T, what string, lo, hi, k Key, want bool) {
		if got := lo.Compare(k) <= 0 && k.Compare(hi) <= 0; got != want {
			t.Fatalf("prefix of %s: %v in [%v, %v] is %v, want %v", what, k, lo, hi, got, want)
		}
	}
	testseed.Check(t, func(t *rapid.T) {
		a, b := drawEverything(t), drawEverything(t)
		if rapid.Bool().Draw(t, "same A") {
			b.A = a.A
		}
		if rapid.Bool().Draw(t, "same B") {
			b.B, b.Flag = a.B, a.Flag
		}
		primary := order(cmp.Compare(a.A, b.A), strings.Compare(a.B, b.B), cmp.Compare(a.C, b.C), bytes.Compare(a.D, b.D))
		if got := all.Key(a).Compare(all.Key(b)); got != primary {
			t.Fatalf("keys of %+v and %+v compare %d, want %d", a, b, got, primary)
		}
		same := []bool{true, a.A == b.A, a.A == b.A && a.B == b.B, a.A == b.A && a.B == b.B && a.C == b.C, primary == 0}
		for n, want := range same {
			lo, hi := all.Prefix(a, n)
			within(t, "a key", lo, hi, all.Key(b), want)
		}
		byC := order(cmp.Compare(a.C, b.C), cmp.Compare(a.U, b.U), strings.Compare(a.Name, b.Name), primary)
		if got := entry(t, a, 0).Compare(entry(t, b, 0)); got != byC {
			t.Fatalf("entries of by_c of %+v and %+v compare %d, want %d", a, b, got, byC)
		}
		byFlag := order(cmp.Compare(flag(a.Flag), flag(b.Flag)), cmp.Compare(a.U16, b.U16), primary)
		if got := entry(t, a, 1).Compare(entry(t, b, 1)); got != byFlag {
			t.Fatalf("entries of by_flag of %+v and %+v compare %d, want %d", a, b, got, byFlag)
		}
		lo, hi := all.Index("by_flag").Prefix(a, 1)
		within(t, "by_flag", lo, hi, entry(t, b, 1), a.Flag == b.Flag)
		x, y := packed{a.U16, a.I32, a.Flag, 0}, packed{b.U16, b.I32, b.Flag, 0}
		want := order(cmp.Compare(x.A, y.A), cmp.Compare(x.B, y.B), cmp.Compare(flag(x.C), flag(y.C)))
		if got := few.Key(x).Compare(few.Key(y)); got != want {
			t.Fatalf("keys of %+v and %+v compare %d, want %d", x, y, got, want)
		}
		lo, hi = few.Prefix(x, 2)
		within(t, "a number", lo, hi, few.Key(y), x.A == y.A && x.B == y.B)
		v, w := wide{a.I64, a.C, a.A, 0}, wide{b.I64, b.C, b.A, 0}
		want = order(cmp.Compare(v.A, w.A), cmp.Compare(v.B, w.B), cmp.Compare(v.C, w.C))
		if got := big.Key(v).Compare(big.Key(w)); got != want {
			t.Fatalf("keys of %+v and %+v compare %d, want %d", v, w, got, want)
		}
	})
}

// TestTypedTablesReportAllFaults checks that the error of opening names every
// fault, of all tables.
func TestTypedTablesReportAllFaults(t *testing.T) {
	type bad struct {
		F     float64 `drtmx:"key"`
		Text  string  `drtmx:"size=0"`
		Other string  `drtmx:"name=text"`
		Map   map[string]int
		low   int `drtmx:"key"`
		Odd   int `drtmx:"kee"`
	}
	type keyless struct{ V int }
	b := Of[bad]("bad", WithIndex("by_x", "Nope", "F"))
	k, n := Of[keyless]("Keyless"), Of[int]("number")
	_, err := CatalogOf(b, k, n, Def{Name: "Plain"})
	if !errors.Is(err, ErrSchema) {
		t.Fatal(err)
	}
	for _, want := range []string{
		"field F of tables.bad is a floating-point", "field Text of tables.bad has size=0", "field Other of tables.bad has the column text, as has Text",
		"field Map of tables.bad has the type map", "field low of tables.bad is not exported", `field Odd of tables.bad has the tag "kee"`,
		"index by_x: tables.bad has no field Nope", "no field F", "no field of tables.keyless is tagged as its key",
		"int is no struct", `table name "Plain"`,
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q:\n%v", want, err)
		}
	}
	if err := b.Get(noTx{}, &bad{low: 1}); !errors.Is(err, ErrSchema) {
		t.Errorf("Get of a table with faults: %v", err)
	}
	if err := b.Put(noTx{}, &bad{}); !errors.Is(err, ErrSchema) {
		t.Errorf("Put of a table with faults: %v", err)
	}
	for _, err := range k.Scan(noTx{}, First, Last) {
		if !errors.Is(err, ErrSchema) {
			t.Errorf("Scan of a table with faults: %v", err)
		}
	}
	for _, err := range Of[packed]("p").Index("nope").ScanPrefix(noTx{}, packed{}, 1) {
		if !errors.Is(err, ErrSchema) {
			t.Errorf("scan of an index that does not exist: %v", err)
		}
	}
	if c, err := CatalogOf(Of[single]("single")); err != nil || len(c.Tables) != 1 {
		t.Errorf("a table of keys alone: %v", err)
	}
}

// noTx is a transaction that must not be used.
type noTx struct{ Tx }

// FuzzDecodeTyped decodes arbitrary keys and rows. What is accepted is what
// encoding gives.
func FuzzDecodeTyped(f *testing.F) {
	all, few, big := Of[everything]("a"), Of[packed]("b"), Of[wide]("c")
	v := everything{A: -3, B: "a\x00b", C: 9, D: []byte("d"), Name: "n", Raw: []byte("raw")}
	var row Row
	all.m.encode(&row, mem.StructOf(&v), all.Table().RowBytes())
	f.Add(all.Key(v).Bytes(), uint64(7), []byte(row))
	f.Add([]byte("\x00\x00\x02"), uint64(1)<<60, []byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, key []byte, n uint64, row []byte) {
		var v everything
		if err := all.decode(&v, Str(key), row); err == nil {
			if got := all.Key(v); got != Str(key) {
				t.Errorf("the key %q decodes to %+v, whose key is %v", key, v, got)
			}
		} else if !errors.Is(err, ErrKey) && !errors.Is(err, ErrRow) {
			t.Error(err)
		}
		var p packed
		if err := few.decode(&p, Num(n), row); err == nil && few.Key(p) != Num(n) {
			t.Errorf("the key %d decodes to %+v", n, p)
		}
		var w wide
		if err := big.decode(&w, Str(key), row); err == nil && big.Key(w) != Str(key) {
			t.Errorf("the key %q decodes to %+v", key, w)
		}
		if err := few.decode(&p, Str(key), row); !errors.Is(err, ErrKey) {
			t.Errorf("a string for a number: %v", err)
		}
	})
}
