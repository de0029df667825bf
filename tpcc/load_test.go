package tpcc

import (
	"bytes"
	"context"
	"errors"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/tables"
	"drtmx/txn"
)

// countingTarget drops rows.
type countingTarget struct{ rows atomic.Int64 }

type countingSink struct{ to *countingTarget }

func (c *countingTarget) NewSink(context.Context, *tables.Table) (Sink, error) {
	return countingSink{c}, nil
}
func (c *countingTarget) Seal(context.Context) error        { return nil }
func (c countingSink) Add(_ tables.Key, _ tables.Row) error { c.to.rows.Add(1); return nil }
func (c countingSink) Close() error                         { return nil }

// Clause 4.3.3.1: the cardinalities of one warehouse, and no garbage per row.
func TestFullScaleCardinalities(t *testing.T) {
	if testseed.Race || testing.Short() {
		t.Skip("a full warehouse takes seconds here")
	}
	s, _ := NewSchema(Catalog())
	to := &countingTarget{}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := LoadInto(t.Context(), to, s, LoadConfig{Warehouses: 1, Seed: 3})
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if perRow := float64(after.Mallocs-before.Mallocs) / float64(r.Rows); perRow > 0.01 {
		t.Errorf("%.3f allocations per row", perRow)
	}
	want := map[string]int64{
		TableWarehouse: 1, TableDistrict: 10, TableCustomer: 30_000, TableHistory: 30_000, TableNewOrder: 9_000,
		TableOrders: 30_000, TableItem: 100_000, TableStock: 100_000, TableLoadInfo: 1,
	}
	for _, tl := range r.Tables {
		if n, ok := want[tl.Table]; ok && n != tl.Rows {
			t.Errorf("%s has %d rows, want %d", tl.Table, tl.Rows, n)
		}
		if tl.Table == TableOrderLine && (tl.Rows < 297_000 || tl.Rows > 303_000) {
			t.Errorf("%d order lines, want about 300,000", tl.Rows)
		}
		if tl.Bytes != tl.Rows*int64(Catalog().MustTable(tl.Table).RowBytes()) {
			t.Errorf("%s: %d bytes in %d rows", tl.Table, tl.Bytes, tl.Rows)
		}
	}
	if r.Rows != to.rows.Load() {
		t.Errorf("report of %d rows, %d were loaded", r.Rows, to.rows.Load())
	}
	t.Logf("%d rows, %d bytes in %v", r.Rows, r.Bytes, r.Elapsed)
}

