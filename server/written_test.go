package server

import (
	"context"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/tables"
	"drtmx/txn"
)

// TestWrittenBytes: the counter of what transactions write has keys and rows, of
// one server and of several, and no entries of secondary indexes, no bulk loads
// and nothing of transactions that fail.
func TestWrittenBytes(t *testing.T) {
	ctx := context.Background()
	for _, servers := range []int{1, 3} {
		cl, acct, _ := openBank(t, vfs.NewMem(), servers, servers)
		put := func(x *txn.Txn) error {
			for i := range uint64(6) {
				row := acct.NewRow()
				row.SetInt(acct.Field("id"), int64(i))
				row.SetInt(acct.Field("balance"), 100)
				if err := x.Put(acct, tables.Num(i), row); err != nil {
					return err
				}
			}
			return nil
		}
		if err := cl.DB.Update(ctx, put); err != nil {
			t.Fatal(err)
		}
		if err := cl.DB.Update(ctx, func(x *txn.Txn) error { return x.Delete(acct, tables.Num(3)) }); err != nil {
			t.Fatal(err)
		}
		if err := cl.DB.Update(ctx, func(x *txn.Txn) error { return x.Insert(acct, tables.Num(4), acct.NewRow()) }); err == nil {
			t.Fatal("a row is inserted twice")
		}
		got := uint64(0)
		for _, s := range cl.Servers {
			got += s.Stats().Log.RowBytes
		}
		if want := uint64(6*(8+acct.Primary().RowBytes) + 8); got != want {
			t.Errorf("%d servers: %d bytes of rows were written, want %d", servers, got, want)
		}
		if err := cl.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
