package tables

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"drtmx/internal/testseed"

	"pgregory.net/rapid"
)

// TestKeysThatDoNotFitAreRefused checks that the error names the table or index,
// its kind of key, and the key.
func TestKeysThatDoNotFitAreRefused(t *testing.T) {
	strs, err := NewCatalog(documents())
	if err != nil {
		t.Fatal(err)
	}
	nums, err := NewCatalog(people())
	if err != nil {
		t.Fatal(err)
	}
	docs, byTitle := strs.MustTable("documents").Primary(), strs.MustTable("documents").Secondary("by_title")
	persons, byLast := nums.MustTable("people").Primary(), nums.MustTable("people").Secondary("by_last")
	for _, c := range []struct {
		ix   *Index
		key  Key
		want string
	}{
		{docs, Num(3), "table documents, key 3: it has string keys, got the number 3"},
		{docs, Key{}, "table documents: it has string keys, got a bound of a scan or no key (none)"},
		{docs, Last, "table documents, key last: it has string keys, got a bound of a scan or no key (last)"},
		{docs, Str(strings.Repeat("k", MaxKeyBytes+1)), "table documents, key \"" + strings.Repeat("k", 79) + "…: bytes of a key: 1025, limit 1024 (MaxKeyBytes)"},
		{byTitle, Num(4), "table documents, index documents.by_title, key 4: it has string keys, got the number 4"},
		{persons, Str("ann"), `table people, key "ann": it has number keys, got the string "ann"`},
		{byLast, First, "table people, index people.by_last, key first: it has number keys, got a bound of a scan or no key (first)"},
	} {
		err := c.ix.CheckKey(c.key)
		if !errors.Is(err, ErrKey) || err.Error() != ErrKey.Error()+": "+c.want {
			t.Errorf("%v: %v", c.key, err)
		}
		if open := c.key == First || c.key == Last; (c.ix.CheckBound(c.key) == nil) != open {
			t.Errorf("%v as a bound of a scan: %v", c.key, c.ix.CheckBound(c.key))
		}
	}
	for _, err := range []error{docs.CheckKey(Str("")), docs.CheckKey(Str(make([]byte, MaxKeyBytes))), persons.CheckKey(Num(0)), byLast.CheckBound(Num(0))} {
		if err != nil {
			t.Error(err)
		}
	}
}

func TestKeys(t *testing.T) {
	for _, c := range []struct{ format, got, want string }{
		{"number", fmt.Sprint(Num(1 << 63)), "9223372036854775808"},
		{"bits", fmt.Sprintf("%#x", Num(255)), "0xff"},
		{"string", fmt.Sprint(Str("a\x00")), `"a\x00"`},
		{"bytes", fmt.Sprintf("%s", Str("a b")), "a b"},
		{"bounds", fmt.Sprint(First, Last, Key{}), "first last none"},
	} {
		if c.got != c.want {
			t.Errorf("%s: %s, want %s", c.format, c.got, c.want)
		}
	}
	b := []byte("lent")
	view := Str(b)
	kept := view.Clone()
	if b[0] = 'b'; view != Str("bent") || kept != Str("lent") {
		t.Errorf("view %v, clone %v", view, kept)
	}
	if n := testing.AllocsPerRun(100, func() {
		if k := Str(b); k.Compare(Num(7)) <= 0 || len(k.Bytes()) != 4 {
			t.Error("order of kinds")
		}
	}); n != 0 {
		t.Errorf("a key of bytes takes %v allocations", n)
	}
	testseed.Check(t, func(t *rapid.T) {
		k := rapid.OneOf(rapid.Map(rapid.Uint64(), Num), rapid.Map(rapid.SliceOf(rapid.Byte()), Str[[]byte])).Draw(t, "key")
		b, err := json.Marshal(k)
		if err != nil {
			t.Fatal(err)
		}
		var again Key
		if err := json.Unmarshal(b, &again); err != nil || again != k {
			t.Fatalf("%v through %s is %v: %v", k, b, again, err)
		}
		if First.Compare(k) != -1 || Last.Compare(k) != 1 {
			t.Fatalf("%v is not between First and Last", k)
		}
	})
}
