package server_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/testseed"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// startCut starts vaults on three servers. cut makes some of them unreachable for
// clients, by refusals or, if silent, without any answer. tick moves the clock of
// a partition up.
func startCut(t *testing.T) (v *vaults, peers *hooks, cut func(silent bool, down ...int), tick func(part int, by clock.Tick)) {
	t.Helper()
	f := vaultFabrics(t)[0]
	network := f.provider
	client := &hooks{Provider: network}
	peers = &hooks{Provider: network}
	f.provider = client
	v = startVaults(t, f, 3, 60, func(c *server.Config) { c.Provider = peers })
	cut = func(silent bool, down ...int) {
		refuse := func(to string) error {
			if slices.ContainsFunc(down, func(i int) bool { return v.servers[i].Addr() == to }) {
				return rdma.ErrPeerDown
			}
			return nil
		}
		client.mu.Lock()
		defer client.mu.Unlock()
		client.post = func(to string, _ bool) error { return refuse(to) }
		client.call = func(to string, _ wire.Op, _ bool) error { return refuse(to) }
		client.dial = func(to string) error {
			err := refuse(to)
			if err != nil && silent {
				time.Sleep(time.Second)
			}
			return err
		}
	}
	tick = func(part int, by clock.Tick) {
		t.Helper()
		c, err := network.Dial(t.Context(), v.servers[part].Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if resp, err := rdma.Call(t.Context(), c, wire.AppendAdopt(nil, placement.Partition(part), clock.NewTicks().Now()+by), nil); err != nil || wire.Code(resp[0]) != wire.OK {
			t.Fatalf("adopt: %q, %v", resp, err)
		}
	}
	return v, peers, cut, tick
}

// TestSnapshotNeedsTouchedServers: a Snapshot, and a View that goes on as one,
// need the servers of their rows and no other.
func TestSnapshotNeedsTouchedServers(t *testing.T) {
	for _, silent := range []bool{false, true} {
		v, _, cut, _ := startCut(t)
		tab := v.table("tree")
		keys, far := v.at(t, tab, 0, 2), v.at(t, tab, 2, 1)[0]
		writer, err := v.db.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer writer.Close()
		s, err := v.db.NewSession(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		put := func(n int64) error {
			return writer.Update(t.Context(), func(x *txn.Txn) error {
				return errors.Join(x.Put(tab, keys[0], v.row(tab, n, 1)), x.Put(tab, keys[1], v.row(tab, n, 1)))
			})
		}
		cut(silent, 1, 2)
		start := time.Now()
		for n := int64(1); n <= 3; n++ {
			if err := put(n); err != nil {
				t.Fatal(err)
			}
			if err := s.Snapshot(t.Context(), func(x *txn.Txn) error {
				row, err := x.Get(tab, keys[1])
				if err == nil && row.Int(tab.Field("balance")) != n {
					t.Errorf("a snapshot has %d, want %d", row.Int(tab.Field("balance")), n)
				}
				return err
			}); err != nil {
				t.Fatalf("silent %v: %v", silent, err)
			}
		}
		before, n := s.Stats().Overtaken, int64(10)
		if err := s.View(t.Context(), func(x *txn.Txn) error {
			a, err := x.Get(tab, keys[0])
			if err != nil {
				return err
			}
			first := a.Int(tab.Field("balance"))
			n++
			if err := put(n); err != nil {
				return err
			}
			b, err := x.Get(tab, keys[1])
			if second := b.Int(tab.Field("balance")); err == nil && s.Stats().Overtaken > before && first != second {
				t.Errorf("a View that went on as a snapshot has %d and %d", first, second)
			}
			return err
		}); err != nil {
			t.Fatalf("silent %v: %v", silent, err)
		}
		if got := s.Stats().Overtaken - before; got != 1 {
			t.Errorf("silent %v: the View went on as %d snapshots, want 1", silent, got)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("silent %v: took %v", silent, took)
		}
		if err := s.Snapshot(t.Context(), func(x *txn.Txn) error { _, err := x.Get(tab, far); return err }); !errors.Is(err, txn.ErrUnavailable) {
			t.Errorf("silent %v: a row of a server that is cut off: %v", silent, err)
		}
		cut(false)
	}
}

// TestPartialSnapshotWidens: a snapshot that touches one partition after the
// other has, of the second as well, what ended before it began.
func TestPartialSnapshotWidens(t *testing.T) {
	v, _, cut, tick := startCut(t)
	tab := v.table("hash")
	first, second := v.at(t, tab, 0, 1)[0], v.at(t, tab, 1, 1)[0]
	writer := v.open(t) // another client, or the reader would know the tick of its own commit
	defer writer.Close()
	cut(false, 2)
	end := time.Now().Add(testseed.Patience())
	for n, widened := int64(0), 0; widened < 5; n++ {
		tick(1, 20*clock.Tick(widened+1))
		if err := writer.Update(t.Context(), func(x *txn.Txn) error { return x.Put(tab, second, v.row(tab, n, 1)) }); err != nil {
			t.Fatal(err)
		}
		bodies := 0
		if err := v.db.Snapshot(t.Context(), func(x *txn.Txn) error {
			bodies++
			if _, err := x.Get(tab, first); err != nil {
				return err
			}
			row, err := x.Get(tab, second)
			if err == nil && row.Int(tab.Field("balance")) != n {
				t.Errorf("a snapshot misses what ended before it began: %d, want %d", row.Int(tab.Field("balance")), n)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		switch { // once, if the first partition's clock has reached the second one's
		case bodies == 2:
			widened++
		case bodies > 2 || time.Now().After(end):
			t.Fatalf("the body ran %d times, want 2", bodies)
		}
	}
	cut(false)
}

// TestPartialSnapshotHasWhatEnded: a transaction has ended, and one of its
// partitions does not know the decision yet, nor its tick. A snapshot of that
// partition alone waits for it.
func TestPartialSnapshotHasWhatEnded(t *testing.T) {
	v, peers, cut, tick := startCut(t)
	tab := v.table("hash")
	keys := []tables.Key{v.at(t, tab, 0, 1)[0], v.at(t, tab, 1, 1)[0], v.at(t, tab, 2, 1)[0]}
	put := func(n int64) error {
		ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
		defer cancel()
		return v.db.Update(ctx, func(x *txn.Txn) error {
			var errs []error
			for _, k := range keys {
				errs = append(errs, x.Put(tab, k, v.row(tab, n, 1)))
			}
			return errors.Join(errs...)
		})
	}
	if err := put(1); err != nil { // all connections are made
		t.Fatal(err)
	}
	reader := v.open(t) // which has seen nothing of what v.db commits
	defer reader.Close()
	tick(2, 30) // so the decision is at a tick that partition 1 has not
	peers.set(func(to string, op wire.Op, sent bool) error {
		if !sent && (to == v.servers[1].Addr() && op == wire.OpDecide || op == wire.OpResolve) {
			return rdma.ErrPeerDown
		}
		return nil
	})
	if err := put(2); err != nil {
		t.Fatal(err)
	}
	if v.servers[1].Stats().Prepared == 0 {
		t.Error("partition 1 knows the decision")
	}
	cut(false, 0, 2)
	time.AfterFunc(100*time.Millisecond, func() { peers.set(nil) })
	if err := reader.Snapshot(t.Context(), func(x *txn.Txn) error {
		row, err := x.Get(tab, keys[1])
		if err == nil && row.Int(tab.Field("balance")) != 2 {
			t.Errorf("a snapshot misses what ended before it began: %d", row.Int(tab.Field("balance")))
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	cut(false)
}
