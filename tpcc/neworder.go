package tpcc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"drtmx/tables"
	"drtmx/txn"
)

// Errors of transactions.
var (
	// ErrRolledBack reports a NEW-ORDER that was rolled back because it ordered
	// an item that does not exist (clause 2.4.2.3). It is the intended outcome
	// of one transaction in a hundred, not a failure.
	ErrRolledBack error = &txn.ProcedureError{Procedure: ProcNewOrder, Code: 1, Text: "item number is not valid"}
	// ErrInput reports an invalid input or encoding.
	ErrInput = errors.New("tpcc: bad input")
	// ErrDistrictFull reports a district that has used all order numbers up to MaxOrders.
	ErrDistrictFull = errors.New("tpcc: district has no order numbers left")
	// ErrNoCustomer reports that no customer has the number or the last name.
	ErrNoCustomer = errors.New("tpcc: no such customer")
	// ErrNoOrder reports an ORDER-STATUS of a customer who never ordered.
	ErrNoOrder = errors.New("tpcc: customer has no order")
)

// NewOrderInput is the input of a NEW-ORDER (clause 2.4.1).
type NewOrderInput struct {
	W, D, C int64          // W_ID, D_ID, C_ID
	EntryD  int64          // O_ENTRY_D; 0: the time when the body runs (clause 2.4.1.7)
	Lines   []NewOrderLine // 5 to 15
}

// NewOrderLine is one line of the input.
type NewOrderLine struct {
	Item     int64 // OL_I_ID
	SupplyW  int64 // OL_SUPPLY_W_ID
	Quantity int64 // OL_QUANTITY, 1 to 10
}

// check returns an error for numbers that the body cannot process. It does not
// require the minimum number of lines that terminals enter.
func (in *NewOrderInput) check() error {
	_, err := CustomerKey(in.W, in.D, in.C)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrInput, err)
	}
	if len(in.Lines) < 1 || len(in.Lines) > MaxLines {
		return fmt.Errorf("%w: %d lines, want 1 to %d", ErrInput, len(in.Lines), MaxLines)
	}
	for i, l := range in.Lines {
		if _, err := StockKey(l.SupplyW, l.Item); err != nil {
			return fmt.Errorf("%w: line %d: %w", ErrInput, i+1, err)
		}
		if l.Quantity < 1 || l.Quantity > 10 {
			return fmt.Errorf("%w: line %d: quantity %d, want 1 to 10", ErrInput, i+1, l.Quantity)
		}
	}
	return nil
}

// NewOrderOutput is the output of a NEW-ORDER (clause 2.4.3.3). After
// ErrRolledBack only Order, Last and Credit are set (clause 2.4.3.4).
type NewOrderOutput struct {
	Order    int64  // O_ID
	EntryD   int64  // O_ENTRY_D
	Last     []byte // C_LAST
	Credit   []byte // C_CREDIT
	Discount int64  // C_DISCOUNT
	WTax     int64  // W_TAX
	DTax     int64  // D_TAX
	Total    int64  // total-amount, in cents
	Lines    []NewOrderLineOutput
}

// NewOrderLineOutput is one line of the output; the rest of it is in the input.
type NewOrderLineOutput struct {
	Name          []byte // I_NAME
	StockQuantity int64  // S_QUANTITY, after the order
	Brand         byte   // 'B' or 'G'
	Price         int64  // I_PRICE
	Amount        int64  // OL_AMOUNT
}

// resize sets the number of lines, keeping the memory of earlier ones.
func (out *NewOrderOutput) resize(n int) {
	if cap(out.Lines) < n {
		out.Lines = append(out.Lines[:cap(out.Lines)], make([]NewOrderLineOutput, n-cap(out.Lines))...)
	}
	out.Lines = out.Lines[:n]
}

// newOrder is the body of NEW-ORDER (clause 2.4.2.2) with its buffers. It can
// be run any number of times, by one goroutine.
type newOrder struct {
	s   *Schema
	in  *NewOrderInput
	out *NewOrderOutput

	items, stocks [MaxLines]pendingRow
	// first maps each line to the first line that takes from the same STOCK
	// row. That line holds the copy of the row, which all these lines change in
	// turn.
	first [MaxLines]int
	stock [MaxLines]tables.Row

	district, order, newOrder, line tables.Row
}

func newNewOrder(s *Schema) *newOrder {
	n := &newOrder{
		s: s, district: s.district.NewRow(), order: s.orders.NewRow(),
		newOrder: s.newOrder.NewRow(), line: s.orderLine.NewRow(),
	}
	for i := range n.stock {
		n.stock[i] = s.stock.NewRow()
	}
	return n
}

