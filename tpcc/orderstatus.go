package tpcc

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"drtmx/tables"
	"drtmx/txn"
)

// OrderStatusInput is the input of an ORDER-STATUS (clause 2.6.1).
type OrderStatusInput struct {
	W, D int64  // W_ID, D_ID
	C    int64  // C_ID; 0: the customer is chosen by last name
	Last []byte // C_LAST, if C is 0
}

func (in *OrderStatusInput) check() error {
	_, err := DistrictKey(in.W, in.D)
	if err == nil && in.C != 0 {
		_, err = CustomerKey(in.W, in.D, in.C)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	if in.C == 0 && (len(in.Last) == 0 || len(in.Last) > maxLast) {
		return fmt.Errorf("%w: last name of %d bytes, want 1 to %d", ErrInput, len(in.Last), maxLast)
	}
	return nil
}

const maxLast = 16 // bytes of C_LAST

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

	sameName []namesake
}

type namesake struct {
	first []byte // a view of the entry
	c     int64
}

// run is one attempt. Reads that do not depend on each other's results are
// announced together: two steps for a customer known by number, three for one
// known by last name.
func (q *orderStatus) run(t operations) error {
	in, out := q.in, q.out
	c, err := in.C, error(nil)
	if c == 0 {
		if c, err = q.byLastName(t); err != nil {
			return err
		}
	}
	customer := t.GetLater(q.s.customer, must(CustomerKey(in.W, in.D, c)))
	lo, hi := customerOrdersRange(in.W, in.D, c, c)
	latest := t.ScanLater(q.s.byCustomer, lo, hi, 1)
	row, err := customer.Row()
	if errors.Is(err, txn.ErrNotFound) {
		return fmt.Errorf("%w: %d.%d.%d", ErrNoCustomer, in.W, in.D, c)
	} else if err != nil {
		return fmt.Errorf("tpcc: customer %d.%d.%d: %w", in.W, in.D, c, err)
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

// byLastName finds the customer in the middle, rounded up, of those with the
// last name, in order of first name (clause 2.6.2.2). Equal first names go by
// C_ID, so that the choice is the same in every attempt.
func (q *orderStatus) byLastName(t operations) (int64, error) {
	in := q.in
	lo, hi := lastNameRange(in.W, in.D, tables.DigestBytes(in.Last))
	entries, err := t.ScanLater(q.s.byLast, lo, hi, 0).Entries()
	if err != nil {
		return 0, fmt.Errorf("tpcc: customers of %d.%d by last name: %w", in.W, in.D, err)
	}
	q.sameName = q.sameName[:0]
	for _, e := range entries {
		if bytes.Equal(e.Row.Text(q.s.last.last), in.Last) {
			q.sameName = append(q.sameName, namesake{e.Row.Text(q.s.last.first), int64(e.Key & MaxCustomers)})
		}
	}
	if len(q.sameName) == 0 {
		return 0, fmt.Errorf("%w: %d.%d %q", ErrNoCustomer, in.W, in.D, in.Last)
	}
	slices.SortFunc(q.sameName, func(a, b namesake) int {
		if n := bytes.Compare(a.first, b.first); n != 0 {
			return n
		}
		return cmp.Compare(a.c, b.c)
	})
	// Position n/2 rounded up, counted from 1.
	return q.sameName[(len(q.sameName)+1)/2-1].c, nil
}

// readOrder reads the order and its lines, together.
func (q *orderStatus) readOrder(t operations, o int64) error {
	in, out := q.in, q.out
	order := t.GetLater(q.s.orders, must(OrderKey(in.W, in.D, o)))
	lo, hi := orderLinesRange(in.W, in.D, o, o)
	lines := t.ScanLater(q.s.orderLine.Primary(), lo, hi, MaxLines)
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
