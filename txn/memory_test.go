package txn_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"drtmx/internal/testseed"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// heapKept returns by how much the heap has grown over a call, after garbage collections.
func heapKept(t testing.TB, do func()) int {
	t.Helper()
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC() // what finalizers and pools held through the first
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	do()
	return heap() - before
}

// TestSessionGivesMemoryBack: after a large transaction a session keeps no more than a small part of its memory.
func TestSessionGivesMemoryBack(t *testing.T) {
	const (
		rows              = 40_000
		large, largeBytes = 600, 60_000
		keptMax           = 4 << 20
	)
	r := newRig(t, 1, txn.Config{}, nil)
	r.fillWide(t, 0, rows)
	r.fillText(t, 0, large, largeBytes)
	s, err := r.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	scans := func(x *txn.Txn) error {
		n := 0
		for lo := 0; lo < rows; lo += 10_000 {
			rows, err := x.QueueScan(r.wide.Primary(), tables.Num(uint64(lo)), tables.Num(uint64(lo+9_999)), 0).Entries()
			if err != nil {
				return err
			}
			n += len(rows)
		}
		if n != rows {
			t.Errorf("%d rows, want %d", n, rows)
		}
		return nil
	}
	iterator := func(x *txn.Txn) error {
		n := 0
		for _, err := range x.Scan(r.wide.Primary(), tables.First, tables.Last) {
			if err != nil {
				return err
			}
			n++
		}
		if n != rows {
			t.Errorf("%d rows, want %d", n, rows)
		}
		return nil
	}
	gets := func(x *txn.Txn) error {
		for k := range rows {
			x.QueueGet(r.wide, tables.Num(uint64(k)))
		}
		_, err := x.Get(r.wide, tables.Num(0))
		return err
	}
	largeRows := func(x *txn.Txn) error {
		for i := range large {
			if _, err := x.Get(r.text, textKey(0, i)); err != nil {
				return err
			}
		}
		return nil
	}
	writesOf := func(sizes ...int) func(*txn.Txn) error {
		return func(x *txn.Txn) error {
			for i := range large {
				for _, size := range sizes {
					if err := x.Put(r.text, textKey(0, i), body(r.text, size)); err != nil {
						return err
					}
				}
			}
			return nil
		}
	}
	tooLarge := func(writes func(*txn.Txn) error) func() error {
		return func() error {
			if err := s.Update(t.Context(), writes); !errors.Is(err, txn.ErrTooLarge) {
				return fmt.Errorf("a commit of %d bytes: %w", large*largeBytes, err)
			}
			return nil
		}
	}
	for _, c := range []struct {
		name string
		run  func() error
	}{
		{"scans", func() error { return s.View(t.Context(), scans) }},
		{"iterator", func() error { return s.View(t.Context(), iterator) }},
		{"gets", func() error { return s.View(t.Context(), gets) }},
		{"large rows", func() error { return s.View(t.Context(), largeRows) }},
		{"writes", tooLarge(writesOf(largeBytes))},
		{"writes that grow", tooLarge(writesOf(0, largeBytes))},
	} {
		kept := heapKept(t, func() {
			if err := c.run(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
		})
		t.Logf("%s: %d KiB kept", c.name, kept>>10)
		if kept > keptMax {
			t.Errorf("%s: the session has kept %d bytes, want at most %d", c.name, kept, keptMax)
		}
	}
}

// TestIdleSessionsShareMemory: many sessions that have each run a large transaction keep
// little more together than a few.
func TestIdleSessionsShareMemory(t *testing.T) {
	const (
		rows, sessions = 20_000, 32
		keptMax        = 64 << 20
	)
	c, tab := newLedger(t, rows)
	crowd := func(n int) {
		var inside, over sync.WaitGroup
		inside.Add(n)
		for range n {
			over.Go(func() {
				arrived := sync.OnceFunc(inside.Done)
				if err := c.DB.View(t.Context(), func(x *txn.Txn) error {
					es, err := x.QueueScan(tab.Primary(), tables.First, tables.Last, 0).Entries()
					if len(es) != rows {
						t.Errorf("%d rows", len(es))
					}
					arrived()
					inside.Wait() // so that each has a session of its own
					return err
				}); err != nil {
					t.Error(err)
				}
			})
		}
		over.Wait()
	}
	used := heapKept(t, func() { crowd(1) })
	crowd(8)
	freed := -heapKept(t, func() {
		for range 4 * sessions {
			s, err := c.DB.NewSession(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
		}
	})
	if freed < 4*used {
		t.Errorf("eight idle sessions have given up %d bytes when many others were opened, want most of %d", freed, 8*used)
	}
	kept := heapKept(t, func() {
		for n := 2; n <= sessions; n *= 2 {
			crowd(n)
		}
	})
	t.Logf("one session keeps %d KiB, %d together %d KiB; eight gave up %d KiB", used>>10, sessions, kept>>10, freed>>10)
	if all := used * sessions; all < 3*keptMax/2 {
		t.Fatalf("%d sessions would keep %d bytes; the test tells nothing", sessions, all)
	}
	if kept > keptMax {
		t.Errorf("%d sessions have kept %d bytes, want at most %d", sessions, kept, keptMax)
	}
}

// newLedger starts a cluster with a table of so many small rows.
func newLedger(t *testing.T, rows int) (*server.Cluster, *tables.Table) {
	t.Helper()
	c, err := server.Embedded(t.Context(), server.EmbeddedConfig{Servers: 2, Retain: testseed.Patience(), Tables: []tables.Definer{tables.Def{
		Name: "ledger", Primary: tables.Ordered, Partition: tables.Partitioning{Kind: tables.ByHash},
		Columns: []tables.Column{{Name: "balance", Type: tables.Int64}, {Name: "note", Type: tables.Text, Size: 30}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	tab := c.DB.Catalog().MustTable("ledger")
	loader, err := c.DB.NewLoader(t.Context(), tab)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(rows) {
		if err := loader.Add(tables.Num(i), tab.NewRow()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(loader.Close(), c.DB.Seal(t.Context())); err != nil {
		t.Fatal(err)
	}
	return c, tab
}

// TestMillionRowViewGivesMemoryBack: a View of a million rows keeps a few bytes
// for each row that an iterator has passed, or the rows of queued reads. When it
// has ended, its session keeps a small part.
func TestMillionRowViewGivesMemoryBack(t *testing.T) {
	if testing.Short() {
		t.Skip("loads a million rows")
	}
	const (
		rows    = 1_000_000
		keptMax = 4 << 20
		page    = 20_000
	)
	c, tab := newLedger(t, rows)
	iterator := func(x *txn.Txn) (n int, err error) {
		for _, err := range x.Scan(tab.Primary(), tables.First, tables.Last) {
			if err != nil {
				return 0, err
			}
			n++
		}
		return n, nil
	}
	queued := func(x *txn.Txn) (n int, err error) {
		for lo := uint64(0); lo < rows; lo += page {
			es, err := x.QueueScan(tab.Primary(), tables.Num(lo), tables.Num(lo+page-1), 0).Entries()
			if err != nil {
				return 0, err
			}
			n += len(es)
		}
		return n, nil
	}
	if err := c.DB.View(t.Context(), func(x *txn.Txn) error { _, err := x.Get(tab, tables.Num(1)); return err }); err != nil {
		t.Fatal(err) // opens a session and loads the models
	}
	for _, r := range []struct {
		name        string
		bytesPerRow int // at the end of the body
		view        func(context.Context, func(*txn.Txn) error) error
		scan        func(*txn.Txn) (int, error)
	}{
		{"iterator", 40, c.DB.View, iterator},
		{"snapshot", 4, func(ctx context.Context, fn func(*txn.Txn) error) error { return c.DB.Snapshot(ctx, fn) }, iterator},
		{"queued", 300, c.DB.View, queued},
	} {
		held := 0
		kept := heapKept(t, func() {
			if err := r.view(t.Context(), func(x *txn.Txn) error {
				var n int
				var err error
				held = heapKept(t, func() { n, err = r.scan(x) })
				if err == nil && n != rows {
					err = fmt.Errorf("%d rows, want %d", n, rows)
				}
				return err
			}); err != nil {
				t.Fatalf("%s: %v", r.name, err)
			}
		})
		t.Logf("%s: %d KiB at the end of its body, %d KiB after it", r.name, held>>10, kept>>10)
		if kept > keptMax || held > rows*r.bytesPerRow {
			t.Errorf("%s: %d bytes at the end of the body, want at most %d; %d kept after it, want at most %d",
				r.name, held, rows*r.bytesPerRow, kept, keptMax)
		}
	}
}