// run makes one attempt.
func (n *newOrder) run(t operations) error {
	in, out := n.in, n.out
	// Announce all reads before waiting for the first, so that they share
	// network rounds.
	warehouse := t.QueueGet(n.s.warehouse, must(WarehouseKey(in.W)))
	districtKey := must(DistrictKey(in.W, in.D))
	district := t.QueueGet(n.s.district, districtKey)
	customer := t.QueueGet(n.s.customer, must(CustomerKey(in.W, in.D, in.C)))
	n.queueLines(t)

	out.resize(0)
	row, err := warehouse.Row()
	if err != nil {
		return fmt.Errorf("tpcc: warehouse %d: %w", in.W, err)
	}
	out.WTax = row.Int(n.s.w.tax)
	if row, err = district.Row(); err != nil {
		return fmt.Errorf("tpcc: district %d.%d: %w", in.W, in.D, err)
	}
	out.DTax = row.Int(n.s.d.tax)
	out.Order = row.Int(n.s.d.nextOID)
	n.district = append(n.district[:0], row...)
	if row, err = customer.Row(); err != nil {
		return fmt.Errorf("tpcc: customer %d.%d.%d: %w", in.W, in.D, in.C, err)
	}
	out.Discount = row.Int(n.s.c.discount)
	out.Last = append(out.Last[:0], row.Text(n.s.c.last)...)
	out.Credit = append(out.Credit[:0], row.Text(n.s.c.credit)...)
	out.EntryD = in.EntryD
	if out.EntryD == 0 {
		out.EntryD = time.Now().UnixNano()
	}
	if err := n.writeOrder(t, districtKey); err != nil {
		return err
	}
	return n.runLines(t)
}

// queueLines queues the reads of the items and the stock of all lines, and finds the
// lines that share a STOCK row.
func (n *newOrder) queueLines(t operations) {
	lines := n.in.Lines
	for i, l := range lines {
		n.items[i] = t.QueueGet(n.s.item, must(ItemKey(l.Item)))
		n.first[i] = i
		for j := range i {
			if lines[j].Item == l.Item && lines[j].SupplyW == l.SupplyW {
				n.first[i] = j
				break
			}
		}
		if n.first[i] == i {
			n.stocks[i] = t.QueueGet(n.s.stock, must(StockKey(l.SupplyW, l.Item)))
		}
	}
}

// writeOrder takes the order number and inserts ORDERS and NEW_ORDER. The district
// comes first: the first write determines the transaction's home.
func (n *newOrder) writeOrder(t operations, districtKey tables.Key) error {
	in, out := n.in, n.out
	if !keyFits(out.Order, MaxOrders) {
		return fmt.Errorf("%w: %d.%d is at %d", ErrDistrictFull, in.W, in.D, out.Order)
	}
	n.district.SetInt(n.s.d.nextOID, out.Order+1)
	if err := t.Update(n.s.district, districtKey, n.district); err != nil {
		return err
	}
	allLocal := int64(1)
	for _, l := range in.Lines {
		if l.SupplyW != in.W {
			allLocal = 0
		}
	}
	f, row := &n.s.o, n.order
	row.SetInt(f.id, out.Order)
	row.SetInt(f.dID, in.D)
	row.SetInt(f.wID, in.W)
	row.SetInt(f.cID, in.C)
	row.SetInt(f.entryD, out.EntryD)
	row.SetInt(f.carrierID, 0)
	row.SetInt(f.olCnt, int64(len(in.Lines)))
	row.SetInt(f.allLocal, allLocal)
	key := must(OrderKey(in.W, in.D, out.Order))
	if err := t.Insert(n.s.orders, key, row); err != nil {
		return err
	}
	row = n.newOrder
	row.SetInt(n.s.no.oID, out.Order)
	row.SetInt(n.s.no.dID, in.D)
	row.SetInt(n.s.no.wID, in.W)
	return t.Insert(n.s.newOrder, key, row)
}

// runLines is the part of clause 2.4.2.2 that is repeated for each line. An item that
// does not exist rolls the order back only when its line is reached, after all work
// for the previous lines (clause 2.4.2.3).
func (n *newOrder) runLines(t operations) error {
	in, out := n.in, n.out
	out.resize(len(in.Lines))
	sum := int64(0)
	for i := range in.Lines {
		if err := n.runLine(t, i); err != nil {
			return err
		}
		sum += out.Lines[i].Amount
	}
	for i, l := range in.Lines {
		if n.first[i] != i {
			continue
		}
		if err := t.Update(n.s.stock, must(StockKey(l.SupplyW, l.Item)), n.stock[i]); err != nil {
			return err
		}
	}
	out.Total = totalAmount(sum, out.Discount, out.WTax+out.DTax)
	return nil
}

