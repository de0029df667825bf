package tpcc

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/tables"
	"drtmx/txn"
)

// ranModel is a model after a run of NEW-ORDERs at all warehouses, with the
// number that committed.
func ranModel(t *testing.T, warehouses int64, n int) (*model, LoadInfo, int64) {
	t.Helper()
	m, info := loadedModel(t, warehouses)
	g := NewInputs(rng.New(21), info, info.RunConstants(rng.New(22)))
	var in NewOrderInput
	var out NewOrderOutput
	committed := int64(0)
	for i := range n {
		g.NewOrder(int64(i)%warehouses+1, &in)
		switch _, err := m.newOrder(&in, &out); {
		case err == nil:
			committed++
		case !errors.Is(err, ErrRolledBack):
			t.Fatal(err)
		}
	}
	return m, info, committed
}

func mustHold(t *testing.T, m *model, c CheckConfig) {
	t.Helper()
	got, err := m.s.check(t.Context(), m, c)
	if err != nil {
		t.Fatal(err)
	}
	for _, condition := range slices.Sorted(maps.Keys(got)) {
		if !Passes(got[condition]) {
			t.Errorf("%s: %s", condition, got[condition])
		}
		applies := condition != conditionFresh && (condition != "3.3.2.10" || c.AtRest)
		if applies && got[condition] != OK {
			t.Errorf("%s: %s, want it evaluated", condition, got[condition])
		}
	}
	if want := 15 + btoi(c.AtRest); len(got) != want || (got.Err() == nil) != !t.Failed() {
		t.Errorf("%d verdicts, want %d; %v", len(got), want, got.Err())
	}
}

func TestCheckHoldsAfterLoad(t *testing.T) {
	m, _ := loadedModel(t, 3)
	mustHold(t, m, CheckConfig{AtRest: true})
	for _, c := range []CheckConfig{{}, {AtRest: true}} {
		if got, err := m.s.check(t.Context(), m, c); err != nil || got[conditionFresh] != OK {
			t.Errorf("3.3.2.11 after a load: %s %v", got[conditionFresh], err)
		}
	}
}

// Condition 3.3.2.11 concerns the initial population. It is reported as not
// applicable, not as ok, as soon as one order was placed or delivered.
func TestFreshConditionIsForAFreshLoad(t *testing.T) {
	m, _ := loadedModel(t, 2)
	placed, delivered := m.clone(), m.clone()
	if _, err := placed.newOrder(order(2, 3, 4, NewOrderLine{1, 2, 1}), &NewOrderOutput{}); err != nil {
		t.Fatal(err)
	}
	if _, err := delivered.delivery(&DeliveryInput{W: 1, Carrier: 1, Date: 5}, &DeliveryOutput{}); err != nil {
		t.Fatal(err)
	}
	for what, m := range map[string]*model{"placed": placed, "delivered": delivered} {
		got, err := m.s.check(t.Context(), m, CheckConfig{})
		if err != nil || !strings.HasPrefix(got[conditionFresh], NotApplicable+": ") || got.Err() != nil {
			t.Errorf("an order was %s: %v %v", what, got, err)
		}
	}
	for name, plant := range map[string]func(*planter){
		"a new_order is missing": func(f *planter) { f.remove(f.s.newOrder, must(OrderKey(2, 2, 43))) },
		"a new_order too many": func(f *planter) {
			row := f.s.newOrder.NewRow()
			if err := f.put(f.s.newOrder, must(OrderKey(2, 2, 42)), row); err != nil {
				t.Fatal(err)
			}
		},
		"no new_order at all": func(f *planter) {
			for o := int64(43); o <= 60; o++ {
				f.remove(f.s.newOrder, must(OrderKey(2, 2, o)))
			}
		},
	} {
		f := &planter{m.clone(), t}
		plant(f)
		got, err := f.s.check(t.Context(), f.model, CheckConfig{AtRest: true})
		if err != nil || !strings.HasPrefix(got[conditionFresh], "district 2.2: rows in orders 60 less rows in new_order ") {
			t.Errorf("%s: %s %v", name, got[conditionFresh], err)
		}
	}
}

