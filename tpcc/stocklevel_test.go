package tpcc

import (
	"testing"

	"drtmx/internal/rng"
)

// Clause 2.8.2.2, against a search of all rows, from the initial population
// on and in a district with few orders.
func TestStockLevel(t *testing.T) {
	m, info := loadedModel(t, 2)
	s := m.s
	g := NewInputs(rng.New(5), info, info.RunConstants(rng.New(6)))
	var in StockLevelInput
	var out StockLevelOutput
	var no NewOrderInput
	var noOut NewOrderOutput
	low := int64(0)
	for i := range 200 {
		w, d := int64(i)%2+1, int64(i)%Districts+1
		g.NewOrder(w, &no)
		if no.D = d; i%5 == 0 {
			no.Lines[0].SupplyW = 3 - w // the stock that counts is the terminal's warehouse's
		}
		if no.Lines[len(no.Lines)-1].Item <= smallScale.Items {
			if _, err := m.newOrder(&no, &noOut); err != nil {
				t.Fatal(err)
			}
		}
		g.StockLevel(w, d, &in)
		steps, err := m.stockLevel(&in, &out)
		if err != nil || steps != 3 {
			t.Fatalf("%d steps, %v", steps, err)
		}
		next := m.get(s.district, must(DistrictKey(w, d))).Int(s.d.nextOID)
		items := map[int64]bool{}
		for _, e := range m.rows(s.orderLine) {
			r := e.Row
			if r.Int(s.ol.wID) == w && r.Int(s.ol.dID) == d && r.Int(s.ol.oID) >= next-20 && r.Int(s.ol.oID) < next &&
				m.get(s.stock, must(StockKey(w, r.Int(s.ol.iID)))).Int(s.s.quantity) < in.Threshold {
				items[r.Int(s.ol.iID)] = true
			}
		}
		if out.Low != int64(len(items)) {
			t.Fatalf("%+v: %d, want %d", in, out.Low, len(items))
		}
		low += out.Low
	}
	if low == 0 {
		t.Error("no item was ever low")
	}
	for next, want := range map[int64]int{1: 1, 2: 3, 11: 3} {
		row := m.get(s.district, must(DistrictKey(1, 1)))
		row.SetInt(s.d.nextOID, next)
		if err := m.put(s.district, must(DistrictKey(1, 1)), row); err != nil {
			t.Fatal(err)
		}
		if steps, err := m.stockLevel(&StockLevelInput{W: 1, D: 1, Threshold: 10}, &out); err != nil || steps != want {
			t.Errorf("district with %d orders: %d steps, want %d; %v", next-1, steps, want, err)
		}
	}
}
