package txn_test

import (
	"fmt"
	"testing"

	"drtmx/tables"
	"drtmx/txn"
)

// TestSealedModelsAreUsedAtOnce: a program that has fetched the models of nearly empty indexes, and
// then inserted rows, has those of the full ones when Seal returns. Otherwise the first lookups go
// to the server, and so do those of other sessions while one session fetches the models.
func TestSealedModelsAreUsedAtOnce(t *testing.T) {
	const rows, batch = 6000, 100
	r := newRig(t, 2, txn.Config{}, nil)
	filled := []struct {
		table *tables.Table
		key   func(i int) tables.Key
		row   tables.Row
	}{
		{r.wide, func(i int) tables.Key { return tables.Num(uint64(i%2*boundary + i)) }, r.wide.NewRow()},
		{r.text, func(i int) tables.Key { return tables.Str(fmt.Sprintf("%c%06d", "bq"[i%2], i)) }, body(r.text, 20)},
	}
	read := func(table *tables.Table, k tables.Key) {
		t.Helper()
		if err := r.DB.View(t.Context(), func(x *txn.Txn) error { _, err := x.Get(table, k); return err }); err != nil {
			t.Fatal(err)
		}
	}
	fallbacks := func(table *tables.Table) (n uint64) {
		for _, s := range r.DB.IndexStats() {
			if s.Table == table.Name() {
				n += s.Fallbacks
			}
		}
		return n
	}
	for _, f := range filled {
		for from := 0; from < rows; from += batch {
			if err := r.DB.Update(t.Context(), func(x *txn.Txn) error {
				for i := from; i < from+batch; i++ {
					if err := x.Insert(f.table, f.key(i), f.row); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if from == 0 {
				read(f.table, f.key(0))
				read(f.table, f.key(1))
			}
		}
	}
	if err := r.DB.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, f := range filled {
		before := fallbacks(f.table)
		for i := rows - 1; i >= 0; i -= 7 { // the old models know the first leaf
			read(f.table, f.key(i))
		}
		if n := fallbacks(f.table) - before; n > 0 {
			t.Errorf("%s: %d lookups fell back to the server", f.table.Name(), n)
		}
	}
}
