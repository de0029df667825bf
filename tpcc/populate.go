package tpcc

import (
	"context"
	"errors"

	"drtmx/internal/rng"
	"drtmx/tables"
)

// tableID numbers the tables for arrays.
type tableID int

const (
	tabWarehouse tableID = iota
	tabDistrict
	tabCustomer
	tabHistory
	tabNewOrder
	tabOrders
	tabOrderLine
	tabItem
	tabStock
	tabLoadInfo
	tableCount
)

func (s *Schema) table(t tableID) *tables.Table {
	return [...]*tables.Table{
		s.warehouse, s.district, s.customer, s.history, s.newOrder,
		s.orders, s.orderLine, s.item, s.stock, s.loadInfo,
	}[t]
}

const (
	progressRows = 10_000 // rows between reports within a table

	originalShare = 10 // one row in so many has "ORIGINAL" in its data
	badShare      = 10 // one customer in so many has bad credit

	initialPayment     = 10_00 // h_amount, c_ytd_payment, -c_balance; also a customer's share of d_ytd
	initialCreditLimit = 50_000_00
	initialQuantity    = 5 // ol_quantity
)

// populator makes the rows of clause 4.3.3.1 for one worker, in one buffer per table,
// and adds them to the sinks. It allocates per worker, not per row.
type populator struct {
	*load
	ctx    context.Context
	sinks  [tableCount]Sink
	rows   [tableCount]tables.Row
	counts [tableCount]int64 // since the last report
	unseen int64             // their sum
	text   []byte            // scratch of strings
	perm   []int32           // customers in order of their orders (clause 4.3.3.1)
	rnd    *rng.Stream       // of the warehouse, or of the items
}

func newPopulator(ctx context.Context, l *load) *populator {
	p := &populator{load: l, ctx: ctx, text: make([]byte, 0, 512), perm: make([]int32, l.Scale.Customers)}
	for t := range p.rows {
		p.rows[t] = l.schema.table(tableID(t)).NewRow()
	}
	return p
}

// row is the buffer of a table, cleared.
func (p *populator) row(t tableID) tables.Row {
	clear(p.rows[t])
	return p.rows[t]
}

// add stores the row in the table's buffer.
func (p *populator) add(t tableID, key tables.Key) error {
	if p.sinks[t] == nil {
		sink, err := p.to.NewSink(p.ctx, p.schema.table(t))
		if err != nil {
			return err
		}
		p.sinks[t] = sink
	}
	if err := p.sinks[t].Add(key, p.rows[t]); err != nil {
		return err
	}
	p.counts[t]++
	if p.unseen++; p.unseen == progressRows {
		p.unseen = 0
		p.advance(&p.counts, 0)
		return context.Cause(p.ctx)
	}
	return nil
}

// close closes the sinks; rows not yet counted are counted.
func (p *populator) close() error {
	var errs []error
	for _, s := range p.sinks {
		if s != nil {
			errs = append(errs, s.Close())
		}
	}
	p.advance(&p.counts, 0)
	return errors.Join(errs...)
}

// astring sets a random a-string [x .. y] (clause 4.3.2.2).
func (p *populator) astring(row *tables.Row, f tables.Field, x, y int) {
	p.text = p.rnd.AString(p.text[:0], x, y)
	row.SetText(f, p.text)
}

// nstring sets a random n-string of n digits.
func (p *populator) nstring(row *tables.Row, f tables.Field, n int) {
	p.text = p.rnd.NString(p.text[:0], n, n)
	row.SetText(f, p.text)
}

// address sets the columns of clause 4.3.3.1 and, for the zip code, 4.3.2.7.
func (p *populator) address(row *tables.Row, f *addressFields) {
	p.astring(row, f.street1, 10, 20)
	p.astring(row, f.street2, 10, 20)
	p.astring(row, f.city, 10, 20)
	p.astring(row, f.state, 2, 2)
	p.text = append(p.rnd.NString(p.text[:0], 4, 4), "11111"...)
	row.SetText(f.zip, p.text)
}

// data sets i_data or s_data: an a-string [26 .. 50], with "ORIGINAL" at a
// random position within it if so chosen.
func (p *populator) data(row *tables.Row, f tables.Field, original bool) {
	p.text = p.rnd.AString(p.text[:0], 26, 50)
	if original {
		copy(p.text[p.rnd.Intn(len(p.text)-len(brandMark)+1):], brandMark)
	}
	row.SetText(f, p.text)
}

