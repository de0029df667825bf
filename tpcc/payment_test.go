package tpcc

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"drtmx/internal/rng"
	"drtmx/tables"
	"drtmx/txn"
)

// balances are the sums that a payment moves.
func (m *model) balances(in *PaymentInput, c int64) [5]int64 {
	s := m.s
	customer := m.get(s.customer, must(CustomerKey(in.CW, in.CD, c)))
	return [5]int64{
		m.get(s.warehouse, must(WarehouseKey(in.W))).Int(s.w.ytd), m.get(s.district, must(DistrictKey(in.W, in.D))).Int(s.d.ytd),
		customer.Int(s.c.balance), customer.Int(s.c.ytdPayment), customer.Int(s.c.paymentCnt),
	}
}

// Clause 2.5.2.2, for customers by number and by name, of the own warehouse
// and of another, against the rows.
func TestPayment(t *testing.T) {
	m, info := loadedModel(t, 3)
	g := NewInputs(rng.New(5), info, info.RunConstants(rng.New(6)))
	var in PaymentInput
	var out PaymentOutput
	bad, remote, byName := 0, 0, 0
	for i := range 500 {
		w := int64(i)%3 + 1
		g.Payment(w, &in)
		in.Date = int64(i + 7)
		c, steps := in.C, 1
		if c == 0 {
			c, steps = m.middle(in.CW, in.CD, in.Last), 2
			byName++
		}
		remote += btoi(in.CW != w)
		before, data := m.balances(&in, c), m.get(m.s.customer, must(CustomerKey(in.CW, in.CD, c))).Text(m.s.c.data)
		serial := m.get(m.s.district, must(DistrictKey(w, in.D))).Int(m.s.d.nextHID)
		got, err := m.payment(&in, &out)
		if err != nil || got != steps {
			t.Fatalf("%+v: %d steps, want %d; %v", in, got, steps, err)
		}
		a := in.Amount
		want := [5]int64{before[0] + a, before[1] + a, before[2] - a, before[3] + a, before[4] + 1}
		if after := m.balances(&in, c); after != want || out.Customer != c || out.Serial != serial || out.Balance != want[2] {
			t.Fatalf("%+v: sums %v, want %v; output %+v", in, after, want, out)
		}
		bad += checkPaymentRows(t, m, &in, &out, data)
	}
	if bad == 0 || remote == 0 || byName == 0 {
		t.Errorf("%d customers with bad credit, %d remote, %d by name", bad, remote, byName)
	}
	mustHold(t, m, CheckConfig{AtRest: true})
}

// middle finds the customer in the middle without the index.
func (m *model) middle(w, d int64, last []byte) int64 {
	var named []txn.Entry
	for c := int64(1); c <= smallScale.Customers; c++ {
		if row := m.get(m.s.customer, must(CustomerKey(w, d, c))); bytes.Equal(row.Text(m.s.c.last), last) {
			named = append(named, txn.Entry{Key: tables.Num(uint64(c)), Row: row})
		}
	}
	slices.SortStableFunc(named, func(a, b txn.Entry) int { return bytes.Compare(a.Row.Text(m.s.c.first), b.Row.Text(m.s.c.first)) })
	return int64(named[(len(named)+1)/2-1].Key.Num())
}

