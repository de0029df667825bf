package txn_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"drtmx/internal/hosting"
	"drtmx/internal/invariants"
	"drtmx/internal/testseed"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// numbers collects what an iterator returns, up to n rows.
func numbers(seq iter.Seq2[txn.Entry, error], n int) (got []uint64, err error) {
	for e, err := range seq {
		if err != nil {
			return got, err
		}
		if got = append(got, e.Key.Num()); len(got) == n {
			break
		}
	}
	return got, nil
}

// TestRangesOverPartitions iterates over more rows than a page has, over two
// partitions, with number and string keys, from READs and at a server.
func TestRangesOverPartitions(t *testing.T) {
	const each = 1500
	for name, reads := range map[string]txn.ReadPath{"one-sided": txn.OneSided, "by RPC": txn.OrderedByRPC} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 2, txn.Config{Reads: reads}, nil)
			r.fillWide(t, 10, each)
			r.fillWide(t, boundary+10, each)
			for part := range 2 {
				r.fillText(t, part, each/3, 40)
			}
			var want []uint64
			for i := range uint64(each) {
				want = append(want, 10+i, boundary+10+i)
			}
			slices.Sort(want)
			check := func(x *txn.Txn, lo, hi tables.Key, want []uint64) error {
				got, err := numbers(x.Scan(r.wide.Primary(), lo, hi), len(want)+1)
				if err == nil && !slices.Equal(got, want) {
					err = fmt.Errorf("%v to %v: %d rows, want %d", lo, hi, len(got), len(want))
				}
				back, berr := numbers(x.ScanReverse(r.wide.Primary(), lo, hi), len(want)+1)
				if slices.Reverse(back); berr == nil && !slices.Equal(back, want) {
					berr = fmt.Errorf("%v down to %v: %d rows, want %d", hi, lo, len(back), len(want))
				}
				return errors.Join(err, berr)
			}
			if err := r.DB.View(t.Context(), func(x *txn.Txn) error {
				for part, prefix := range []string{"a", "z"} {
					lo, hi := tables.Prefix(prefix)
					for dir, seq := range []iter.Seq2[txn.Entry, error]{x.Scan(r.text.Primary(), lo, hi), x.ScanReverse(r.text.Primary(), lo, hi)} {
						i := 0
						for e, err := range seq {
							at := i
							if dir == 1 {
								at = each/3 - 1 - i
							}
							if err != nil || e.Key != textKey(part, at) || len(e.Row.Bytes(r.text.Field("body"))) != 40 {
								return fmt.Errorf("row %d of prefix %s, direction %d: %v, %v", i, prefix, dir, e.Key, err)
							}
							i++
						}
						if i != each/3 {
							return fmt.Errorf("prefix %s: %d rows", prefix, i)
						}
					}
				}
				return errors.Join(
					check(x, tables.First, tables.Last, want), check(x, tables.Num(500), tables.Num(boundary+700), want[490:each+691]),
					check(x, tables.Num(boundary-5), tables.Num(boundary+12), want[each:each+3]), check(x, tables.Num(8), tables.Num(3), nil),
					check(x, tables.Num(1509), tables.Num(1509), want[each-1:each]), check(x, tables.Num(2000), tables.Num(boundary), nil),
					check(x, tables.After(tables.Num(500)), tables.Before(tables.Num(boundary+700)), want[491:each+690]),
					check(x, tables.After(tables.Num(1509)), tables.Last, want[each:]), check(x, tables.First, tables.Before(tables.Num(boundary+10)), want[:each]),
					check(x, tables.After(tables.Num(math.MaxUint64)), tables.Last, nil), check(x, tables.First, tables.Before(tables.Num(0)), nil))
			}); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestIteratorsEnd checks the errors of iterators, each as the only step.