func (n *newOrder) runLine(t operations, i int) error {
	in, out := n.in, n.out
	l, res := in.Lines[i], &out.Lines[i]
	item, err := n.items[i].Row()
	if errors.Is(err, txn.ErrNotFound) {
		out.resize(0)
		return rolledBack(out)
	}
	if err != nil {
		return fmt.Errorf("tpcc: item %d: %w", l.Item, err)
	}
	stock := &n.stock[n.first[i]]
	if n.first[i] == i {
		row, err := n.stocks[i].Row()
		if err != nil {
			return fmt.Errorf("tpcc: stock %d.%d: %w", l.SupplyW, l.Item, err)
		}
		*stock = append((*stock)[:0], row...)
	}
	n.takeStock(stock, l)
	res.StockQuantity = stock.Int(n.s.s.quantity)
	res.Price = item.Int(n.s.i.price)
	res.Amount = l.Quantity * res.Price
	res.Name = append(res.Name[:0], item.Text(n.s.i.name)...)
	res.Brand = 'G'
	if bytes.Contains(item.Text(n.s.i.data), brandMark) && bytes.Contains(stock.Text(n.s.s.data), brandMark) {
		res.Brand = 'B'
	}
	f, row := &n.s.ol, n.line
	row.SetInt(f.oID, out.Order)
	row.SetInt(f.dID, in.D)
	row.SetInt(f.wID, in.W)
	row.SetInt(f.number, int64(i+1))
	row.SetInt(f.iID, l.Item)
	row.SetInt(f.supplyWID, l.SupplyW)
	row.SetInt(f.deliveryD, 0)
	row.SetInt(f.quantity, l.Quantity)
	row.SetInt(f.amount, res.Amount)
	row.SetText(f.distInfo, stock.Text(n.s.s.dist[in.D-1]))
	return t.Insert(n.s.orderLine, must(OrderLineKey(in.W, in.D, out.Order, int64(i+1))), row)
}

// takeStock takes a line's quantity out of stock, which is replenished by 91
// so that at least 10 are left.
func (n *newOrder) takeStock(stock *tables.Row, l NewOrderLine) {
	f := &n.s.s
	left := stock.Int(f.quantity) - l.Quantity
	if left < 10 {
		left += 91
	}
	stock.SetInt(f.quantity, left)
	stock.SetInt(f.ytd, stock.Int(f.ytd)+l.Quantity)
	stock.SetInt(f.orderCnt, stock.Int(f.orderCnt)+1)
	if l.SupplyW != n.in.W {
		stock.SetInt(f.remoteCnt, stock.Int(f.remoteCnt)+1)
	}
}

// totalAmount returns sum × (1 − discount) × (1 + tax), rounded to the nearest cent.
// sum is in cents, the rates are in ten-thousandths. For the largest order no
// intermediate result exceeds 2^48.
func totalAmount(sum, discount, tax int64) int64 {
	const one = 10_000
	return (sum*(one-discount)*(one+tax) + one*one/2) / (one * one)
}

// rolledBack returns an ErrRolledBack whose payload has the fields of the order that
// the terminal shows (clause 2.4.3.4):
//
//	o_id 8 | length 4, c_last | length 4, c_credit
func rolledBack(out *NewOrderOutput) error {
	b := binary.LittleEndian.AppendUint64(nil, uint64(out.Order))
	for _, text := range [][]byte{out.Last, out.Credit} {
		b = append(binary.LittleEndian.AppendUint32(b, uint32(len(text))), text...)
	}
	return &txn.ProcedureError{Procedure: ProcNewOrder, Code: 1, Payload: b, Text: "item number is not valid"}
}

// takeRolledBack decodes the payload of rolledBack.
func (out *NewOrderOutput) takeRolledBack(payload []byte) error {
	if len(payload) < 8 {
		return fmt.Errorf("%w: rolled-back order of %d bytes", ErrInput, len(payload))
	}
	out.Order = int64(binary.LittleEndian.Uint64(payload))
	payload = payload[8:]
	for _, text := range []*[]byte{&out.Last, &out.Credit} {
		if len(payload) < 4 || uint64(binary.LittleEndian.Uint32(payload)) > uint64(len(payload)-4) {
			return fmt.Errorf("%w: rolled-back order is cut short", ErrInput)
		}
		n := 4 + int(binary.LittleEndian.Uint32(payload))
		*text = append((*text)[:0], payload[4:n]...)
		payload = payload[n:]
	}
	out.resize(0)
	return nil
}
