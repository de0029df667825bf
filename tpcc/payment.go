package tpcc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"

	"drtmx/tables"
)

// ErrCounterFull reports a payment or a delivery after which a counter of its
// customer or district (C_PAYMENT_CNT, C_DELIVERY_CNT, the number of HISTORY rows)
// would exceed its column or key.
var ErrCounterFull = errors.New("tpcc: counter is full")

// Bounds of H_AMOUNT, in cents (clause 2.5.1.3).
const (
	MinPayment = 1_00
	MaxPayment = 5_000_00
)

const (
	dataBytesMax = 500 // bytes of C_DATA
	shownData    = 200 // bytes of it in the output (clause 2.5.3.3)
	dataGap      = "    "
)

// PaymentInput is the input of a PAYMENT (clause 2.5.1).
type PaymentInput struct {
	W, D   int64  // W_ID, D_ID: where the payment is made
	CW, CD int64  // C_W_ID, C_D_ID: where the customer lives
	C      int64  // C_ID; 0: the customer is chosen by last name
	Last   []byte // C_LAST, if C is 0
	Amount int64  // H_AMOUNT, in cents
	Date   int64  // H_DATE; 0: the time when the body runs (clause 2.5.1.4)
}

func (in *PaymentInput) check() error {
	if _, err := DistrictKey(in.W, in.D); err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	if in.Amount < MinPayment || in.Amount > MaxPayment {
		return fmt.Errorf("%w: amount of %d cents, want %d to %d", ErrInput, in.Amount, MinPayment, MaxPayment)
	}
	return checkCustomer(in.CW, in.CD, in.C, in.Last)
}

// Address has the five columns of an address.
type Address struct{ Street1, Street2, City, State, Zip []byte }

func (a *Address) set(row tables.Row, f *addressFields) {
	a.Street1 = append(a.Street1[:0], row.Text(f.street1)...)
	a.Street2 = append(a.Street2[:0], row.Text(f.street2)...)
	a.City = append(a.City[:0], row.Text(f.city)...)
	a.State = append(a.State[:0], row.Text(f.state)...)
	a.Zip = append(a.Zip[:0], row.Text(f.zip)...)
}

// PaymentOutput is the output of a PAYMENT (clause 2.5.3.3); the rest of it is
// in the input.
type PaymentOutput struct {
	Warehouse, District Address
	Customer            int64 // C_ID
	First, Middle, Last []byte
	Address             Address // of the customer
	Phone               []byte
	Since               int64  // C_SINCE
	Credit              []byte // C_CREDIT
	CreditLim           int64  // C_CREDIT_LIM, in cents
	Discount            int64  // C_DISCOUNT
	Balance             int64  // C_BALANCE, after the payment
	Data                []byte // the first 200 bytes of C_DATA if the credit is bad, else nothing
	Date                int64  // H_DATE
	// Serial is the number of the HISTORY row within the district. With W_ID and D_ID
	// it identifies the payment. Terminals do not show it.
	Serial int64
}

// payment is the body of PAYMENT (clause 2.5.2.2) with its buffers. It can be
// run any number of times, by one goroutine.
type payment struct {
	s   *Schema
	in  *PaymentInput
	out *PaymentOutput

	byLast                                 byLast
	warehouse, district, customer, history tables.Row
	text                                   []byte
}

func newPayment(s *Schema) *payment {
	return &payment{
		s: s, warehouse: s.warehouse.NewRow(), district: s.district.NewRow(),
		customer: s.customer.NewRow(), history: s.history.NewRow(), text: make([]byte, 0, dataBytesMax+64),
	}
}

// run makes one attempt. All reads share a step, except that of the customer's row if
// only the last name is known.
//
// The warehouse is written first: the first write determines the transaction's home.
// Every payment of a warehouse writes W_YTD, and every payment of a district writes
// D_YTD. At the home server no other transaction can run between a procedure's reads
// and its commit, so payments do not conflict with each other there.
func (p *payment) run(t operations) error {
	in, s := p.in, p.s
	warehouseKey, districtKey := must(WarehouseKey(in.W)), must(DistrictKey(in.W, in.D))
	warehouse := t.QueueGet(s.warehouse, warehouseKey)
	district := t.QueueGet(s.district, districtKey)
	c := in.C
	if c == 0 {
		found := p.byLast.queue(t, s, in.CW, in.CD, in.Last)
		var err error
		if c, err = p.byLast.choose(found, s, in.CW, in.CD, in.Last); err != nil {
			return err
		}
	}
	customerKey := must(CustomerKey(in.CW, in.CD, c))
	customer := t.QueueGet(s.customer, customerKey)
	row, err := warehouse.Row()
	if err != nil {
		return fmt.Errorf("tpcc: warehouse %d: %w", in.W, err)
	}
	p.warehouse = append(p.warehouse[:0], row...)
	if row, err = district.Row(); err != nil {
		return fmt.Errorf("tpcc: district %d.%d: %w", in.W, in.D, err)
	}
	p.district = append(p.district[:0], row...)
	if row, err = customerRow(customer, in.CW, in.CD, c); err != nil {
		return err
	}
	p.customer = append(p.customer[:0], row...)
	if err := p.change(c); err != nil {
		return err
	}
	if err := t.Update(s.warehouse, warehouseKey, p.warehouse); err != nil {
		return err
	}
	if err := t.Update(s.district, districtKey, p.district); err != nil {
		return err
	}
	if err := t.Update(s.customer, customerKey, p.customer); err != nil {
		return err
	}
	return t.Insert(s.history, must(HistoryKey(in.W, in.D, p.out.Serial)), p.history)
}

