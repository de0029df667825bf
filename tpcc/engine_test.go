package tpcc

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"drtmx/internal/rng"
	"drtmx/internal/testseed"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// engine is an embedded cluster with a small population.
type engine struct {
	*server.Cluster
	s    *Schema
	info LoadInfo
}

func newEngine(t testing.TB, servers int, warehouses int64) *engine {
	t.Helper()
	return newEngineOf(t, StoredXStore, servers, warehouses)
}

func newEngineOf(t testing.TB, s Storage, servers int, warehouses int64) *engine {
	t.Helper()
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{
		Catalog: s.Catalog(), Procedures: s.Procedures(), Servers: servers, MemoryBytes: 256 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cl.Close(); err != nil {
			t.Error(err)
		}
	})
	e := &engine{Cluster: cl}
	e.populate(t, warehouses)
	return e
}

// populate loads an empty database.
func (e *engine) populate(t testing.TB, warehouses int64) {
	t.Helper()
	var err error
	if e.s, err = NewSchema(e.DB.Catalog()); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadLoadInfo(t.Context(), e.DB); !errors.Is(err, ErrNotLoaded) {
		t.Fatalf("before the load: %v", err)
	}
	if _, err := Load(t.Context(), e.DB, LoadConfig{Warehouses: warehouses, Seed: 7, Scale: smallScale, Now: 1e18}); err != nil {
		t.Fatal(err)
	}
	e.info, err = ReadLoadInfo(t.Context(), e.DB)
	if err != nil || e.info.Warehouses != warehouses || e.info.Scale != smallScale {
		t.Fatalf("load info %+v, %v", e.info, err)
	}
}

func (e *engine) terminal(t testing.TB, c TerminalConfig) *Terminal {
	t.Helper()
	sess, err := e.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := sess.Close(); err != nil {
			t.Error(err)
		}
	})
	return NewTerminal(e.DB, sess, e.s, c)
}

