package txn_test

import (
	"bytes"
	"testing"

	"drtmx/internal/invariants"
	"drtmx/tables"
	"drtmx/txn"
)

// TestRowsKeptTooLong keeps rows beyond the body. Clones stay as they are; in
// builds for the race detector the rows themselves are overwritten, which a test of a program notices.
func TestRowsKeptTooLong(t *testing.T) {
	r := newRig(t, 1, txn.Config{}, nil)
	r.fillWide(t, 1, 3)
	var kept, clones []tables.Row
	keep := func(row tables.Row, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		kept, clones = append(kept, row), append(clones, row.Clone())
	}
	if err := r.DB.View(t.Context(), func(x *txn.Txn) error {
		keep(x.Get(r.wide, tables.Num(2)))
		rows, err := x.QueueScan(r.wide.Primary(), tables.First, tables.Last, 0).Entries()
		for _, e := range rows {
			keep(e.Row, err)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if len(kept) != 4 {
		t.Fatalf("%d rows", len(kept))
	}
	c0 := r.wide.Field("c0")
	for i, row := range kept {
		if want := []int64{2, 1, 2, 3}[i]; clones[i].Int(c0) != want {
			t.Errorf("clone %d holds %d, want %d", i, clones[i].Int(c0), want)
		}
		if invariants.Spoils && bytes.Equal(row, clones[i]) {
			t.Errorf("row %d, kept beyond the body, looks valid", i)
		}
	}
}