// Sums over no rows are 0 and are compared.
func TestCheckOfEmptySums(t *testing.T) {
	m, _ := loadedModel(t, 2)
	for name, c := range map[string]struct {
		plant func(*planter)
		want  map[string]string
	}{
		"no history in a district": {func(f *planter) {
			for n := int64(1); n <= 60; n++ {
				f.remove(f.s.history, must(HistoryKey(2, 5, n)))
			}
		}, map[string]string{
			"3.3.2.8": "sum(h_amount) is 540000", "3.3.2.9": "district 2.5: d_ytd is 60000, sum(h_amount) is 0",
			"3.3.2.10": "customer 2.5.1: c_balance is -1000, sum(ol_amount) delivered 0 less sum(h_amount) 0 is 0", ConditionHistory: "district 2.5: d_next_h_id - 1 is 60, rows in history 0",
		}},
		"no lines in a district": {func(f *planter) {
			for _, e := range f.rows(f.s.orderLine) {
				if e.Row.Int(f.s.ol.wID) == 2 && e.Row.Int(f.s.ol.dID) == 5 {
					f.remove(f.s.orderLine, e.Key)
				}
			}
		}, map[string]string{"3.3.2.4": "rows in order_line 0", "3.3.2.6": "order 2.5.1: o_ol_cnt is "}},
		"no orders in a district": {func(f *planter) {
			for o := int64(1); o <= 60; o++ {
				f.remove(f.s.orders, must(OrderKey(2, 5, o)))
			}
		}, map[string]string{
			"3.3.2.2": "district 2.5: d_next_o_id - 1 is 60, max(o_id) is 0", "3.3.2.4": "sum(o_ol_cnt) is 0",
			"3.3.2.5": "there is no such order", "3.3.2.6": "there is no such order", "3.3.2.11": "rows in orders 0 less rows in new_order 18",
		}},
	} {
		f := &planter{m.clone(), t}
		c.plant(f)
		got, err := f.s.check(t.Context(), f.model, CheckConfig{AtRest: true})
		for condition, text := range got {
			if want, planted := c.want[condition]; err != nil || planted == Passes(text) || !strings.Contains(text, want) {
				t.Errorf("%s: %s: %s; want %q; %v", name, condition, text, want, err)
			}
		}
	}
}

func TestCheckHoldsAfterRun(t *testing.T) {
	m, _, committed := ranModel(t, 3, 500)
	done := int64(0)
	mustHold(t, m, CheckConfig{AtRest: true, Parallel: 2, Progress: func(p CheckProgress) {
		if done++; p.Done != done || p.Total != 3*13 {
			t.Errorf("progress %+v after %d steps", p, done)
		}
	}})
	if done != 3*13 {
		t.Errorf("%d steps", done)
	}
	placed, err := m.s.ordersPlaced(t.Context(), m)
	if err != nil || placed != committed {
		t.Errorf("%d orders placed, %d committed, %v", placed, committed, err)
	}
	if m.opened != m.closed {
		t.Errorf("%d viewers opened, %d closed", m.opened, m.closed)
	}
}

func TestVerifyOrders(t *testing.T) {
	for _, c := range []struct {
		before, after, committed, unknown int64
		ok                                bool
	}{{5, 10, 5, 0, true}, {5, 10, 4, 0, false}, {5, 10, 6, 0, false}, {5, 10, 4, 1, true}, {5, 10, 4, 2, true}, {5, 10, 6, 2, false}} {
		if got := VerifyOrders(c.before, c.after, c.committed, c.unknown); (got == OK) != c.ok {
			t.Errorf("%+v: %s", c, got)
		}
	}
}

// fault is a change of one row and what the check must say.
type plantedFault struct {
	name  string
	plant func(f *planter)
	want  map[string]string // by condition: a part of the text
}

type planter struct {
	*model
	tb testing.TB
}

func (f *planter) change(tab *tables.Table, key tables.Key, fn func(*tables.Row)) {
	row := f.get(tab, key)
	fn(&row)
	if err := f.put(tab, key, row); err != nil {
		f.tb.Fatal(err)
	}
}

func (f *planter) add(tab *tables.Table, key tables.Key, field tables.Field, by int64) {
	f.change(tab, key, func(r *tables.Row) { r.SetInt(field, r.Int(field)+by) })
}

