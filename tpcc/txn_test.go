package tpcc

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"drtmx/internal/rng"
	"drtmx/tables"
	"drtmx/txn"
)

// order makes an input for tests.
func order(w, d, c int64, lines ...NewOrderLine) *NewOrderInput {
	return &NewOrderInput{W: w, D: d, C: c, EntryD: 77, Lines: lines}
}

// Clause 2.4.2.2, with a duplicate item, a remote line and a replenishment.
func TestNewOrder(t *testing.T) {
	m, _ := loadedModel(t, 2)
	s := m.s
	setStock := func(w, i, quantity int64) {
		row := m.get(s.stock, must(StockKey(w, i)))
		row.SetInt(s.s.quantity, quantity)
		if err := m.put(s.stock, must(StockKey(w, i)), row); err != nil {
			t.Fatal(err)
		}
	}
	setStock(1, 5, 17)
	setStock(1, 6, 20)
	setStock(2, 5, 40)
	in := order(1, 3, 9,
		NewOrderLine{5, 1, 6},  // 17 - 6 = 11
		NewOrderLine{6, 1, 10}, // 20 - 10 = 10: exactly ten remain, no replenishment
		NewOrderLine{5, 2, 1},  // the same item from another warehouse
		NewOrderLine{5, 1, 3},  // sees the first line: 11 - 3 + 91 = 99
		NewOrderLine{5, 1, 4},  // and this one the two before: 95
	)
	var out NewOrderOutput
	steps, err := m.newOrder(in, &out)
	if err != nil {
		t.Fatal(err)
	}
	if steps != 1 {
		t.Errorf("read in %d steps, want all reads together", steps)
	}
	if out.Order != 61 || out.EntryD != 77 {
		t.Errorf("order %d at %d", out.Order, out.EntryD)
	}
	if got := m.get(s.district, must(DistrictKey(1, 3))).Int(s.d.nextOID); got != 62 {
		t.Errorf("d_next_o_id is %d", got)
	}
	for i, want := range []int64{11, 10, 39, 99, 95} {
		if out.Lines[i].StockQuantity != want {
			t.Errorf("line %d: s_quantity is %d, want %d", i+1, out.Lines[i].StockQuantity, want)
		}
	}
	for _, c := range []struct{ w, i, quantity, ytd, cnt, remote int64 }{{1, 5, 95, 13, 3, 0}, {1, 6, 10, 10, 1, 0}, {2, 5, 39, 1, 1, 1}} {
		row := m.get(s.stock, must(StockKey(c.w, c.i)))
		got := [4]int64{row.Int(s.s.quantity), row.Int(s.s.ytd), row.Int(s.s.orderCnt), row.Int(s.s.remoteCnt)}
		if got != [4]int64{c.quantity, c.ytd, c.cnt, c.remote} {
			t.Errorf("stock %d.%d is %v, want %+v", c.w, c.i, got, c)
		}
	}
	checkOrderRows(t, m, in, &out)
	checkAmounts(t, m, in, &out)
}

// checkOrderRows compares the inserted rows with the input.
func checkOrderRows(t *testing.T, m *model, in *NewOrderInput, out *NewOrderOutput) {
	t.Helper()
	s, key := m.s, must(OrderKey(in.W, in.D, out.Order))
	row := m.get(s.orders, key)
	allLocal := int64(1)
	for _, l := range in.Lines {
		if l.SupplyW != in.W {
			allLocal = 0
		}
	}
	got := []int64{row.Int(s.o.id), row.Int(s.o.dID), row.Int(s.o.wID), row.Int(s.o.cID), row.Int(s.o.entryD), row.Int(s.o.carrierID), row.Int(s.o.olCnt), row.Int(s.o.allLocal)}
	if want := []int64{out.Order, in.D, in.W, in.C, out.EntryD, 0, int64(len(in.Lines)), allLocal}; !slices.Equal(got, want) {
		t.Errorf("orders row is %v, want %v", got, want)
	}
	row = m.get(s.newOrder, key)
	if row.Int(s.no.oID) != out.Order || row.Int(s.no.dID) != in.D || row.Int(s.no.wID) != in.W {
		t.Errorf("new_order row is %v", row)
	}
	for i, l := range in.Lines {
		row := m.get(s.orderLine, must(OrderLineKey(in.W, in.D, out.Order, int64(i+1))))
		f := &s.ol
		got := []int64{row.Int(f.oID), row.Int(f.dID), row.Int(f.wID), row.Int(f.number), row.Int(f.iID), row.Int(f.supplyWID), row.Int(f.deliveryD), row.Int(f.quantity), row.Int(f.amount)}
		if want := []int64{out.Order, in.D, in.W, int64(i + 1), l.Item, l.SupplyW, 0, l.Quantity, out.Lines[i].Amount}; !slices.Equal(got, want) {
			t.Errorf("order_line row is %v, want %v", got, want)
		}
		stock := m.get(s.stock, must(StockKey(l.SupplyW, l.Item)))
		if !bytes.Equal(row.Text(f.distInfo), stock.Text(s.s.dist[in.D-1])) {
			t.Errorf("line %d: ol_dist_info is %q", i+1, row.Text(f.distInfo))
		}
	}
}

