package server

import (
	"context"
	"fmt"
	"testing"

	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// TestPagesOfProceduresAreProved: a client moves what a procedure counts from a row of a later page to one of the
// page that it has read. It does not need the partition for that, which the procedure holds.
func TestPagesOfProceduresAreProved(t *testing.T) {
	cat := mixedCatalog(t)
	tab := cat.MustTable("written")
	f := tab.Field("n")
	var mover *txn.DB
	move := func(ctx context.Context) error {
		return mover.Update(ctx, func(tx *txn.Txn) error {
			for _, by := range []struct {
				key uint64
				n   int64
			}{{3 << 1, 1}, {35 << 1, -1}} {
				row, err := tx.Get(tab, tables.Num(by.key))
				if err != nil {
					return err
				}
				next := tab.NewRow()
				next.SetInt(f, row.Int(f)+by.n)
				if err := tx.Put(tab, tables.Num(by.key), next); err != nil {
					return err
				}
			}
			return nil
		})
	}
	runs := 0
	sum := txn.Procedure{Name: "sum", ReadOnly: true, Body: func(ctx context.Context, tx *txn.Txn, _ []byte) ([]byte, error) {
		runs++
		total, rows := int64(0), 0
		for e, err := range tx.Scan(tab.Primary(), tables.First, tables.Last) {
			if err != nil {
				return nil, err
			}
			if rows++; rows == 20 && runs == 1 { // of the first page
				if err := move(ctx); err != nil {
					return nil, err
				}
			}
			total += e.Row.Int(f)
		}
		if total != 0 {
			return nil, fmt.Errorf("the sum is %d", total)
		}
		return nil, nil
	}}
	net := inproc.New(inproc.Options{})
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 1, Partitions: 1, Network: net, Client: patient(), Procedures: []txn.Procedure{sum}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	loadMixed(t, cl, cat, func(uint64) int64 { return 0 })
	if mover, err = txn.Open(t.Context(), txn.Config{Servers: []string{cl.Servers[0].Addr()}, Dial: net.Dial}); err != nil {
		t.Fatal(err)
	}
	defer mover.Close()
	if err := move(t.Context()); err != nil { // the client becomes a writer
		t.Fatal(err)
	}
	if _, err := cl.DB.Call(t.Context(), 0, "sum", nil); err != nil {
		t.Error(err)
	}
	if runs < 2 {
		t.Errorf("%d runs: a move between two pages was not found", runs)
	}
}