// plantedFaults has at least one per condition; each changes one row of
// warehouse 2 and names exactly the conditions that then fail.
var plantedFaults = []plantedFault{
	{"w_ytd", func(f *planter) { f.add(f.s.warehouse, must(WarehouseKey(2)), f.s.w.ytd, 1) }, map[string]string{
		"3.3.2.1": "warehouse 2: w_ytd is 600001, sum(d_ytd) is 600000",
		"3.3.2.8": "warehouse 2: w_ytd is 600001, sum(h_amount) is 600000",
	}},
	{"d_ytd", func(f *planter) { f.add(f.s.district, must(DistrictKey(2, 7)), f.s.d.ytd, 5) }, map[string]string{
		"3.3.2.1": "warehouse 2: w_ytd is 600000, sum(d_ytd) is 600005",
		"3.3.2.9": "district 2.7: d_ytd is 60005, sum(h_amount) is 60000",
	}},
	{"h_amount", func(f *planter) { f.add(f.s.history, must(HistoryKey(2, 3, 9)), f.s.h.amount, -1) }, map[string]string{
		"3.3.2.8":  "warehouse 2: w_ytd is 600000, sum(h_amount) is 599999",
		"3.3.2.9":  "district 2.3: d_ytd is 60000, sum(h_amount) is 59999",
		"3.3.2.10": "customer 2.3.9: c_balance is -1000, sum(ol_amount) delivered 0 less sum(h_amount) 999 is -999",
	}},
	{"h_c_w_id", func(f *planter) {
		f.change(f.s.history, must(HistoryKey(2, 3, 9)), func(r *tables.Row) { r.SetInt(f.s.h.cWID, 3) })
	}, map[string]string{
		"3.3.2.10":       "history 2.3.9: is of customer 3.3.9, who does not exist; and 1 more",
		ConditionHistory: "customer 2.3.9: c_payment_cnt is 1, rows in history 0",
	}},
	{"h_c_id", func(f *planter) {
		f.change(f.s.history, must(HistoryKey(2, 3, 9)), func(r *tables.Row) { r.SetInt(f.s.h.cID, 10) })
	}, map[string]string{
		"3.3.2.10":       "customer 2.3.9: c_balance is -1000, sum(ol_amount) delivered 0 less sum(h_amount) 0 is 0",
		ConditionHistory: "customer 2.3.9: c_payment_cnt is 1, rows in history 0",
	}},
	{"d_next_h_id", func(f *planter) { f.add(f.s.district, must(DistrictKey(2, 7)), f.s.d.nextHID, 1) }, map[string]string{
		ConditionHistory: "district 2.7: d_next_h_id - 1 is 61, rows in history 60, the last number 60",
	}},
	{"a history row under another number", func(f *planter) {
		row := f.get(f.s.history, must(HistoryKey(2, 7, 60)))
		f.remove(f.s.history, must(HistoryKey(2, 7, 60)))
		if err := f.put(f.s.history, must(HistoryKey(2, 7, MaxHistory)), row); err != nil {
			f.tb.Fatal(err)
		}
	}, map[string]string{ConditionHistory: "district 2.7: d_next_h_id - 1 is 60, rows in history 60, the last number 1099511627775"}},
	{"c_payment_cnt", func(f *planter) { f.add(f.s.customer, must(CustomerKey(2, 8, 33)), f.s.c.paymentCnt, 2) }, map[string]string{
		ConditionHistory: "customer 2.8.33: c_payment_cnt is 3, rows in history 1",
	}},
	{"c_delivery_cnt", func(f *planter) { f.add(f.s.customer, must(CustomerKey(2, 8, 33)), f.s.c.deliveryCnt, 1) }, map[string]string{
		ConditionDeliveries: "customer 2.8.33: c_delivery_cnt is 1, orders delivered since the load 0",
	}},
	{"d_next_o_id", func(f *planter) { f.add(f.s.district, must(DistrictKey(2, 1)), f.s.d.nextOID, 1) }, map[string]string{
		"3.3.2.2": "district 2.1: d_next_o_id - 1 is ",
	}},
	{"d_next_o_id too low", func(f *planter) { f.add(f.s.district, must(DistrictKey(2, 1)), f.s.d.nextOID, -1) }, map[string]string{
		"3.3.2.2": "district 2.1: d_next_o_id - 1 is ",
	}},
	{"the first new_order", func(f *planter) { f.remove(f.s.newOrder, must(OrderKey(2, 2, 43))) }, map[string]string{
		"3.3.2.5": "order 2.2.43: o_carrier_id is 0, rows in new_order 0",
	}},
	{"a new_order", func(f *planter) { f.remove(f.s.newOrder, must(OrderKey(2, 2, 50))) }, map[string]string{
		"3.3.2.3": "district 2.2: max(no_o_id) - min(no_o_id) + 1 is ",
		"3.3.2.5": "order 2.2.50: o_carrier_id is 0, rows in new_order 0",
	}},
	{"a new_order without order", func(f *planter) {
		if err := f.put(f.s.newOrder, must(OrderKey(2, 2, 1<<20)), f.s.newOrder.NewRow()); err != nil {
			f.tb.Fatal(err)
		}
	}, map[string]string{
		"3.3.2.2": "max(no_o_id) is 1048576",
		"3.3.2.3": "district 2.2: max(no_o_id) - min(no_o_id) + 1 is 1048534",
		"3.3.2.5": "new_order 2.2.1048576: there is no such order",
	}},
	{"o_carrier_id", func(f *planter) {
		f.change(f.s.orders, must(OrderKey(2, 4, 11)), func(r *tables.Row) { r.SetInt(f.s.o.carrierID, 0) })
	}, map[string]string{
		"3.3.2.5": "order 2.4.11: o_carrier_id is 0, rows in new_order 0",
		"3.3.2.7": "order_line 2.4.11.1: ol_delivery_d is 1000000000000000000, o_carrier_id is 0",
	}},
	{"o_ol_cnt", func(f *planter) { f.add(f.s.orders, must(OrderKey(2, 5, 60)), f.s.o.olCnt, 1) }, map[string]string{
		"3.3.2.4": "district 2.5: sum(o_ol_cnt) is ",
		"3.3.2.6": "order 2.5.60: o_ol_cnt is ",
	}},
	{"a line", func(f *planter) { f.remove(f.s.orderLine, must(OrderLineKey(2, 6, 1, 2))) }, map[string]string{
		"3.3.2.4": "district 2.6: sum(o_ol_cnt) is ",
		"3.3.2.6": "order 2.6.1: o_ol_cnt is ",
	}},
	{"a line without order", func(f *planter) {
		if err := f.put(f.s.orderLine, must(OrderLineKey(2, 6, 1<<20, 3)), f.s.orderLine.NewRow()); err != nil {
			f.tb.Fatal(err)
		}
	}, map[string]string{
		"3.3.2.4": "district 2.6: sum(o_ol_cnt) is ",
		"3.3.2.6": "order_line 2.6.1048576.3: there is no such order",
	}},
	{"ol_delivery_d", func(f *planter) {
		f.change(f.s.orderLine, must(OrderLineKey(2, 7, 60, 4)), func(r *tables.Row) { r.SetInt(f.s.ol.deliveryD, 1); r.SetInt(f.s.ol.amount, 0) })
	}, map[string]string{"3.3.2.7": "order_line 2.7.60.4: ol_delivery_d is 1, o_carrier_id is 0"}},
	{"ol_amount of a delivered line", func(f *planter) {
		f.change(f.s.orderLine, must(OrderLineKey(2, 7, 5, 4)), func(r *tables.Row) { r.SetInt(f.s.ol.amount, 33) })
	}, map[string]string{
		"3.3.2.10": "c_balance is -1000, sum(ol_amount) delivered 33 less sum(h_amount) 1000 is -967",
		"3.3.2.12": "c_balance + c_ytd_payment is 0, sum(ol_amount) delivered 33",
	}},
	{"c_balance", func(f *planter) { f.add(f.s.customer, must(CustomerKey(2, 8, 33)), f.s.c.balance, 2) }, map[string]string{
		"3.3.2.10": "customer 2.8.33: c_balance is -998, sum(ol_amount) delivered 0 less sum(h_amount) 1000 is -1000",
		"3.3.2.12": "customer 2.8.33: c_balance + c_ytd_payment is 2, sum(ol_amount) delivered 0",
	}},
	{"c_ytd_payment", func(f *planter) { f.add(f.s.customer, must(CustomerKey(2, 10, 60)), f.s.c.ytdPayment, 3) }, map[string]string{
		"3.3.2.12": "customer 2.10.60: c_balance + c_ytd_payment is 3, sum(ol_amount) delivered 0",
	}},
	{"s_ytd", func(f *planter) { f.add(f.s.stock, must(StockKey(2, 77)), f.s.s.ytd, 1) }, map[string]string{ConditionStock: "stock 2.77: s_ytd, s_order_cnt, s_remote_cnt are "}},
	{"s_order_cnt", func(f *planter) { f.add(f.s.stock, must(StockKey(2, 200)), f.s.s.orderCnt, -1) }, map[string]string{ConditionStock: "stock 2.200: s_ytd, s_order_cnt, s_remote_cnt are "}},
	{"s_remote_cnt", func(f *planter) { f.add(f.s.stock, must(StockKey(2, 1)), f.s.s.remoteCnt, 1) }, map[string]string{ConditionStock: "stock 2.1: s_ytd, s_order_cnt, s_remote_cnt are "}},
	{"s_quantity", func(f *planter) {
		f.change(f.s.stock, must(StockKey(2, 9)), func(r *tables.Row) { r.SetInt(f.s.s.quantity, 9) })
	}, map[string]string{ConditionStock: "stock 2.9: s_quantity is 9, want 10 to 100"}},
	{"two stocks that cancel out", func(f *planter) {
		f.add(f.s.stock, must(StockKey(2, 5)), f.s.s.ytd, 1)
		f.add(f.s.stock, must(StockKey(2, 6)), f.s.s.ytd, -1)
	}, map[string]string{ConditionStock: "stock 2.5: "}},
	{"ol_supply_w_id", func(f *planter) {
		f.change(f.s.orderLine, must(OrderLineKey(2, 1, 61, 1)), func(r *tables.Row) { r.SetInt(f.s.ol.supplyWID, 99) })
	}, map[string]string{ConditionStock: "stock 2."}},
	{"an order's index entry", func(f *planter) {
		key := must(f.s.byCustomer.EntryKey(tables.Key{}, f.get(f.s.orders, must(OrderKey(2, 3, 20)))))
		f.ix[f.s.byCustomer.ID].Delete(txn.Entry{Key: key})
	}, map[string]string{
		ConditionIndexes: "order 2.3.20: not in orders.by_customer",
		"3.3.2.4":        "district 2.3: ", "3.3.2.6": "order_line 2.3.20.1: there is no such order",
	}},
	{"an order's row", func(f *planter) { f.ix[f.s.orders.Primary().ID].Delete(txn.Entry{Key: must(OrderKey(2, 3, 20))}) }, map[string]string{
		ConditionIndexes: "order 2.3.20: is in orders.by_customer and has no row",
		"3.3.2.4":        "district 2.3: ", "3.3.2.6": "order_line 2.3.20.1: there is no such order",
	}},
	{"a customer's index entry", func(f *planter) {
		key := must(f.s.byLast.EntryKey(tables.Key{}, f.get(f.s.customer, must(CustomerKey(2, 3, 20)))))
		f.ix[f.s.byLast.ID].Delete(txn.Entry{Key: key})
	}, map[string]string{ConditionIndexes: "customer 2.3.20: not in customer.by_last"}},
	{"a customer's name in the index", func(f *planter) {
		key := must(f.s.byLast.EntryKey(tables.Key{}, f.get(f.s.customer, must(CustomerKey(2, 3, 20)))))
		e, _ := f.ix[f.s.byLast.ID].Get(txn.Entry{Key: key})
		e.Row = e.Row.Clone()
		e.Row.SetText(f.s.last.first, []byte("someone"))
		f.ix[f.s.byLast.ID].ReplaceOrInsert(e)
	}, map[string]string{ConditionIndexes: `customer 2.3.20: is "`}},
}

