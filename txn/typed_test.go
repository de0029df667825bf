package txn_test

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"drtmx/internal/invariants"
	"drtmx/internal/testseed"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

type owner struct {
	Name    string `drtmx:"key"`
	Country string `drtmx:"index=by_country"`
	Age     uint8  `drtmx:"index=by_country"`
}

type entry struct {
	Account uint32 `drtmx:"key"`
	Number  int32  `drtmx:"key"`
	Amount  int64  `drtmx:"index=by_amount"`
}

// typedRig is a cluster with the two tables.
func typedRig(t testing.TB) (*txn.DB, *tables.TableOf[owner], *tables.TableOf[entry]) {
	t.Helper()
	owners, entries := tables.Of[owner]("owner"), tables.Of[entry]("entry")
	c, err := tables.CatalogOf(owners, entries)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{Catalog: c, Servers: 2, MemoryBytes: 1 << 28})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	return cl.DB, owners, entries
}

func collect[T any](seq iter.Seq2[T, error]) (got []T, err error) {
	for v, err := range seq {
		if err != nil {
			return got, err
		}
		got = append(got, v)
	}
	return got, nil
}

// TestTypedTablesAgainstModel runs random operations on typed tables beside
// maps, and compares points, ranges and both indexes.
func TestTypedTablesAgainstModel(t *testing.T) {
	db, owners, entries := typedRig(t)
	seed := testseed.Of(t)
	wasPeople, wasLines := map[string]owner{}, map[[2]int32]entry{}
	for round := range uint64(60) {
		var people map[string]owner
		var lines map[[2]int32]entry
		if err := db.Update(t.Context(), func(x *txn.Txn) error {
			r := rand.New(rand.NewPCG(seed, round)) // the same in each attempt
			people, lines = maps.Clone(wasPeople), maps.Clone(wasLines)
			for range 20 {
				p := owner{fmt.Sprintf("n%d\x00", r.IntN(40)), []string{"", "a\x00", "a", "b"}[r.IntN(4)], uint8(r.IntN(200))}
				e := entry{uint32(r.IntN(5)) << 29, int32(r.IntN(20) - 10), r.Int64() - 1<<62}
				k := [2]int32{int32(e.Account >> 29), e.Number}
				_, known := people[p.Name]
				var err error
				switch r.IntN(5) {
				case 0:
					if known {
						err = owners.Delete(x, &owner{Name: p.Name})
						delete(people, p.Name)
					}
				case 1:
					if known {
						err = owners.Update(x, &p)
						people[p.Name] = p
					}
				default:
					err = errors.Join(owners.Put(x, &p), entries.Put(x, &e))
					people[p.Name], lines[k] = p, e
				}
				if err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		wasPeople, wasLines = people, lines
		if round%6 != 5 {
			continue
		}
		var ps []owner
		for _, p := range people {
			ps = append(ps, p)
		}
		var es []entry
		for _, e := range lines {
			es = append(es, e)
		}
		if err := db.View(t.Context(), func(x *txn.Txn) error {
			slices.SortFunc(ps, func(a, b owner) int { return cmp.Compare(a.Name, b.Name) })
			slices.SortFunc(es, func(a, b entry) int {
				return cmp.Or(cmp.Compare(a.Account, b.Account), cmp.Compare(a.Number, b.Number))
			})
			err := errors.Join(equal("owners", ps, owners.Scan(x, tables.First, tables.Last)), equal("entries", es, entries.Scan(x, tables.First, tables.Last)))
			of := slices.DeleteFunc(slices.Clone(es), func(e entry) bool { return e.Account != 3<<29 })
			err = errors.Join(err, equal("prefix", of, entries.ScanPrefix(x, entry{Account: 3 << 29}, 1)))
			slices.Reverse(es)
			err = errors.Join(err, equal("reverse", es, entries.ScanReverse(x, tables.First, tables.Last)))
			slices.SortFunc(es, func(a, b entry) int { return cmp.Compare(b.Amount, a.Amount) })
			err = errors.Join(err, equal("by amount", es, entries.Index("by_amount").ScanReverse(x, tables.First, tables.Last)))
			slices.SortFunc(ps, func(a, b owner) int {
				return cmp.Or(cmp.Compare(a.Country, b.Country), cmp.Compare(a.Age, b.Age), cmp.Compare(a.Name, b.Name))
			})
			of2 := slices.DeleteFunc(slices.Clone(ps), func(p owner) bool { return p.Country != "a" })
			return errors.Join(err, equal("by country", of2, owners.Index("by_country").ScanPrefix(x, owner{Country: "a"}, 1)),
				equal("all countries", ps, owners.Index("by_country").Scan(x, tables.First, tables.Last)))
		}); err != nil {
			t.Fatal(err)
		}
	}
}

func equal[T comparable](what string, want []T, seq iter.Seq2[T, error]) error {
	got, err := collect(seq)
	if err == nil && !slices.Equal(got, want) {
		i := 0
		for i < min(len(got), len(want)) && got[i] == want[i] {
			i++
		}
		err = fmt.Errorf("%s: %d values, want %d; the first to differ is number %d: %+v, want %+v", what, len(got), len(want), i,
			got[i:min(i+1, len(got))], want[i:min(i+1, len(want))])
	}
	return err
}

// TestTypedErrors checks the errors that typed tables pass on.
func TestTypedErrors(t *testing.T) {
	db, owners, entries := typedRig(t)
	strange := tables.Of[entry]("entry", tables.WithPrimary(tables.Hash))
	long := owner{Name: string(make([]byte, tables.MaxKeyBytes+1))}
	if err := db.Update(t.Context(), func(x *txn.Txn) error {
		for what, c := range map[string]struct{ got, want error }{
			"absent":          {entries.Get(x, &entry{}), txn.ErrNotFound},
			"other catalogue": {strange.Get(x, &entry{}), tables.ErrCatalog},
			"long key":        {owners.Put(x, &long), tables.ErrKey},
			"foreign write":   {strange.Put(x, &entry{}), tables.ErrCatalog},
		} {
			if !errors.Is(c.got, c.want) {
				t.Errorf("%s: %v, want %v", what, c.got, c.want)
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	l, err := db.NewLoader(t.Context(), entries.Table())
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(entries.Add(l, &entry{7, 8, 9}), l.Close()); err != nil {
		t.Fatal(err)
	}
	if err := db.View(t.Context(), func(x *txn.Txn) error {
		return equal("loaded", []entry{{7, 8, 9}}, entries.Scan(x, tables.First, tables.Last))
	}); err != nil {
		t.Fatal(err)
	}
}

// TestTypedGetAllocatesNothing reads into a struct without strings, and into one
// whose string does not change.
func TestTypedGetAllocatesNothing(t *testing.T) {
	db, owners, entries := typedRig(t)
	s, err := db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	e, o := entry{1, 2, 3}, owner{"ann", "x", 4}
	if err := s.Update(t.Context(), func(x *txn.Txn) error {
		return errors.Join(entries.Put(x, &e), owners.Put(x, &o))
	}); err != nil {
		t.Fatal(err)
	}
	var failed error
	body := func(x *txn.Txn) error {
		failed = cmp.Or(entries.Get(x, &e), owners.Get(x, &o))
		return failed
	}
	plain := func(x *txn.Txn) error {
		_, failed = x.Get(entries.Table(), tables.Num(1<<32|1<<31|2))
		return failed
	}
	run := func(body func(*txn.Txn) error) float64 {
		return testing.AllocsPerRun(200, func() {
			if err := s.View(t.Context(), body); err != nil {
				failed = err
			}
		})
	}
	if invariants.Enabled {
		t.Skip("with assertions on, checks allocate")
	}
	base, got := run(plain), run(body)
	if failed != nil {
		t.Fatal(failed)
	}
	if got > base {
		t.Errorf("two typed Gets take %v allocations, an untyped Get %v", got, base)
	}
}

// TestTypedRowsAllocateNothing checks that a transaction that scans or writes more rows
// of a typed table does not allocate more, once its session has grown.
func TestTypedRowsAllocateNothing(t *testing.T) {
	if invariants.Enabled || invariants.Spoils {
		t.Skip("with assertions on, checks allocate; under the race detector, pools forget what they are given")
	}
	db, owners, entries := typedRig(t)
	s, err := db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	const accounts, each = 100, 3
	names := make([]string, accounts)
	for i := range names {
		names[i] = fmt.Sprintf("owner %d", i)
	}
	amount := int64(0)
	put := func(x *txn.Txn) (n int, err error) {
		for i := range accounts {
			for j := range each {
				err = cmp.Or(err, entries.Put(x, &entry{uint32(i), int32(j), amount}))
			}
			err = cmp.Or(err, owners.Put(x, &owner{names[i], names[i], uint8(amount)}))
		}
		return accounts * (each + 1), err
	}
	count := func(rows iter.Seq2[entry, error]) (n int, err error) {
		for _, err := range rows {
			if err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	for _, c := range []struct {
		what  string
		texts int // of a row, each of which is new memory
		body  func(*txn.Txn) (int, error)
	}{
		{"Put", 0, put},
		{"Scan", 0, func(x *txn.Txn) (int, error) { return count(entries.Scan(x, tables.First, tables.Last)) }},
		{"ScanReverse", 0, func(x *txn.Txn) (int, error) { return count(entries.ScanReverse(x, tables.First, tables.Last)) }},
		{"Scan of an index", 0, func(x *txn.Txn) (int, error) {
			return count(entries.Index("by_amount").Scan(x, tables.First, tables.Last))
		}},
		{"Scan of an index with string keys", 2, func(x *txn.Txn) (n int, err error) {
			for _, err := range owners.Index("by_country").Scan(x, tables.First, tables.Last) {
				if err != nil {
					return n, err
				}
				n++
			}
			return n, nil
		}},
	} {
		least, rows, start := uint64(math.MaxUint64), 0, time.Now()
		most := func() uint64 { return uint64(c.texts*rows + rows/3) }
		// Buffers grow in the first ones. The data servers are in this process and allocate,
		// too: on a busy machine, for longer than 30 transactions take.
		for n := 0; n < 30 || least > most() && time.Since(start) < testseed.Patience(); n++ {
			amount++
			if err := s.Update(t.Context(), func(x *txn.Txn) error {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				n, err := c.body(x)
				runtime.ReadMemStats(&after)
				least, rows = min(least, after.Mallocs-before.Mallocs), n
				return err
			}); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%s: %d allocations for %d rows", c.what, least, rows)
		if rows < accounts || least > most() {
			t.Errorf("%s: %d allocations for %d rows", c.what, least, rows)
		}
	}
}
