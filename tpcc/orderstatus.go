package tpcc

import "fmt"

// OrderStatusInput is the input of an ORDER-STATUS (clause 2.6.1).
type OrderStatusInput struct {
	W, D int64  // W_ID, D_ID
	C    int64  // C_ID; 0: the customer is chosen by last name
	Last []byte // C_LAST, if C is 0
}

func (in *OrderStatusInput) check() error { return checkCustomer(in.W, in.D, in.C, in.Last) }

// OrderStatusOutput is the output of an ORDER-STATUS (clause 2.6.3.3).
type OrderStatusOutput struct {
	Customer int64  // C_ID
	First    []byte // C_FIRST
	Middle   []byte // C_MIDDLE
	Last     []byte // C_LAST
	Balance  int64  // C_BALANCE, in cents
	Order    int64  // O_ID
	EntryD   int64  // O_ENTRY_D
	Carrier  int64  // O_CARRIER_ID; 0: null
	Lines    []OrderStatusLine
}

// OrderStatusLine is one line of the order, in order of OL_NUMBER.
type OrderStatusLine struct {
	SupplyW   int64 // OL_SUPPLY_W_ID
	Item      int64 // OL_I_ID
	Quantity  int64 // OL_QUANTITY
	Amount    int64 // OL_AMOUNT, in cents
	DeliveryD int64 // OL_DELIVERY_D; 0: null
}

// orderStatus is the body of ORDER-STATUS (clause 2.6.2.2) with its buffers.
// It can be run any number of times, by one goroutine.
type orderStatus struct {
	s   *Schema
	in  *OrderStatusInput
	out *OrderStatusOutput

	byLast byLast
}

// run makes one attempt. Reads that do not depend on each other's results are queued
// together: two steps for a customer named by number, three for one named by last
// name.
func (q *orderStatus) run(t operations) error {
	in, out := q.in, q.out
	c, err := in.C, error(nil)
	if c == 0 {
		found := q.byLast.queue(t, q.s, in.W, in.D, in.Last)
		if c, err = q.byLast.choose(found, q.s, in.W, in.D, in.Last); err != nil {
			return err
		}
	}
	customer := t.QueueGet(q.s.customer, must(CustomerKey(in.W, in.D, c)))
	lo, hi := customerOrdersRange(in.W, in.D, c, c)
	latest := t.QueueScan(q.s.byCustomer, lo, hi, 1)
	row, err := customerRow(customer, in.W, in.D, c)
	if err != nil {
		return err
	}
	out.Customer = c
	out.First = append(out.First[:0], row.Text(q.s.c.first)...)
	out.Middle = append(out.Middle[:0], row.Text(q.s.c.middle)...)
	out.Last = append(out.Last[:0], row.Text(q.s.c.last)...)
	out.Balance = row.Int(q.s.c.balance)
	entries, err := latest.Entries()
	if err != nil {
		return fmt.Errorf("tpcc: orders of customer %d.%d.%d: %w", in.W, in.D, c, err)
	}
	if len(entries) == 0 {
		return fmt.Errorf("%w: %d.%d.%d", ErrNoOrder, in.W, in.D, c)
	}
	// The entry's key ends in the complement of o_id: the first has the largest.
	return q.readOrder(t, customerOrderID(entries[0].Key))
}

// readOrder reads the order and its lines in one step.
func (q *orderStatus) readOrder(t operations, o int64) error {
	in, out := q.in, q.out
	order := t.QueueGet(q.s.orders, must(OrderKey(in.W, in.D, o)))
	lo, hi := orderLinesRange(in.W, in.D, o, o)
	lines := t.QueueScan(q.s.orderLine.Primary(), lo, hi, MaxLines)
	row, err := order.Row()
	if err != nil {
		return fmt.Errorf("tpcc: order %d.%d.%d: %w", in.W, in.D, o, err)
	}
	out.Order = o
	out.EntryD = row.Int(q.s.o.entryD)
	out.Carrier = row.Int(q.s.o.carrierID)
	entries, err := lines.Entries()
	if err != nil {
		return fmt.Errorf("tpcc: lines of order %d.%d.%d: %w", in.W, in.D, o, err)
	}
	f := &q.s.ol
	out.Lines = out.Lines[:0]
	for _, e := range entries {
		out.Lines = append(out.Lines, OrderStatusLine{
			SupplyW: e.Row.Int(f.supplyWID), Item: e.Row.Int(f.iID), Quantity: e.Row.Int(f.quantity),
			Amount: e.Row.Int(f.amount), DeliveryD: e.Row.Int(f.deliveryD),
		})
	}
	return nil
}
