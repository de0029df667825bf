package server

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/tables"
	"drtmx/txn"
)

// BenchmarkView reports the client's cost of one View that reads one row of a
// hash index, beside the same read by a procedure at the server.
func BenchmarkView(b *testing.B) {
	ctx := context.Background()
	cl, acct, _ := startBank(b, 1)
	putAccounts(b, cl.DB, acct, 1000, 1)
	s, err := cl.DB.NewSession(ctx)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	key := uint64(0)
	body := func(t *txn.Txn) error {
		_, err := t.Get(acct, tables.Num(key%1000))
		return err
	}
	b.Run("one-sided", func(b *testing.B) {
		b.ReportAllocs()
		start := s.Stats()
		for b.Loop() {
			key += 7
			if err := s.View(ctx, body); err != nil {
				b.Fatal(err)
			}
		}
		st := s.Stats()
		b.ReportMetric(float64(st.Rounds-start.Rounds)/float64(b.N), "rounds/op")
		b.ReportMetric(float64(st.Fabric.Reads-start.Fabric.Reads)/float64(b.N), "READs/op")
	})
	b.Run("commit", func(b *testing.B) {
		b.ReportAllocs()
		upd := func(t *txn.Txn) error {
			row, err := t.Get(acct, tables.Num(key%1000))
			if err != nil {
				return err
			}
			return t.Update(acct, tables.Num(key%1000), row)
		}
		for b.Loop() {
			key += 7
			if err := s.Update(ctx, upd); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkCommit reports the cost of a transaction that updates a row at each
// of several servers: one commits by itself, of two the second decides, and
// three vote.
func BenchmarkCommit(b *testing.B) {
	for _, servers := range []int{1, 2, 3} {
		b.Run(fmt.Sprintf("servers=%d", servers), func(b *testing.B) {
			ctx := context.Background()
			cl, acct, _ := startBank(b, servers)
			putAccounts(b, cl.DB, acct, 1000, 1)
			s, err := cl.DB.NewSession(ctx)
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			at := uint64(0)
			body := func(t *txn.Txn) error {
				for p := range servers {
					key := at%300*uint64(servers) + uint64(p) // of partition p
					row, err := t.Get(acct, tables.Num(key))
					if err != nil {
						return err
					}
					if err := t.Update(acct, tables.Num(key), row); err != nil {
						return err
					}
				}
				return nil
			}
			b.ReportAllocs()
			for b.Loop() {
				at += 7
				if err := s.Update(ctx, body); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPool reports the cost of transactions of DB's own methods, and the
// processor time of each.
func BenchmarkPool(b *testing.B) {
	ctx := context.Background()
	cl, acct, _ := startBank(b, 1)
	putAccounts(b, cl.DB, acct, 1000, 1)
	for _, views := range []bool{false, true} {
		b.Run(fmt.Sprintf("views=%v", views), func(b *testing.B) {
			key := uint64(0)
			body := func(t *txn.Txn) error {
				row, err := t.Get(acct, tables.Num(key%1000))
				if err != nil || views {
					return err
				}
				return t.Update(acct, tables.Num(key%1000), row)
			}
			run := cl.DB.Update
			if views {
				run = cl.DB.View
			}
			b.ReportAllocs()
			cpu := processTime()
			for b.Loop() {
				key += 7
				if err := run(ctx, body); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((processTime()-cpu).Nanoseconds())/float64(b.N), "cpu-ns/op")
		})
	}
}

// BenchmarkTwins reports the time for each row of loading a table with a hash index, without
// a twin and with one, and of building a twin for a loaded table.
func BenchmarkTwins(b *testing.B) {
	const rows = 200_000
	load := func(b *testing.B, twin tables.Twin, timed bool) *Cluster {
		b.Helper()
		cat, err := tables.NewCatalog(tables.Def{
			Name: "t", Primary: tables.Hash, Twin: twin, Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
			Partition: tables.Partitioning{Kind: tables.ByHash},
		})
		if err != nil {
			b.Fatal(err)
		}
		cl, err := Embedded(b.Context(), EmbeddedConfig{Catalog: cat, Servers: 2})
		if err != nil {
			b.Fatal(err)
		}
		tab := cat.MustTable("t")
		if timed {
			b.StartTimer()
			defer b.StopTimer()
		}
		l, err := cl.DB.NewLoader(b.Context(), tab)
		for n := uint64(0); n < rows && err == nil; n++ {
			err = l.Add(tables.Num(n), tab.NewRow())
		}
		if err == nil {
			err = l.Close()
		}
		if err == nil {
			err = cl.DB.Seal(b.Context())
		}
		if err != nil {
			b.Fatal(err)
		}
		return cl
	}
	report := func(b *testing.B) {
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/rows, "ns/row")
	}
	for _, twin := range []tables.Twin{"", tables.TwinLocal, tables.TwinSync, tables.TwinNext} {
		b.Run("load="+cmp.Or(string(twin), "none"), func(b *testing.B) {
			b.StopTimer()
			for range b.N {
				if err := load(b, twin, true).Close(); err != nil {
					b.Fatal(err)
				}
			}
			report(b)
		})
		if twin == "" {
			continue
		}
		b.Run("build="+string(twin), func(b *testing.B) {
			b.StopTimer()
			for range b.N {
				cl := load(b, "", false)
				b.StartTimer()
				if _, err := cl.DB.SetTwin(b.Context(), "t", twin); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				if err := cl.Close(); err != nil {
					b.Fatal(err)
				}
			}
			report(b)
		})
	}
}

// BenchmarkShippedInserts reports how the time of an insert into a table with a twin in the next
// partition is spent, in percent: until its keys are in a message to the twin, until that is answered,
// and the rest.
func BenchmarkShippedInserts(b *testing.B) {
	for _, clients := range []int{1, 32} {
		b.Run(fmt.Sprintf("clients=%d", clients), func(b *testing.B) {
			cat, err := tables.NewCatalog(tables.Def{
				Name: "t", Primary: tables.Hash, Twin: tables.TwinNext, Columns: []tables.Column{{Name: "n", Type: tables.Int64}},
				Partition: tables.Partitioning{Kind: tables.ByHash},
			})
			if err != nil {
				b.Fatal(err)
			}
			cl, err := Embedded(b.Context(), EmbeddedConfig{Catalog: cat, Servers: 2})
			if err != nil {
				b.Fatal(err)
			}
			defer cl.Close()
			tab := cat.MustTable("t")
			var next atomic.Uint64
			var spent atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range clients {
				wg.Go(func() {
					for {
						k, since := next.Add(1), time.Now()
						if k > uint64(b.N) {
							return
						}
						if err := cl.DB.Update(b.Context(), func(x *txn.Txn) error { return x.Insert(tab, tables.Num(k), tab.NewRow()) }); err != nil {
							b.Error(err)
							return
						}
						spent.Add(int64(time.Since(since)))
					}
				})
			}
			wg.Wait()
			b.StopTimer()
			var wait, ship float64
			for _, s := range cl.Servers {
				for _, p := range s.Stats().Partitions {
					wait, ship = wait+p.ShippedWait, ship+p.ShippedTime
				}
			}
			whole := time.Duration(spent.Load()).Seconds() / 100
			b.ReportMetric(wait/whole, "wait-%")
			b.ReportMetric(ship/whole, "shipping-%")
			b.ReportMetric(100-(wait+ship)/whole, "rest-%")
		})
	}
}
