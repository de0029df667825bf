package server_test

import (
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
)

// TestVersionsAreBounded: updates in ever new ticks take no more memory than the
// bound of versions in bytes, and all of it is free again when the time for
// which they are kept has passed.
func TestVersionsAreBounded(t *testing.T) {
	const keys, rounds, most, slack = 300, 25, 256 << 10, 256 << 10
	cat, err := tables.NewCatalog(tables.Def{
		Name: "row", Primary: tables.Hash, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "text", Type: tables.Bytes, Size: 400}},
	}, tables.Def{
		Name: "ordered", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "text", Type: tables.Bytes, Size: 400}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		retain time.Duration
		bytes  uint64
	}{"bytes": {time.Hour, most}, "time": {100 * time.Millisecond, 1 << 30}} {
		t.Run(name, func(t *testing.T) {
			cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{
				Catalog: cat, Network: inproc.New(inproc.Options{}), Retain: c.retain, RetainBytes: c.bytes, MemoryBytes: 1 << 28,
			})
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			put := func() {
				if err := cl.DB.Update(t.Context(), func(x *txn.Txn) error {
					for _, name := range []string{"row", "ordered"} {
						tab := cat.MustTable(name)
						for k := range uint64(keys) {
							if err := x.Put(tab, tables.Num(k), tab.NewRow()); err != nil {
								return err
							}
						}
					}
					return nil
				}); err != nil {
					t.Fatal(err)
				}
			}
			stats := func() (used, versions, bytes uint64) {
				st, err := cl.DB.ServerStats(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				p := st[0].Partitions[0]
				return st[0].RegionBytes, p.Versions, p.VersionBytes
			}
			put()
			if _, kept, _ := stats(); kept > 0 {
				t.Errorf("%d versions are kept before there was a snapshot", kept)
			}
			if err := cl.DB.Snapshot(t.Context(), func(x *txn.Txn) error {
				_, err := x.Get(cat.MustTable("row"), tables.Num(0))
				return err
			}); err != nil {
				t.Fatal(err)
			}
			before, _, _ := stats()
			written := uint64(0)
			for range rounds {
				awaitTick()
				put()
				written += 2 * keys
			}
			used, versions, bytes := stats()
			t.Logf("%d rows overwritten: %d bytes used before, %d after; %d versions in %d bytes", written, before, used, versions, bytes)
			if c.bytes == most && (bytes > most || bytes == 0 || used > before+most+slack) {
				t.Errorf("more than %d bytes for versions", most)
			}
			if c.bytes != most {
				for end := time.Now().Add(testseed.Patience()); bytes > 0 && time.Now().Before(end); _, _, bytes = stats() {
					time.Sleep(20 * time.Millisecond)
				}
				if bytes > 0 {
					t.Errorf("%d bytes of versions are left long after %v", bytes, c.retain)
				}
			}
		})
	}
}