func (e *engine) mustHold(t *testing.T) {
	t.Helper()
	got, err := Check(t.Context(), e.DB, CheckConfig{AtRest: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, condition := range slices.Sorted(maps.Keys(got)) {
		if !Passes(got[condition]) {
			t.Errorf("%s: %s", condition, got[condition])
		}
	}
}

// modes put every transaction in the client and at its home server, with
// every other.
var modes = []TerminalConfig{
	{NewOrderMode: Client, PaymentMode: Client, OrderStatusMode: Client, DeliveryMode: Client, StockLevelMode: Client, DeliveryBatch: 1},
	{NewOrderMode: Client, PaymentMode: Procedure, OrderStatusMode: Procedure, DeliveryMode: Procedure, StockLevelMode: Procedure, DeliveryBatch: 3},
	{NewOrderMode: Procedure, PaymentMode: Client, OrderStatusMode: Client, DeliveryMode: Client, StockLevelMode: Procedure, DeliveryBatch: Districts},
	{StockLevelAttempts: 1},
}

// One terminal at a time: the engine must answer exactly as the model does, in
// every mode, on one server and on several.
func TestEngineAgreesWithModel(t *testing.T) {
	for _, c := range []struct {
		servers int
		stored  Storage
	}{{1, StoredXStore}, {3, StoredXStore}, {2, StoredRolex}, {2, StoredFineStore}, {2, StoredHStore}} {
		t.Run(fmt.Sprintf("%d servers, %s", c.servers, c.stored), func(t *testing.T) {
			e := newEngineOf(t, c.stored, c.servers, 3)
			m, _ := loadedModel(t, 3)
			r := &rival{t: t, m: m, g: NewInputs(rng.New(31), e.info, e.info.RunConstants(rng.New(32)))}
			for _, c := range modes {
				r.terms = append(r.terms, e.terminal(t, c))
			}
			for i := range 400 {
				r.round(i)
			}
			e.mustHold(t)
			mustHold(t, m, CheckConfig{AtRest: true})
			if r.rolledBack == 0 || r.remote == 0 || r.delivered == 0 || r.skipped == 0 || r.low == 0 {
				t.Errorf("a case was never met: %d orders rolled back, %d remote payments, %d orders delivered, %d districts skipped, %d items low",
					r.rolledBack, r.remote, r.delivered, r.skipped, r.low)
			}
		})
	}
}

// rival runs the same inputs on the engine and on the model.
type rival struct {
	t     *testing.T
	m     *model
	g     *Inputs
	terms []*Terminal

	rolledBack, remote, delivered, skipped int
	low                                    int64
}

// round runs one transaction of each type.
func (r *rival) round(i int) {
	term, w := r.terms[i%len(r.terms)], int64(i)%3+1
	r.newOrder(term, w, i)
	r.payment(term, w, i)
	r.orderStatus(term, w)
	if i%4 == 0 || i > 250 { // in the end faster than orders come in
		r.delivery(r.terms[i/4%len(r.terms)], w, i)
	}
	r.stockLevel(term, w, int64(i)%Districts+1)
}

// same fails unless both ended alike, with the same output.
func (r *rival) same(term *Terminal, what string, in any, err, wantErr error, got, want codec) {
	r.t.Helper()
	if err != nil || wantErr != nil || string(got.AppendTo(nil)) != string(want.AppendTo(nil)) {
		r.t.Fatalf("%+v %s %+v: %+v %v, want %+v %v", term.cfg, what, in, got, err, want, wantErr)
	}
}

func (r *rival) newOrder(term *Terminal, w int64, i int) {
	var in NewOrderInput
	var got, want NewOrderOutput
	r.g.NewOrder(w, &in)
	in.EntryD = int64(i + 1)
	if i%7 == 0 { // more remote lines than the workload has
		in.Lines[0].SupplyW = w%3 + 1
	}
	err := term.NewOrder(r.t.Context(), &in, &got)
	_, wantErr := r.m.newOrder(&in, &want)
	if errors.Is(err, ErrRolledBack) && errors.Is(wantErr, ErrRolledBack) {
		r.rolledBack++
		got.EntryD = want.EntryD // not part of that output
		got.Discount, got.WTax, got.DTax, got.Total = want.Discount, want.WTax, want.DTax, want.Total
		err, wantErr = nil, nil
	}
	r.same(term, "NEW-ORDER", in, err, wantErr, &got, &want)
}

func (r *rival) payment(term *Terminal, w int64, i int) {
	var in PaymentInput
	var got, want PaymentOutput
	r.g.Payment(w, &in)
	in.Date = int64(i + 1)
	err := term.Payment(r.t.Context(), &in, &got)
	_, wantErr := r.m.payment(&in, &want)
	r.remote += btoi(in.CW != w)
	r.same(term, "PAYMENT", in, err, wantErr, &got, &want)
}

func (r *rival) orderStatus(term *Terminal, w int64) {
	var in OrderStatusInput
	var got, want OrderStatusOutput
	r.g.OrderStatus(w, &in)
	err := term.OrderStatus(r.t.Context(), &in, &got)
	_, wantErr := r.m.orderStatus(&in, &want)
	r.same(term, "ORDER-STATUS", in, err, wantErr, &got, &want)
}

func (r *rival) delivery(term *Terminal, w int64, i int) {
	var in DeliveryInput
	var got, want DeliveryOutput
	r.g.Delivery(w, &in)
	in.Date = int64(i + 1)
	err := term.Delivery(r.t.Context(), &in, &got)
	_, wantErr := r.m.delivery(&in, &want)
	if err != nil || wantErr != nil || got != want {
		r.t.Fatalf("%+v DELIVERY %+v: %+v %v, want %+v %v", term.cfg, in, got, err, want, wantErr)
	}
	r.delivered += got.Delivered()
	r.skipped += got.Skipped()
}

func (r *rival) stockLevel(term *Terminal, w, d int64) {
	var in StockLevelInput
	var got, want StockLevelOutput
	r.g.StockLevel(w, d, &in)
	err := term.StockLevel(r.t.Context(), &in, &got)
	_, wantErr := r.m.stockLevel(&in, &want)
	r.low += got.Low
	r.same(term, "STOCK-LEVEL", in, err, wantErr, &got, &want)
}

// Terminals in all modes at once, then every condition, and the counts.
func TestEngineRun(t *testing.T) {
	for _, s := range Storages {
		t.Run(string(s), func(t *testing.T) { runEngine(t, s) })
	}
}

func runEngine(t *testing.T, s Storage) {
	const terminals, each = 4, 150
	e := newEngineOf(t, s, 2, 2)
	before, err := OrdersPlaced(t.Context(), e.DB)
	if err != nil || before != 0 {
		t.Fatalf("%d orders placed before the run, %v", before, err)
	}
	constants := e.info.RunConstants(rng.New(42))
	committed := make([]int64, terminals)
	var group sync.WaitGroup
	for n := range terminals {
		term := e.terminal(t, modes[n%len(modes)])
		group.Go(func() {
			g := NewInputs(rng.New(43).SplitN(uint64(n)), e.info, constants)
			var in NewOrderInput
			var out NewOrderOutput
			var sin OrderStatusInput
			var sout OrderStatusOutput
			for i := range each {
				w := int64(n+i)%e.info.Warehouses + 1
				g.NewOrder(w, &in)
				switch err := term.NewOrder(t.Context(), &in, &out); {
				case err == nil:
					committed[n]++
				case !errors.Is(err, ErrRolledBack):
					t.Errorf("NEW-ORDER %+v: %v", in, err)
					return
				}
				// The customer who just ordered sees that order, or a later one, whole.
				sin = OrderStatusInput{W: in.W, D: in.D, C: in.C}
				if err := term.OrderStatus(t.Context(), &sin, &sout); err != nil {
					t.Errorf("ORDER-STATUS %+v: %v", sin, err)
					return
				}
				if len(out.Lines) > 0 && sout.Order < out.Order || len(sout.Lines) < MinLines {
					t.Errorf("after order %d, ORDER-STATUS shows %d with %d lines", out.Order, sout.Order, len(sout.Lines))
				}
				if sout.Order == out.Order && len(out.Lines) > 0 && len(sout.Lines) != len(in.Lines) {
					t.Errorf("order %d of %d lines is shown with %d", out.Order, len(in.Lines), len(sout.Lines))
				}
			}
		})
	}
	group.Wait()
	e.mustHold(t)
	after, err := OrdersPlaced(t.Context(), e.DB)
	if err != nil {
		t.Fatal(err)
	}
	total := int64(0)
	for _, c := range committed {
		total += c
	}
	if verdict := VerifyOrders(before, after, total, 0); verdict != OK {
		t.Error(verdict)
	}
}

// The conditions hold in every View while all kinds of transactions run.
func TestEngineCheckDuringRun(t *testing.T) {
	e := newEngine(t, 2, 2)
	stop := make(chan struct{})
	var group sync.WaitGroup
	term := e.terminal(t, TerminalConfig{})
	group.Go(func() {
		c := NewLedgerClient(1, 1, e.info)
		c.Begin, c.End = func(LedgerEntry) {}, func(LedgerEntry) {}
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := c.Run(t.Context(), term); err != nil {
				t.Error(err)
				return
			}
		}
	})
	got, err := Check(t.Context(), e.DB, CheckConfig{})
	close(stop)
	group.Wait()
	if err != nil || got.Err() != nil {
		t.Errorf("%v %v", got, err)
	}
}

// Faults written through the API are found through it.
func TestEngineCheckFindsFaults(t *testing.T) {
	e := newEngine(t, 2, 2)
	key := must(OrderKey(2, 3, 55))
	err := e.DB.Update(t.Context(), func(tx *txn.Txn) error {
		row, err := tx.Get(e.s.orders, key)
		if err != nil {
			return err
		}
		row = row.Clone()
		row.SetInt(e.s.o.carrierID, 4)
		if err := tx.Update(e.s.orders, key, row); err != nil {
			return err
		}
		return tx.Delete(e.s.orderLine, must(OrderLineKey(2, 3, 55, 1)))
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := Check(t.Context(), e.DB, CheckConfig{AtRest: true})
	if err != nil {
		t.Fatal(err)
	}
	for condition, want := range map[string]string{
		"3.3.2.4": "district 2.3: ", "3.3.2.5": "order 2.3.55: o_carrier_id is 4, rows in new_order 1",
		"3.3.2.6": "order 2.3.55: ", "3.3.2.7": "order_line 2.3.55.2: ",
		ConditionDeliveries: ": c_delivery_cnt is 0, orders delivered since the load 1",
	} {
		if !strings.Contains(got[condition], want) {
			t.Errorf("%s: %s, want %q", condition, got[condition], want)
		}
		delete(got, condition)
	}
	if got.Err() != nil {
		t.Errorf("other conditions: %v", got)
	}
}

// A payment at one warehouse by a customer of another, and an order supplied
// by another, change rows of both partitions, wherever the body runs.
func TestRemotePartitions(t *testing.T) {
	e := newEngine(t, 2, 2)
	if must(e.DB.Home(e.s.warehouse, must(WarehouseKey(1)))) == must(e.DB.Home(e.s.warehouse, must(WarehouseKey(2)))) {
		t.Fatal("both warehouses are in one partition")
	}
	read := func() (got [6]int64) {
		t.Helper()
		err := e.DB.View(t.Context(), func(tx *txn.Txn) error {
			for i, at := range []struct {
				tab *tables.Table
				key tables.Key
				f   tables.Field
			}{
				{e.s.warehouse, must(WarehouseKey(1)), e.s.w.ytd},
				{e.s.warehouse, must(WarehouseKey(2)), e.s.w.ytd},
				{e.s.district, must(DistrictKey(1, 3)), e.s.d.ytd},
				{e.s.customer, must(CustomerKey(2, 4, 5)), e.s.c.balance},
				{e.s.stock, must(StockKey(2, 6)), e.s.s.remoteCnt},
				{e.s.stock, must(StockKey(1, 6)), e.s.s.orderCnt},
			} {
				row, err := tx.Get(at.tab, at.key)
				if err != nil {
					return err
				}
				got[i] = row.Int(at.f)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	for _, mode := range []Mode{Client, Procedure} {
		term, before := e.terminal(t, TerminalConfig{NewOrderMode: mode, PaymentMode: mode}), read()
		var paid PaymentOutput
		if err := term.Payment(t.Context(), &PaymentInput{W: 1, D: 3, CW: 2, CD: 4, C: 5, Amount: 123_45}, &paid); err != nil {
			t.Fatal(err)
		}
		var out NewOrderOutput
		if err := term.NewOrder(t.Context(), order(1, 3, 5, NewOrderLine{6, 2, 1}), &out); err != nil {
			t.Fatal(err)
		}
		want := before
		for i, by := range [...]int64{123_45, 0, 123_45, -123_45, 1, 0} {
			want[i] += by
		}
		if got := read(); got != want {
			t.Errorf("%v: %v, want %v", mode, got, want)
		}
	}
	e.mustHold(t)
}

// What each transaction allocates, client and servers together.
func TestEngineAllocations(t *testing.T) {
	if testseed.Race {
		t.Skip("the race detector allocates")
	}
	e := newEngine(t, 1, 1)
	term := e.terminal(t, TerminalConfig{})
	g := NewInputs(rng.New(1), e.info, e.info.RunConstants(rng.New(2)))
	var pay PaymentInput
	var paid PaymentOutput
	var del DeliveryInput
	var delOut DeliveryOutput
	level := StockLevelInput{W: 1, D: 1, Threshold: 15}
	var low StockLevelOutput
	run := map[string]func() error{
		"PAYMENT":     func() error { g.Payment(1, &pay); return term.Payment(t.Context(), &pay, &paid) },
		"STOCK-LEVEL": func() error { return term.StockLevel(t.Context(), &level, &low) },
		"DELIVERY":    func() error { g.Delivery(1, &del); return term.Delivery(t.Context(), &del, &delOut) },
	}
	for what, most := range map[string]float64{"PAYMENT": 12, "STOCK-LEVEL": 1, "DELIVERY": 220} {
		for range 6 { // buffers grow; 18 orders of each district are undelivered
			if err := run[what](); err != nil {
				t.Fatal(err)
			}
		}
		measure := func() float64 {
			return testing.AllocsPerRun(10, func() {
				if err := run[what](); err != nil {
					t.Error(err)
				}
			})
		}
		n := measure()
		for range 5 { // the servers' own work allocates now and then
			if what != "DELIVERY" { // there is no order left for it
				n = min(n, measure())
			}
		}
		t.Logf("%s: %.1f allocations", what, n)
		if n > most {
			t.Errorf("%s: %.1f allocations, want at most %.0f", what, n, most)
		}
	}
}

// The rounds of the transactions, which are what a fabric is paid in: one per
// step, and one that validates.
func TestEngineRounds(t *testing.T) {
	e := newEngine(t, 2, 2)
	sess, err := e.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	term := NewTerminal(e.DB, sess, e.s, TerminalConfig{})
	var out OrderStatusOutput
	byID := OrderStatusInput{W: 1, D: 1, C: 5}
	byName := OrderStatusInput{W: 2, D: 1, Last: LastName(nil, 7)}
	rounds := func(in *OrderStatusInput) uint64 {
		for range 3 { // what is cached is fetched, locations too
			if err := term.OrderStatus(t.Context(), in, &out); err != nil {
				t.Fatal(err)
			}
		}
		before := sess.Stats()
		if err := term.OrderStatus(t.Context(), in, &out); err != nil {
			t.Fatal(err)
		}
		after := sess.Stats()
		return after.Rounds - before.Rounds
	}
	t.Logf("rounds of ORDER-STATUS: %d by number, %d by name", rounds(&byID), rounds(&byName))
	var low StockLevelOutput
	level := StockLevelInput{W: 1, D: 1, Threshold: 15}
	before := sess.Stats()
	for i := range 4 {
		if i == 3 { // what is cached has been fetched
			before = sess.Stats()
		}
		if err := term.StockLevel(t.Context(), &level, &low); err != nil {
			t.Fatal(err)
		}
	}
	// The district; the lines; the stock; validation.
	n := sess.Stats().Rounds - before.Rounds
	t.Logf("rounds of STOCK-LEVEL: %d, READs %d", n, sess.Stats().Fabric.Reads-before.Fabric.Reads)
	if n > 5 {
		t.Errorf("STOCK-LEVEL: %d rounds", n)
	}
	if n := rounds(&byID); n > 4 {
		t.Errorf("by number: %d rounds", n)
	}
	if n := rounds(&byName); n > 5 {
		t.Errorf("by name: %d rounds", n)
	}
	if !testseed.Race {
		status := func() { _ = term.OrderStatus(t.Context(), &byID, &out) }
		if n := min(testing.AllocsPerRun(100, status), testing.AllocsPerRun(100, status), testing.AllocsPerRun(100, status)); n > 8 {
			t.Errorf("%.1f allocations per ORDER-STATUS", n)
		}
	}
}

var _ Sink = (*txn.Loader)(nil)

func BenchmarkLoadWarehouse(b *testing.B) {
	s, err := NewSchema(Catalog())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		r, err := LoadInto(b.Context(), &countingTarget{}, s, LoadConfig{Warehouses: 1, Seed: 1, Parallel: 1})
		if err != nil {
			b.Fatal(err)
		}
		b.SetBytes(r.Bytes)
	}
}