// checkAmounts computes the output from the rows by floating point.
func checkAmounts(t *testing.T, m *model, in *NewOrderInput, out *NewOrderOutput) {
	t.Helper()
	s, sum := m.s, int64(0)
	for i, l := range in.Lines {
		item := m.get(s.item, must(ItemKey(l.Item)))
		stock := m.get(s.stock, must(StockKey(l.SupplyW, l.Item)))
		want := NewOrderLineOutput{Name: item.Text(s.i.name), Price: item.Int(s.i.price), Amount: l.Quantity * item.Int(s.i.price), Brand: 'G'}
		if bytes.Contains(item.Text(s.i.data), []byte("ORIGINAL")) && bytes.Contains(stock.Text(s.s.data), []byte("ORIGINAL")) {
			want.Brand = 'B'
		}
		got := out.Lines[i]
		if !bytes.Equal(got.Name, want.Name) || got.Price != want.Price || got.Amount != want.Amount || got.Brand != want.Brand {
			t.Errorf("line %d is %+v, want %+v", i+1, got, want)
		}
		sum += want.Amount
	}
	customer := m.get(s.customer, must(CustomerKey(in.W, in.D, in.C)))
	if !bytes.Equal(out.Last, customer.Text(s.c.last)) || !bytes.Equal(out.Credit, customer.Text(s.c.credit)) {
		t.Errorf("customer is %q %q", out.Last, out.Credit)
	}
	wTax := m.get(s.warehouse, must(WarehouseKey(in.W))).Int(s.w.tax)
	dTax := m.get(s.district, must(DistrictKey(in.W, in.D))).Int(s.d.tax)
	total := float64(sum) * (1 - float64(customer.Int(s.c.discount))/1e4) * (1 + float64(wTax+dTax)/1e4)
	if diff := float64(out.Total) - total; diff < -0.5001 || diff > 0.5001 {
		t.Errorf("total amount is %d, want %.2f", out.Total, total)
	}
}

func TestBrandIsTakenFromBothStrings(t *testing.T) {
	m, _ := loadedModel(t, 1)
	s, seen := m.s, map[byte]int{}
	for i := int64(1); i <= smallScale.Items; i++ {
		var out NewOrderOutput
		in := order(1, 1, 1, NewOrderLine{i, 1, 1})
		if _, err := m.newOrder(in, &out); err != nil {
			t.Fatal(err)
		}
		checkAmounts(t, m, in, &out)
		seen[out.Lines[0].Brand]++
	}
	// Neither string alone makes a brand.
	row := m.get(s.stock, must(StockKey(1, 1)))
	row.SetText(s.s.data, []byte("xxORIGINALxx"))
	if err := m.put(s.stock, must(StockKey(1, 1)), row); err != nil {
		t.Fatal(err)
	}
	t.Logf("brands %v", seen)
	if seen['G'] == 0 {
		t.Error("no generic item among all")
	}
}