func TestIteratorsEnd(t *testing.T) {
	r := newRig(t, 1, txn.Config{}, nil)
	r.fillWide(t, 0, 100)
	fails := func(what string, want error, seq iter.Seq2[txn.Entry, error]) {
		t.Helper()
		if got, err := numbers(seq, 1); !errors.Is(err, want) || len(got) != 0 {
			t.Errorf("%s: %v, %v, want %v", what, got, err, want)
		}
	}
	var leaked iter.Seq2[txn.Entry, error]
	next, stop := func() (txn.Entry, error, bool) { return txn.Entry{}, nil, false }, func() {}
	if err := r.DB.View(t.Context(), func(x *txn.Txn) error {
		fails("wrong kind of key", tables.ErrKey, x.Scan(r.wide.Primary(), tables.Str("x"), tables.Last))
		fails("no index", tables.ErrCatalog, x.ScanReverse(nil, tables.First, tables.Last))
		leaked = x.Scan(r.wide.Primary(), tables.First, tables.Last)
		next, stop = iter.Pull2(leaked)
		for range 20 { // within the first page
			next()
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	fails("after the body", txn.ErrClosed, leaked)
	if err := r.DB.View(t.Context(), func(x *txn.Txn) error {
		if _, err, _ := next(); !errors.Is(err, txn.ErrClosed) {
			t.Errorf("an iterator in a later transaction: %v", err)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	stop()
}

// TestRangesCostWhatTheyRead counts READs: a loop that breaks early reads no
// more than a page, in either direction, and memory does not grow with the rows.
func TestRangesCostWhatTheyRead(t *testing.T) {
	const rows = 20_000
	r := newRig(t, 1, txn.Config{}, nil)
	l, err := r.DB.NewLoader(t.Context(), r.wide)
	if err != nil {
		t.Fatal(err)
	}
	row := r.wide.NewRow()
	for k := range uint64(rows) {
		if err := l.Add(tables.Num(k), row); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.Close(), r.DB.Seal(t.Context())); err != nil {
		t.Fatal(err)
	}
	s, err := r.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	reads := func(reverse bool, n int, during func()) uint64 {
		t.Helper()
		before := s.Stats().Fabric.Reads
		if err := s.View(t.Context(), func(x *txn.Txn) error {
			seq := x.Scan(r.wide.Primary(), tables.First, tables.Last)
			if reverse {
				seq = x.ScanReverse(r.wide.Primary(), tables.First, tables.Last)
			}
			got, err := numbers(seq, n)
			if err == nil && len(got) != n {
				err = fmt.Errorf("%d rows, want %d", len(got), n)
			}
			during()
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return s.Stats().Fabric.Reads - before
	}
	quiet := func() {}
	reads(false, 1, quiet) // loads the models
	reads(true, 1, quiet)  // learns of leaves that the models lack yet
	first, last := reads(false, 1, quiet), reads(true, 1, quiet)
	t.Logf("READs: %d for the first row, %d for the last", first, last)
	if first > 60 || last > 200 {
		t.Errorf("%d READs for the first row and %d for the last", first, last)
	}
	heap := func() (n uint64) {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before, peak := heap(), uint64(0)
	forward := reads(false, rows, func() { peak = heap() })
	backward := reads(true, rows, quiet)
	t.Logf("READs for %d rows: %d forward, %d in reverse; heap %d KiB above", rows, forward, backward, (int64(peak)-int64(before))>>10)
	if backward > 3*forward {
		t.Errorf("%d READs in reverse, %d forward", backward, forward)
	}
	if most := before + rows*150; peak > most { // the rows have 320 bytes each
		t.Errorf("the heap grew by %d bytes", peak-before)
	}
}

// TestNewestRowsInReverse counts READs of a client that asks for nothing but the
// newest rows while others insert, and no model is trained: what the models do not
// cover is passed once.
func TestNewestRowsInReverse(t *testing.T) {
	const rows, each, turns = 2_000, 100, 60
	net, cat := inproc.New(inproc.Options{}), rigCatalog(t)
	srv, err := server.New(server.Config{Addrs: []string{"a"}, Catalog: cat, Partitions: 2, Provider: net, MemoryBytes: 1 << 28}.Hosted(hosting.Options{Work: hosting.Work{ManualTraining: true}}))
	if err == nil {
		t.Cleanup(func() { srv.Close() })
		err = srv.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{Cluster: &server.Cluster{}, net: net, wide: cat.MustTable("wide")}
	if r.DB, err = txn.Open(t.Context(), txn.Config{Servers: []string{"a"}, Dial: net.Dial}); err != nil {
		t.Fatal(err)
	}
	defer r.DB.Close()
	r.fillWide(t, 0, rows)
	for srv.Train() {
	}
	s, err := r.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	reads := func(hi tables.Key, want ...uint64) uint64 {
		t.Helper()
		before := s.Stats().Fabric.Reads
		if err := s.View(t.Context(), func(x *txn.Txn) error {
			got, err := numbers(x.ScanReverse(r.wide.Primary(), tables.First, hi), len(want))
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("rows %v, want %v", got, want)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return s.Stats().Fabric.Reads - before
	}
	reads(tables.Last, rows-1) // loads the models
	most := [3]uint64{}
	for n := uint64(rows + each); n <= rows+turns*each; n += each {
		r.fillWide(t, n-each, each)
		for i, got := range []uint64{
			reads(tables.Last, n-1), reads(tables.Num(n), n-1, n-2, n-3), reads(tables.Num(n-50), n-50),
		} {
			most[i] = max(most[i], got)
		}
	}
	t.Logf("at most %d READs for the last row, %d for the last three, %d for one before", most[0], most[1], most[2])
	if slices.Max(most[:]) > 4*each {
		t.Errorf("%d READs while %d rows were inserted each time", most, each)
	}

	// The end of the table is hot now: splits are told by a tail list.
	for n := srv.Stats().Indexes[0].Retrains; srv.Stats().Indexes[0].Retrains == n; time.Sleep(time.Millisecond) {
		srv.Train()
	}
	const newest = rows + (turns+1)*each
	r.fillWide(t, newest-each, each)
	db, err := txn.Open(t.Context(), txn.Config{Servers: []string{"a"}, Dial: net.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	hot, err := db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer hot.Close()
	s = hot
	reads(tables.Last, newest-1) // loads the models
	r.fillWide(t, newest, rows)
	got := reads(tables.Last, newest+rows-1)
	t.Logf("%d READs for the last row, after %d that the models lack", got, rows)
	if got > 4*each {
		t.Errorf("%d READs after %d rows that a tail list leads past", got, rows)
	}
}

// TestTotalsOfRanges sums rows by iterators of both directions, in Views and
// Updates, while writers move amounts from row to row.
func TestTotalsOfRanges(t *testing.T) {
	const rows = 300
	r := newRig(t, 2, txn.Config{}, nil)
	r.fillWide(t, boundary-rows/2, rows)
	c0 := r.wide.Field("c0")
	key := func(i int) tables.Key { return tables.Num(uint64(boundary - rows/2 + i)) }
	var want int64
	for i := range rows {
		want += int64(boundary - rows/2 + i)
	}
	done := make(chan struct{})
	var writers sync.WaitGroup
	writers.Add(1)
	go func() {
		defer writers.Done()
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
			}
			err := r.DB.Update(t.Context(), func(x *txn.Txn) error {
				for i, by := range []int64{-5, 5} {
					k := key((n*7 + i*131) % rows)
					row, err := x.Get(r.wide, k)
					if err != nil {
						return err
					}
					row = row.Clone()
					row.SetInt(c0, row.Int(c0)+by)
					if err := x.Update(r.wide, k, row); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Errorf("transfer: %v", err)
				return
			}
		}
	}()
	for n := range 60 {
		sum := int64(0)
		body := func(x *txn.Txn) error {
			sum = 0
			seq := x.Scan(r.wide.Primary(), tables.First, tables.Last)
			if n%2 == 1 {
				seq = x.ScanReverse(r.wide.Primary(), tables.First, tables.Last)
			}
			for e, err := range seq {
				if err != nil {
					return err
				}
				sum += e.Row.Int(c0)
			}
			if n%4 < 2 {
				return nil
			}
			return x.Put(r.text, tables.Str(fmt.Sprint(n)), r.text.NewRow())
		}
		run := r.DB.View
		if n%4 >= 2 {
			run = r.DB.Update
		}
		if err := run(t.Context(), body); err != nil && !errors.Is(err, txn.ErrConflict) {
			t.Fatal(err)
		} else if err == nil && sum != want {
			t.Errorf("run %d: the rows hold %d, want %d", n, sum, want)
		}
	}
	close(done)
	writers.Wait()
}

// TestPagesStayProven moves money behind an iterator, from a row of a page that
// it has passed to a row that it has yet to reach: what the transaction returns
// must not hold both.
func TestPagesStayProven(t *testing.T) {
	const rows = 300
	r := newRig(t, 2, txn.Config{}, nil)
	const first = boundary - rows/2
	r.fillWide(t, first, rows)
	c0 := r.wide.Field("c0")
	var want int64
	for i := range rows {
		want += int64(first + i)
	}
	add := func(x *txn.Txn, i int, by int64) error {
		row, err := x.Get(r.wide, tables.Num(uint64(first+i)))
		if err != nil {
			return err
		}
		row = row.Clone()
		row.SetInt(c0, row.Int(c0)+by)
		return x.Update(r.wide, tables.Num(uint64(first+i)), row)
	}
	for _, reverse := range []bool{false, true} {
		for _, writes := range []bool{false, true} {
			passed, ahead := 0, rows-1
			if reverse {
				passed, ahead = ahead, passed
			}
			attempts, sum := 0, int64(0)
			body := func(x *txn.Txn) error {
				attempts, sum = attempts+1, 0
				seq := x.Scan(r.wide.Primary(), tables.First, tables.Last)
				if reverse {
					seq = x.ScanReverse(r.wide.Primary(), tables.First, tables.Last)
				}
				n := 0
				for e, err := range seq {
					if err != nil {
						return err
					}
					sum += e.Row.Int(c0)
					if n++; n != rows/2 || attempts > 1 {
						continue
					}
					if err := r.DB.Update(t.Context(), func(x *txn.Txn) error {
						return errors.Join(add(x, passed, -5), add(x, ahead, 5))
					}); err != nil {
						return err
					}
				}
				if !writes {
					return nil
				}
				return x.Put(r.text, tables.Str("total"), r.text.NewRow())
			}
			run := r.DB.View
			if writes {
				run = r.DB.Update
			}
			if err := run(t.Context(), body); err != nil {
				t.Fatal(err)
			}
			if sum != want {
				t.Errorf("reverse %v, writes %v: the rows hold %d, want %d", reverse, writes, sum, want)
			}
		}
	}
}

// TestRangesOfSnapshots streams more rows than a scan returns at once, in both
// directions, while a writer moves amounts: the totals are right, nothing is
// retried, and no proofs are kept.
func TestRangesOfSnapshots(t *testing.T) {
	rows := txn.MaxScanRows + 5000
	if invariants.Enabled {
		rows = 3000 // a snapshot must end while its versions are kept
	}
	r := newRig(t, 1, txn.Config{}, nil)
	l, err := r.DB.NewLoader(t.Context(), r.wide)
	if err != nil {
		t.Fatal(err)
	}
	row, c0 := r.wide.NewRow(), r.wide.Field("c0")
	row.SetInt(c0, 7)
	for k := range uint64(rows) {
		if err := l.Add(tables.Num(k), row); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(l.Close(), r.DB.Seal(t.Context())); err != nil {
		t.Fatal(err)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	stop := sync.OnceFunc(func() { close(done); <-ended })
	defer stop()
	var moved atomic.Int64
	go func() {
		defer close(ended)
		for n := 0; ; n++ {
			moved.Store(int64(n))
			select {
			case <-done:
				return
			default:
			}
			if err := r.DB.Update(t.Context(), func(x *txn.Txn) error {
				for i, by := range []int64{-3, 3} {
					k := tables.Num(uint64((n*7919 + i*15013) % rows))
					row, err := x.Get(r.wide, k)
					if err != nil {
						return err
					}
					row = row.Clone()
					row.SetInt(c0, row.Int(c0)+by)
					if err := x.Put(r.wide, k, row); err != nil {
						return err
					}
				}
				return nil
			}); err != nil {
				t.Errorf("transfer: %v", err)
				return
			}
		}
	}()
	const some = 10 // transfers beside the snapshots
	for n, end := 0, time.Now().Add(testseed.Patience()); n < 4 || moved.Load() < some && time.Now().Before(end); n++ {
		bodies, count, sum := 0, 0, int64(0)
		if err := r.DB.Snapshot(t.Context(), func(x *txn.Txn) error {
			bodies++
			seq := x.Scan(r.wide.Primary(), tables.First, tables.Last)
			if n%2 == 1 {
				seq = x.ScanReverse(r.wide.Primary(), tables.First, tables.Last)
			}
			for e, err := range seq {
				if err != nil {
					return err
				}
				count, sum = count+1, sum+e.Row.Int(c0)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		if bodies != 1 || count != rows || sum != int64(7*rows) {
			t.Errorf("run %d: %d attempts, %d rows that hold %d; want 1, %d and %d", n, bodies, count, sum, rows, 7*rows)
		}
	}
	stop()
	if n := moved.Load(); n < some {
		t.Errorf("only %d transfers beside the snapshots", n)
	}
}

// TestLoserReservesWhatItHasIterated: whatever an Update has iterated over before its last page changes in every
// attempt, by another client, until the partition is reserved for it. So it ends.
func TestLoserReservesWhatItHasIterated(t *testing.T) {
	r := newRig(t, 1, txn.Config{}, nil)
	r.fillWide(t, 1, 1)
	r.fillWide(t, boundary, 1)
	ctx := t.Context()
	other, err := txn.Open(ctx, txn.Config{Servers: []string{r.Servers[0].Addr()}, Dial: r.net.Dial})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	attempts := 0
	if err := r.DB.Update(ctx, func(x *txn.Txn) error {
		if attempts++; attempts > 50 {
			return errors.New("it has lost fifty times")
		}
		rows := 0
		for _, err := range x.Scan(r.wide.Primary(), tables.First, tables.Last) {
			if err != nil {
				return err
			}
			rows++
		}
		if rows != 2 {
			return fmt.Errorf("%d rows", rows)
		}
		soon, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		defer cancel()
		_ = other.Update(soon, func(x *txn.Txn) error { return x.Put(r.wide, tables.Num(1), r.wide.NewRow()) })
		return x.Put(r.wide, tables.Num(boundary), r.wide.NewRow())
	}); err != nil {
		t.Error(err)
	}
}

// TestQueuedScanHasWrites: a scan is queued after a row was written, and awaited after it was deleted. It has
// the row as it was at one of these moments, and not as it was before the transaction.
func TestQueuedScanHasWrites(t *testing.T) {
	r := newRig(t, 1, txn.Config{}, nil)
	r.fillWide(t, 1, 3)
	field := r.wide.Field("c0")
	if err := r.DB.Update(t.Context(), func(x *txn.Txn) error {
		row := r.wide.NewRow()
		row.SetInt(field, 77)
		if err := x.Put(r.wide, tables.Num(2), row); err != nil {
			return err
		}
		sc := x.QueueScan(r.wide.Primary(), tables.First, tables.Last, 0)
		if err := x.Delete(r.wide, tables.Num(2)); err != nil {
			return err
		}
		rows, err := sc.Entries()
		for _, e := range rows {
			if e.Key.Num() == 2 && e.Row.Int(field) != 77 {
				err = fmt.Errorf("row 2 is %d again", e.Row.Int(field))
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
}

// TestQueuedScanOfTwoServersHasAllRows: a procedure queues a scan with a limit, of which its data server reads
// its own part at once, and deletes some of these rows before the other part is read. No row is left out.
func TestQueuedScanOfTwoServersHasAllRows(t *testing.T) {
	var got []uint64
	r := newRig(t, 2, txn.Config{}, func(c *tables.Catalog) []txn.Procedure {
		return []txn.Procedure{{Name: "first", Body: func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
			wide := c.MustTable("wide")
			sc := x.QueueScan(wide.Primary(), tables.First, tables.Last, 10)
			for k := range uint64(3) {
				if err := x.Delete(wide, tables.Num(1+k)); err != nil {
					return nil, err
				}
			}
			rows, err := sc.Entries()
			got = got[:0]
			for _, e := range rows {
				got = append(got, e.Key.Num())
			}
			return nil, err
		}}}
	})
	r.fillWide(t, 1, 100)
	r.fillWide(t, boundary, 100)
	home, err := r.DB.Home(r.wide, tables.Num(1))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.DB.Call(t.Context(), home, "first", nil); err != nil {
		t.Fatal(err)
	}
	if want := []uint64{4, 5, 6, 7, 8, 9, 10, 11, 12, 13}; !slices.Equal(got, want) {
		t.Errorf("rows %v, want %v", got, want)
	}
}
