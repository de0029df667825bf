package txn_test

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// TestEmptiedStoreTakesALargeRow: memory of small rows serves a large one once they are deleted, and readers and
// snapshots cannot know it any more.
func TestEmptiedStoreTakesALargeRow(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a quarantine of 30 s")
	}
	const small, large, perTxn, patience = 1000, 30_000, 500, 3 * time.Minute
	cat := rigCatalog(t)
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{Catalog: cat, MemoryBytes: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	tab := cat.MustTable("text")
	key := func(i int) tables.Key { return tables.Str(binary.BigEndian.AppendUint32(nil, uint32(i))) }
	each := func(from int, do func(*txn.Txn, int) error) error {
		return cl.DB.Update(t.Context(), func(x *txn.Txn) error {
			for i := from; i < from+perTxn; i++ {
				if err := do(x, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	row, n := body(tab, small), 0
	for err = nil; err == nil; n += perTxn {
		err = each(n, func(x *txn.Txn, i int) error { return x.Insert(tab, key(i), row) })
	}
	if n -= perTxn; !errors.Is(err, txn.ErrOutOfMemory) || n < 20_000 {
		t.Fatalf("after %d rows: %v", n, err)
	}
	for i := 0; i < n; i += perTxn {
		if err := each(i, func(x *txn.Txn, i int) error { return x.Delete(tab, key(i)) }); err != nil {
			t.Fatalf("deleting row %d of %d: %v", i, n, err)
		}
	}
	start := time.Now()
	for {
		err := cl.DB.Update(t.Context(), func(x *txn.Txn) error { return x.Put(tab, key(0), body(tab, large)) })
		if err == nil {
			break
		}
		if !errors.Is(err, txn.ErrOutOfMemory) || time.Since(start) > patience {
			t.Fatalf("%v after %d rows of %d bytes were deleted: %v", time.Since(start), n, small, err)
		}
		time.Sleep(time.Second)
	}
	t.Logf("a row of %d bytes %v after %d of %d bytes were deleted", large, time.Since(start).Round(time.Second), n, small)
}