// Each planted fault is reported, with the row, under its conditions and no other.
func TestCheckFindsPlantedFaults(t *testing.T) {
	m, _, _ := ranModel(t, 2, 400)
	conditions := map[string]bool{}
	for _, p := range plantedFaults {
		f := &planter{m.clone(), t}
		p.plant(f)
		got, err := f.s.check(t.Context(), f.model, CheckConfig{AtRest: true})
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
			continue
		}
		for condition, text := range got {
			want, planted := p.want[condition]
			conditions[condition] = conditions[condition] || planted
			if planted == Passes(text) || !strings.Contains(text, want) {
				t.Errorf("%s: %s: %s; want %q", p.name, condition, text, want)
			}
		}
		if got.Err() == nil {
			t.Errorf("%s: all conditions hold", p.name)
		}
	}
	for condition, planted := range conditions {
		if !planted && condition != conditionFresh { // see TestFreshConditionIsForAFreshLoad
			t.Errorf("no fault was planted in condition %s", condition)
		}
	}
}

// The first fault in order of warehouse and district is named, others counted.
func TestCheckNamesTheFirstFault(t *testing.T) {
	m, _ := loadedModel(t, 3)
	f := &planter{m, t}
	for _, wd := range [][2]int64{{3, 1}, {2, 9}, {2, 10}, {3, 3}} {
		f.add(f.s.district, must(DistrictKey(wd[0], wd[1])), f.s.d.nextOID, 1)
	}
	got, err := m.s.check(t.Context(), m, CheckConfig{Parallel: 3})
	if err != nil {
		t.Fatal(err)
	}
	if text := got["3.3.2.2"]; !strings.HasPrefix(text, "district 2.9: d_next_o_id - 1 is 61, max(o_id) is 60, max(no_o_id) is 60") || !strings.HasSuffix(text, "; and 3 more") {
		t.Errorf("3.3.2.2: %s", text)
	}
}

