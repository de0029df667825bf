package server

import (
	"testing"

	"drtmx/tables"
	"drtmx/txn"
)

// TestTransactionOfManyPartitions writes a row in each of hundreds of partitions: the
// messages to one server name each other's parties, and fit a request.
func TestTransactionOfManyPartitions(t *testing.T) {
	const parts = 512
	cat := bank(t)
	cl, err := Embedded(t.Context(), EmbeddedConfig{Catalog: cat, Servers: 2, Partitions: parts, Client: patient(), MemoryBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	acct := cat.MustTable("account")
	has := map[txn.Home]uint64{} // a key of each partition
	for id := uint64(0); len(has) < parts; id++ {
		home, err := cl.DB.Home(acct, tables.Num(id))
		if err != nil {
			t.Fatal(err)
		}
		has[home] = id
	}
	for range 3 { // inserts, and then changes
		if err := cl.DB.Update(t.Context(), func(x *txn.Txn) error {
			for _, id := range has {
				row := acct.NewRow()
				row.SetInt(acct.Field("id"), int64(id))
				if err := x.Put(acct, tables.Num(id), row); err != nil {
					return err
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
}
