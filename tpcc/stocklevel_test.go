package tpcc

import (
	"context"
	"errors"
	"testing"
	"time"

	"drtmx/internal/rng"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/server"
	"drtmx/txn"
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

// interrupted is a connection that runs a writer before every round.
type interrupted struct {
	rdma.Conn
	write func()
}

func (c interrupted) Post(b *rdma.Batch) error {
	c.write()
	return c.Conn.Post(b)
}

// Under enough load every View of a STOCK-LEVEL is invalidated. With Views
// alone it starves; in Default mode it runs at its home server after a bounded
// number of Views.
func TestStockLevelEndsUnderWrites(t *testing.T) {
	const levels, attempts = 20, 3
	net := inproc.New(inproc.Options{})
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{
		Catalog: Catalog(), Procedures: Procedures(), Servers: 2, MemoryBytes: 256 << 20, Network: net,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	e := &engine{Cluster: cl}
	e.populate(t, 2)
	writer, g := e.terminal(t, TerminalConfig{}), NewInputs(rng.New(1), e.info, e.info.RunConstants(rng.New(2)))
	var in NewOrderInput
	var no NewOrderOutput
	armed := false
	write := func() {
		if !armed {
			return
		}
		g.NewOrder(1, &in)
		in.D = 1
		if err := writer.NewOrder(t.Context(), &in, &no); err != nil && !errors.Is(err, ErrRolledBack) {
			t.Error(err)
		}
	}
	db, err := txn.Open(t.Context(), txn.Config{
		Servers: []string{"server-0", "server-1"}, Retry: txn.Retry{Attempts: 50},
		Dial: func(ctx context.Context, addr string) (rdma.Conn, error) {
			c, err := net.Dial(ctx, addr)
			return interrupted{c, write}, err
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	sess, err := db.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	var out StockLevelOutput
	level := StockLevelInput{W: 1, D: 1, Threshold: 15}
	quiet := NewTerminal(db, sess, e.s, TerminalConfig{})
	if err := quiet.StockLevel(t.Context(), &level, &out); err != nil || quiet.Stats().StockLevelsEscalated != 0 {
		t.Fatalf("without writers: %v, %+v", err, quiet.Stats())
	}
	armed = true
	alone := NewTerminal(db, sess, e.s, TerminalConfig{StockLevelMode: Client})
	if err := alone.StockLevel(t.Context(), &level, &out); err != nil || sess.Stats().Overtaken != 1 {
		t.Errorf("as a View alone, invalidated every time: %v, and %d went on as snapshots", err, sess.Stats().Overtaken)
	}
	term, before := NewTerminal(db, sess, e.s, TerminalConfig{StockLevelAttempts: attempts}), sess.Stats()
	for range levels {
		if err := term.StockLevel(t.Context(), &level, &out); err != nil {
			t.Fatal(err)
		}
	}
	after := sess.Stats()
	lost := after.Aborts[txn.CauseRow] + after.Aborts[txn.CauseGap] - before.Aborts[txn.CauseRow] - before.Aborts[txn.CauseGap]
	if n := term.Stats().StockLevelsEscalated; n != levels || lost != levels*attempts {
		t.Errorf("%d Views invalidated, want %d; %d went on as snapshots, want %d", lost, levels*attempts, n, levels)
	}
}

// A View that meets a lock waits for it. It does not escalate to the home
// server, where it would meet the same lock: a distributed payment is held
// between prepare and decide, for longer than all allowed invalidations of the
// View take.
func TestStockLevelWaitsForLocks(t *testing.T) {
	net := inproc.New(inproc.Options{})
	cl, err := server.Embedded(t.Context(), server.EmbeddedConfig{
		Catalog: Catalog(), Procedures: Procedures(), Servers: 2, MemoryBytes: 256 << 20, Network: net,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	e := &engine{Cluster: cl}
	e.populate(t, 2)
	sess, err := e.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer sess.Close()
	const attempts = 1
	term, payer := NewTerminal(e.DB, sess, e.s, TerminalConfig{StockLevelAttempts: attempts}), e.terminal(t, TerminalConfig{})
	level, remote := StockLevelInput{W: 1, D: 1, Threshold: 15}, PaymentInput{W: 1, D: 1, CW: 2, CD: 1, C: 1, Amount: 100}
	var low StockLevelOutput
	var paid PaymentOutput
	for range 2 { // every connection is made, the servers' own too
		if err := errors.Join(term.StockLevel(t.Context(), &level, &low), payer.Payment(t.Context(), &remote, &paid)); err != nil {
			t.Fatal(err)
		}
	}
	probe, err := e.DB.NewSession(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer probe.Close()
	if err := probe.View(t.Context(), func(tx *txn.Txn) error { // connects
		_, err := tx.Get(e.s.district, must(DistrictKey(1, 1)))
		return err
	}); err != nil {
		t.Fatal(err)
	}
	for hold := 20 * time.Millisecond; ; hold *= 2 { // until the View runs while the district is locked
		if err := net.Pause("server-1"); err != nil {
			t.Fatal(err)
		}
		before, probed := sess.Stats(), probe.Stats().Aborts[txn.CauseLocked]
		done := make(chan error, 2)
		go func() { done <- payer.Payment(t.Context(), &remote, &paid) }()
		go func() {
			for d := 5 * time.Millisecond; probe.Stats().Aborts[txn.CauseLocked] == probed; d = min(2*d, time.Second) { // until it is locked
				ctx, cancel := context.WithTimeout(t.Context(), d)
				_ = probe.TryView(ctx, 1, func(tx *txn.Txn) error {
					_, err := tx.Get(e.s.district, must(DistrictKey(1, 1)))
					return err
				})
				cancel()
			}
			time.AfterFunc(hold, func() { _ = net.Resume("server-1") })
			done <- term.StockLevel(t.Context(), &level, &low)
		}()
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		locked := sess.Stats().Aborts[txn.CauseLocked] - before.Aborts[txn.CauseLocked]
		if n := term.Stats().StockLevelsEscalated; n != 0 || locked <= attempts && hold > time.Second {
			t.Errorf("met %d locks, and %d ended at the home server, want none", locked, n)
		}
		if locked > attempts || t.Failed() {
			return
		}
		_ = net.Resume("server-1") // which may be done already
	}
}