// A district that is too large for one View is evaluated in several.
func TestCheckLargeDistrict(t *testing.T) {
	if testseed.Race || testing.Short() {
		t.Skip("takes seconds here")
	}
	m, info := loadedModel(t, 1)
	c := &checker{s: m.s, db: m, info: info}
	var out NewOrderOutput
	for i := range int64(snapshotOrdersMax) {
		in := order(1, 1, i%60+1, NewOrderLine{i%200 + 1, 1, i%10 + 1})
		if _, err := m.newOrder(in, &out); err != nil {
			t.Fatal(err)
		}
	}
	v := &countingViewer{modelViewer{m}, 0}
	c.mu.faults, c.mu.ordered = map[string]*fault{}, map[int64]stockTally{}
	if err := c.district(t.Context(), v, 1, 1); err != nil || v.views < 10 {
		t.Fatalf("%d Views, %v", v.views, err)
	}
	mustHold(t, m, CheckConfig{AtRest: true})
	f := &planter{m, t}
	f.add(f.s.orders, must(OrderKey(1, 1, 20_001)), f.s.o.olCnt, 1)
	got, err := m.s.check(t.Context(), m, CheckConfig{})
	if err != nil || !strings.HasPrefix(got["3.3.2.6"], "order 1.1.20001: o_ol_cnt is 2, rows in order_line 1") || got["3.3.2.4"] == OK {
		t.Errorf("%v %v", got, err)
	}
}

