//go:build simulated

package server_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"drtmx/internal/rng"
	"drtmx/rdma"
	"drtmx/tpcc"
	"drtmx/txn"
)

// A cluster of kind tpcc runs a small TPC-C, in half of the seeds on disks. In the
// end its conditions hold, and the database has exactly what the ledgers of all
// clients say.

// trade is a small TPC-C.
type trade struct {
	load   tpcc.LoadConfig
	info   tpcc.LoadInfo
	schema *tpcc.Schema
	deeds  [][]tpcc.LedgerEntry // the ledgers, by client
}

// drawTrade draws a TPC-C.
func (r *simulation) drawTrade(seed uint64) job {
	s := r.s
	x := &trade{load: tpcc.LoadConfig{
		Warehouses: int64(1 + s.Intn(3)), Seed: seed, Parallel: 1, Now: 1e18,
		Scale: tpcc.Scale{Items: int64(20 + s.Intn(80)), Customers: int64(10 + s.Intn(20)), Undelivered: int64(3 + s.Intn(6))},
	}}
	r.u.other = &workload{tpcc.Catalog(), tpcc.Procedures()}
	f := &r.u.net.Faults // the load needs a fabric that holds
	f.DropBefore, f.DropDuring, f.DropAfter, f.DropVerb = 0, 0, 0, 0
	r.l.TxnsPerClient = 10 + s.Intn([]int{10, 40}[s.Intn(2)])
	x.deeds = make([][]tpcc.LedgerEntry, r.l.Clients)
	if s.Bool(0.5) {
		r.onDisks()
		r.d.parts = max(r.d.parts, 512<<10) // a load has large records
	}
	return x
}

// populate loads the database, before anything goes wrong.
func (x *trade) populate(u *setup, c *cluster) (err error) {
	ctx := context.Background()
	db, err := txn.Open(ctx, txn.Config{Servers: c.addrs, Dial: u.provider(c.net, rdma.Identity{Role: rdma.RoleLoader, Name: clientName}).Dial})
	if err != nil {
		return err
	}
	defer db.Close()
	if x.schema, err = tpcc.NewSchema(c.DB.Catalog()); err != nil {
		return err
	}
	if _, err = tpcc.Load(ctx, db, x.load); err == nil {
		x.info, err = tpcc.ReadLoadInfo(ctx, db)
	}
	return err
}

// modes are where the transactions run.
func (x *trade) mode(s *rng.Stream) tpcc.TerminalConfig {
	mode := func() tpcc.Mode { return []tpcc.Mode{tpcc.Default, tpcc.Client, tpcc.Procedure}[s.Intn(3)] }
	return tpcc.TerminalConfig{
		NewOrderMode: mode(), PaymentMode: mode(), OrderStatusMode: mode(), DeliveryMode: mode(), StockLevelMode: mode(),
		DeliveryBatch: 1 + s.Intn(tpcc.Districts), StockLevelAttempts: s.Intn(4),
	}
}

// work is one client.
func (x *trade) work(ctx context.Context, w *worker) error {
	i, s := uint64(w.number), rng.New(x.load.Seed).Split("trade").SplitN(uint64(w.number))
	c := tpcc.NewLedgerClient(x.load.Seed, i, x.info)
	c.Begin, c.Failed = func(tpcc.LedgerEntry) {}, func(error) {}
	c.End = func(d tpcc.LedgerEntry) { x.deeds[i] = append(x.deeds[i], d) }
	sess, err := w.db.NewSession(ctx)
	if w.died != nil && w.died() {
		return nil
	}
	if err != nil {
		return err
	}
	defer sess.Close()
	if w.died != nil {
		defer func() { // nobody else can ask for the outcomes of a process of its own
			for j := range x.deeds[i] {
				if d := &x.deeds[i][j]; d.Outcome == tpcc.OutcomeUnknown {
					d.Outcome = tpcc.OutcomeUnfinished
				}
			}
		}()
	}
	term := tpcc.NewTerminal(w.db, sess, x.schema, x.mode(s))
	for range w.l.TxnsPerClient {
		ctx, cancel := ctx, context.CancelFunc(func() {})
		if w.patience > 0 {
			ctx, cancel = context.WithTimeout(ctx, w.patience)
		}
		err := c.Run(ctx, term)
		cancel()
		switch {
		case w.died != nil && w.died():
			return nil
		case err != nil && !errors.Is(err, txn.ErrUnavailable):
			return err
		}
		if s.Bool(0.05) {
			time.Sleep(between(s, 0, 50))
		}
	}
	return nil
}

func (x *trade) transactions() (n int) {
	for _, deeds := range x.deeds {
		n += len(deeds)
	}
	return n
}

// judge compares the database with the ledgers, and checks the conditions.
func (x *trade) judge(ctx context.Context, c *cluster, out *outcome) error {
	rep, err := tpcc.VerifyLedger(ctx, c.DB, slices.Concat(x.deeds...), func(id txn.ID) (committed bool, err error) {
		err = retryUnavailable(func() error {
			switch err := c.DB.Outcome(ctx, id); {
			case errors.Is(err, txn.ErrConflict), errors.Is(err, txn.ErrOutcomeUnknown):
				return nil // refused, or never arrived: no transaction is running any more
			default:
				committed = err == nil
				return err
			}
		})
		return committed, err
	})
	if err != nil {
		return fmt.Errorf("ledgers: %w", err)
	}
	var errs []error
	for _, f := range rep.Faults {
		errs = append(errs, fmt.Errorf("ledger: %v", f))
	}
	maps.Copy(out.counts, rep.Counts)
	got, err := tpcc.Check(ctx, c.DB, tpcc.CheckConfig{AtRest: true, Parallel: 1})
	for _, condition := range slices.Sorted(maps.Keys(got)) {
		if !tpcc.Passes(got[condition]) {
			errs = append(errs, fmt.Errorf("condition %s: %s", condition, got[condition]))
		}
	}
	return errors.Join(append(errs, err)...)
}