// change computes the new rows and the output.
func (p *payment) change(c int64) error {
	in, out, s := p.in, p.out, p.s
	out.Serial = p.district.Int(s.d.nextHID)
	if !keyFits(out.Serial, MaxHistory) {
		return fmt.Errorf("%w: history of district %d.%d is at %d", ErrCounterFull, in.W, in.D, out.Serial)
	}
	if p.customer.Int(s.c.paymentCnt) >= math.MaxInt32 {
		return fmt.Errorf("%w: c_payment_cnt of %d.%d.%d", ErrCounterFull, in.CW, in.CD, c)
	}
	out.Date = in.Date
	if out.Date == 0 {
		out.Date = time.Now().UnixNano()
	}
	p.warehouse.SetInt(s.w.ytd, p.warehouse.Int(s.w.ytd)+in.Amount)
	p.district.SetInt(s.d.ytd, p.district.Int(s.d.ytd)+in.Amount)
	p.district.SetInt(s.d.nextHID, out.Serial+1)
	out.Warehouse.set(p.warehouse, &s.w.addressFields)
	out.District.set(p.district, &s.d.addressFields)
	p.changeCustomer(c)
	p.writeHistory(c)
	return nil
}

// changeCustomer applies the payment to the customer (clause 2.5.2.2): the
// balance, the sums, and the data of a customer with bad credit.
func (p *payment) changeCustomer(c int64) {
	in, out, f, row := p.in, p.out, &p.s.c, p.customer
	row.SetInt(f.balance, row.Int(f.balance)-in.Amount)
	row.SetInt(f.ytdPayment, row.Int(f.ytdPayment)+in.Amount)
	row.SetInt(f.paymentCnt, row.Int(f.paymentCnt)+1)
	out.Data = out.Data[:0]
	if bytes.Equal(row.Text(f.credit), badCredit) {
		p.text = appendPaymentData(p.text[:0], c, in)
		p.text = append(p.text, row.Text(f.data)...)
		p.text = p.text[:min(len(p.text), dataBytesMax)]
		row.SetText(f.data, p.text)
		out.Data = append(out.Data, p.text[:min(len(p.text), shownData)]...)
	}
	out.Customer = c
	out.First = append(out.First[:0], row.Text(f.first)...)
	out.Middle = append(out.Middle[:0], row.Text(f.middle)...)
	out.Last = append(out.Last[:0], row.Text(f.last)...)
	out.Address.set(row, &f.addressFields)
	out.Phone = append(out.Phone[:0], row.Text(f.phone)...)
	out.Since = row.Int(f.since)
	out.Credit = append(out.Credit[:0], row.Text(f.credit)...)
	out.CreditLim, out.Discount, out.Balance = row.Int(f.creditLim), row.Int(f.discount), row.Int(f.balance)
}

// appendPaymentData appends the text that a payment inserts before the C_DATA
// of a customer with bad credit: C_ID, C_D_ID, C_W_ID, D_ID, W_ID and H_AMOUNT
// (clause 2.5.2.2), here as "c d w d w 1234.56|".
func appendPaymentData(b []byte, c int64, in *PaymentInput) []byte {
	for _, v := range [...]int64{c, in.CD, in.CW, in.D, in.W} {
		b = append(strconv.AppendInt(b, v, 10), ' ')
	}
	b = strconv.AppendInt(b, in.Amount/100, 10)
	cents := in.Amount % 100
	return append(b, '.', byte('0'+cents/10), byte('0'+cents%10), '|')
}

// writeHistory makes the HISTORY row. H_DATA is W_NAME and D_NAME, four
// spaces between them.
func (p *payment) writeHistory(c int64) {
	in, f, row := p.in, &p.s.h, p.history
	row.SetInt(f.cID, c)
	row.SetInt(f.cDID, in.CD)
	row.SetInt(f.cWID, in.CW)
	row.SetInt(f.dID, in.D)
	row.SetInt(f.wID, in.W)
	row.SetInt(f.date, p.out.Date)
	row.SetInt(f.amount, in.Amount)
	p.text = append(p.text[:0], p.warehouse.Text(p.s.w.name)...)
	p.text = append(p.text, dataGap...)
	p.text = append(p.text, p.district.Text(p.s.d.name)...)
	row.SetText(f.data, p.text)
}
