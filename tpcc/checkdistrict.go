package tpcc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"drtmx/tables"
	"drtmx/txn"
)

const (
	// snapshotOrdersMax is the most orders of a district that are checked in one
	// View. txn.MaxReads bounds its reads, and all its rows are in memory at once.
	snapshotOrdersMax = 20_000
	// viewOrders is the number of orders per View in a district with more orders.
	viewOrders = 2_000
	// chunkOrders and chunkCustomers are read in one round.
	chunkOrders    = 64
	chunkCustomers = 250
)

// district evaluates the conditions of one district.
func (k *checker) district(ctx context.Context, v viewer, w, d int64) error {
	c := &districtCheck{s: k.s, scale: k.info.Scale, w: w, d: d, paid: k.paidBy}
	err := v.view(ctx, func(t operations) error {
		if err := c.head(t); err != nil {
			return err
		}
		if len(c.ids) > snapshotOrdersMax {
			return nil
		}
		return c.orders(t, 0, len(c.ids))
	})
	for i := 0; err == nil && len(c.ids) > snapshotOrdersMax && i < len(c.ids); i += viewOrders {
		before := c.sums
		err = v.view(ctx, func(t operations) error {
			c.sums = before.clone() // discard the sums of an earlier attempt
			return c.orders(t, i, min(i+viewOrders, len(c.ids)))
		})
	}
	if err != nil {
		return fmt.Errorf("district %d.%d: %w", w, d, err)
	}
	c.conclude()
	for condition, text := range c.sums.faults {
		k.report(condition, w, d, text)
	}
	for supply, tally := range c.sums.ordered {
		k.addOrdered(w, d, supply, tally)
	}
	if !c.fresh() {
		k.mu.Lock()
		k.mu.used = true
		k.mu.Unlock()
	}
	return nil
}

