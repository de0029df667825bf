package server

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/exec"
	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/tables"
	"drtmx/txn"
)

// TestCrashInAChange: all servers crash when the first of them has decided a
// change of the catalogue and the second has not heard of it. When they run again
// it hears of it, without a client that asks again.
func TestCrashInAChange(t *testing.T) {
	cat, mem := crashCatalog(t), vfstest.NewCrashableMem()
	fs := vfstest.New(mem)
	var mu sync.Mutex
	var cl *Cluster
	var left *vfstest.Mem
	fs.Before = func(_ int, op vfstest.Op, name string) error {
		mu.Lock()
		defer mu.Unlock()
		if cl != nil && left == nil && op == vfstest.Write && strings.Contains(name, "server-1") &&
			cl.Servers[0].catalog.Load().Version() > cl.Servers[1].catalog.Load().Version() {
			left = mem.CrashClone(vfs.CrashCloneCfg{})
		}
		return nil
	}
	opened, err := crashBank(fs, cat, 2, 1)
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	cl = opened
	mu.Unlock()
	if err := errors.Join(alter(cl.DB, alterTable), cl.Close()); err != nil {
		t.Fatal(err)
	}
	if left == nil {
		t.Fatal("the second server has not written the change")
	}
	after, err := crashBank(left, cat, 2, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer after.Close()
	want := after.Servers[0].catalog.Load().Version()
	for end := time.Now().Add(testseed.Patience()); after.Servers[1].catalog.Load().Version() != want; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the second server has version %d of the catalogue, want %d", after.Servers[1].catalog.Load().Version(), want)
		}
	}
	var ledger crashLedger
	if err := ledger.fill(after.DB); err != nil {
		t.Error(err)
	}
}

// TestViewOfOwnServer: a data server's own client reads only what its server has,
// and so has no connection when it validates that.
func TestViewOfOwnServer(t *testing.T) {
	cl, acct, _ := openBank(t, vfs.NewMem(), 1, 2)
	defer cl.Close()
	putAccounts(t, cl.DB, acct, 10, 5)
	db, err := cl.Servers[0].client.get(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	err = db.View(context.Background(), exec.BodyFunc(func(x *exec.Txn) error {
		found = 0
		for id := range uint64(10) {
			if _, err := x.Get(acct, tables.Num(id)); err == nil {
				found++
			} else if !errors.Is(err, txn.ErrNotFound) {
				return err
			}
		}
		return nil
	}))
	if err != nil || found != 10 {
		t.Errorf("%d rows of 10: %v", found, err)
	}
}
