package server_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestFeedHasTheLastChange: a transaction commits after a feed has looked at the logs,
// and before it has closed a tick, which is not that of the transaction. The feed reads
// the transaction with what is before it, and nothing commits later. It is delivered all
// the same.
func TestFeedHasTheLastChange(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	net, cat := inproc.New(inproc.Options{}), feedCatalog(t)
	cl, err := server.Embedded(ctx, server.EmbeddedConfig{Catalog: cat, Network: net, Durability: server.Disk, Dir: "data", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	put := func(n int64) error {
		return cl.DB.Update(ctx, func(x *txn.Txn) error {
			tab := cat.MustTable("number")
			row := tab.NewRow()
			row.SetInt(tab.Field("n"), n)
			return x.Put(tab, tables.Num(1), row)
		})
	}
	var between atomic.Int64 // what is committed there, 0: nothing
	h := &hooks{Provider: net, request: func(_ string, req []byte) {
		if wire.Op(req[0]) != wire.OpBackup || req[1] != wire.BackupClose {
			return
		}
		if n := between.Swap(0); n > 0 {
			time.Sleep(3 * clock.TickLength) // a later tick than when it looked
			if err := put(n); err != nil {
				t.Error(err)
			}
		}
	}}
	db, err := txn.Open(ctx, txn.Config{Servers: []string{cl.Servers[0].Addr()}, Dial: h.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	from, err := db.Now(ctx)
	if err != nil {
		t.Fatal(err)
	}
	const rounds = 6 // in some of them the tick that is closed may be later
	next := int64(1)
	between.Store(2)
	if err := put(1); err != nil {
		t.Fatal(err)
	}
	for c, err := range db.Changes(ctx, from) {
		if err != nil {
			t.Fatalf("change %d does not come: %v", next, err)
		}
		w := c.Writes[0]
		if got := w.Row.Int(w.Table.Field("n")); got != next {
			t.Fatalf("change %d, want %d", got, next)
		}
		if next++; next > 2*rounds {
			break
		}
		if next%2 == 1 {
			between.Store(next + 1)
			if err := put(next); err != nil {
				t.Fatal(err)
			}
		}
	}
}
