package server

import (
	"context"
	"errors"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/tables"
	"drtmx/txn"
)

// TestFewCopies: while fewer copies are in sync than are required, a server takes no
// write and says of none that it is durable. Reads go on, other servers take
// writes, and it does when the copy is back.
func TestFewCopies(t *testing.T) {
	t.Parallel()
	c := mustOpenCopied(t, vfstest.NewCrashableMem(), copyOptions{servers: 3, replicas: 2, minInSync: 2, patience: 100 * time.Millisecond})
	defer c.Close()
	ctx := t.Context()
	id := c.at(t, 0)
	entry := c.DB.Catalog().MustTable("entry")
	elsewhere := tables.Num(2 << 32) // of partition 2, and no other
	balance := func(id uint64) (n int64) {
		t.Helper()
		short, cancel := context.WithTimeout(ctx, testseed.Patience())
		defer cancel()
		if err := c.DB.View(short, func(x *txn.Txn) error {
			row, err := x.Get(c.acct, tables.Num(id))
			if err == nil {
				n = row.Int(c.acct.Field("balance"))
			}
			return err
		}); err != nil {
			t.Errorf("read of %d: %v", id, err)
		}
		return n
	}
	within := func(d time.Duration, id uint64, n int64) error {
		short, cancel := context.WithTimeout(ctx, d)
		defer cancel()
		return c.put(short, id, n)
	}
	if err := within(testseed.Patience(), id, 1); err != nil { // it waits until the copies are in sync
		t.Fatal(err)
	}

	// The copy goes, and a write is under way while it leaves the set.
	if _, _, err := c.Servers[1].YieldCopy(0); err != nil {
		t.Fatal(err)
	}
	if err := within(time.Second, id, 2); err == nil {
		t.Error("a write was acknowledged that is at one place alone")
	}
	await(t, "the copy has left the set", func() bool { return !c.Servers[0].durable.group.enough.Load() })
	for d := time.Second; ; d *= 2 { // until the client has heard of it, on a slow machine
		err := within(d, id, 3)
		if errors.Is(err, txn.ErrFewCopies) && errors.Is(err, txn.ErrUnavailable) {
			break
		}
		if err == nil || d > testseed.Patience() {
			t.Errorf("a write: %v, want %v", err, txn.ErrFewCopies)
			break
		}
	}
	if p, err := c.DB.Home(entry, elsewhere); err != nil || int(p)%len(c.Servers) == 0 {
		t.Fatalf("partition %d, %v", p, err)
	}
	if err := c.DB.Update(ctx, func(x *txn.Txn) error { return x.Insert(entry, elsewhere, entry.NewRow()) }); err != nil {
		t.Errorf("a write at another server: %v", err)
	}

	c.Servers[1].ResumeCopy(0)
	if err := within(testseed.Patience(), id, 7); err != nil {
		t.Fatalf("after the copy is back: %v", err)
	}
	if n := balance(id); n != 7 {
		t.Errorf("account %d has %d, want 7", id, n)
	}
}

// TestReadsWithFewCopies: rows that were durable at all copies required are read
// while one is away.
func TestReadsWithFewCopies(t *testing.T) {
	c := mustOpenCopied(t, vfstest.NewCrashableMem(), copyOptions{servers: 2, replicas: 2, minInSync: 2, patience: 100 * time.Millisecond})
	defer c.Close()
	id := c.at(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
	defer cancel()
	if err := c.put(ctx, id, 1); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Servers[1].YieldCopy(0); err != nil {
		t.Fatal(err)
	}
	await(t, "the copy has left the set", func() bool { return !c.Servers[0].durable.group.enough.Load() })
	for range 20 {
		if err := c.DB.View(ctx, func(x *txn.Txn) error { _, err := x.Get(c.acct, tables.Num(id)); return err }); err != nil {
			t.Fatal(err)
		}
	}
}
