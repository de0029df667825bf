package server_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// ledger is a table of rows whose sum never changes, on servers of this process.
type ledger struct {
	*server.Cluster
	table   *tables.Table
	balance tables.Field
	rows    int
}

func newLedger(b *testing.B, servers, rows int) *ledger {
	b.Helper()
	cat, err := tables.NewCatalog(tables.Def{
		Name: "ledger", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "balance", Type: tables.Int64}, {Name: "note", Type: tables.Text, Size: 30}},
	})
	if err != nil {
		b.Fatal(err)
	}
	cl, err := server.Embedded(b.Context(), server.EmbeddedConfig{Catalog: cat, Servers: servers, Retain: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { cl.Close() })
	l := &ledger{Cluster: cl, table: cat.MustTable("ledger"), rows: rows}
	l.balance = l.table.Field("balance")
	loader, err := cl.DB.NewLoader(b.Context(), l.table)
	if err != nil {
		b.Fatal(err)
	}
	for i := range rows {
		if err := loader.Add(tables.Num(uint64(i)), l.row(100)); err != nil {
			b.Fatal(err)
		}
	}
	if err := loader.Close(); err != nil {
		b.Fatal(err)
	}
	if err := cl.DB.Seal(b.Context()); err != nil {
		b.Fatal(err)
	}
	return l
}

func (l *ledger) row(balance int64) tables.Row {
	r := l.table.NewRow()
	r.SetInt(l.balance, balance)
	return r
}

// write starts writers that move money between random rows, and returns the
// number of their commits so far, and a function that ends them.
func (l *ledger) write(b *testing.B, writers int) (commits *atomic.Uint64, stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	commits = new(atomic.Uint64)
	var wg sync.WaitGroup
	for w := range writers {
		rng := rand.New(rand.NewPCG(7, uint64(w)))
		wg.Go(func() {
			for ctx.Err() == nil {
				from, to := uint64(rng.IntN(l.rows)), uint64(rng.IntN(l.rows))
				if from == to {
					continue
				}
				err := l.DB.Update(ctx, func(x *txn.Txn) error {
					f, t := x.QueueGet(l.table, tables.Num(from)), x.QueueGet(l.table, tables.Num(to))
					a, err := f.Row()
					if err != nil {
						return err
					}
					c, err := t.Row()
					if err != nil {
						return err
					}
					return errors.Join(
						x.Put(l.table, tables.Num(from), l.row(a.Int(l.balance)-1)), x.Put(l.table, tables.Num(to), l.row(c.Int(l.balance)+1)))
				})
				if err == nil {
					commits.Add(1)
				} else if ctx.Err() == nil && !errors.Is(err, txn.ErrConflict) {
					b.Error(err)
					return
				}
			}
		})
	}
	return commits, func() { cancel(); wg.Wait() }
}

// sum adds up all rows.
func (l *ledger) sum(x *txn.Txn) error {
	total, rows := int64(0), 0
	for e, err := range x.Scan(l.table.Primary(), tables.First, tables.Last) {
		if err != nil {
			return err
		}
		total, rows = total+e.Row.Int(l.balance), rows+1
	}
	if rows != l.rows || total != 100*int64(l.rows) {
		return fmt.Errorf("%d rows with %d in all, want %d with %d", rows, total, l.rows, 100*l.rows)
	}
	return nil
}

// BenchmarkLongReads reads a whole table as a Snapshot and as a View beside
// writers. It reports the writers' rate beside the reader and what part this is
// of their rate alone, the rounds and READs of a reader, and the memory that it
// allocates. Set LONG_ROWS for another number of rows.
func BenchmarkLongReads(b *testing.B) {
	rows := 30_000
	if v, err := strconv.Atoi(os.Getenv("LONG_ROWS")); err == nil {
		rows = v
	}
	for _, servers := range []int{1, 2, 4} {
		l := newLedger(b, servers, rows)
		for _, writers := range []int{1, 8, 32} {
			for _, how := range []string{"snapshot", "view"} {
				b.Run(fmt.Sprintf("rows=%d/servers=%d/writers=%d/%s", rows, servers, writers, how), func(b *testing.B) {
					l.benchmark(b, writers, how)
				})
			}
		}
		l.Close()
	}
}

func (l *ledger) benchmark(b *testing.B, writers int, how string) {
	s, err := l.DB.NewSession(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	commits, stop := l.write(b, writers)
	defer stop()
	rate := func(during func()) float64 {
		start, before := time.Now(), commits.Load()
		during()
		return float64(commits.Load()-before) / time.Since(start).Seconds()
	}
	read := s.Snapshot
	if how == "view" {
		read = func(ctx context.Context, fn func(*txn.Txn) error, _ ...txn.SnapshotOption) error {
			return s.View(ctx, fn)
		}
	}
	if err := read(b.Context(), l.sum); err != nil { // fills caches
		b.Fatal(err)
	}
	alone := rate(func() { time.Sleep(500 * time.Millisecond) })
	before := s.Stats()
	var mem [2]runtime.MemStats
	runtime.ReadMemStats(&mem[0])
	b.ResetTimer()
	beside := rate(func() {
		for range b.N {
			if err := read(b.Context(), l.sum); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.StopTimer()
	runtime.ReadMemStats(&mem[1])
	n, now := float64(b.N), s.Stats()
	b.ReportMetric(beside, "writes/s")
	b.ReportMetric(100*beside/alone, "%-of-writes-alone")
	b.ReportMetric(float64(now.Rounds-before.Rounds)/n, "rounds/op")
	b.ReportMetric(float64(now.Fabric.Reads-before.Fabric.Reads)/n, "READs/op")
	b.ReportMetric(float64(now.Overtaken-before.Overtaken)/n, "overtaken/op")
	b.ReportMetric(float64(mem[1].HeapSys)/(1<<20), "heap-MiB")
}
