package tpcc

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"drtmx/internal/testseed"
	"drtmx/tables"
	"drtmx/txn"
)

// verify holds the ledger against the database. resolve tells whether a
// transaction of unknown outcome committed.
func verify(t *testing.T, e *engine, entries []LedgerEntry, resolve func(txn.ID) (bool, error)) map[string]int {
	t.Helper()
	r, err := VerifyLedger(t.Context(), e.DB, entries, resolve)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range r.Faults {
		t.Error(f)
	}
	return r.Counts
}

// TestOutcomeOfErrors: what each documented error says of a transaction, and no other
// error is taken for an answer.
func TestOutcomeOfErrors(t *testing.T) {
	id := txn.ID{Client: 1, Seq: 2}
	for _, c := range []struct {
		err  error
		want Outcome
	}{
		{nil, OutcomeCommitted},
		{ErrRolledBack, OutcomeNotDone},
		{fmt.Errorf("payment: %w", txn.ErrUnavailable), OutcomeNotDone},
		{txn.ErrConflict, OutcomeNotDone},
		{context.DeadlineExceeded, OutcomeNotDone},
		{&txn.Error{Err: txn.ErrTooLarge, Limit: "Config.BodyAge"}, OutcomeNotDone}, // a server did not answer for long
		{&txn.UnknownOutcome{ID: id}, OutcomeUnknown},
	} {
		d := LedgerEntry{Outcome: OutcomeUnfinished}
		if err := d.setOutcome(c.err); err != nil || d.Outcome != c.want || (d.ID == id) != (c.want == OutcomeUnknown) {
			t.Errorf("%v: %v, %v, %v; want %v", c.err, d.Outcome, d.ID, err, c.want)
		}
	}
	for _, err := range []error{errors.New("some other error"), &txn.Error{Err: txn.ErrTooLarge, Limit: "MaxRowBytes"}, txn.ErrExists} {
		d := LedgerEntry{Outcome: OutcomeUnfinished}
		if got := d.setOutcome(err); !errors.Is(got, err) || d.Outcome != OutcomeUnfinished {
			t.Errorf("%v: %v, %v; want the error", err, d.Outcome, got)
		}
	}
}

// The comparison finds what it is for: each kind of fault, made by hand.
func TestVerifyLedgerFindsFaults(t *testing.T) {
	e := newEngine(t, 2, 2)
	term := e.terminal(t, TerminalConfig{})
	c := NewLedgerClient(testseed.Of(t), 0, e.info)
	var entries []LedgerEntry
	c.End = func(d LedgerEntry) { entries = append(entries, d) }
	for range 200 {
		if err := c.Run(t.Context(), term); err != nil {
			t.Fatal(err)
		}
	}
	if counts := verify(t, e, entries, nil); counts["PAYMENT committed"] == 0 || counts["NEW_ORDER committed"] == 0 || counts["DELIVERY committed"] == 0 {
		t.Fatalf("%v", counts)
	}
	first := func(ty Type) int {
		for i := range entries {
			if d := &entries[i]; d.Type == ty && d.Outcome == OutcomeCommitted && (ty != Delivery || d.Orders[0] != 0) {
				return i
			}
		}
		t.Fatalf("no %v was committed", ty)
		return 0
	}
	nth := func(ty Type, change func(*LedgerEntry)) []LedgerEntry {
		all := append([]LedgerEntry(nil), entries...)
		change(&all[first(ty)])
		return all
	}
	never := func(d *LedgerEntry) { d.Stamp = 1 << 60 }
	for _, test := range []struct {
		name    string
		entries []LedgerEntry
		want    string
	}{
		{"a payment is lost", nth(Payment, never), LedgerLost},
		{"an order is lost", nth(NewOrder, never), LedgerLost},
		{"a delivery is lost", nth(Delivery, never), LedgerLost},
		{"an order that was seen is lost", append(entries[:len(entries):len(entries)], LedgerEntry{Type: OrderStatus, W: 1, D: 1, Number: 1 << 20}), LedgerLost},
		{"a refused payment is there", nth(Payment, func(d *LedgerEntry) { d.Outcome = OutcomeNotDone }), LedgerPhantom},
		{"a refused order is there", nth(NewOrder, func(d *LedgerEntry) { d.Outcome = OutcomeNotDone }), LedgerPhantom},
		{"nobody knows an order", append(append([]LedgerEntry(nil), entries[:first(NewOrder)]...), entries[first(NewOrder)+1:]...), LedgerPhantom},
		{"an order has another number", nth(NewOrder, func(d *LedgerEntry) { d.Number++ }), LedgerWrong},
		{"a payment has another amount", nth(Payment, func(d *LedgerEntry) { d.Amount++ }), LedgerWrong},
	} {
		r, err := VerifyLedger(t.Context(), e.DB, test.entries, nil)
		if err != nil || r.Count(test.want) == 0 {
			t.Errorf("%s: %v %v, want a fault that is %s", test.name, r.Faults, err, test.want)
		}
	}
	d := entries[first(Payment)]
	err := e.DB.Update(t.Context(), func(tx *txn.Txn) error { // once more, under another key
		row := make(tables.Row, e.s.history.RowBytes())
		row.SetInt(e.s.h.date, d.Stamp)
		return tx.Insert(e.s.history, must(HistoryKey(d.W, d.D, MaxHistory-1)), row)
	})
	if err != nil {
		t.Fatal(err)
	}
	r, err := VerifyLedger(t.Context(), e.DB, entries, nil)
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