func TestTotalAmountRounds(t *testing.T) {
	for _, c := range []struct{ sum, discount, tax, want int64 }{
		{0, 0, 0, 0},
		{100, 0, 0, 100},
		{100, 5_000, 0, 50},
		{100, 0, 2_000, 120},
		{1, 5_000, 0, 1},
		{1, 5_001, 0, 0},
		{MaxLines * 10 * 100_00, 0, 4_000, 2_100_000},
		{333, 1_111, 777, 319},
	} {
		if got := totalAmount(c.sum, c.discount, c.tax); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

// Clause 2.4.2.3: an unused item rolls all back, and clause 2.4.3.4: the
// terminal still learns the order's number and the customer.
func TestNewOrderRollsBack(t *testing.T) {
	m, _ := loadedModel(t, 1)
	before := m.clone()
	unused := smallScale.Items + 1
	for at := range 3 {
		in := order(1, 2, 4, NewOrderLine{1, 1, 1}, NewOrderLine{2, 1, 1}, NewOrderLine{3, 1, 1})
		in.Lines[at].Item = unused
		out := NewOrderOutput{Lines: make([]NewOrderLineOutput, 9)}
		_, err := m.newOrder(in, &out)
		if !errors.Is(err, ErrRolledBack) {
			t.Fatalf("unused item in line %d: %v", at+1, err)
		}
		if out.Order != 61 || string(out.Last) != "BARBARPRI" || len(out.Lines) != 0 {
			t.Errorf("output %+v", out)
		}
		var failed *txn.ProcedureError
		if !errors.As(err, &failed) {
			t.Fatalf("%v has no payload", err)
		}
		for n := range failed.Payload {
			if err := new(NewOrderOutput).takeRolledBack(failed.Payload[:n]); !errors.Is(err, ErrInput) {
				t.Errorf("payload cut to %d bytes: %v", n, err)
			}
		}
		var told NewOrderOutput
		if err := told.failed(err); !errors.Is(err, ErrRolledBack) || told.Order != 61 || !bytes.Equal(told.Last, out.Last) || !bytes.Equal(told.Credit, out.Credit) {
			t.Errorf("the terminal learns %+v, %v", told, err)
		}
		for _, tab := range Catalog().Tables {
			if !slices.EqualFunc(m.rows(tab), before.rows(tab), entriesEqual) {
				t.Errorf("%s was changed", tab.Name())
			}
		}
	}
	for _, err := range []error{errors.New("boom"), &txn.ProcedureError{Procedure: ProcNewOrder, Text: "item number is not valid"}, &txn.ProcedureError{Procedure: "other", Code: 1}} {
		if out := new(NewOrderOutput); errors.Is(out.failed(err), ErrRolledBack) {
			t.Errorf("%v counts as rolled back", err)
		}
	}
}

func TestDistrictFull(t *testing.T) {
	m, _ := loadedModel(t, 1)
	key := must(DistrictKey(1, 1))
	row := m.get(m.s.district, key)
	row.SetInt(m.s.d.nextOID, MaxOrders)
	if err := m.put(m.s.district, key, row); err != nil {
		t.Fatal(err)
	}
	var out NewOrderOutput
	in := order(1, 1, 1, NewOrderLine{1, 1, 1})
	if _, err := m.newOrder(in, &out); err != nil || out.Order != MaxOrders {
		t.Fatalf("the last order number: %d, %v", out.Order, err)
	}
	if _, err := m.newOrder(in, &out); !errors.Is(err, ErrDistrictFull) {
		t.Fatalf("no order number left: %v", err)
	}
}

// Clause 2.6.2.2 by number and by name, against a search of all rows.
func TestOrderStatus(t *testing.T) {
	m, info := loadedModel(t, 2)
	s := m.s
	constants := rng.Constants{CLast: 100, CID: 5, OLIID: 6}
	inputs := NewInputs(rng.New(3), info, constants)
	// Give several customers one name, two of them with one first name.
	for i, c := range []int64{10, 20, 30, 40, 50} {
		row := m.get(s.customer, must(CustomerKey(1, 1, c)))
		row.SetText(s.c.last, []byte("OUGHTABLEPRI"))
		row.SetText(s.c.first, []byte{"edbca"[i], 'x'})
		if c == 50 {
			row.SetText(s.c.first, []byte("bx"))
		}
		if err := m.put(s.customer, must(CustomerKey(1, 1, c)), row); err != nil {
			t.Fatal(err)
		}
	}
	var out OrderStatusOutput
	in := OrderStatusInput{W: 1, D: 1, Last: []byte("OUGHTABLEPRI")}
	if steps, err := m.orderStatus(&in, &out); err != nil || steps != 3 || out.Customer != 40 {
		// First names b(30) b(50) c(40) d(20) e(10): the third of five.
		t.Fatalf("customer %d in %d steps, %v", out.Customer, steps, err)
	}
	var no NewOrderOutput
	var newOrder NewOrderInput
	for n := range 600 {
		w := int64(n%2 + 1)
		if inputs.NewOrder(w, &newOrder); n%3 == 0 {
			if _, err := m.newOrder(&newOrder, &no); err != nil && !errors.Is(err, ErrRolledBack) {
				t.Fatal(err)
			}
		}
		inputs.OrderStatus(w, &in)
		if in.D == 1 && in.C == 0 && w == 1 {
			continue // renamed customers may leave a name to nobody
		}
		steps, err := m.orderStatus(&in, &out)
		if want := 2 + btoi(in.C == 0); err != nil || steps != want {
			t.Fatalf("%+v: %d steps, want %d; %v", in, steps, want, err)
		}
		checkOrderStatus(t, m, &in, &out)
	}
}

// checkOrderStatus finds the answer without indexes.
func checkOrderStatus(t *testing.T, m *model, in *OrderStatusInput, out *OrderStatusOutput) {
	t.Helper()
	s := m.s
	var named []txn.Entry
	for c := int64(1); c <= smallScale.Customers; c++ {
		row := m.get(s.customer, must(CustomerKey(in.W, in.D, c)))
		if c == in.C || in.C == 0 && bytes.Equal(row.Text(s.c.last), in.Last) {
			named = append(named, txn.Entry{Key: tables.Num(uint64(c)), Row: row})
		}
	}
	slices.SortStableFunc(named, func(a, b txn.Entry) int { return bytes.Compare(a.Row.Text(s.c.first), b.Row.Text(s.c.first)) })
	want := named[(len(named)+1)/2-1]
	if uint64(out.Customer) != want.Key.Num() || !bytes.Equal(out.First, want.Row.Text(s.c.first)) || !bytes.Equal(out.Last, want.Row.Text(s.c.last)) ||
		string(out.Middle) != "OE" || out.Balance != want.Row.Int(s.c.balance) {
		t.Fatalf("%+v: customer %d %q %q", in, out.Customer, out.First, out.Last)
	}
	latest := txn.Entry{}
	m.ix[s.orders.Primary().ID].AscendRange(txn.Entry{Key: must(OrderKey(in.W, in.D, 1))}, txn.Entry{Key: must(OrderKey(in.W, in.D, MaxOrders))}, func(e txn.Entry) bool {
		if e.Row.Int(s.o.cID) == out.Customer {
			latest = e
		}
		return true
	})
	if out.Order != latest.Row.Int(s.o.id) || out.EntryD != latest.Row.Int(s.o.entryD) || out.Carrier != latest.Row.Int(s.o.carrierID) ||
		int64(len(out.Lines)) != latest.Row.Int(s.o.olCnt) {
		t.Fatalf("%+v: order %d of %d lines, want %d", in, out.Order, len(out.Lines), latest.Row.Int(s.o.id))
	}
	for i, l := range out.Lines {
		row := m.get(s.orderLine, must(OrderLineKey(in.W, in.D, out.Order, int64(i+1))))
		f := &s.ol
		if l != (OrderStatusLine{row.Int(f.supplyWID), row.Int(f.iID), row.Int(f.quantity), row.Int(f.amount), row.Int(f.deliveryD)}) {
			t.Fatalf("order %d line %d: %+v", out.Order, i+1, l)
		}
	}
}

// Two names may share the digest in the index key; only the name itself counts.
func TestOrderStatusComparesNames(t *testing.T) {
	m, _ := loadedModel(t, 1)
	s := m.s
	name := []byte("BARBARBAR") // of customer 1
	entry, ok := m.ix[s.byLast.ID].Get(txn.Entry{Key: must(s.byLast.EntryKey(tables.Key{}, m.get(s.customer, must(CustomerKey(1, 1, 1)))))})
	if !ok {
		t.Fatal("no entry of customer 1")
	}
	// An entry of customer 2 at customer 1's digest, as if its name collided.
	other := entry.Row.Clone()
	other.SetText(s.last.last, []byte("EINGEING"))
	other.SetText(s.last.first, []byte("!first"))
	m.ix[s.byLast.ID].ReplaceOrInsert(txn.Entry{Key: nextKey(entry.Key), Row: other})
	var out OrderStatusOutput
	if _, err := m.orderStatus(&OrderStatusInput{W: 1, D: 1, Last: name}, &out); err != nil || out.Customer != 1 {
		t.Errorf("customer %d, %v", out.Customer, err)
	}
	if _, err := m.orderStatus(&OrderStatusInput{W: 1, D: 1, Last: []byte("NOBODY")}, &out); !errors.Is(err, ErrNoCustomer) {
		t.Errorf("a name that nobody has: %v", err)
	}
	if _, err := m.orderStatus(&OrderStatusInput{W: 1, D: 1, C: 61}, &out); !errors.Is(err, ErrNoCustomer) {
		t.Errorf("a number that nobody has: %v", err)
	}
	for o := int64(1); o <= 60; o++ {
		key := must(OrderKey(1, 1, o))
		if m.get(s.orders, key).Int(s.o.cID) == 5 {
			m.remove(s.orders, key)
		}
	}
	if _, err := m.orderStatus(&OrderStatusInput{W: 1, D: 1, C: 5}, &out); !errors.Is(err, ErrNoOrder) {
		t.Errorf("a customer without orders: %v", err)
	}
}

// The procedures do what the bodies do.
func TestProcedureBodies(t *testing.T) {
	m, _ := loadedModel(t, 1)
	in := order(1, 1, 1, NewOrderLine{1, 1, 1}, NewOrderLine{2, 1, 2})
	o := newNewOrder(m.s)
	o.in, o.out = &NewOrderInput{}, &NewOrderOutput{}
	n := callable{o, o.in, o.out}
	var result []byte
	_, err := m.run(false, func(t operations) (err error) {
		result, err = n.call(t, in.AppendTo(nil))
		return err
	})
	var out NewOrderOutput
	if err = errors.Join(err, out.Decode(result)); err != nil || out.Order != 61 {
		t.Fatalf("order %d, %v", out.Order, err)
	}
	checkOrderRows(t, m, in, &out)
	st := &orderStatus{s: m.s, in: &OrderStatusInput{}, out: &OrderStatusOutput{}}
	q := callable{st, st.in, st.out}
	status := OrderStatusInput{W: 1, D: 1, C: 1}
	_, err = m.run(true, func(t operations) (err error) {
		result, err = q.call(t, status.AppendTo(nil))
		return err
	})
	var statusOut OrderStatusOutput
	if err = errors.Join(err, statusOut.Decode(result)); err != nil || statusOut.Order != 61 {
		t.Fatalf("latest order %d, %v", statusOut.Order, err)
	}
	checkOrderStatus(t, m, &status, &statusOut)
	if _, err := n.call(nil, []byte{9}); !errors.Is(err, ErrInput) {
		t.Errorf("garbage: %v", err)
	}
	if _, err := q.call(nil, nil); !errors.Is(err, ErrInput) {
		t.Errorf("nothing: %v", err)
	}
	names := []string{}
	for _, p := range Procedures() {
		names = append(names, p.Name)
		if p.ReadOnly != (p.Name == ProcOrderStatus || p.Name == ProcStockLevel) {
			t.Errorf("%s: read-only is %v", p.Name, p.ReadOnly)
		}
	}
	if !slices.Equal(names, []string{ProcNewOrder, ProcPayment, ProcOrderStatus, ProcDelivery, ProcStockLevel}) {
		t.Errorf("procedures %v", names)
	}
}
