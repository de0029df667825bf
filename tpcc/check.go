package tpcc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"drtmx/txn"
)

// Names of the conditions that Check evaluates beside those of clause 3.3.2,
// which are named by their clauses.
const (
	// ConditionIndexes: secondary indexes have one entry per row, with its columns.
	ConditionIndexes = "indexes"
	// ConditionStock: the sums of s_ytd, s_order_cnt and s_remote_cnt of every
	// STOCK row are those of the lines ordered since the load, and s_quantity
	// is in [10 .. 100]. Evaluated if CheckConfig.AtRest.
	ConditionStock = "stock"
)

// OK is the verdict on a condition that holds.
const OK = "ok"

// Consistency is the verdict on every condition evaluated: OK, or a sentence
// that names the first offending row and the values that differ.
type Consistency map[string]string

// Holds reports whether all conditions hold.
func (c Consistency) Holds() bool {
	for _, verdict := range c {
		if verdict != OK {
			return false
		}
	}
	return true
}

// CheckConfig says how to check. The zero value will do.
type CheckConfig struct {
	Parallel int // warehouses checked at once; 0: one per processor
	// AtRest asks for ConditionStock too, which spans warehouses and so makes
	// sense only if no transaction runs meanwhile.
	AtRest bool
	// Progress is told of every step, by one goroutine at a time. May be nil.
	Progress func(CheckProgress)
}

// CheckProgress is how far a check is.
type CheckProgress struct{ Done, Total int64 } // steps: districts, and warehouses twice

// Check evaluates the consistency conditions of clauses 3.3.2.1 to 3.3.2.12
// over all warehouses, and that secondary indexes agree with their tables.
//
// Transactions may run meanwhile: each condition is evaluated per warehouse or
// per district, in one View. A district with more than maxSnapshotOrders
// orders is evaluated in several; that is as good while orders are only added,
// as in the mix of NEW-ORDER and ORDER-STATUS. Condition 3.3.2.11 counts
// undelivered orders of the initial population and so holds only as long as
// none is delivered, which is so in that mix.
//
// The error is ErrNotLoaded for a database without a complete population, or
// one of package txn; a condition that does not hold is no error.
func Check(ctx context.Context, db *txn.DB, c CheckConfig) (Consistency, error) {
	s, err := NewSchema(db.Catalog())
	if err != nil {
		return nil, err
	}
	return s.check(ctx, dbViewers{db}, c)
}

func (s *Schema) check(ctx context.Context, db database, c CheckConfig) (Consistency, error) {
	v, err := db.viewer(ctx)
	if err != nil {
		return nil, err
	}
	info, err := s.readLoadInfo(ctx, v)
	if err := errors.Join(err, v.close()); err != nil {
		return nil, err
	}
	if c.Parallel <= 0 {
		c.Parallel = runtime.GOMAXPROCS(0)
	}
	k := &checker{CheckConfig: c, s: s, db: db, info: info}
	k.total = info.Warehouses * (1 + Districts)
	k.mu.faults = map[string]*fault{}
	k.mu.ordered = map[int64]stockTally{}
	if c.AtRest {
		k.total += info.Warehouses
	}
	if err := k.each(ctx, k.warehouse); err != nil {
		return nil, fmt.Errorf("tpcc: check: %w", err)
	}
	if c.AtRest {
		if err := k.each(ctx, k.stock); err != nil {
			return nil, fmt.Errorf("tpcc: check of stock: %w", err)
		}
	}
	return k.verdicts(), nil
}

// checker is one check under way.
type checker struct {
	CheckConfig
	s     *Schema
	db    database
	info  LoadInfo
	total int64 // steps

	mu struct {
		sync.Mutex
		done    int64
		faults  map[string]*fault // by condition
		ordered map[int64]stockTally
	}
}

// fault is what is wrong first, in order of warehouse and district.
type fault struct {
	w, d int64
	text string
	more int64 // districts or warehouses with other faults
}

// report records a condition that does not hold.
func (k *checker) report(condition string, w, d int64, text string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	f := k.mu.faults[condition]
	switch {
	case f == nil:
		k.mu.faults[condition] = &fault{w: w, d: d, text: text}
	case cmp.Or(cmp.Compare(w, f.w), cmp.Compare(d, f.d)) < 0:
		k.mu.faults[condition] = &fault{w, d, text, f.more + 1}
	default:
		f.more++
	}
}

func (k *checker) verdicts() Consistency {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := Consistency{ConditionIndexes: OK}
	for n := 1; n <= 12; n++ {
		c[fmt.Sprintf("3.3.2.%d", n)] = OK
	}
	if k.AtRest {
		c[ConditionStock] = OK
	}
	for condition, f := range k.mu.faults {
		c[condition] = f.text
		if f.more > 0 {
			c[condition] += fmt.Sprintf("; and %d more", f.more)
		}
	}
	return c
}

// step counts a finished step.
func (k *checker) step() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.done++
	if k.Progress != nil {
		k.Progress(CheckProgress{k.mu.done, k.total})
	}
}

