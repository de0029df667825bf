package tpcc

import (
	"strings"
	"sync"
	"testing"

	"drtmx/internal/testseed"
)

// Beside clients no View of a witness is stale; one that shows less than what a client
// was told is found, of orders and of payments.
func TestWitness(t *testing.T) {
	e := newEngine(t, 2, 2)
	marks := NewMarks(e.info)
	sess, err := e.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	schema, err := NewSchema(e.DB.Catalog())
	if err != nil {
		t.Fatal(err)
	}
	w := NewWitness(marks, schema, sess)
	var clients sync.WaitGroup
	seed := testseed.Of(t)
	for n := range uint64(3) {
		term := e.terminal(t, TerminalConfig{})
		c := NewLedgerClient(seed, n, e.info)
		c.End = func(d LedgerEntry) { marks.Raise(&d) }
		clients.Go(func() {
			for range 200 {
				if err := c.Run(t.Context(), term); err != nil {
					t.Error(err)
				}
			}
		})
	}
	look := func(warehouse, district int64) string {
		stale, err := w.Look(t.Context(), warehouse, district)
		if err != nil {
			t.Fatal(err)
		}
		return stale
	}
	for n := range int64(200) {
		if stale := look(n%2+1, n%(Districts+1)); stale != "" {
			t.Error(stale)
		}
	}
	clients.Wait()
	next := marks.district(2, 3).Load() + 1
	for _, lie := range []struct {
		entry LedgerEntry
		want  string
	}{
		{LedgerEntry{Type: NewOrder, Outcome: OutcomeNotDone, W: 2, D: 3, Number: next}, ""},
		{LedgerEntry{Type: Payment, Outcome: OutcomeUnknown, W: 2, D: 3, Amount: 1}, ""},
		{LedgerEntry{Type: Payment, W: 1, D: 3, Amount: 1}, "w_ytd"},
		{LedgerEntry{Type: NewOrder, W: 2, D: 3, Number: next}, "d_next_o_id"},
	} {
		marks.Raise(&lie.entry)
		district := lie.entry.D
		if lie.entry.Type == Payment {
			district = 0
		}
		if stale := look(lie.entry.W, district); (stale == "") != (lie.want == "") || !strings.Contains(stale, lie.want) {
			t.Errorf("%+v: %q, want %q", lie.entry, stale, lie.want)
		}
	}
}
