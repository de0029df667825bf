package tpcc

import (
	"fmt"
	"math"
	"time"

	"drtmx/tables"
)

// MaxCarrier is the largest O_CARRIER_ID (clause 2.7.1.2).
const MaxCarrier = 10

// DeliveryInput is the input of a DELIVERY (clause 2.7.1).
type DeliveryInput struct {
	W       int64 // W_ID
	Carrier int64 // O_CARRIER_ID, 1 to 10
	Date    int64 // OL_DELIVERY_D; 0: the time when each order's transaction runs (clause 2.7.1.3)
}

func (in *DeliveryInput) check() error {
	if _, err := WarehouseKey(in.W); err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	if in.Carrier < 1 || in.Carrier > MaxCarrier {
		return fmt.Errorf("%w: carrier %d, want 1 to %d", ErrInput, in.Carrier, MaxCarrier)
	}
	return nil
}

// DeliveryOutput is the result of a DELIVERY (clause 2.7.2.2). If the DELIVERY ended
// with an error, the districts up to Done are delivered or skipped nevertheless.
type DeliveryOutput struct {
	// Orders are the O_IDs delivered, of districts 1 to 10; 0: skipped, because
	// the district had no undelivered order (clause 2.7.4.2).
	Orders [Districts]int64
	// Done is how many districts, from the first on, are delivered or skipped: 10
	// unless there was an error.
	Done int
}

// Delivered returns the number of orders delivered.
func (out *DeliveryOutput) Delivered() (n int) {
	for _, o := range out.Orders {
		if o != 0 {
			n++
		}
	}
	return n
}

// Skipped returns the number of districts that had no undelivered order.
func (out *DeliveryOutput) Skipped() int { return out.Done - out.Delivered() }

// deliveryPart is the input of one database transaction of a DELIVERY, which delivers
// the oldest undelivered order of each district from First to Last.
type deliveryPart struct {
	DeliveryInput
	First, Last int64 // D_IDs
}

func (in *deliveryPart) check() error {
	if in.First < 1 || in.First > in.Last || in.Last > Districts {
		return fmt.Errorf("%w: districts %d to %d", ErrInput, in.First, in.Last)
	}
	return in.DeliveryInput.check()
}

// delivery is the body of one database transaction of DELIVERY (clause
// 2.7.4.2) with its buffers. It can be run any number of times, by one
// goroutine.
type delivery struct {
	s   *Schema
	in  *deliveryPart
	out *DeliveryOutput // only the part's districts are set

	oldest, lines [Districts]pendingRows
	orders        [Districts]pendingRow
	customers     [Districts]pendingRow
	amounts       [Districts]int64

	order, line, customer tables.Row
}

func newDelivery(s *Schema) *delivery {
	return &delivery{s: s, order: s.orders.NewRow(), line: s.orderLine.NewRow(), customer: s.customer.NewRow()}
}

// run is one attempt: three steps of reads, each for all districts of the
// part together: the oldest NEW_ORDER rows, their orders with all lines, and
// the customers.
func (v *delivery) run(t operations) error {
	in, s := v.in, v.s
	date := in.Date
	if date == 0 {
		date = time.Now().UnixNano()
	}
	for d := in.First; d <= in.Last; d++ {
		v.oldest[d-1] = t.QueueScan(s.newOrder.Primary(), must(OrderKey(in.W, d, 1)), must(OrderKey(in.W, d, MaxOrders)), 1)
	}
	for d := in.First; d <= in.Last; d++ {
		entries, err := v.oldest[d-1].Entries()
		if err != nil {
			return fmt.Errorf("tpcc: undelivered orders of district %d.%d: %w", in.W, d, err)
		}
		v.out.Orders[d-1] = 0
		if len(entries) > 0 {
			v.out.Orders[d-1] = int64(entries[0].Key.Num() & MaxOrders)
		}
	}
	for d := in.First; d <= in.Last; d++ {
		if o := v.out.Orders[d-1]; o != 0 {
			v.orders[d-1] = t.QueueGet(s.orders, must(OrderKey(in.W, d, o)))
			lo, hi := orderLinesRange(in.W, d, o, o)
			v.lines[d-1] = t.QueueScan(s.orderLine.Primary(), lo, hi, MaxLines)
		}
	}
	for d := in.First; d <= in.Last; d++ {
		if o := v.out.Orders[d-1]; o != 0 {
			if err := v.deliver(t, d, o, date); err != nil {
				return err
			}
		}
	}
	for d := in.First; d <= in.Last; d++ {
		if o := v.out.Orders[d-1]; o != 0 {
			if err := v.charge(t, d, o); err != nil {
				return err
			}
		}
	}
	return nil
}

// deliver removes the NEW_ORDER row, sets the carrier of the order and the
// date of its lines, sums their amounts, and queues the read of the customer.
func (v *delivery) deliver(t operations, d, o, date int64) error {
	in, s := v.in, v.s
	key := must(OrderKey(in.W, d, o))
	row, err := v.orders[d-1].Row()
	if err != nil {
		return fmt.Errorf("tpcc: order %d.%d.%d: %w", in.W, d, o, err)
	}
	c := row.Int(s.o.cID)
	customerKey, err := CustomerKey(in.W, d, c)
	if err != nil {
		return fmt.Errorf("tpcc: order %d.%d.%d: %w", in.W, d, o, err)
	}
	v.customers[d-1] = t.QueueGet(s.customer, customerKey)
	v.order = append(v.order[:0], row...)
	v.order.SetInt(s.o.carrierID, in.Carrier)
	lines, err := v.lines[d-1].Entries()
	if err != nil {
		return fmt.Errorf("tpcc: lines of order %d.%d.%d: %w", in.W, d, o, err)
	}
	// This comes first: the first write determines the transaction's home.
	if err := t.Delete(s.newOrder, key); err != nil {
		return err
	}
	if err := t.Update(s.orders, key, v.order); err != nil {
		return err
	}
	v.amounts[d-1] = 0
	for _, e := range lines {
		v.amounts[d-1] += e.Row.Int(s.ol.amount)
		v.line = append(v.line[:0], e.Row...)
		v.line.SetInt(s.ol.deliveryD, date)
		if err := t.Update(s.orderLine, e.Key, v.line); err != nil {
			return err
		}
	}
	return nil
}

// charge adds the order's amount to its customer's balance.
func (v *delivery) charge(t operations, d, o int64) error {
	in, s, f := v.in, v.s, &v.s.c
	row, err := v.customers[d-1].Row()
	if err != nil {
		return fmt.Errorf("tpcc: customer of order %d.%d.%d: %w", in.W, d, o, err)
	}
	v.customer = append(v.customer[:0], row...)
	row = v.customer
	if row.Int(f.deliveryCnt) >= math.MaxInt32 {
		return fmt.Errorf("%w: c_delivery_cnt of %d.%d.%d", ErrCounterFull, in.W, d, row.Int(f.id))
	}
	row.SetInt(f.balance, row.Int(f.balance)+v.amounts[d-1])
	row.SetInt(f.deliveryCnt, row.Int(f.deliveryCnt)+1)
	return t.Update(s.customer, must(CustomerKey(in.W, d, row.Int(f.id))), row)
}
