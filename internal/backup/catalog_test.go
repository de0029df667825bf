package backup

import (
	"context"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"drtmx/internal/clock"
	"drtmx/internal/testseed"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// change adds a table, a column and an index, and writes with all of them.
func change(ctx context.Context, db *txn.DB) error {
	tab, err := db.AddTable(ctx, tables.Def{
		Name: "added", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash}, Columns: []tables.Column{{Name: "v", Type: tables.Int64}},
	})
	if err != nil {
		return err
	}
	entry, err := db.AddColumn(ctx, "entry", tables.Column{Name: "note", Type: tables.Int64, Default: []byte("7")})
	if err != nil {
		return err
	}
	_, err = db.AddIndex(ctx, "entry", tables.Secondary{
		Name: "by_amount", Partition: tables.Partitioning{Kind: tables.ByHash},
		Key: []tables.KeyPart{{Column: "amount", How: tables.Sorted}, {Column: tables.PrimaryKey, How: tables.Sorted}},
	})
	if err != nil {
		return err
	}
	return db.Update(ctx, func(t *txn.Txn) error {
		row := tab.NewRow()
		row.SetInt(tab.Field("v"), 5)
		if err := t.Insert(tab, tables.Num(1), row); err != nil {
			return err
		}
		entry = db.Catalog().MustTable("entry")
		e := entry.NewRow()
		e.SetInt(entry.Field("note"), 8)
		return t.Insert(entry, tables.Num(9<<entryShift), e)
	})
}

// noteOf is the added column of an entry.
func noteOf(t *testing.T, db *txn.DB, key tables.Key) (note int64) {
	entry := db.Catalog().MustTable("entry")
	err := db.View(t.Context(), func(tx *txn.Txn) error {
		row, err := tx.Get(entry, key)
		if err == nil {
			note = row.Int(entry.Field("note"))
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	return note
}

// TestCatalogue: what is restored has the tables, columns and indexes that were in
// use at the tick, and rows of before a column was added have its default.
func TestCatalogue(t *testing.T) {
	seed := testseed.Of(t)
	w := openWorld(t, t.TempDir(), 2, 3, nil)
	defer w.cl.Close()
	w.load()
	w.write(seed)
	dir := filepath.Join(t.TempDir(), "b")
	o := w.options(dir)
	o.Follow = true
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan error, 1)
	n := 0
	o.Moved = func(*Manifest) {
		if n++; n == 2 {
			go func() {
				changed <- change(context.Background(), w.cl.DB)
				cancel()
			}()
		}
	}
	m, err := Run(ctx, o)
	w.end()
	if err != nil {
		t.Fatal(err)
	}
	if err := <-changed; err != nil {
		t.Fatal(err)
	}
	open := func(at clock.Tick) *server.Cluster {
		into := filepath.Join(t.TempDir(), "r")
		if _, err := Restore(t.Context(), RestoreOptions{From: dir, Dir: into, To: at, Servers: 2, Partitions: 2}); err != nil {
			t.Fatal(err)
		}
		cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{Servers: 2, Partitions: 2, Durability: server.Disk, Dir: into})
		if err != nil {
			t.Fatal(err)
		}
		return cl
	}
	before := open(m.First)
	defer before.Close()
	checkState(t, before.DB)
	if v := before.DB.Catalog().Version(); v != 0 {
		t.Errorf("at the first tick the catalogue has version %d", v)
	}
	after := open(0)
	defer after.Close()
	done := checkState(t, after.DB)
	c := after.DB.Catalog()
	entry := c.MustTable("entry")
	err = after.DB.View(t.Context(), func(tx *txn.Txn) error {
		if _, err := tx.Get(c.MustTable("added"), tables.Num(1)); err != nil {
			return err
		}
		entries := int64(0)
		ix := entry.Secondary("by_amount")
		for e, err := range tx.Scan(ix, tables.Str(""), tables.Str("\xff\xff")) {
			if err != nil {
				return err
			}
			row, err := tx.Get(entry, ix.EntryOf(e.Row))
			if err != nil {
				return err
			}
			entries++
			if note, want := row.Int(entry.Field("note")), noteOf(t, w.cl.DB, ix.EntryOf(e.Row)); note != want {
				t.Errorf("the added column of entry %v is %d, want %d", ix.EntryOf(e.Row), note, want)
			}
		}
		if want := done[0] + done[1] + done[2] + 1; entries != want {
			t.Errorf("%d entries by amount, want %d", entries, want)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// The restored cluster goes on.
	if err := transfer(t.Context(), after.DB, rand.New(rand.NewPCG(seed, 5)), 0, done[0]+1); err != nil {
		t.Error(err)
	}
}
