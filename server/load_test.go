package server

import (
	"context"
	"encoding/binary"
	"errors"
	"testing"

	"drtmx/internal/block"
	"drtmx/tables"
	"drtmx/txn"
)

func TestLoader(t *testing.T) {
	ctx := context.Background()
	cat, err := tables.NewCatalog(
		bank(t).MustTable("account").Def(),
		tables.Def{
			Name: "rate", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.Replicated},
			Columns: []tables.Column{{Name: "cents", Type: tables.Int64}},
		},
	)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := Embedded(ctx, EmbeddedConfig{Catalog: cat, Servers: 3})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	acct, rate := cat.MustTable("account"), cat.MustTable("rate")
	const n = 30_000
	load := func(tab *tables.Table, n uint64, fill func(*tables.Row, uint64)) error {
		l, err := cl.DB.NewLoader(ctx, tab)
		if err != nil {
			return err
		}
		row := tab.NewRow()
		for k := range n {
			fill(&row, k)
			if err := l.Add(tables.Num(k), row); err != nil {
				return errors.Join(err, l.Close())
			}
		}
		return l.Close()
	}
	if err := load(acct, n, func(r *tables.Row, k uint64) {
		r.SetInt(acct.Field("id"), int64(k))
		r.SetInt(acct.Field("balance"), 1)
		r.SetInt(acct.Field("owner"), int64(k%7))
	}); err != nil {
		t.Fatal(err)
	}
	if err := load(rate, 100, func(r *tables.Row, k uint64) { r.SetInt(rate.Field("cents"), int64(k)) }); err != nil {
		t.Fatal(err)
	}
	if err := cl.DB.Seal(ctx); err != nil {
		t.Fatal(err)
	}
	if err := load(rate, 1, func(*tables.Row, uint64) {}); !errors.Is(err, txn.ErrSealed) {
		t.Errorf("load after Seal: %v", err)
	}
	sum, bySecondary, err := total(ctx, cl.DB, acct, n)
	if err != nil || sum != n || bySecondary != n {
		t.Errorf("loaded %d rows; sums are %d by rows and %d by the secondary index (%v)", n, sum, bySecondary, err)
	}
	for k := range uint64(100) {
		if err := cl.DB.View(ctx, func(t *txn.Txn) error {
			row, err := t.Get(rate, tables.Num(k))
			if err == nil && row.Int(rate.Field("cents")) != int64(k) {
				err = errors.New("another row")
			}
			return err
		}); err != nil {
			t.Fatalf("replicated row %d: %v", k, err)
		}
	}
	err = cl.DB.Update(ctx, func(t *txn.Txn) error { return t.Put(rate, tables.Num(1), rate.NewRow()) })
	if !errors.Is(err, txn.ErrReadOnly) {
		t.Errorf("write to a replicated table: %v", err)
	}
	st, err := cl.DB.ServerStats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range st {
		for _, ix := range s.Indexes {
			if ix.Leaves > 0 && (ix.SubModels == 0 || ix.Pending != 0) {
				t.Errorf("server %d: %s has %d leaves, %d sub-models and %d tasks pending after Seal", s.Server, ix.Name, ix.Leaves, ix.SubModels, ix.Pending)
			}
		}
	}
}

// TestLoaderRefusesARowWhole: a row without a valid entry in a secondary index is not
// loaded, and the rows beside it are.
func TestLoaderRefusesARowWhole(t *testing.T) {
	cl, account, _ := startBank(t, 2)
	defer cl.Close()
	l, err := cl.DB.NewLoader(t.Context(), account)
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []int64{1, 2, 3} {
		row, stored := account.NewRow(), id
		if id == 2 {
			stored = 1 << 40 // the entry's key has 32 bits for it
		}
		row.SetInt(account.Field("id"), stored)
		if err := l.Add(tables.Num(uint64(id)), row); (err != nil) != (id == 2) {
			t.Errorf("row %d: %v", id, err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for _, id := range []uint64{1, 2, 3} {
		err := cl.DB.View(t.Context(), func(x *txn.Txn) error {
			_, err := x.Get(account, tables.Num(id))
			return err
		})
		if errors.Is(err, txn.ErrNotFound) != (id == 2) {
			t.Errorf("read of row %d: %v", id, err)
		}
	}
}

// TestLoaderKeepsItsError: rows that a server did not take are reported by every later
// call, so that no load ends well without them.
func TestLoaderKeepsItsError(t *testing.T) {
	cl, account, _ := startBank(t, 2)
	defer cl.Close()
	l, err := cl.DB.NewLoader(t.Context(), account)
	if err != nil {
		t.Fatal(err)
	}
	if err := cl.DB.Seal(t.Context()); err != nil { // every load fails from here
		t.Fatal(err)
	}
	row := account.NewRow()
	const enough = 100_000 // rows for several chunks
	for id := range uint64(enough) {
		if err = l.Add(tables.Num(id), row); err != nil {
			break
		}
	}
	if !errors.Is(err, txn.ErrSealed) {
		t.Fatalf("rows after Seal: %v, want %v", err, txn.ErrSealed)
	}
	if again := l.Add(tables.Num(enough), row); !errors.Is(again, err) {
		t.Errorf("the next row: %v, want %v", again, err)
	}
	if end := l.Close(); !errors.Is(end, err) {
		t.Errorf("Close: %v, want %v", end, err)
	}
	if l, err := cl.DB.NewLoader(t.Context(), account); !errors.Is(err, txn.ErrSealed) || l != nil {
		t.Errorf("a loader after Seal: %v, want %v at once", err, txn.ErrSealed)
	}
}

// TestLoadedHeadersAreNotRepeated: a header proves one row. A client that has read a row which a
// split has moved since must not find the header of another one of the same load in its place.
func TestLoadedHeadersAreNotRepeated(t *testing.T) {
	cl, _, entry := startBank(t, 1)
	defer cl.Close()
	const n = 5000
	orders := map[string]func(i uint64) uint64{
		"falling":   func(i uint64) uint64 { return n - i },
		"scattered": func(i uint64) uint64 { return n + i*2654435761%n },
		"two ends":  func(i uint64) uint64 { return 3*n + i/2 + i%2*n },
	}
	for name, at := range orders {
		t.Run(name, func(t *testing.T) {
			type place struct {
				addr uint64
				head block.Header
			}
			rows := make(map[place]uint64)
			restore := cl.Servers[0].WatchLoads(entry.Primary(), func(key, addr uint64, h block.Header) {
				p := place{addr, h}
				if other, ok := rows[p]; ok && other != key {
					t.Errorf("row %d has the header %v at %#x that row %d had there", key, h, addr, other)
				}
				rows[p] = key
			})
			defer restore()
			var sent []byte // in an order that no Loader sends
			for i := range uint64(n) {
				sent = binary.LittleEndian.AppendUint64(sent, at(i))
				sent = append(sent, make([]byte, entry.RowBytes())...)
			}
			if err := cl.Servers[0].Load(entry.Primary(), sent); err != nil {
				t.Fatal(err)
			}
			if len(rows) < n {
				t.Errorf("%d rows were loaded", len(rows))
			}
		})
	}
}
