package txn_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
)

// TestQueuedReadsOfAnySize queues scans and lookups whose rounds and
// whose answers are larger than the fabric carries at once, in both ways of
// reading. The client splits them, and every row is right.
func TestQueuedReadsOfAnySize(t *testing.T) {
	for name, reads := range map[string]txn.ReadPath{"one-sided": txn.OneSided, "by RPC": txn.OrderedByRPC} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, 1, txn.Config{Reads: reads, Retry: txn.Retry{Attempts: 5}}, nil)
			const rows, texts, size = 6000, 256, 8 << 10
			r.fillWide(t, 0, rows)
			r.fillText(t, 0, texts, size)
			t.Run("scans of rows apart", func(t *testing.T) { r.queue(t, 5, 0, 0, nil) })
			t.Run("lookups of long rows", func(t *testing.T) { r.queue(t, 0, 0, 200, nil) })
			t.Run("more lookups than a message lists", func(t *testing.T) { r.queue(t, 0, 1500, 0, nil) })
			seeds := rng.New(testseed.Of(t))
			for i := range 8 {
				t.Run(fmt.Sprint("mixed ", i), func(t *testing.T) {
					s := seeds.SplitN(uint64(i))
					r.queue(t, s.Intn(8), s.Intn(1200), s.Intn(300), s)
				})
			}
		})
	}
}

