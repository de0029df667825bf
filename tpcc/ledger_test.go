package tpcc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"drtmx/internal/rng"
	"drtmx/tables"
	"drtmx/txn"
)

// A ledger records the outcomes that clients received, to compare them with the
// database. Every transaction that writes carries a stamp of its own, in
// H_DATE, O_ENTRY_D or OL_DELIVERY_D, so that each row can be traced to the
// transaction that wrote it, even if the client was killed before it received
// the outcome.

// fate is a client's knowledge of a transaction.
type fate uint8

const (
	committed  fate = iota // the client received the commit
	notDone                // an error that promises that nothing was written
	unknown                // an error that promises nothing, with an identity to ask for
	unfinished             // the client was killed
)

// deed is one transaction, or one of the database transactions of a DELIVERY.
type deed struct {
	Type   Type
	Stamp  int64
	W, D   int64
	Amount int64 // of a payment
	Fate   fate
	ID     txn.ID           // if unknown
	Number int64            // if committed: the payment's serial, the order's O_ID
	Orders [Districts]int64 // if committed: what a delivery delivered
	From   int64            // a delivery's districts
	To     int64
}

// setFate sets a deed's fate from the error of the API.
func (d *deed) setFate(err error) error {
	var lost *txn.UnknownOutcome
	switch {
	case err == nil:
		d.Fate = committed
	case errors.As(err, &lost):
		d.Fate, d.ID = unknown, lost.ID
	case errors.Is(err, ErrRolledBack), errors.Is(err, txn.ErrUnavailable), errors.Is(err, txn.ErrConflict),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded), errors.Is(err, txn.ErrClosed):
		d.Fate = notDone
	default:
		return err
	}
	return nil
}

// customerOf is a client of the full mix that keeps a ledger.
type customerOf struct {
	rnd    *rng.Stream
	inputs *Inputs
	info   LoadInfo
	stamp  int64
	// announce is called before a transaction begins, ended when its fate is
	// known.
	announce func(deed)
	ended    func(deed)

	no    NewOrderInput
	noOut NewOrderOutput
	pay   PaymentInput
	paid  PaymentOutput
	st    OrderStatusInput
	stOut OrderStatusOutput
	del   DeliveryInput
	delO  DeliveryOutput
	lev   StockLevelInput
	levO  StockLevelOutput
}

func newCustomerOf(seed, n uint64, info LoadInfo) *customerOf {
	root := rng.New(seed)
	own := root.SplitN(n)
	return &customerOf{
		rnd: own.Split("choices"), info: info, stamp: int64(n+1) << 32,
		inputs: NewInputs(own.Split("inputs"), info, info.RunConstants(root.Split("constants"))),
	}
}

// one runs one transaction of a mix with more deliveries and fewer reads than
// the workload's. The error is one that the API does not allow.
func (c *customerOf) one(ctx context.Context, t *Terminal) error {
	w := c.rnd.Range(1, c.info.Warehouses)
	c.stamp++
	switch p := c.rnd.Range(1, 100); {
	case p <= 40:
		return c.order(ctx, t, w)
	case p <= 80:
		return c.payment(ctx, t, w)
	case p <= 86:
		c.inputs.OrderStatus(w, &c.st)
		return new(deed).setFate(t.OrderStatus(ctx, &c.st, &c.stOut))
	case p <= 92:
		c.inputs.StockLevel(w, c.rnd.Range(1, Districts), &c.lev)
		return new(deed).setFate(t.StockLevel(ctx, &c.lev, &c.levO))
	}
	return c.delivery(ctx, t, w)
}

func (c *customerOf) order(ctx context.Context, t *Terminal, w int64) error {
	c.inputs.NewOrder(w, &c.no)
	if c.rnd.Bool(0.2) && len(c.no.Lines) > 0 { // more remote ones than the workload's
		c.no.Lines[0].SupplyW = c.rnd.Range(1, c.info.Warehouses)
	}
	c.no.EntryD = c.stamp
	d := deed{Type: NewOrder, Stamp: c.stamp, W: w, D: c.no.D, Fate: unfinished}
	c.announce(d)
	err := d.setFate(t.NewOrder(ctx, &c.no, &c.noOut))
	d.Number = c.noOut.Order
	c.ended(d)
	return err
}

func (c *customerOf) payment(ctx context.Context, t *Terminal, w int64) error {
	c.inputs.Payment(w, &c.pay)
	c.pay.Date = c.stamp
	d := deed{Type: Payment, Stamp: c.stamp, W: w, D: c.pay.D, Amount: c.pay.Amount, Fate: unfinished}
	c.announce(d)
	err := d.setFate(t.Payment(ctx, &c.pay, &c.paid))
	d.Number = c.paid.Serial
	c.ended(d)
	return err
}

