package tpcc

import (
	"context"
	"errors"
	"slices"
	"sync"

	"drtmx/tables"
	"drtmx/txn"
)

// VerifyLedger compares the ledgers of all clients that ever wrote to a database with
// its contents, in both directions, and the sums of money and counts. No transaction
// may run meanwhile. outcome returns whether a transaction of unknown outcome has
// committed. Differences are in the report; the error is one of package txn, or of
// outcome.
func VerifyLedger(ctx context.Context, db *txn.DB, entries []LedgerEntry, outcome func(txn.ID) (bool, error)) (*LedgerReport, error) {
	s, err := NewSchema(db.Catalog())
	if err != nil {
		return nil, err
	}
	info, err := ReadLoadInfo(ctx, db)
	if err != nil {
		return nil, err
	}
	v := &ledgerCheck{
		LedgerReport: &LedgerReport{Counts: map[string]int{}}, s: s, info: info, outcome: outcome, paid: map[int64]int64{},
	}
	if v.found, err = lookAround(ctx, db, s, info); err != nil {
		return nil, err
	}
	for i := range entries {
		if err := v.entry(&entries[i]); err != nil {
			return nil, err
		}
	}
	v.unclaimed()
	return v.LedgerReport, v.totals(ctx, db)
}

// ledgerCheck is the state of one comparison.
type ledgerCheck struct {
	*LedgerReport
	s       *Schema
	info    LoadInfo
	found   *found
	outcome func(txn.ID) (bool, error)

	// Sums over the ledgers.
	paid              map[int64]int64 // by warehouse
	orders, delivered int64
}

// found has the rows of the database beyond the initial population, by stamp.
type found struct {
	sync.Mutex
	payments  map[int64][]paidRow
	orders    map[int64][][3]int64           // w, d, o
	delivered map[int64]map[[2]int64][]int64 // by w, d: O_IDs
	placed    map[[3]int64]bool
}

type paidRow struct{ w, d, serial, amount int64 }

// lookAround reads everything written since the load.
func lookAround(ctx context.Context, db *txn.DB, s *Schema, info LoadInfo) (*found, error) {
	f := &found{
		payments: map[int64][]paidRow{}, orders: map[int64][][3]int64{},
		delivered: map[int64]map[[2]int64][]int64{}, placed: map[[3]int64]bool{},
	}
	viewers := dbViewers{db: db}
	var all sync.WaitGroup
	errs := make([]error, info.Warehouses)
	for w := range info.Warehouses {
		all.Go(func() {
			v, err := viewers.viewer(ctx)
			if err != nil {
				errs[w] = err
				return
			}
			defer v.close()
			k := &checker{s: s, db: viewers, info: info}
			for d := int64(1); d <= Districts && errs[w] == nil; d++ {
				errs[w] = f.district(ctx, k, v, w+1, d)
			}
		})
	}
	all.Wait()
	return f, errors.Join(errs...)
}

func (f *found) district(ctx context.Context, k *checker, v viewer, w, d int64) error {
	s, loaded := k.s, k.info.Scale.Customers
	err := k.pages(ctx, v, s.history.Primary(), must(HistoryKey(w, d, loaded+1)), must(HistoryKey(w, d, MaxHistory)), func(key tables.Key, row tables.Row) {
		f.Lock()
		defer f.Unlock()
		stamp := row.Int(s.h.date)
		f.payments[stamp] = append(f.payments[stamp], paidRow{w, d, int64(key.Num() & MaxHistory), row.Int(s.h.amount)})
	})
	if err != nil {
		return err
	}
	var orders []int64
	lo, hi := orderLinesRange(w, d, 1, MaxOrders)
	err = k.pages(ctx, v, s.orderLine.Primary(), lo, hi, func(key tables.Key, row tables.Row) {
		o := lineOrder(key)
		if o > loaded && (len(orders) == 0 || orders[len(orders)-1] != o) {
			orders = append(orders, o)
		}
		if stamp := row.Int(s.ol.deliveryD); stamp != 0 && stamp != k.info.LoadedAt {
			f.addDelivered(stamp, w, d, o)
		}
	})
	for of := range slices.Chunk(orders, ordersPerView) {
		if err == nil {
			err = f.addOrders(ctx, v, s, w, d, of)
		}
	}
	return err
}