// sample selects, over a known number of rows, an exact share of them
// uniformly at random (Knuth's algorithm S), as "for 10% of the rows,
// selected at random" asks.
type sample struct{ rows, picks int64 }

func sampleOf(rows, share int64) sample { return sample{rows, rows / share} }

func (s *sample) next(rnd *rng.Stream) bool {
	picked := rnd.Uint64n(uint64(s.rows)) < uint64(s.picks)
	s.rows--
	if picked {
		s.picks--
	}
	return picked
}

// items loads ITEM.
func (p *populator) items() error {
	p.rnd = p.root.Split("items")
	f := &p.schema.i
	original := sampleOf(p.Scale.Items, originalShare)
	for i := int64(1); i <= p.Scale.Items; i++ {
		row := p.row(tabItem)
		row.SetInt(f.id, i)
		row.SetInt(f.imID, p.rnd.Range(1, 10_000))
		p.astring(&row, f.name, 14, 24)
		row.SetInt(f.price, p.rnd.Range(1_00, 100_00))
		p.data(&row, f.data, original.next(p.rnd))
		if err := p.add(tabItem, must(ItemKey(i))); err != nil {
			return err
		}
	}
	return nil
}

// warehouse loads one warehouse and all that belongs to it.
func (p *populator) warehouse(w int64) error {
	p.rnd = p.root.Split("warehouse").SplitN(uint64(w))
	f := &p.schema.w
	row := p.row(tabWarehouse)
	row.SetInt(f.id, w)
	p.astring(&row, f.name, 6, 10)
	p.address(&row, &f.addressFields)
	row.SetInt(f.tax, p.rnd.Range(0, 2_000))
	// 300,000.00 at full scale, so that condition 3.3.2.1 holds at any.
	row.SetInt(f.ytd, Districts*p.Scale.Customers*initialPayment)
	if err := p.add(tabWarehouse, must(WarehouseKey(w))); err != nil {
		return err
	}
	if err := p.stock(w); err != nil {
		return err
	}
	for d := int64(1); d <= Districts; d++ {
		if err := p.district(w, d); err != nil {
			return err
		}
	}
	p.advance(&p.counts, 1)
	return nil
}

func (p *populator) stock(w int64) error {
	f := &p.schema.s
	original := sampleOf(p.Scale.Items, originalShare)
	for i := int64(1); i <= p.Scale.Items; i++ {
		row := p.row(tabStock)
		row.SetInt(f.iID, i)
		row.SetInt(f.wID, w)
		row.SetInt(f.quantity, p.rnd.Range(10, 100))
		for d := range f.dist {
			p.astring(&row, f.dist[d], 24, 24)
		}
		p.data(&row, f.data, original.next(p.rnd))
		if err := p.add(tabStock, must(StockKey(w, i))); err != nil {
			return err
		}
	}
	return nil
}

func (p *populator) district(w, d int64) error {
	f := &p.schema.d
	row := p.row(tabDistrict)
	row.SetInt(f.id, d)
	row.SetInt(f.wID, w)
	p.astring(&row, f.name, 6, 10)
	p.address(&row, &f.addressFields)
	row.SetInt(f.tax, p.rnd.Range(0, 2_000))
	row.SetInt(f.ytd, p.Scale.Customers*initialPayment) // 30,000.00 at full scale
	row.SetInt(f.nextOID, p.Scale.Customers+1)          // 3,001 at full scale
	row.SetInt(f.nextHID, p.Scale.Customers+1)          // one HISTORY row for each customer
	if err := p.add(tabDistrict, must(DistrictKey(w, d))); err != nil {
		return err
	}
	bad := sampleOf(p.Scale.Customers, badShare)
	for c := int64(1); c <= p.Scale.Customers; c++ {
		if err := p.customer(w, d, c, bad.next(p.rnd)); err != nil {
			return err
		}
	}
	rng.Perm(p.rnd, p.perm, 1)
	for o := int64(1); o <= p.Scale.Customers; o++ {
		if err := p.order(w, d, o, int64(p.perm[o-1])); err != nil {
			return err
		}
	}
	return nil
}