// The same seed gives the same rows whatever the parallelism; another seed others.
func TestLoadIsDeterministic(t *testing.T) {
	load := func(seed uint64, parallel int) *model {
		m := newModel(t)
		_, err := LoadInto(t.Context(), m, m.s, LoadConfig{Warehouses: 3, Seed: seed, Scale: smallScale, Now: 5, Parallel: parallel})
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	a, b, other := load(1, 1), load(1, 4), load(2, 1)
	for _, tab := range Catalog().Tables {
		ra, rb, ro := a.rows(tab), b.rows(tab), other.rows(tab)
		if !slices.EqualFunc(ra, rb, entriesEqual) {
			t.Errorf("%s depends on parallelism", tab.Name())
		}
		if tab.Name() != TableNewOrder && slices.EqualFunc(ra, ro, entriesEqual) {
			t.Errorf("%s does not depend on the seed", tab.Name())
		}
	}
	if a.opened != a.closed || a.sealed != 1 {
		t.Errorf("%d sinks opened, %d closed, sealed %d times", a.opened, a.closed, a.sealed)
	}
}

func TestLoadReportsProgress(t *testing.T) {
	m := newModel(t)
	var last LoadProgress
	r, err := LoadInto(t.Context(), m, m.s, LoadConfig{Warehouses: 4, Scale: smallScale, Parallel: 3, Progress: func(p LoadProgress) {
		if p.Rows < last.Rows || p.WarehousesDone < last.WarehousesDone {
			t.Errorf("progress went back from %+v to %+v", last, p)
		}
		last = p
	}})
	if err != nil {
		t.Fatal(err)
	}
	if last.WarehousesDone != 4 || last.Rows != r.Rows || last.Bytes != r.Bytes {
		t.Errorf("the last progress is %+v, the report %+v", last, r)
	}
	if diff := float64(last.TotalRows-last.Rows) / float64(last.Rows); diff > 0.05 || diff < -0.05 {
		t.Errorf("expected %d rows, loaded %d", last.TotalRows, last.Rows)
	}
}

func TestLoadRefusesBadConfigs(t *testing.T) {
	s, _ := NewSchema(Catalog())
	for _, c := range []struct {
		LoadConfig
		want error
	}{
		{LoadConfig{}, ErrWarehouses},
		{LoadConfig{Warehouses: MaxWarehouses + 1}, ErrWarehouses},
		{LoadConfig{Warehouses: -1}, ErrWarehouses},
		{LoadConfig{Warehouses: 1, Scale: Scale{Items: MaxItems}}, ErrScale}, // no number is left for an unused item
		{LoadConfig{Warehouses: 1, Scale: Scale{Customers: MaxCustomers + 1}}, ErrScale},
		{LoadConfig{Warehouses: 1, Scale: Scale{Customers: 10, Undelivered: 11}}, ErrScale},
	} {
		if _, err := LoadInto(t.Context(), &countingTarget{}, s, c.LoadConfig); !errors.Is(err, c.want) {
			t.Errorf("%+v: %v, want %v", c.LoadConfig, err, c.want)
		}
	}
}

// A load that fails leaves no mark of a complete one, and closes its sinks.
func TestFailedLoadIsNotLoaded(t *testing.T) {
	m := newModel(t)
	boom := errors.New("boom")
	_, err := LoadInto(t.Context(), failingTarget{m, boom}, m.s, LoadConfig{Warehouses: 2, Scale: smallScale})
	if !errors.Is(err, boom) || m.opened != m.closed || m.sealed != 0 {
		t.Errorf("%v; %d sinks opened, %d closed, sealed %d times", err, m.opened, m.closed, m.sealed)
	}
	if _, err := m.s.check(t.Context(), m, CheckConfig{}); !errors.Is(err, ErrNotLoaded) {
		t.Errorf("check: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := LoadInto(ctx, m, m.s, LoadConfig{Warehouses: 2}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

type failingTarget struct {
	*model
	err error
}

func (f failingTarget) NewSink(ctx context.Context, t *tables.Table) (Sink, error) {
	if t.Name() == TableHistory {
		return nil, f.err
	}
	return f.model.NewSink(ctx, t)
}

// Clause 4.3.3.1, column by column.
func TestPopulation(t *testing.T) {
	m, info := loadedModel(t, 2)
	s := m.s
	if info.Warehouses != 2 || info.Scale != smallScale || info.Seed != 7 || info.LoadedAt != 1e18 {
		t.Errorf("load info %+v", info)
	}
	original := 0
	for _, e := range m.rows(s.item) {
		length(t, e.Row, s.i.name, 14, 24)
		length(t, e.Row, s.i.data, 26, 50)
		within(t, "i_im_id", e.Row.Int(s.i.imID), 1, 10_000)
		within(t, "i_price", e.Row.Int(s.i.price), 100, 10_000)
		original += btoi(bytes.Contains(e.Row.Text(s.i.data), brandMark))
	}
	if original != 20 {
		t.Errorf("%d of 200 items are original, want a tenth", original)
	}
	original = 0
	for _, e := range m.rows(s.stock) {
		within(t, "s_quantity", e.Row.Int(s.s.quantity), 10, 100)
		length(t, e.Row, s.s.dist[9], 24, 24)
		length(t, e.Row, s.s.data, 26, 50)
		within(t, "s_ytd", e.Row.Int(s.s.ytd), 0, 0)
		original += btoi(bytes.Contains(e.Row.Text(s.s.data), brandMark))
	}
	if original != 40 {
		t.Errorf("%d of 400 stocks are original, want a tenth", original)
	}
	for _, e := range m.rows(s.warehouse) {
		within(t, "w_tax", e.Row.Int(s.w.tax), 0, 2_000)
		length(t, e.Row, s.w.name, 6, 10)
		if zip := e.Row.Text(s.w.zip); len(zip) != 9 || string(zip[4:]) != "11111" {
			t.Errorf("w_zip %q", zip)
		}
	}
	bad := 0
	for _, e := range m.rows(s.customer) {
		bad += btoi(string(e.Row.Text(s.c.credit)) == "BC")
		length(t, e.Row, s.c.data, 300, 500)
		length(t, e.Row, s.c.first, 8, 16)
		length(t, e.Row, s.c.phone, 16, 16)
		within(t, "c_discount", e.Row.Int(s.c.discount), 0, 5_000)
		within(t, "c_balance", e.Row.Int(s.c.balance), -10_00, -10_00)
		if got, want := e.Row.Text(s.c.last), LastName(nil, e.Row.Int(s.c.id)-1); !bytes.Equal(got, want) {
			t.Errorf("customer %d is called %s, want %s", e.Row.Int(s.c.id), got, want)
		}
	}
	if bad != 2*Districts*6 {
		t.Errorf("%d bad credits, want a tenth of each district", bad)
	}
	testPopulatedOrders(t, m)
}

func testPopulatedOrders(t *testing.T, m *model) {
	s := m.s
	customers := map[int64]int{}
	for _, e := range m.rows(s.orders) {
		customers[e.Row.Int(s.o.cID)]++
		delivered := e.Row.Int(s.o.id) <= 42
		if carrier := e.Row.Int(s.o.carrierID); delivered != (carrier != 0) || carrier > 10 {
			t.Errorf("order %d has carrier %d", e.Row.Int(s.o.id), carrier)
		}
		within(t, "o_ol_cnt", e.Row.Int(s.o.olCnt), 5, 15)
	}
	for c := int64(1); c <= 60; c++ {
		if customers[c] != 2*Districts {
			t.Errorf("customer %d has %d orders in %d districts, want one each", c, customers[c], 2*Districts)
		}
	}
	for _, e := range m.rows(s.orderLine) {
		delivered := e.Row.Int(s.ol.oID) <= 42
		amount := e.Row.Int(s.ol.amount)
		if delivered != (amount == 0) || delivered != (e.Row.Int(s.ol.deliveryD) != 0) || amount > 9_999_99 {
			t.Errorf("line of order %d: amount %d, delivered %d", e.Row.Int(s.ol.oID), amount, e.Row.Int(s.ol.deliveryD))
		}
		within(t, "ol_quantity", e.Row.Int(s.ol.quantity), 5, 5)
	}
	for _, e := range m.rows(s.newOrder) {
		within(t, "no_o_id", e.Row.Int(s.no.oID), 43, 60)
	}
}

// At full scale the customers after the thousandth have NURand names: over
// 2,000 of them some names come up much more often than others.
func TestLastNamesAreNonUniform(t *testing.T) {
	m := newModel(t)
	c := LoadConfig{Warehouses: 1, Seed: 11, Scale: Scale{Items: MaxLines, Customers: 3000}}
	l := &load{LoadConfig: c, schema: m.s, to: m, root: rng.New(11)}
	l.Scale = l.Scale.orDefault()
	p := newPopulator(t.Context(), l)
	p.rnd = rng.New(5)
	names := map[string]int{}
	for id := int64(1); id <= 3000; id++ {
		if err := p.customer(1, 1, id, false); err != nil {
			t.Fatal(err)
		}
		names[string(p.rows[tabCustomer].Text(m.s.c.last))]++
	}
	most := 0
	for _, n := range names {
		most = max(most, n)
	}
	if len(names) != 1000 || most < 12 {
		t.Errorf("%d names, the commonest of %d customers", len(names), most)
	}
}

func length(t *testing.T, row tables.Row, f tables.Field, lo, hi int) {
	t.Helper()
	if n := len(row.Text(f)); n < lo || n > hi {
		t.Errorf("text of %d bytes, want %d to %d: %q", n, lo, hi, row.Text(f))
	}
}

func entriesEqual(a, b txn.Entry) bool { return a.Key == b.Key && bytes.Equal(a.Row, b.Row) }

func within(t *testing.T, what string, v, lo, hi int64) {
	t.Helper()
	if v < lo || v > hi {
		t.Errorf("%s is %d, want %d to %d", what, v, lo, hi)
	}
}

func TestLastName(t *testing.T) {
	for n, want := range map[int64]string{0: "BARBARBAR", 371: "PRICALLYOUGHT", 40: "BARPRESBAR", 999: "EINGEINGEING"} {
		if got := string(LastName(nil, n)); got != want || len(got) > lastBytesMax {
			t.Errorf("name %d is %s, want %s", n, got, want)
		}
	}
}
