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
		c.End = func(d Deed) { marks.Raise(&d) }
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
		deed Deed
		want string
	}{
		{Deed{Type: NewOrder, Fate: FateNotDone, W: 2, D: 3, Number: next}, ""},
		{Deed{Type: Payment, Fate: FateUnknown, W: 2, D: 3, Amount: 1}, ""},
		{Deed{Type: Payment, W: 1, D: 3, Amount: 1}, "w_ytd"},
		{Deed{Type: NewOrder, W: 2, D: 3, Number: next}, "d_next_o_id"},
	} {
		marks.Raise(&lie.deed)
		district := lie.deed.D
		if lie.deed.Type == Payment {
			district = 0
		}
		if stale := look(lie.deed.W, district); (stale == "") != (lie.want == "") || !strings.Contains(stale, lie.want) {
			t.Errorf("%+v: %q, want %q", lie.deed, stale, lie.want)
		}
	}
}