type countingViewer struct {
	modelViewer
	views int
}

func (c *countingViewer) view(ctx context.Context, body func(operations) error) error {
	c.views++
	return c.modelViewer.view(ctx, body)
}

func TestCheckOfWhatIsNotLoaded(t *testing.T) {
	empty := newModel(t)
	if _, err := empty.s.check(t.Context(), empty, CheckConfig{}); !errors.Is(err, ErrNotLoaded) {
		t.Errorf("an empty database: %v", err)
	}
	if _, err := empty.s.ordersPlaced(t.Context(), empty); !errors.Is(err, ErrNotLoaded) {
		t.Errorf("orders placed in an empty database: %v", err)
	}
	for table, key := range map[string]tables.Key{
		TableWarehouse: must(WarehouseKey(2)), TableDistrict: must(DistrictKey(2, 4)),
		TableCustomer: must(CustomerKey(2, 4, 4)), TableStock: must(StockKey(2, 4)),
	} {
		m, _ := loadedModel(t, 2)
		m.remove(Catalog().MustTable(table), key)
		_, err := m.s.check(t.Context(), m, CheckConfig{AtRest: true})
		if !errors.Is(err, ErrNotLoaded) || !strings.Contains(fmt.Sprint(err), table+" 2") {
			t.Errorf("a %s is missing: %v", table, err)
		}
	}
	m, _ := loadedModel(t, 2)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.s.check(ctx, m, CheckConfig{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}