// addOrdered adds what a district ordered from a warehouse.
func (k *checker) addOrdered(w, d, supply int64, tally stockTally) {
	if !keyFits(supply, k.info.Warehouses) && k.AtRest {
		k.report(ConditionStock, w, d, fmt.Sprintf("district %d.%d: order lines name warehouse %d, which does not exist", w, d, supply))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	sum := k.mu.ordered[supply]
	sum.add(tally)
	k.mu.ordered[supply] = sum
}

// districtCheck collects the values that the conditions on one district compare.
type districtCheck struct {
	s     *Schema
	scale Scale
	w, d  int64
	paid  *payments // nil unless at rest

	next       int64         // D_NEXT_O_ID
	ids        []int64       // O_IDs in the index by customer, ascending
	customerOf map[int64]int // by O_ID, as the index says
	maxOrder   int64         // max(O_ID)
	customers  []customerSums
	sums       districtSums
	rows       [chunkOrders]pendingRow
}

type customerSums struct{ balance, ytdPayment, paymentCnt, deliveryCnt int64 }

// districtSums are the sums that each order adds to.
type districtSums struct {
	orders, olCnt, lines    int64
	newOrders, noMin, noMax int64
	delivered               []int64 // Σ OL_AMOUNT of delivered lines, by C_ID
	deliveries              []int64 // orders delivered since the load, by C_ID
	ordered                 map[int64]stockTally
	faults                  map[string]string // the first of each condition
}

func (s districtSums) clone() districtSums {
	s.delivered, s.deliveries = slices.Clone(s.delivered), slices.Clone(s.deliveries)
	s.ordered, s.faults = maps.Clone(s.ordered), maps.Clone(s.faults)
	return s
}

// fault records a condition that does not hold, unless one was recorded.
func (c *districtCheck) fault(condition, format string, args ...any) {
	if c.sums.faults[condition] == "" {
		c.sums.faults[condition] = fmt.Sprintf(format, args...)
	}
}

// name names a row of the district in a fault.
func (c *districtCheck) name(table string, n int64) string {
	return fmt.Sprintf("%s %d.%d.%d", table, c.w, c.d, n)
}

// head begins an attempt: it reads the district, its customers, and the numbers of
// its orders.
func (c *districtCheck) head(t operations) error {
	n := c.scale.Customers + 1
	c.sums = districtSums{
		delivered: make([]int64, n), deliveries: make([]int64, n),
		ordered: map[int64]stockTally{}, faults: map[string]string{},
	}
	c.customers = make([]customerSums, n)
	row, err := t.QueueGet(c.s.district, must(DistrictKey(c.w, c.d))).Row()
	if err != nil {
		return loaded(err, "district %d.%d", c.w, c.d)
	}
	c.next = row.Int(c.s.d.nextOID)
	if err := c.readIndex(t); err != nil {
		return err
	}
	if err := c.readTail(t); err != nil {
		return err
	}
	return c.readCustomers(t)
}

// readIndex finds the orders: ORDERS is a hash table, but its index by
// customer can be scanned.
func (c *districtCheck) readIndex(t operations) error {
	c.ids, c.customerOf, c.maxOrder = c.ids[:0], map[int64]int{}, 0
	lo, hi := customerOrdersRange(c.w, c.d, 1, MaxCustomers)
	err := scan(t, c.s.byCustomer, lo, hi, func(e txn.Entry) error {
		o := customerOrderID(e.Key)
		want, err := OrderKey(c.w, c.d, o)
		if key := primaryKey(e.Row, c.s.byCustomer.Field(tables.PrimaryKey)); err != nil || key != want {
			c.fault(ConditionIndexes, "orders.by_customer %#x: primary key is %#x, want %#x", e.Key, key, want)
			return nil
		}
		c.ids = append(c.ids, o)
		c.customerOf[o] = int(e.Key.Num() >> orderBits & MaxCustomers)
		return nil
	})
	if err != nil {
		return err
	}
	slices.Sort(c.ids)
	for i, o := range c.ids {
		if o != int64(i+1) && c.sums.faults[ConditionIndexes] == "" {
			// Orders are numbered from 1 and never removed.
			c.fault(ConditionIndexes, "%s: not in orders.by_customer, which has %d entries up to o_id %d",
				c.name("order", int64(i+1)), len(c.ids), c.ids[len(c.ids)-1])
		}
		c.maxOrder = o
	}
	return nil
}

// last returns the largest O_ID that an order may have.
func (c *districtCheck) last() int64 { return min(max(c.next-1, c.maxOrder), MaxOrders) }

// readTail reports rows of orders above all order numbers.
func (c *districtCheck) readTail(t operations) error {
	if c.last() == MaxOrders {
		return nil
	}
	lo, hi := orderLinesRange(c.w, c.d, c.last()+1, MaxOrders)
	lines := t.QueueScan(c.s.orderLine.Primary(), lo, hi, 1)
	newOrders := t.QueueScan(c.s.newOrder.Primary(), must(OrderKey(c.w, c.d, c.last()+1)), must(OrderKey(c.w, c.d, MaxOrders)), 1)
	entries, err := lines.Entries()
	if err != nil {
		return err
	}
	for _, e := range entries {
		c.orphanLine(e)
	}
	if entries, err = newOrders.Entries(); err != nil {
		return err
	}
	for _, e := range entries {
		c.newOrder(e)
		c.orphanNewOrder(e)
	}
	return nil
}

// readCustomers reads the balances and compares the index by last name.
func (c *districtCheck) readCustomers(t operations) error {
	entries := make([]tables.Row, len(c.customers))
	const bits = lastNameBits + customerBits
	lo := must(DistrictKey(c.w, c.d)).Num() << bits
	err := scan(t, c.s.byLast, tables.Num(lo), tables.Num(lo|(1<<bits-1)), func(e txn.Entry) error {
		id := int64(e.Key.Num() & MaxCustomers)
		if !keyFits(id, c.scale.Customers) || entries[id] != nil {
			c.fault(ConditionIndexes, "customer.by_last %#x: of a customer who has no row, or a second entry of one", e.Key)
			return nil
		}
		entries[id] = e.Row.Clone()
		return nil
	})
	if err != nil {
		return err
	}
	var rows [chunkCustomers]pendingRow
	for from := int64(1); from <= c.scale.Customers; from += chunkCustomers {
		to := min(from+chunkCustomers-1, c.scale.Customers)
		for id := from; id <= to; id++ {
			rows[id-from] = t.QueueGet(c.s.customer, must(CustomerKey(c.w, c.d, id)))
		}
		for id := from; id <= to; id++ {
			row, err := rows[id-from].Row()
			if err != nil {
				return loaded(err, "customer %d.%d.%d", c.w, c.d, id)
			}
			f := &c.s.c
			c.customers[id] = customerSums{row.Int(f.balance), row.Int(f.ytdPayment), row.Int(f.paymentCnt), row.Int(f.deliveryCnt)}
			c.compareByLast(id, row, entries[id])
		}
	}
	return nil
}

func (c *districtCheck) compareByLast(id int64, row, entry tables.Row) {
	f, e := &c.s.c, &c.s.last
	switch {
	case entry == nil:
		c.fault(ConditionIndexes, "%s: not in customer.by_last", c.name("customer", id))
	case primaryKey(entry, e.key) != must(CustomerKey(c.w, c.d, id)),
		!bytes.Equal(entry.Text(e.last), row.Text(f.last)), !bytes.Equal(entry.Text(e.first), row.Text(f.first)):
		c.fault(ConditionIndexes, "%s: is %q %q, its entry in customer.by_last says %q %q", c.name("customer", id),
			row.Text(f.first), row.Text(f.last), entry.Text(e.first), entry.Text(e.last))
	}
}

// orders reads orders ids[i:j] with their NEW_ORDER and ORDER_LINE rows, and
// the gaps before them; with the last order, also those up to last().
func (c *districtCheck) orders(t operations, i, j int) error {
	from := int64(1)
	if i > 0 {
		from = c.ids[i-1] + 1
	}
	for i < j || j == len(c.ids) && from <= c.last() {
		n := min(i+chunkOrders, j)
		to := c.last()
		if n < len(c.ids) {
			to = c.ids[n-1]
		}
		if err := c.chunk(t, c.ids[i:n], from, to); err != nil {
			return err
		}
		i, from = n, to+1
	}
	return nil
}

// chunk reads the orders ids and all rows of the orders from … to, and merges them.
func (c *districtCheck) chunk(t operations, ids []int64, from, to int64) error {
	for i, o := range ids {
		c.rows[i] = t.QueueGet(c.s.orders, must(OrderKey(c.w, c.d, o)))
	}
	newOrderScan := t.QueueScan(c.s.newOrder.Primary(), must(OrderKey(c.w, c.d, from)), must(OrderKey(c.w, c.d, to)), 0)
	lo, hi := orderLinesRange(c.w, c.d, from, to)
	lineScan := t.QueueScan(c.s.orderLine.Primary(), lo, hi, 0)
	newOrders, err := newOrderScan.Entries()
	if err != nil {
		return err
	}
	lines, err := lineScan.Entries()
	if err != nil {
		return err
	}
	for _, e := range newOrders {
		c.newOrder(e)
	}
	for i, o := range ids {
		row, err := c.rows[i].Row()
		if errors.Is(err, txn.ErrNotFound) {
			c.fault(ConditionIndexes, "%s: is in orders.by_customer and has no row", c.name("order", o))
			continue
		} else if err != nil {
			return err
		}
		for len(newOrders) > 0 && int64(newOrders[0].Key.Num()&MaxOrders) < o {
			c.orphanNewOrder(newOrders[0])
			newOrders = newOrders[1:]
		}
		undelivered := len(newOrders) > 0 && int64(newOrders[0].Key.Num()&MaxOrders) == o
		if undelivered {
			newOrders = newOrders[1:]
		}
		for len(lines) > 0 && lineOrder(lines[0].Key) < o {
			c.orphanLine(lines[0])
			lines = lines[1:]
		}
		n := 0
		for n < len(lines) && lineOrder(lines[n].Key) == o {
			n++
		}
		c.order(o, row, undelivered, lines[:n])
		lines = lines[n:]
	}
	for _, e := range newOrders {
		c.orphanNewOrder(e)
	}
	for _, e := range lines {
		c.orphanLine(e)
	}
	return nil
}

// primaryKey returns the primary key of the row to which an index entry belongs.
func primaryKey(entry tables.Row, f tables.Field) tables.Key { return tables.Num(uint64(entry.Int(f))) }

func lineOrder(key tables.Key) int64 { return int64(key.Num() >> lineBits & MaxOrders) }

func (c *districtCheck) newOrder(e txn.Entry) {
	o := int64(e.Key.Num() & MaxOrders)
	if c.sums.newOrders == 0 {
		c.sums.noMin = o
	}
	c.sums.noMin, c.sums.noMax = min(c.sums.noMin, o), max(c.sums.noMax, o)
	c.sums.newOrders++
}

func (c *districtCheck) orphanNewOrder(e txn.Entry) {
	c.fault("3.3.2.5", "%s: there is no such order", c.name("new_order", int64(e.Key.Num()&MaxOrders)))
}

func (c *districtCheck) orphanLine(e txn.Entry) {
	c.sums.lines++
	c.fault("3.3.2.6", "%s.%d: there is no such order", c.name("order_line", lineOrder(e.Key)), e.Key.Num()&(1<<lineBits-1))
}

// order evaluates the conditions on one order and its lines: O_CARRIER_ID is
// null if and only if there is a NEW_ORDER row (3.3.2.5), O_OL_CNT is the
// number of lines (3.3.2.6), OL_DELIVERY_D is null if and only if O_CARRIER_ID
// is (3.3.2.7).
func (c *districtCheck) order(o int64, row tables.Row, undelivered bool, lines []txn.Entry) {
	f := &c.s.o
	carrier, cnt := row.Int(f.carrierID), row.Int(f.olCnt)
	c.sums.orders++
	c.sums.olCnt += cnt
	c.sums.lines += int64(len(lines))
	if (carrier == 0) != undelivered {
		c.fault("3.3.2.5", "%s: o_carrier_id is %d, rows in new_order %d", c.name("order", o), carrier, btoi(undelivered))
	}
	if cnt != int64(len(lines)) {
		c.fault("3.3.2.6", "%s: o_ol_cnt is %d, rows in order_line %d", c.name("order", o), cnt, len(lines))
	}
	customer := row.Int(f.cID)
	if customer != int64(c.customerOf[o]) || !keyFits(customer, c.scale.Customers) {
		c.fault(ConditionIndexes, "%s: o_c_id is %d, orders.by_customer says %d", c.name("order", o), customer, c.customerOf[o])
		customer = 0
	}
	if carrier != 0 && o > c.scale.delivered() {
		c.sums.deliveries[customer]++
	}
	l := &c.s.ol
	for _, e := range lines {
		deliveryD := e.Row.Int(l.deliveryD)
		if (carrier == 0) != (deliveryD == 0) {
			c.fault("3.3.2.7", "%s.%d: ol_delivery_d is %d, o_carrier_id is %d", c.name("order_line", o), e.Key.Num()&(1<<lineBits-1), deliveryD, carrier)
		}
		if deliveryD != 0 {
			c.sums.delivered[customer] += e.Row.Int(l.amount)
		}
		if o > c.scale.Customers { // ordered since the load
			supply := e.Row.Int(l.supplyWID)
			tally := c.sums.ordered[supply]
			tally.addLine(e.Row.Int(l.iID), e.Row.Int(l.quantity), supply != c.w)
			c.sums.ordered[supply] = tally
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// conclude evaluates the conditions on sums over the district and its customers.
func (c *districtCheck) conclude() {
	s, where := &c.sums, fmt.Sprintf("district %d.%d", c.w, c.d)
	if c.next-1 != c.maxOrder || s.newOrders > 0 && c.next-1 != s.noMax {
		c.fault("3.3.2.2", "%s: d_next_o_id - 1 is %d, max(o_id) is %d, max(no_o_id) is %d", where, c.next-1, c.maxOrder, s.noMax)
	}
	if s.newOrders > 0 && s.noMax-s.noMin+1 != s.newOrders {
		c.fault("3.3.2.3", "%s: max(no_o_id) - min(no_o_id) + 1 is %d, rows in new_order %d", where, s.noMax-s.noMin+1, s.newOrders)
	}
	if s.olCnt != s.lines {
		c.fault("3.3.2.4", "%s: sum(o_ol_cnt) is %d, rows in order_line %d", where, s.olCnt, s.lines)
	}
	if s.orders-s.newOrders != c.scale.delivered() && c.fresh() {
		c.fault(conditionFresh, "%s: rows in orders %d less rows in new_order %d, want a difference of %d", where, s.orders, s.newOrders, c.scale.delivered())
	}
	for id := int64(1); id <= c.scale.Customers; id++ {
		c.customer(id)
	}
}

// fresh reports whether no order was placed or delivered since the load.
func (c *districtCheck) fresh() bool {
	delivered := int64(0)
	for _, p := range c.customers {
		delivered += p.deliveryCnt
	}
	return c.next == c.scale.Customers+1 && delivered == 0
}

// customer evaluates the conditions on one customer: C_BALANCE is the sum of
// delivered OL_AMOUNT less that of H_AMOUNT (3.3.2.10), and C_BALANCE + C_YTD_PAYMENT
// the former alone (3.3.2.12). It also compares the customer's counters. A sum over
// no rows is 0.
func (c *districtCheck) customer(id int64) {
	p, delivered, deliveries := &c.customers[id], c.sums.delivered[id], c.sums.deliveries[id]
	if p.balance+p.ytdPayment != delivered {
		c.fault("3.3.2.12", "%s: c_balance + c_ytd_payment is %d, sum(ol_amount) delivered %d",
			c.name("customer", id), p.balance+p.ytdPayment, delivered)
	}
	if p.deliveryCnt != deliveries {
		c.fault(ConditionDeliveries, "%s: c_delivery_cnt is %d, orders delivered since the load %d",
			c.name("customer", id), p.deliveryCnt, deliveries)
	}
	if c.paid == nil {
		return
	}
	at := c.paid.at(c.w, c.d, id)
	paid, rows := c.paid.amount[at].Load(), int64(c.paid.rows[at].Load())
	if p.balance != delivered-paid {
		c.fault("3.3.2.10", "%s: c_balance is %d, sum(ol_amount) delivered %d less sum(h_amount) %d is %d",
			c.name("customer", id), p.balance, delivered, paid, delivered-paid)
	}
	if p.paymentCnt != rows {
		c.fault(ConditionHistory, "%s: c_payment_cnt is %d, rows in history %d", c.name("customer", id), p.paymentCnt, rows)
	}
}
