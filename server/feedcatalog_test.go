package server

import (
	"context"
	"errors"
	"testing"

	"drtmx/internal/testseed"
	"drtmx/tables"
	"drtmx/txn"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestFeedFollowsTheCatalogue: a feed that has begun before has what is loaded, what a
// table has that was added while it ran, and the values of a column that was added then.
// One that begins later has the same, and rows of before have the column's default.
func TestFeedFollowsTheCatalogue(t *testing.T) {
	const rows = 12
	cl, acct, _ := openBank(t, vfs.NewMem(), 2, 4)
	defer cl.Close()
	db := cl.DB
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	steps := make(chan txn.Change, 10*rows)
	ended := make(chan error, 1)
	follow, stop := context.WithCancel(ctx)
	go func() {
		for c, err := range db.Changes(follow, txn.OldestChange()) {
			if err != nil {
				ended <- err
				return
			}
			steps <- c
		}
		ended <- nil
	}()
	live := []txn.Change{}
	await := func(n int) {
		t.Helper()
		for n > 0 {
			select {
			case c := <-steps:
				live = append(live, c)
				n -= len(c.Writes)
			case err := <-ended:
				t.Fatalf("the feed has ended: %v", err)
			}
		}
	}

	l, err := db.NewLoader(ctx, acct)
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(rows) {
		if err := l.Add(tables.Num(id), acct.NewRow()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.Close(), db.Seal(ctx)); err != nil {
		t.Fatal(err)
	}
	await(rows)
	def := growing()[0]
	tab, err := db.AddTable(ctx, def)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(ctx, func(x *txn.Txn) error {
		for id := range uint64(rows) {
			if err := x.Insert(tab, growKey(tab, id), oldRow(tab, id, 0)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	await(rows)
	grown, err := db.AddColumn(ctx, def.Name, later[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(ctx, func(x *txn.Txn) error {
		row, err := x.Get(grown, growKey(grown, 1))
		if err != nil {
			return err
		}
		row = row.Clone()
		row.SetInt(grown.Field("d"), 4711)
		return errors.Join(x.Update(grown, growKey(grown, 1), row), x.Delete(grown, growKey(grown, 2)))
	}); err != nil {
		t.Fatal(err)
	}
	await(2)
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the feed has ended with %v", err)
	}

	check := func(what string, all []txn.Change, defaults bool) {
		t.Helper()
		loaded, kinds, changed := map[tables.Key]int{}, map[txn.ChangeKind]int{}, 0
		for _, c := range all {
			for _, w := range c.Writes {
				if w.Table.Name() == acct.Name() {
					if !c.Loaded || w.Kind != txn.Loaded {
						t.Errorf("%s: what was loaded is %v, a loaded change: %v", what, w.Kind, c.Loaded)
					}
					loaded[w.Key]++
					continue
				}
				kinds[w.Kind]++
				switch {
				case w.Kind == txn.Updated:
					if got := w.Row.Int(w.Table.Field("d")); got != 4711 {
						t.Errorf("%s: the column has %d", what, got)
					}
					changed++
				case w.Kind == txn.Inserted && defaults:
					if got := w.Row.Int(w.Table.Field("d")); got != -7 {
						t.Errorf("%s: the column of a row of before has %d, want the default", what, got)
					}
				}
			}
		}
		if len(loaded) != rows || kinds[txn.Inserted] != rows || kinds[txn.Deleted] != 1 || changed != 1 {
			t.Errorf("%s: %d rows were loaded, the table has %v", what, len(loaded), kinds)
		}
		for key, n := range loaded {
			if n != 1 {
				t.Errorf("%s: %v is loaded %d times", what, key, n)
			}
		}
	}
	check("as it came", live, false)
	var again []txn.Change
	for c, err := range db.Changes(ctx, txn.OldestChange(), txn.UntilNow()) {
		if err != nil {
			t.Fatal(err)
		}
		again = append(again, c)
	}
	check("afterwards", again, true)
	if len(again) != len(live) {
		t.Errorf("%d changes, %d as they came", len(again), len(live))
	}
}
