package server_test

import (
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/testseed"
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
			before, _, _ := stats()
			written := uint64(0)
			for range rounds {
				for last := clock.TickAt(time.Now()); clock.TickAt(time.Now()) == last; { // the next tick
					time.Sleep(time.Millisecond)
				}
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