// ordersPerView is how many orders are looked up at once.
const ordersPerView = 256

func (f *found) addDelivered(stamp, w, d, o int64) {
	f.Lock()
	defer f.Unlock()
	if f.delivered[stamp] == nil {
		f.delivered[stamp] = map[[2]int64][]int64{}
	}
	of := f.delivered[stamp][[2]int64{w, d}]
	if !slices.Contains(of, o) {
		f.delivered[stamp][[2]int64{w, d}] = append(of, o)
	}
}

// addOrders looks up the stamps of orders. It ignores orders that do not exist.
func (f *found) addOrders(ctx context.Context, v viewer, s *Schema, w, d int64, orders []int64) error {
	stamps := make([]int64, len(orders))
	err := v.view(ctx, func(t operations) error {
		gets := make([]pendingRow, len(orders))
		for i, o := range orders {
			gets[i] = t.QueueGet(s.orders, must(OrderKey(w, d, o)))
		}
		for i := range gets {
			row, err := gets[i].Row()
			switch {
			case errors.Is(err, txn.ErrNotFound):
				stamps[i] = -1
			case err != nil:
				return err
			default:
				stamps[i] = row.Int(s.o.entryD)
			}
		}
		return nil
	})
	f.Lock()
	defer f.Unlock()
	for i, o := range orders {
		at := [3]int64{w, d, o}
		f.orders[stamps[i]] = append(f.orders[stamps[i]], at)
		f.placed[at] = true
	}
	return err
}

// entry compares one entry of a ledger.
func (v *ledgerCheck) entry(d *LedgerEntry) (err error) {
	v.Counts[d.Type.String()+" "+d.Outcome.String()]++
	if d.Type == OrderStatus {
		if !v.found.placed[[3]int64{d.W, d.D, d.Number}] {
			v.fault(LedgerLost, "ORDER-STATUS showed order %d.%d.%d", d.W, d.D, d.Number)
		}
		return nil
	}
	want := d.Outcome == OutcomeCommitted
	if d.Outcome == OutcomeUnknown {
		if want, err = v.outcome(d.ID); err != nil {
			return err
		}
	}
	if d.Type == Delivery {
		v.deliveries(d, want)
		return nil
	}
	there := v.there(d)
	switch {
	case d.Outcome == OutcomeUnfinished:
	case want && !there:
		v.fault(LedgerLost, "%+v", *d)
	case !want && there:
		v.fault(LedgerPhantom, "%+v", *d)
	}
	if !there {
		return nil
	}
	if d.Outcome == OutcomeUnknown {
		v.Counts["unknown that committed"]++
	}
	if d.Type == Payment {
		v.paid[d.W] += d.Amount
	} else {
		v.orders++
	}
	return nil
}

// there reports whether a payment or an order is in the database, and removes it from
// the rows found. It records a fault if the order or payment is there more than once,
// or other than confirmed to the client.
func (v *ledgerCheck) there(d *LedgerEntry) bool {
	known := d.Outcome == OutcomeCommitted
	if d.Type == Payment {
		rows := v.found.payments[d.Stamp]
		delete(v.found.payments, d.Stamp)
		switch {
		case len(rows) > 1:
			v.fault(LedgerDoubled, "%+v: in history %+v", *d, rows)
		case len(rows) == 1 && (rows[0].w != d.W || rows[0].d != d.D || rows[0].amount != d.Amount || known && rows[0].serial != d.Number):
			v.fault(LedgerWrong, "%+v: in history %+v", *d, rows)
		}
		return len(rows) > 0
	}
	rows := v.found.orders[d.Stamp]
	delete(v.found.orders, d.Stamp)
	switch {
	case len(rows) > 1:
		v.fault(LedgerDoubled, "%+v: orders %v", *d, rows)
	case len(rows) == 1 && (rows[0][0] != d.W || rows[0][1] != d.D || known && rows[0][2] != d.Number):
		v.fault(LedgerWrong, "%+v: order %v", *d, rows)
	}
	return len(rows) > 0
}