// delivery is several deeds: those before an error are settled, the next is
// as the error says, and the others never began.
func (c *customerOf) delivery(ctx context.Context, t *Terminal, w int64) error {
	c.inputs.Delivery(w, &c.del)
	c.del.Date = c.stamp
	d := deed{Type: Delivery, Stamp: c.stamp, W: w, Fate: unfinished, From: 1, To: Districts}
	c.announce(d)
	failure := t.Delivery(ctx, &c.del, &c.delO)
	d.Orders, d.Fate, d.To = c.delO.Orders, committed, int64(c.delO.Done)
	c.ended(d)
	if failure == nil {
		return nil
	}
	d = deed{Type: Delivery, Stamp: c.stamp, W: w, From: d.To + 1, To: min(d.To+int64(t.cfg.DeliveryBatch), Districts)}
	err := d.setFate(failure)
	c.ended(d)
	return err
}

// found is what the database holds, by stamp.
type found struct {
	payments  map[int64][]paidRow
	orders    map[int64][][3]int64           // w, d, o
	delivered map[int64]map[[2]int64][]int64 // by w, d: O_IDs
}

type paidRow struct{ w, d, serial, amount int64 }

// lookAround reads all that was written since the load.
func lookAround(ctx context.Context, db *txn.DB, s *Schema, info LoadInfo) (*found, error) {
	f := &found{map[int64][]paidRow{}, map[int64][][3]int64{}, map[int64]map[[2]int64][]int64{}}
	viewers := dbViewers{db}
	v, err := viewers.viewer(ctx)
	if err != nil {
		return nil, err
	}
	defer v.close()
	k := &checker{s: s, db: viewers, info: info}
	for w := int64(1); w <= info.Warehouses; w++ {
		for d := int64(1); d <= Districts; d++ {
			if err := f.district(ctx, k, v, w, d); err != nil {
				return nil, err
			}
		}
	}
	return f, nil
}

func (f *found) district(ctx context.Context, k *checker, v viewer, w, d int64) error {
	s, loaded := k.s, k.info.Scale.Customers
	err := k.pages(ctx, v, s.history.Primary(), must(HistoryKey(w, d, loaded+1)), must(HistoryKey(w, d, MaxHistory)), func(key tables.Key, row tables.Row) {
		stamp := row.Int(s.h.date)
		f.payments[stamp] = append(f.payments[stamp], paidRow{w, d, int64(key.Num() & MaxHistory), row.Int(s.h.amount)})
	})
	if err != nil {
		return err
	}
	lo, hi := orderLinesRange(w, d, 1, MaxOrders)
	return k.pages(ctx, v, s.orderLine.Primary(), lo, hi, func(key tables.Key, row tables.Row) {
		o := lineOrder(key)
		if key.Num()&(1<<lineBits-1) == 1 && o > loaded {
			f.order(ctx, v, s, w, d, o)
		}
		if stamp := row.Int(s.ol.deliveryD); stamp != 0 && stamp != k.info.LoadedAt {
			if f.delivered[stamp] == nil {
				f.delivered[stamp] = map[[2]int64][]int64{}
			}
			of := f.delivered[stamp][[2]int64{w, d}]
			if !slices.Contains(of, o) {
				f.delivered[stamp][[2]int64{w, d}] = append(of, o)
			}
		}
	})
}

// order looks up an order's stamp; an order that is not there has none.
func (f *found) order(ctx context.Context, v viewer, s *Schema, w, d, o int64) {
	stamp := int64(-1)
	err := v.view(ctx, func(t operations) error {
		row, err := t.GetLater(s.orders, must(OrderKey(w, d, o))).Row()
		if err == nil {
			stamp = row.Int(s.o.entryD)
		}
		return err
	})
	if err != nil {
		stamp = -1
	}
	f.orders[stamp] = append(f.orders[stamp], [3]int64{w, d, o})
}