// queue queues scans of a thousand rows, lookups of small rows and
// lookups of long rows, and checks all of them. s mixes their order.
func (r *rig) queue(t *testing.T, scans, gets, texts int, s *rng.Stream) {
	t.Helper()
	const each = 1000
	order := make([]byte, 0, scans+gets+texts)
	for kind, n := range map[byte]int{'s': scans, 'g': gets, 't': texts} {
		for range n {
			order = append(order, kind)
		}
	}
	if s != nil {
		slices.Sort(order) // a map has no order
		rng.Shuffle(s, order)
	}
	err := r.DB.View(t.Context(), func(x *txn.Txn) error {
		var checks []func() error
		for i, kind := range order {
			switch lo := uint64(i) % 5 * each; kind {
			case 's':
				sc := x.QueueScan(r.wide.Primary(), tables.Num(lo), tables.Num(lo+each-1), 0)
				checks = append(checks, func() error { return r.checkScan(sc, lo, each) })
			case 'g':
				key := uint64(i*7) % 5000
				g := x.QueueGet(r.wide, tables.Num(key))
				checks = append(checks, func() error {
					row, err := g.Row()
					if err == nil && row.Int(r.wide.Field("c0")) != int64(key) {
						err = fmt.Errorf("key %d holds %d", key, row.Int(r.wide.Field("c0")))
					}
					return err
				})
			case 't':
				g := x.QueueGet(r.text, textKey(0, i%256))
				checks = append(checks, func() error {
					row, err := g.Row()
					if err == nil && len(row.Bytes(r.text.Field("body"))) != 8<<10 {
						err = fmt.Errorf("row %d has %d bytes", i, len(row.Bytes(r.text.Field("body"))))
					}
					return err
				})
			}
		}
		for _, check := range checks {
			if err := check(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func (r *rig) checkScan(sc *txn.QueuedScan, lo uint64, n int) error {
	rows, err := sc.Entries()
	if err != nil {
		return err
	}
	if len(rows) != n {
		return fmt.Errorf("scan from %d returns %d rows, want %d", lo, len(rows), n)
	}
	for i, e := range rows {
		if want := lo + uint64(i); e.Key.Num() != want || e.Row.Int(r.wide.Field("c0")) != int64(want) {
			return fmt.Errorf("row %d of the scan from %d is %d", i, lo, e.Key.Num())
		}
	}
	return nil
}

// bigProcedures write or return more than a message holds.
func bigProcedures(c *tables.Catalog) []txn.Procedure {
	text := c.MustTable("text")
	write := func(part, n, size int) func(context.Context, *txn.Txn, []byte) ([]byte, error) {
		return func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
			for i := range n {
				if err := x.Put(text, textKey(part, i), body(text, size)); err != nil {
					return nil, err
				}
			}
			return nil, nil
		}
	}
	returns := func(part, size int) func(context.Context, *txn.Txn, []byte) ([]byte, error) {
		return func(_ context.Context, x *txn.Txn, _ []byte) ([]byte, error) {
			err := errors.Join(x.Put(text, tables.Str("b-result"), body(text, 8)), x.Put(text, textKey(part, 9999), body(text, 8)))
			return make([]byte, size), err
		}
	}
	return []txn.Procedure{
		{Name: "writes here", Body: write(0, 60, 32<<10)},
		{Name: "writes elsewhere", Body: write(1, 60, 32<<10)},
		{Name: "returns the most", Body: returns(0, txn.MaxResultBytes)},
		{Name: "returns too much", Body: returns(0, txn.MaxResultBytes+1)},
		{Name: "returns too much, writes elsewhere", Body: returns(1, txn.MaxResultBytes+1)},
		{Name: "returns far too much", Body: returns(0, 3*rdma.MaxMessageBytes)},
		{Name: "fails at length", Body: func(context.Context, *txn.Txn, []byte) ([]byte, error) {
			return nil, errors.New(strings.Repeat("long ", rdma.MaxMessageBytes/4))
		}},
	}
}

// TestLargeProcedures calls procedures whose writes or results are around the
// size of a message. What is too large is refused before it commits, with the
// error that says so, and the connection stays.
func TestLargeProcedures(t *testing.T) {
	r := newRig(t, 2, txn.Config{Retry: txn.Retry{Attempts: 5}}, bigProcedures)
	home, err := r.DB.Home(r.text, tables.Str("a"))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		proc string
		want error
	}{
		{"writes here", nil}, // it is not sent anywhere
		{"writes elsewhere", txn.ErrTooLarge},
		{"returns the most", nil},
		{"returns too much", txn.ErrTooLarge},
		{"returns too much, writes elsewhere", txn.ErrTooLarge},
		{"returns far too much", txn.ErrTooLarge},
	} {
		if err := r.DB.Update(t.Context(), func(x *txn.Txn) error { return x.Put(r.text, tables.Str("b-result"), body(r.text, 1)) }); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), testseed.Patience())
		_, err := r.DB.Call(ctx, home, c.proc, nil)
		cancel()
		if !errors.Is(err, c.want) || (c.want == nil && err != nil) {
			t.Errorf("%s: %v, want %v", c.proc, err, c.want)
		}
		if c.want != nil && err != nil && !strings.Contains(err.Error(), "limit") {
			t.Errorf("%s: the error names no limit: %v", c.proc, err)
		}
		want := 1
		if c.proc == "returns the most" {
			want = 8
		}
		if err := r.DB.View(t.Context(), func(x *txn.Txn) error {
			row, err := x.Get(r.text, tables.Str("b-result"))
			if err == nil && len(row.Bytes(r.text.Field("body"))) != want {
				err = fmt.Errorf("it wrote all the same")
			}
			return err
		}); err != nil {
			t.Errorf("after %s: %v", c.proc, err)
		}
	}
	var failed *txn.ProcedureError
	if _, err := r.DB.Call(t.Context(), 0, "fails at length", nil); !errors.As(err, &failed) {
		t.Errorf("a procedure with an error of %d bytes: %.200v", rdma.MaxMessageBytes, err)
	}
}

// TestLargestCommits commits transactions below and above the size of a
// message, at home, elsewhere, and in both places.
func TestLargestCommits(t *testing.T) {
	r := newRig(t, 2, txn.Config{Retry: txn.Retry{Attempts: 5}}, nil)
	commit := func(bytes int, parts ...int) error {
		return r.DB.Update(t.Context(), func(x *txn.Txn) error {
			for i := 0; bytes > 0; i++ {
				n := min(bytes, 60000)
				bytes -= n
				if err := x.Put(r.text, textKey(parts[i%len(parts)], i), body(r.text, max(n-50, 0))); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for _, parts := range [][]int{{0}, {1}, {0, 1}, {1, 0}} {
		sawFine, sawLarge := false, false
		for _, size := range []int{800 << 10, 900 << 10, 1000 << 10, 1020 << 10, 1023 << 10, 1024 << 10, 1025 << 10, 1100 << 10, 4 << 20} {
			switch err := commit(size, parts...); {
			case err == nil:
				sawFine = true
			case errors.Is(err, txn.ErrTooLarge) && strings.Contains(err.Error(), "limit"):
				sawLarge = true
			default:
				t.Errorf("commit of %d bytes in partitions %v: %v", size, parts, err)
			}
		}
		if !sawFine || !sawLarge {
			t.Errorf("partitions %v: committed %v, refused %v", parts, sawFine, sawLarge)
		}
	}
}

// TestScanBoundHoldsForTheScan reads more rows than a scan may return, spread
// over partitions that hold fewer each.
func TestScanBoundHoldsForTheScan(t *testing.T) {
	r := newRig(t, 1, txn.Config{Retry: txn.Retry{Attempts: 5}}, nil)
	const half = txn.MaxScanRows/2 + 1
	r.fillWide(t, boundary-half, 2*half)
	for _, c := range []struct {
		lo, hi uint64
		limit  int
		want   error
	}{
		{0, boundary - 1, 0, nil},
		{boundary, ^uint64(0), 0, nil},
		{0, ^uint64(0), 0, txn.ErrTooLarge},
		{0, ^uint64(0), txn.MaxScanRows + 1, txn.ErrTooLarge},
		{0, ^uint64(0), txn.MaxScanRows, nil},
		{0, boundary + half - 3, 0, nil},
	} {
		err := r.DB.View(t.Context(), func(x *txn.Txn) error {
			rows, err := x.QueueScan(r.wide.Primary(), tables.Num(c.lo), tables.Num(c.hi), c.limit).Entries()
			if err == nil && len(rows) > txn.MaxScanRows {
				err = fmt.Errorf("%d rows", len(rows))
			}
			return err
		})
		if !errors.Is(err, c.want) || (c.want == nil && err != nil) {
			t.Errorf("scan of %d to %d, limit %d: %v, want %v", c.lo, c.hi, c.limit, err, c.want)
		}
	}
}