// customer loads a customer and its HISTORY row.
func (p *populator) customer(w, d, c int64, bad bool) error {
	f := &p.schema.c
	row := p.row(tabCustomer)
	row.SetInt(f.id, c)
	row.SetInt(f.dID, d)
	row.SetInt(f.wID, w)
	p.astring(&row, f.first, 8, 16)
	row.SetText(f.middle, middleName)
	// The first thousand have all the names, so that every name is found; the
	// others have NURand ones (clause 4.3.3.1).
	names := p.Scale.lastNames()
	number := c - 1
	if number >= names {
		number = p.rnd.NURand(rng.ACLast, 0, names-1, p.constants.CLast)
	}
	p.text = LastName(p.text[:0], number)
	row.SetText(f.last, p.text)
	p.address(&row, &f.addressFields)
	p.nstring(&row, f.phone, 16)
	row.SetInt(f.since, p.Now)
	if bad {
		row.SetText(f.credit, badCredit)
	} else {
		row.SetText(f.credit, goodCredit)
	}
	row.SetInt(f.creditLim, initialCreditLimit)
	row.SetInt(f.discount, p.rnd.Range(0, 5_000))
	row.SetInt(f.balance, -initialPayment)
	row.SetInt(f.ytdPayment, initialPayment)
	row.SetInt(f.paymentCnt, 1)
	p.astring(&row, f.data, 300, 500)
	if err := p.add(tabCustomer, must(CustomerKey(w, d, c))); err != nil {
		return err
	}
	return p.payment(w, d, c)
}

func (p *populator) payment(w, d, c int64) error {
	f := &p.schema.h
	row := p.row(tabHistory)
	row.SetInt(f.cID, c)
	row.SetInt(f.cDID, d)
	row.SetInt(f.cWID, w)
	row.SetInt(f.dID, d)
	row.SetInt(f.wID, w)
	row.SetInt(f.date, p.Now)
	row.SetInt(f.amount, initialPayment)
	p.astring(&row, f.data, 12, 24)
	return p.add(tabHistory, must(HistoryKey(w, d, c)))
}

// order loads an order, its lines and, if it is undelivered, its NEW_ORDER row.
func (p *populator) order(w, d, o, c int64) error {
	f := &p.schema.o
	row := p.row(tabOrders)
	delivered := o <= p.Scale.delivered()
	lines := p.rnd.Range(MinLines, MaxLines)
	row.SetInt(f.id, o)
	row.SetInt(f.dID, d)
	row.SetInt(f.wID, w)
	row.SetInt(f.cID, c)
	row.SetInt(f.entryD, p.Now)
	if delivered {
		row.SetInt(f.carrierID, p.rnd.Range(1, 10))
	}
	row.SetInt(f.olCnt, lines)
	row.SetInt(f.allLocal, 1)
	if err := p.add(tabOrders, must(OrderKey(w, d, o))); err != nil {
		return err
	}
	for n := int64(1); n <= lines; n++ {
		if err := p.line(w, d, o, n, delivered); err != nil {
			return err
		}
	}
	if delivered {
		return nil
	}
	row = p.row(tabNewOrder)
	row.SetInt(p.schema.no.oID, o)
	row.SetInt(p.schema.no.dID, d)
	row.SetInt(p.schema.no.wID, w)
	return p.add(tabNewOrder, must(OrderKey(w, d, o)))
}

func (p *populator) line(w, d, o, number int64, delivered bool) error {
	f := &p.schema.ol
	row := p.row(tabOrderLine)
	row.SetInt(f.oID, o)
	row.SetInt(f.dID, d)
	row.SetInt(f.wID, w)
	row.SetInt(f.number, number)
	row.SetInt(f.iID, p.rnd.Range(1, p.Scale.Items))
	row.SetInt(f.supplyWID, w)
	if delivered {
		row.SetInt(f.deliveryD, p.Now)
	} else {
		row.SetInt(f.amount, p.rnd.Range(1, 9_999_99))
	}
	row.SetInt(f.quantity, initialQuantity)
	p.astring(&row, f.distInfo, 24, 24)
	return p.add(tabOrderLine, must(OrderLineKey(w, d, o, number)))
}

var (
	middleName = []byte("OE")
	goodCredit = []byte("GC")
	badCredit  = []byte("BC")
	brandMark  = []byte("ORIGINAL")
)
