package server

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/internal/vfstest"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// TestNoDecisionLeavesWithoutThePlace: the lease of a server has ended, and it does not
// know yet that it is to stop. What it writes to its log then, a process that goes on
// with a copy of the log may not have. So it hands no decision over and tells none, and
// goes on with both when it has its place.
func TestNoDecisionLeavesWithoutThePlace(t *testing.T) {
	for _, c := range []struct {
		name    string
		servers int // of the transaction
	}{{"handed over", 2}, {"told", 3}} {
		t.Run(c.name, func(t *testing.T) {
			var place atomic.Bool
			place.Store(true)
			net, fs, cat := inproc.New(inproc.Options{}), vfstest.NewMem(), bank(t)
			entry := cat.MustTable("entry")
			addrs := []string{"server-0", "server-1", "server-2"}
			var all []*Server
			for i := range addrs {
				cfg := Config{Index: i, Addrs: addrs, Catalog: cat, Provider: net, Durability: Disk, Dir: "data/" + addrs[i], FS: fs, MemoryBytes: 1 << 27}
				if i == 0 {
					cfg.hosted.Holds = place.Load
				}
				s, err := New(cfg)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				if err := s.Start(); err != nil {
					t.Fatal(err)
				}
				all = append(all, s)
			}
			db, err := txn.Open(t.Context(), txn.Config{Servers: addrs, Dial: net.Dial})
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			write := func(ctx context.Context, key uint64) error {
				return db.Update(ctx, func(x *txn.Txn) error {
					for p := range uint64(c.servers) {
						if err := x.Put(entry, tables.Num(p<<32+key), entry.NewRow()); err != nil {
							return err
						}
					}
					return nil
				})
			}
			if err := write(t.Context(), 1); err != nil {
				t.Fatal(err)
			}
			decided := func() (n uint64) {
				for _, s := range all[1:] {
					for _, p := range s.parts.here {
						p.mu.Lock()
						n += p.commits
						p.mu.Unlock()
					}
				}
				return n
			}
			await(t, "the first transaction is over", func() bool { return all[1].InDoubt()+all[2].InDoubt() == 0 })
			before := decided()
			place.Store(false)
			ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
			defer cancel()
			ended := make(chan error, 1)
			go func() { ended <- write(ctx, 2) }()
			await(t, "a server is in doubt, or has decided", func() bool {
				return all[0].InDoubt()+all[1].InDoubt()+all[2].InDoubt() > 0 || decided() > before
			})
			time.Sleep(200 * time.Millisecond) // for what must not happen
			if n := decided() - before; n > 0 {
				t.Errorf("%d other servers have committed what the server has decided without its place", n)
			}
			place.Store(true)
			<-ended // with whatever is known of it
			await(t, "nobody is in doubt", func() bool { return all[0].InDoubt()+all[1].InDoubt()+all[2].InDoubt() == 0 })
			if err := write(t.Context(), 2); err != nil {
				t.Error(err)
			}
		})
	}
}
