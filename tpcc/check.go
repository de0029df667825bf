package tpcc

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"drtmx/txn"
)

// Names of the conditions that Check evaluates in addition to those of clause 3.3.2,
// which have the numbers of their clauses.
const (
	// ConditionIndexes: secondary indexes have one entry per row, with its columns.
	ConditionIndexes = "indexes"
	// ConditionHistory: D_NEXT_H_ID counts the HISTORY rows of its district,
	// and, if CheckConfig.AtRest, C_PAYMENT_CNT those of its customer.
	ConditionHistory = "history"
	// ConditionDeliveries: C_DELIVERY_CNT is the number of the customer's
	// orders that were delivered since the load.
	ConditionDeliveries = "deliveries"
	// ConditionStock: the sums of s_ytd, s_order_cnt and s_remote_cnt of every
	// STOCK row are those of the lines ordered since the load, and s_quantity
	// is in [10 .. 100]. Evaluated if CheckConfig.AtRest.
	ConditionStock = "stock"
)

// Verdicts on conditions.
const (
	// OK is the verdict on a condition that holds.
	OK = "ok"
	// NotApplicable begins the verdict on a condition that was not evaluated,
	// and is followed by the reason.
	NotApplicable = "not applicable"
)

// Consistency is the verdict on every condition: OK, NotApplicable with the
// reason, or a sentence that names the first offending row and the values that
// differ.
type Consistency map[string]string

// Passes reports whether a verdict names no violation: it is OK, or NotApplicable
// with a reason.
func Passes(verdict string) bool {
	return verdict == OK || strings.HasPrefix(verdict, NotApplicable)
}

// Conditions returns the names of the conditions: clauses in the order of the
// specification, 3.3.2.9 before 3.3.2.10, then the conditions without a clause.
func (c Consistency) Conditions() []string {
	return slices.SortedFunc(maps.Keys(c), func(a, b string) int {
		clauseA, clauseB := strings.Contains(a, "."), strings.Contains(b, ".")
		switch {
		case clauseA != clauseB && clauseA:
			return -1
		case clauseA != clauseB:
			return 1
		case clauseA && len(a) != len(b):
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
}

// Err returns an error that names the first condition that does not hold, or nil if
// all hold.
func (c Consistency) Err() error {
	for _, name := range c.Conditions() {
		if !Passes(c[name]) {
			return fmt.Errorf("consistency condition %s does not hold: %s", name, c[name])
		}
	}
	return nil
}

// conditionFresh concerns only the initial population.
const conditionFresh = "3.3.2.11"

// CheckConfig configures a check. The zero value is valid.
type CheckConfig struct {
	Parallel int // warehouses checked at once; 0: one per processor
	// AtRest promises that no transaction runs during the check. Check then
	// also evaluates the conditions that span warehouses: 3.3.2.10,
	// ConditionStock, and C_PAYMENT_CNT in ConditionHistory.
	AtRest bool
	// Progress is called after every step, by one goroutine at a time. It may
	// be nil.
	Progress func(CheckProgress)
}

// CheckProgress is the progress of a check.
type CheckProgress struct{ Done, Total int64 } // steps: districts, and warehouses three times

// Check evaluates the consistency conditions of clauses 3.3.2.1 to 3.3.2.12
// over all warehouses, and that secondary indexes agree with their tables.
//
// Unless CheckConfig.AtRest is set, transactions may run at the same time. Each
// condition is then evaluated per warehouse or per district, in one Snapshot;
// 3.3.2.10 is not evaluated, since customers also pay at other warehouses. A
// district with more than snapshotOrdersMax orders is evaluated in several
// Snapshots. That is correct while orders are only added, but not while deliveries
// run.
//
// Condition 3.3.2.11 concerns the initial population: it is not applicable once
// an order was placed or delivered.
//
// The error is ErrNotLoaded for a database without a complete population, or an
// error of package txn. A condition that does not hold is a verdict, not an
// error.
func Check(ctx context.Context, db *txn.DB, c CheckConfig) (Consistency, error) {
	s, err := NewSchema(db.Catalog())
	if err != nil {
		return nil, err
	}
	return s.check(ctx, dbViewers{db, !c.AtRest}, c)
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
		k.total += 2 * info.Warehouses
		k.paidAt, k.paidBy = make([]historyTally, info.Warehouses*Districts), newPayments(info)
		if err := k.each(ctx, k.history); err != nil {
			return nil, fmt.Errorf("tpcc: check of history: %w", err)
		}
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

// checker is one running check.
type checker struct {
	CheckConfig
	s     *Schema
	db    database
	info  LoadInfo
	total int64 // steps

	// Of a database at rest: payments by the district in which they were made, and by
	// the customer who made them.
	paidAt []historyTally
	paidBy *payments

	mu struct {
		sync.Mutex
		done    int64
		used    bool              // an order was placed or delivered since the load
		faults  map[string]*fault // by condition
		ordered map[int64]stockTally
	}
}

// fault is the first fault of a condition, in order of warehouse and district.
type fault struct {
	w, d int64
	text string
	more int64 // districts or warehouses with other faults
}

// report records a violation of a condition. w and d order the faults.
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
	c := Consistency{ConditionIndexes: OK, ConditionHistory: OK, ConditionDeliveries: OK}
	for n := 1; n <= 12; n++ {
		c[fmt.Sprintf("3.3.2.%d", n)] = OK
	}
	if k.AtRest {
		c[ConditionStock] = OK
	}
	if k.mu.used {
		c[conditionFresh] = NotApplicable + ": orders were placed or delivered since the load"
		delete(k.mu.faults, conditionFresh)
	}
	if !k.AtRest {
		c["3.3.2.10"] = NotApplicable + ": it spans warehouses, and transactions may run"
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

// loaded wraps err, the error of a read of a row that every load writes. If the row
// is missing, the error is ErrNotLoaded.
func loaded(err error, format string, args ...any) error {
	if errors.Is(err, txn.ErrNotFound) {
		return fmt.Errorf("%w: no "+format, append([]any{ErrNotLoaded}, args...)...)
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}

// OrdersPlaced returns the number of orders added since the load: the growth of all
// D_NEXT_O_ID. Over a run it must grow by the number of NEW-ORDERs that committed;
// see VerifyOrders.
func OrdersPlaced(ctx context.Context, db *txn.DB) (int64, error) {
	s, err := NewSchema(db.Catalog())
	if err != nil {
		return 0, err
	}
	return s.ordersPlaced(ctx, dbViewers{db: db})
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
				rows[d] = t.QueueGet(s.district, must(DistrictKey(w, int64(d+1))))
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

// VerifyOrders compares the growth of OrdersPlaced over a run with the results
// that its terminals received: the NEW-ORDERs that committed, and those whose
// outcome is unknown, which may have committed. The verdict is OK or states the
// difference.
func VerifyOrders(before, after, committed, unknown int64) string {
	if grown := after - before; grown < committed || grown > committed+unknown {
		return fmt.Sprintf("sum(d_next_o_id) grew by %d, %d NEW-ORDERs committed and %d have an unknown outcome", grown, committed, unknown)
	}
	return OK
}