// TestSnapshotsAskForVersions: partitions keep no versions until a snapshot asks them,
// with one request each. The snapshot then reads the past beside writers, and the next
// ones need not ask.
func TestSnapshotsAskForVersions(t *testing.T) {
	net := inproc.New(inproc.Options{})
	v := startVaults(t, vaultFabric{name: "inproc", provider: net, addrs: inprocAddrs}, 2, 40, nil)
	h := &hooks{Provider: net}
	var asked atomic.Int64
	var between func() // the snapshot's first look at the time and its request for versions
	h.set(func(_ string, op wire.Op, sent bool) error {
		if op == wire.OpAdopt && !sent && asked.Add(1) == 1 {
			awaitTick()
			between()
		}
		return nil
	})
	db := v.openFew(t, 0, h.Dial, txn.OneSided)
	fixed := vaultTables[:3] // rows that vary move, and leave their old block in any case
	write := func(balance int64) {
		if err := v.db.Update(t.Context(), func(x *txn.Txn) error {
			for _, name := range fixed {
				tab := v.table(name)
				for part := range 2 {
					if err := x.Put(tab, v.at(t, tab, part, 1)[0], v.row(tab, balance, 7)); err != nil {
						return err
					}
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	kept := func() (n uint64) {
		st, err := v.db.ServerStats(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range st {
			for _, p := range s.Partitions {
				n += p.Versions
			}
		}
		return n
	}
	between = func() { write(2) }
	for balance := range int64(2) {
		write(balance)
		awaitTick()
	}
	if n := kept(); n != 0 {
		t.Errorf("%d versions are kept that no snapshot has asked for", n)
	}
	quiet := 0
	for turn := range int64(6) {
		was := int64(2)
		if turn > 0 {
			was = 100 + turn - 1
		}
		before := asked.Load()
		if err := db.Snapshot(t.Context(), func(x *txn.Txn) error {
			for i, name := range fixed {
				tab := v.table(name)
				for part := range 2 {
					row, err := x.Get(tab, v.at(t, tab, part, 1)[0])
					if err != nil {
						return err
					}
					if got := row.Int(tab.Field("balance")); got != was {
						t.Errorf("snapshot %d, %s: %d, want %d", turn, name, got, was)
					}
				}
				if i == 0 {
					awaitTick()
					write(100 + turn)
				}
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		// A partition whose clock does not advance for two ticks is asked, too: its machine is busy.
		switch n := asked.Load() - before; {
		case turn == 0 && n < 2:
			t.Errorf("%d requests for versions of 2 partitions", n)
		case turn > 0 && n == 0:
			quiet++
		case turn > 0:
			t.Logf("snapshot %d has sent %d requests", turn, n)
		}
	}
	if quiet == 0 {
		t.Error("every snapshot asks for versions that are kept already")
	}
	if kept() == 0 {
		t.Error("the writers beside the snapshots have left no versions")
	}
}

// awaitTick waits for the next tick.
func awaitTick() {
	for last := clock.TickAt(time.Now()); clock.TickAt(time.Now()) == last; {
		time.Sleep(time.Millisecond)
	}
}

// TestSnapshotsBesideAPausedServer: snapshots that do not read at a paused server do not
// wait for it, except the first, though it cannot be asked for versions. One that reads
// there after all, when the server works again and has overwritten the row without
// leaving versions, gets another time.
func TestSnapshotsBesideAPausedServer(t *testing.T) {
	net := inproc.New(inproc.Options{})
	v := startVaults(t, vaultFabric{name: "inproc", provider: net, addrs: inprocAddrs}, 2, 40, nil)
	tab := v.table("tree")
	db := v.openFew(t, 0, net.Dial, txn.OneSided)
	s, err := db.NewSession(t.Context()) // one, so that it has connections to both servers
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	get := func(x *txn.Txn, part int) (int64, error) {
		row, err := x.Get(tab, v.at(t, tab, part, 1)[0])
		if err != nil {
			return 0, err
		}
		return row.Int(tab.Field("balance")), nil
	}
	for part := range 2 { // connections
		if err := s.View(t.Context(), func(x *txn.Txn) error { _, err := get(x, part); return err }); err != nil {
			t.Fatal(err)
		}
	}
	if err := net.Pause(v.servers[1].Addr()); err != nil {
		t.Fatal(err)
	}
	fastest := time.Hour
	for range 12 {
		start := time.Now()
		if err := s.Snapshot(t.Context(), func(x *txn.Txn) error { _, err := get(x, 0); return err }); err != nil {
			t.Fatal(err)
		}
		fastest = min(fastest, time.Since(start))
	}
	if fastest >= answerMax {
		t.Errorf("each snapshot took %v or more: it waits for a server at which it does not read", fastest)
	}
	bodies := 0
	if err := s.Snapshot(t.Context(), func(x *txn.Txn) error {
		if _, err := get(x, 0); err != nil {
			return err
		}
		if bodies++; bodies == 1 {
			if err := net.Resume(v.servers[1].Addr()); err != nil {
				return err
			}
			for balance := range int64(3) {
				awaitTick()
				if err := v.db.Update(t.Context(), func(x *txn.Txn) error {
					return x.Put(tab, v.at(t, tab, 1, 1)[0], v.row(tab, 500+balance, 1))
				}); err != nil {
					return err
				}
			}
		}
		got, err := get(x, 1)
		if err == nil && got != 502 {
			t.Errorf("in run %d of the body: %d, want 502", bodies, got)
		}
		return err
	}); err != nil || bodies != 2 {
		t.Errorf("%v after %d runs of the body, want 2", err, bodies)
	}
	if st := s.Stats(); st.Snapshots != 12+2 || st.Widened != 1 {
		t.Errorf("%d snapshots, %d of them began again; want 14 and 1", st.Snapshots, st.Widened)
	}
}
