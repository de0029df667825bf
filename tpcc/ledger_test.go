package tpcc

import (
	"strings"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/tables"
	"drtmx/txn"
)

// verify holds the ledger against the database. resolve tells whether a
// transaction of unknown outcome committed.
func verify(t *testing.T, e *engine, deeds []Deed, resolve func(txn.ID) (bool, error)) map[string]int {
	t.Helper()
	r, err := VerifyLedger(t.Context(), e.DB, deeds, resolve)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Faults {
		t.Error(f)
	}
	return r.Counts
}

// The comparison finds what it is for: each kind of fault, made by hand.
func TestVerifyLedgerFindsFaults(t *testing.T) {
	e := newEngine(t, 2, 2)
	term := e.terminal(t, TerminalConfig{})
	c := NewLedgerClient(testseed.Of(t), 0, e.info)
	var deeds []Deed
	c.End = func(d Deed) { deeds = append(deeds, d) }
	for range 200 {
		if err := c.Run(t.Context(), term); err != nil {
			t.Fatal(err)
		}
	}
	if counts := verify(t, e, deeds, nil); counts["PAYMENT committed"] == 0 || counts["NEW_ORDER committed"] == 0 || counts["DELIVERY committed"] == 0 {
		t.Fatalf("%v", counts)
	}
	first := func(ty Type) int {
		for i := range deeds {
			if d := &deeds[i]; d.Type == ty && d.Fate == FateCommitted && (ty != Delivery || d.Orders[0] != 0) {
				return i
			}
		}
		t.Fatalf("no %v was committed", ty)
		return 0
	}
	nth := func(ty Type, change func(*Deed)) []Deed {
		all := append([]Deed(nil), deeds...)
		change(&all[first(ty)])
		return all
	}
	never := func(d *Deed) { d.Stamp = 1 << 60 }
	for _, test := range []struct {
		name  string
		deeds []Deed
		want  string
	}{
		{"a payment is lost", nth(Payment, never), LedgerLost},
		{"an order is lost", nth(NewOrder, never), LedgerLost},
		{"a delivery is lost", nth(Delivery, never), LedgerLost},
		{"an order that was seen is lost", append(deeds[:len(deeds):len(deeds)], Deed{Type: OrderStatus, W: 1, D: 1, Number: 1 << 20}), LedgerLost},
		{"a refused payment is there", nth(Payment, func(d *Deed) { d.Fate = FateNotDone }), LedgerPhantom},
		{"a refused order is there", nth(NewOrder, func(d *Deed) { d.Fate = FateNotDone }), LedgerPhantom},
		{"nobody knows an order", append(append([]Deed(nil), deeds[:first(NewOrder)]...), deeds[first(NewOrder)+1:]...), LedgerPhantom},
		{"an order has another number", nth(NewOrder, func(d *Deed) { d.Number++ }), LedgerWrong},
		{"a payment has another amount", nth(Payment, func(d *Deed) { d.Amount++ }), LedgerWrong},
	} {
		r, err := VerifyLedger(t.Context(), e.DB, test.deeds, nil)
		if err != nil || r.Count(test.want) == 0 {
			t.Errorf("%s: %v %v, want a fault that is %s", test.name, r.Faults, err, test.want)
		}
	}
	d := deeds[first(Payment)]
	err := e.DB.Update(t.Context(), func(tx *txn.Txn) error { // once more, under another key
		row := make(tables.Row, e.s.history.RowBytes())
		row.SetInt(e.s.h.date, d.Stamp)
		return tx.Insert(e.s.history, must(HistoryKey(d.W, d.D, MaxHistory-1)), row)
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := VerifyLedger(t.Context(), e.DB, deeds, nil)
	if err != nil || r.Count(LedgerDoubled) != 1 || !strings.Contains(r.Faults[0].String(), "doubled") {
		t.Errorf("doubled: %v %v", r.Faults, err)
	}
}

// settled waits until no server has a transaction in doubt.
func (e *engine) settled(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(testseed.Patience()); ; time.Sleep(20 * time.Millisecond) {
		stats, err := e.DB.ServerStats(t.Context())
		left := 0
		for _, st := range stats {
			left += st.Prepared
		}
		if err == nil && left == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d transactions are still in doubt; %v", left, err)
		}
	}
}
