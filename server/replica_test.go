package server

import (
	"context"
	"testing"

	"drtmx/tables"
	"drtmx/txn"
)

// TestCopiesAtHandAreRead: a procedure that reads a replicated table and writes
// at one other server concerns these two servers alone, and is decided by one
// message between them.
func TestCopiesAtHandAreRead(t *testing.T) {
	ctx := context.Background()
	column := []tables.Column{{Name: "n", Type: tables.Int64}}
	cat, err := tables.NewCatalog(
		tables.Def{Name: "stock", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByBits}, Columns: column},
		tables.Def{Name: "rate", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.Replicated}, Columns: column},
		tables.Def{Name: "band", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.Replicated}, Columns: column},
	)
	if err != nil {
		t.Fatal(err)
	}
	stock, rate, band := cat.MustTable("stock"), cat.MustTable("rate"), cat.MustTable("band")
	order := func(_ context.Context, t *txn.Txn, _ []byte) ([]byte, error) {
		for k := range uint64(20) {
			if _, err := t.Get(rate, tables.Num(k)); err != nil {
				return nil, err
			}
			if rows, err := t.QueueScan(band.Primary(), tables.Num(k), tables.Num(k+3), 2).Entries(); err != nil || len(rows) == 0 {
				return nil, err
			}
		}
		for k := range uint64(2) {
			row, err := t.Get(stock, tables.Num(k))
			if err != nil {
				return nil, err
			}
			row = row.Clone()
			row.SetInt(stock.Field("n"), row.Int(stock.Field("n"))+1)
			if err := t.Update(stock, tables.Num(k), row); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	cl, err := Embedded(ctx, EmbeddedConfig{Catalog: cat, Servers: 4, Procedures: []txn.Procedure{{Name: "order", Body: order}}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, tab := range []*tables.Table{stock, rate, band} {
		l, err := cl.DB.NewLoader(ctx, tab)
		if err != nil {
			t.Fatal(err)
		}
		for k := range uint64(24) {
			if err := l.Add(tables.Num(k), tab.NewRow()); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	const calls = 10
	for range calls {
		if _, err := cl.DB.Call(ctx, HomeOf(cl.DB, stock, tables.Num(0)), "order", nil); err != nil {
			t.Fatal(err)
		}
	}
	st, err := cl.DB.ServerStats(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{calls, calls, 0, 0} {
		if st[i].Commits != want {
			t.Errorf("server %d took part in %d transactions, want %d", i, st[i].Commits, want)
		}
	}
	side := cl.Servers[1].parts.of[1].protocol
	side.mu.Lock()
	defer side.mu.Unlock()
	if n := side.machine.Records(); n > 1 {
		t.Errorf("%d transactions handed over are remembered, want at most the last", n)
	}
}
