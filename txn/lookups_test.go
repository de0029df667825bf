package txn_test

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"testing"

	"drtmx/internal/testseed"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// part is a row with a secondary index that the changes of the test leave as it is.
type part struct {
	ID     uint64 `drtmx:"key"`
	Shelf  uint32 `drtmx:"index=by_shelf"`
	Number int64
}

type manyRig struct {
	*server.Cluster
	parts *tables.TableOf[part]
	rows  int
}

// newManyRig makes a cluster with more rows than a transaction may look up one by one.
func newManyRig(t *testing.T, reads txn.ReadPath, total func(*manyRig) txn.Procedure) *manyRig {
	t.Helper()
	r := &manyRig{parts: tables.Of[part]("part"), rows: txn.MaxReads + 1000}
	c := server.EmbeddedConfig{Tables: []tables.Definer{r.parts}, Servers: 2, MemoryBytes: 1 << 28, Retain: testseed.Patience(), Client: txn.Config{Reads: reads}}
	c.Client.Retry.Patience = testseed.Patience()
	if total != nil {
		c.Procedures = []txn.Procedure{total(r)}
	}
	var err error
	if r.Cluster, err = server.Embedded(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	l, err := r.DB.NewLoader(t.Context(), r.parts.Table())
	if err != nil {
		t.Fatal(err)
	}
	for i := range r.rows {
		if err := r.parts.Add(l, &part{uint64(i), uint32(i / 10), 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return r
}

// total adds up the rows in the order of the index. At row number half it calls between.
func (r *manyRig) total(x *txn.Txn, between func() error) (sum int64, err error) {
	n := 0
	for p, err := range r.parts.Index("by_shelf").Scan(x, tables.First, tables.Last) {
		if err != nil {
			return 0, err
		}
		if sum, n = sum+p.Number, n+1; n == r.rows/2 {
			if err := between(); err != nil {
				return 0, err
			}
		}
	}
	if n != r.rows {
		return 0, fmt.Errorf("%d rows, want %d", n, r.rows)
	}
	return sum, nil
}

// transfer moves n from one row to another.
func (r *manyRig) transfer(t *testing.T, from, to uint64, n int64) error {
	return r.DB.Update(t.Context(), func(x *txn.Txn) error {
		a, b := part{ID: from}, part{ID: to}
		if err := cmp.Or(r.parts.Get(x, &a), r.parts.Get(x, &b)); err != nil {
			return err
		}
		a.Number, b.Number = a.Number-n, b.Number+n
		return cmp.Or(r.parts.Put(x, &a), r.parts.Put(x, &b))
	})
}

// TestIndexScansHaveNoBound reads more rows through a secondary index than a transaction
// may look up one by one, while another one moves an amount from a row at the beginning
// of the range to one at its end.
func TestIndexScansHaveNoBound(t *testing.T) {
	for name, reads := range map[string]txn.ReadPath{"one-sided": txn.OneSided, "by RPC": txn.OrderedByRPC} {
		t.Run(name, func(t *testing.T) {
			r := newManyRig(t, reads, nil)
			last := uint64(r.rows - 1)
			moves := 0
			once := func() error {
				if moves++; moves%2 == 0 { // in the first attempt of each transaction only
					return nil
				}
				return r.transfer(t, 0, last, 7)
			}
			for what, run := range map[string]func(body func(*txn.Txn) error) error{
				"View":     func(body func(*txn.Txn) error) error { return r.DB.View(t.Context(), body) },
				"Snapshot": func(body func(*txn.Txn) error) error { return r.DB.Snapshot(t.Context(), body) },
			} {
				moves = 0
				var sum int64
				if err := run(func(x *txn.Txn) (err error) {
					sum, err = r.total(x, once)
					return err
				}); err != nil || sum != int64(r.rows) {
					t.Errorf("%s: the total is %d, %v, want %d", what, sum, err, r.rows)
				}
			}
		})
	}
}

// TestLookupsAreProved checks that each of many groups of lookups is validated when an
// Update commits, and that the group before the last is not used again for its rows.
func TestLookupsAreProved(t *testing.T) {
	r := newManyRig(t, txn.OneSided, nil)
	table := r.parts.Table()
	number := table.Field("number")
	const rows, each = 10_000, 250 // of which more than half are not read one by one
	groups := func(x *txn.Txn) iter.Seq2[[]tables.Key, []tables.Row] {
		return func(yield func([]tables.Key, []tables.Row) bool) {
			lookup := x.Lookups(table)
			keys := make([]tables.Key, each)
			for at := 0; at < rows; at += each {
				for i := range keys {
					keys[i] = tables.Num(uint64(at + i))
				}
				got, err := lookup(keys)
				if err != nil {
					t.Errorf("group at %d: %v", at, err)
					return
				}
				if !yield(keys, got) {
					return
				}
			}
		}
	}
	for _, victim := range []uint64{0, 4000, 5000, 9000, 9999} {
		attempts := 0
		if err := r.DB.Update(t.Context(), func(x *txn.Txn) error {
			sum := int64(0)
			if attempts++; attempts > 3 {
				return errors.New("too many attempts")
			}
			for keys, got := range groups(x) {
				for i, row := range got {
					if row == nil {
						return fmt.Errorf("there is no row %d", keys[i].Num())
					}
					sum += row.Int(number)
				}
			}
			if attempts == 1 {
				if err := r.transfer(t, victim, rows, 1); err != nil {
					return err
				}
			}
			return r.parts.Put(x, &part{ID: rows + 1, Shelf: 9, Number: sum})
		}); err != nil {
			t.Fatal(err)
		}
		if attempts != 2 {
			t.Errorf("a change of row %d: %d attempts, want 2", victim, attempts)
		}
	}
	attempts, keys := 0, make([]tables.Key, rows)
	for i := range keys {
		keys[i] = tables.Num(uint64(i))
	}
	if err := r.DB.View(t.Context(), func(x *txn.Txn) error {
		if _, err := x.Lookups(table)(keys); err != nil {
			return err
		}
		if attempts++; attempts == 1 {
			return r.transfer(t, 3, rows, 1)
		}
		return nil
	}); err != nil || attempts != 2 {
		t.Errorf("a View of one group: %d attempts, %v, want 2", attempts, err)
	}
}