// each runs fn for every warehouse, several at once. The first error stops all.
func (k *checker) each(ctx context.Context, fn func(ctx context.Context, v viewer, w int64) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	next := make(chan int64)
	go func() {
		defer close(next)
		for w := int64(1); w <= k.info.Warehouses; w++ {
			select {
			case next <- w:
			case <-ctx.Done():
				return
			}
		}
	}()
	var workers sync.WaitGroup
	for range min(int64(k.Parallel), k.info.Warehouses) {
		workers.Go(func() {
			v, err := k.db.viewer(ctx)
			if err != nil {
				cancel(err)
				return
			}
			for w := range next {
				if err := fn(ctx, v, w); err != nil {
					cancel(err)
				}
			}
			if err := v.close(); err != nil {
				cancel(err)
			}
		})
	}
	workers.Wait()
	return context.Cause(ctx)
}

// warehouse evaluates the conditions of one warehouse and its districts.
func (k *checker) warehouse(ctx context.Context, v viewer, w int64) error {
	faults := map[string]string{}
	err := v.view(ctx, func(t operations) error {
		clear(faults)
		return k.sums(t, w, faults)
	})
	if err != nil {
		return err
	}
	for condition, text := range faults {
		k.report(condition, w, 0, text)
	}
	k.step()
	for d := int64(1); d <= Districts; d++ {
		if err := k.district(ctx, v, w, d); err != nil {
			return err
		}
		k.step()
	}
	return nil
}

// sums evaluates the conditions on year-to-date sums: W_YTD = Σ D_YTD
// (3.3.2.1), W_YTD = Σ H_AMOUNT (3.3.2.8), D_YTD = Σ H_AMOUNT (3.3.2.9).
func (k *checker) sums(t operations, w int64, faults map[string]string) error {
	s := k.s
	warehouse := t.GetLater(s.warehouse, must(WarehouseKey(w)))
	var districts [Districts + 1]pendingRow
	for d := int64(1); d <= Districts; d++ {
		districts[d] = t.GetLater(s.district, must(DistrictKey(w, d)))
	}
	row, err := warehouse.Row()
	if err != nil {
		return loaded(err, "warehouse %d", w)
	}
	wYTD := row.Int(s.w.ytd)
	var dYTD, paid [Districts + 1]int64
	sumD, sumH := int64(0), int64(0)
	for d := int64(1); d <= Districts; d++ {
		if row, err = districts[d].Row(); err != nil {
			return loaded(err, "district %d.%d", w, d)
		}
		dYTD[d] = row.Int(s.d.ytd)
		sumD += dYTD[d]
		err := scanPages(t, s.history.Primary(), must(HistoryKey(w, d, 1)), must(HistoryKey(w, d, MaxHistory)), func(e txn.Entry) error {
			paid[d] += e.Row.Int(s.h.amount)
			return nil
		})
		if err != nil {
			return err
		}
		sumH += paid[d]
		if dYTD[d] != paid[d] && faults["3.3.2.9"] == "" {
			faults["3.3.2.9"] = fmt.Sprintf("district %d.%d: d_ytd is %d, sum(h_amount) is %d", w, d, dYTD[d], paid[d])
		}
	}
	if wYTD != sumD {
		faults["3.3.2.1"] = fmt.Sprintf("warehouse %d: w_ytd is %d, sum(d_ytd) is %d", w, wYTD, sumD)
	}
	if wYTD != sumH {
		faults["3.3.2.8"] = fmt.Sprintf("warehouse %d: w_ytd is %d, sum(h_amount) is %d", w, wYTD, sumH)
	}
	return nil
}

// loaded says of a row that every load writes that it is missing.
func loaded(err error, format string, args ...any) error {
	if errors.Is(err, txn.ErrNotFound) {
		return fmt.Errorf("%w: no "+format, append([]any{ErrNotLoaded}, args...)...)
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// OrdersPlaced is the number of orders added since the load: the growth of all
// D_NEXT_O_ID. Read before and after a run it must have grown by the
// NEW-ORDERs that committed in between; see VerifyOrders.
func OrdersPlaced(ctx context.Context, db *txn.DB) (int64, error) {
	s, err := NewSchema(db.Catalog())
	if err != nil {
		return 0, err
	}
	return s.ordersPlaced(ctx, dbViewers{db})
}

func (s *Schema) ordersPlaced(ctx context.Context, db database) (total int64, err error) {
	v, err := db.viewer(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, v.close()) }()
	info, err := s.readLoadInfo(ctx, v)
	if err != nil {
		return 0, err
	}
	for w := int64(1); w <= info.Warehouses; w++ {
		placed := int64(0)
		err := v.view(ctx, func(t operations) error {
			placed = 0
			var rows [Districts]pendingRow
			for d := range rows {
				rows[d] = t.GetLater(s.district, must(DistrictKey(w, int64(d+1))))
			}
			for d := range rows {
				row, err := rows[d].Row()
				if err != nil {
					return loaded(err, "district %d.%d", w, d+1)
				}
				placed += row.Int(s.d.nextOID) - 1 - info.Scale.Customers
			}
			return nil
		})
		if err != nil {
			return 0, fmt.Errorf("tpcc: orders placed: %w", err)
		}
		total += placed
	}
	return total, nil
}

// VerifyOrders compares the growth of OrdersPlaced over a run with what its
// terminals were told: NEW-ORDERs that committed, and those whose outcome is
// unknown, which may have. The verdict is OK or says what differs.
func VerifyOrders(before, after, committed, unknown int64) string {
	if grown := after - before; grown < committed || grown > committed+unknown {
		return fmt.Sprintf("sum(d_next_o_id) grew by %d, %d NEW-ORDERs committed and %d have an unknown outcome", grown, committed, unknown)
	}
	return OK
}