// verify holds the ledger against the database, both ways, and adds up money
// and counts. resolve tells whether a transaction of unknown outcome
// committed.
func verify(t *testing.T, e *engine, deeds []deed, resolve func(txn.ID) (bool, error)) map[string]int {
	t.Helper()
	f, err := lookAround(t.Context(), e.DB, e.s, e.info)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	paid, orders, delivered := map[int64]int64{}, int64(0), int64(0)
	for i := range deeds {
		d := &deeds[i]
		there := d.there(t, f)
		counts[fmt.Sprintf("%v %s", d.Type, [...]string{"committed", "refused", "unknown", "unfinished"}[d.Fate])]++
		want := d.Fate == committed
		if d.Fate == unknown {
			if want, err = resolve(d.ID); err != nil {
				t.Errorf("%+v: %v", *d, err)
				continue
			}
		}
		if d.Fate != unfinished && there != want && d.Type != Delivery {
			t.Errorf("%+v: in the database: %v, want %v", *d, there, want)
		}
		if d.Fate == unknown && there {
			counts["unknown that committed"]++
		}
		switch {
		case d.Type == Payment && there:
			paid[d.W] += d.Amount
		case d.Type == NewOrder && there:
			orders++
		case d.Type == Delivery:
			delivered += d.deliveries(t, f, want)
		}
	}
	for stamp, rows := range f.payments {
		t.Errorf("a payment that nobody made, stamp %#x: %+v", stamp, rows)
	}
	for stamp, rows := range f.orders {
		t.Errorf("an order that nobody placed, stamp %#x: %v", stamp, rows)
	}
	for stamp, rows := range f.delivered {
		if len(rows) > 0 {
			t.Errorf("a delivery that nobody made, stamp %#x: %v", stamp, rows)
		}
	}
	checkTotals(t, e, paid, orders, delivered)
	return counts
}

// there reports whether a payment or an order is in the database, exactly once
// and in the place that the client received, and removes it from the rows
// found.
func (d *deed) there(t *testing.T, f *found) bool {
	t.Helper()
	switch d.Type {
	case Payment:
		rows := f.payments[d.Stamp]
		delete(f.payments, d.Stamp)
		if len(rows) > 1 || len(rows) == 1 && (rows[0].w != d.W || rows[0].d != d.D || rows[0].amount != d.Amount ||
			d.Fate == committed && rows[0].serial != d.Number) {
			t.Errorf("%+v: in history %+v", *d, rows)
		}
		return len(rows) > 0
	case NewOrder:
		rows := f.orders[d.Stamp]
		delete(f.orders, d.Stamp)
		if len(rows) > 1 || len(rows) == 1 && (rows[0][0] != d.W || rows[0][1] != d.D || d.Fate == committed && rows[0][2] != d.Number) {
			t.Errorf("%+v: orders %v", *d, rows)
		}
		return len(rows) > 0
	}
	return false
}

// deliveries checks a delivery's districts and returns how many orders were
// delivered.
func (d *deed) deliveries(t *testing.T, f *found, want bool) (n int64) {
	t.Helper()
	for at := d.From; at <= d.To; at++ {
		key := [2]int64{d.W, at}
		orders := f.delivered[d.Stamp][key]
		delete(f.delivered[d.Stamp], key)
		n += int64(len(orders))
		reported := d.Orders[at-1]
		switch {
		case len(orders) > 1:
			t.Errorf("%+v: orders %v in district %d", *d, orders, at)
		case d.Fate == committed && (reported != 0) != (len(orders) == 1), d.Fate == committed && reported != 0 && orders[0] != reported:
			t.Errorf("%+v: district %d reported %d, in the database %v", *d, at, reported, orders)
		case !want && d.Fate != unfinished && len(orders) > 0:
			t.Errorf("%+v: district %d delivered %v, want nothing", *d, at, orders)
		}
	}
	return n
}

// checkTotals compares what was added up with the sums in the rows.
func checkTotals(t *testing.T, e *engine, paid map[int64]int64, orders, delivered int64) {
	t.Helper()
	placed, err := OrdersPlaced(t.Context(), e.DB)
	if err != nil || placed != orders {
		t.Errorf("sum(d_next_o_id) grew by %d, want %d; %v", placed, orders, err)
	}
	err = e.DB.View(t.Context(), func(tx *txn.Txn) error {
		deliveries := int64(0)
		for w := int64(1); w <= e.info.Warehouses; w++ {
			row, err := tx.Get(e.s.warehouse, must(WarehouseKey(w)))
			if err != nil {
				return err
			}
			start := Districts * e.info.Scale.Customers * initialPayment
			if got := row.Int(e.s.w.ytd) - start; got != paid[w] {
				t.Errorf("w_ytd of warehouse %d grew by %d, want %d", w, got, paid[w])
			}
			for d := int64(1); d <= Districts; d++ {
				for c := int64(1); c <= e.info.Scale.Customers; c++ {
					row, err := tx.Get(e.s.customer, must(CustomerKey(w, d, c)))
					if err != nil {
						return err
					}
					deliveries += row.Int(e.s.c.deliveryCnt)
				}
			}
		}
		if deliveries != delivered {
			t.Errorf("sum(c_delivery_cnt) is %d, want %d", deliveries, delivered)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// settled waits until no server has a transaction in doubt.
func (e *engine) settled(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		stats, err := e.DB.ServerStats(t.Context())
		left := 0
		for _, st := range stats {
			left += st.Prepared
		}
		if err == nil && left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d transactions are still in doubt; %v", left, err)
		}
	}
}