// deliveries compares a delivery's districts.
func (v *ledgerCheck) deliveries(d *LedgerEntry, want bool) {
	for at := d.From; at <= d.To; at++ {
		key := [2]int64{d.W, at}
		orders := v.found.delivered[d.Stamp][key]
		delete(v.found.delivered[d.Stamp], key)
		v.delivered += int64(len(orders))
		reported := d.Orders[at-1]
		switch {
		case len(orders) > 1:
			v.fault(LedgerDoubled, "%+v: orders %v in district %d", *d, orders, at)
		case d.Outcome == OutcomeCommitted && reported != 0 && len(orders) == 0:
			v.fault(LedgerLost, "%+v: order %d in district %d", *d, reported, at)
		case d.Outcome == OutcomeCommitted && len(orders) == 1 && orders[0] != reported:
			v.fault(LedgerWrong, "%+v: district %d reported %d, in the database %v", *d, at, reported, orders)
		case !want && d.Outcome != OutcomeUnfinished && len(orders) > 0:
			v.fault(LedgerPhantom, "%+v: district %d delivered %v", *d, at, orders)
		}
	}
}

// unclaimed reports the rows that no ledger contains.
func (v *ledgerCheck) unclaimed() {
	for stamp, rows := range v.found.payments {
		v.fault(LedgerPhantom, "a payment that nobody made, stamp %#x: %+v", stamp, rows)
	}
	for stamp, rows := range v.found.orders {
		v.fault(LedgerPhantom, "an order that nobody placed, stamp %#x: %v", stamp, rows)
	}
	for stamp, rows := range v.found.delivered {
		if len(rows) > 0 {
			v.fault(LedgerPhantom, "a delivery that nobody made, stamp %#x: %v", stamp, rows)
		}
	}
}

// totals compares the sums over the ledgers with those in the rows.
func (v *ledgerCheck) totals(ctx context.Context, db *txn.DB) error {
	placed, err := OrdersPlaced(ctx, db)
	if err != nil {
		return err
	}
	if placed != v.orders {
		v.fault(LedgerWrong, "sum(d_next_o_id) grew by %d, the ledgers have %d orders", placed, v.orders)
	}
	deliveries := int64(0)
	for w := int64(1); w <= v.info.Warehouses; w++ {
		n, err := v.warehouseTotals(ctx, db, w)
		if err != nil {
			return err
		}
		deliveries += n
	}
	if deliveries != v.delivered {
		v.fault(LedgerWrong, "sum(c_delivery_cnt) is %d, the ledgers have %d", deliveries, v.delivered)
	}
	return nil
}

// warehouseTotals compares W_YTD, and returns the sum of C_DELIVERY_CNT.
func (v *ledgerCheck) warehouseTotals(ctx context.Context, db *txn.DB, w int64) (deliveries int64, err error) {
	s, customers := v.s, v.info.Scale.Customers
	grown := int64(0)
	err = db.View(ctx, func(tx *txn.Txn) error {
		row, err := tx.Get(s.warehouse, must(WarehouseKey(w)))
		if err == nil {
			grown = row.Int(s.w.ytd) - Districts*customers*initialPayment
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	if grown != v.paid[w] {
		v.fault(LedgerWrong, "w_ytd of warehouse %d grew by %d, the ledgers have %d", w, grown, v.paid[w])
	}
	for d := int64(1); d <= Districts; d++ {
		sum := int64(0)
		err := db.View(ctx, func(tx *txn.Txn) error {
			sum = 0
			gets := make([]pendingRow, customers)
			for c := range gets {
				gets[c] = live{tx}.QueueGet(s.customer, must(CustomerKey(w, d, int64(c)+1)))
			}
			for c := range gets {
				row, err := gets[c].Row()
				if err != nil {
					return err
				}
				sum += row.Int(s.c.deliveryCnt)
			}
			return nil
		})
		if err != nil {
			return 0, err
		}
		deliveries += sum
	}
	return deliveries, nil
}