// checkPaymentRows compares the rows written, and the output; it returns 1 for
// a customer with bad credit.
func checkPaymentRows(t *testing.T, m *model, in *PaymentInput, out *PaymentOutput, oldData []byte) int {
	t.Helper()
	s := m.s
	h := m.get(s.history, must(HistoryKey(in.W, in.D, out.Serial)))
	warehouse, district := m.get(s.warehouse, must(WarehouseKey(in.W))), m.get(s.district, must(DistrictKey(in.W, in.D)))
	got := []int64{h.Int(s.h.cID), h.Int(s.h.cDID), h.Int(s.h.cWID), h.Int(s.h.dID), h.Int(s.h.wID), h.Int(s.h.date), h.Int(s.h.amount)}
	if want := []int64{out.Customer, in.CD, in.CW, in.D, in.W, in.Date, in.Amount}; !slices.Equal(got, want) {
		t.Errorf("history row is %v, want %v", got, want)
	}
	if got, want := string(h.Text(s.h.data)), fmt.Sprintf("%s    %s", warehouse.Text(s.w.name), district.Text(s.d.name)); got != want {
		t.Errorf("h_data is %q, want %q", got, want)
	}
	row, f := m.get(s.customer, must(CustomerKey(in.CW, in.CD, out.Customer))), &s.c
	var addresses [3]Address
	addresses[0].set(warehouse, &s.w.addressFields)
	addresses[1].set(district, &s.d.addressFields)
	addresses[2].set(row, &f.addressFields)
	want := PaymentOutput{
		addresses[0], addresses[1], out.Customer, row.Text(f.first), row.Text(f.middle), row.Text(f.last), addresses[2],
		row.Text(f.phone), row.Int(f.since), row.Text(f.credit), row.Int(f.creditLim), row.Int(f.discount), row.Int(f.balance),
		nil, in.Date, out.Serial,
	}
	data, isBad := string(oldData), string(row.Text(f.credit)) == "BC"
	if isBad {
		data = fmt.Sprintf("%d %d %d %d %d %d.%02d|%s", out.Customer, in.CD, in.CW, in.D, in.W, in.Amount/100, in.Amount%100, oldData)
		data = data[:min(len(data), 500)]
		want.Data = []byte(data[:200])
	}
	if string(row.Text(f.data)) != data {
		t.Errorf("credit %s: c_data is %q, want %q", row.Text(f.credit), row.Text(f.data), data)
	}
	if string(out.AppendTo(nil)) != string(want.AppendTo(nil)) {
		t.Errorf("output %+v, want %+v", out, want)
	}
	return btoi(isBad)
}

// C_DATA grows up to its 500 bytes and loses its end (clause 2.5.2.2).
func TestPaymentDataIsTruncated(t *testing.T) {
	m, _ := loadedModel(t, 1)
	s, key := m.s, must(CustomerKey(1, 1, 1))
	row := m.get(s.customer, key)
	row.SetText(s.c.credit, badCredit)
	row.SetText(s.c.data, []byte(strings.Repeat("x", 490)))
	if err := m.put(s.customer, key, row); err != nil {
		t.Fatal(err)
	}
	var out PaymentOutput
	for range 3 {
		if _, err := m.payment(&PaymentInput{W: 1, D: 2, CW: 1, CD: 1, C: 1, Amount: 100_05}, &out); err != nil {
			t.Fatal(err)
		}
	}
	head := strings.Repeat("1 1 1 2 1 100.05|", 3)
	if got, want := string(m.get(s.customer, key).Text(s.c.data)), head+strings.Repeat("x", 500-len(head)); got != want {
		t.Errorf("c_data is %q", got)
	}
	if len(out.Data) != 200 || !strings.HasPrefix(string(out.Data), head) {
		t.Errorf("shown %q", out.Data)
	}
}

// The last number of a counter is used, the next is an error.
func TestPaymentCountersFull(t *testing.T) {
	m, _ := loadedModel(t, 1)
	in := PaymentInput{W: 1, D: 2, CW: 1, CD: 1, C: 1, Amount: 100}
	var out PaymentOutput
	set := func(tab *tables.Table, key tables.Key, f tables.Field, v int64) {
		row := m.get(tab, key)
		row.SetInt(f, v)
		if err := m.put(tab, key, row); err != nil {
			t.Fatal(err)
		}
	}
	district, customer := must(DistrictKey(1, 2)), must(CustomerKey(1, 1, 1))
	set(m.s.district, district, m.s.d.nextHID, MaxHistory)
	if _, err := m.payment(&in, &out); err != nil || out.Serial != MaxHistory {
		t.Fatalf("the last serial: %d %v", out.Serial, err)
	}
	if _, err := m.payment(&in, &out); !errors.Is(err, ErrCounterFull) {
		t.Fatalf("no serial left: %v", err)
	}
	set(m.s.district, district, m.s.d.nextHID, 100)
	set(m.s.customer, customer, m.s.c.paymentCnt, math.MaxInt32-1)
	if _, err := m.payment(&in, &out); err != nil {
		t.Fatalf("the last c_payment_cnt: %v", err)
	}
	if _, err := m.payment(&in, &out); !errors.Is(err, ErrCounterFull) {
		t.Fatalf("c_payment_cnt is full: %v", err)
	}
}

func TestPaymentOfNobody(t *testing.T) {
	m, _ := loadedModel(t, 1)
	for _, in := range []PaymentInput{{W: 1, D: 1, CW: 1, CD: 1, C: 61, Amount: 100}, {W: 1, D: 1, CW: 1, CD: 1, Last: []byte("NOBODY"), Amount: 100}} {
		if _, err := m.payment(&in, &PaymentOutput{}); !errors.Is(err, ErrNoCustomer) {
			t.Errorf("%+v: %v", in, err)
		}
	}
}
