//go:build simulated

package server_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
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
	deeds  int // in all ledgers
}

// drawTrade draws a TPC-C.
func (r *simulation) drawTrade(seed uint64) {
	s := r.s
	r.trade = &trade{load: tpcc.LoadConfig{
		Warehouses: int64(1 + s.Intn(3)), Seed: seed, Parallel: 1, Now: 1e18,
		Scale: tpcc.Scale{Items: int64(20 + s.Intn(80)), Customers: int64(10 + s.Intn(20)), Undelivered: int64(3 + s.Intn(6))},
	}}
	r.u.other = &workload{tpcc.Catalog(), tpcc.Procedures()}
	f := &r.u.net.Faults // the load needs a fabric that holds
	f.DropBefore, f.DropDuring, f.DropAfter, f.DropVerb = 0, 0, 0, 0
	r.l.TxnsPerClient = 10 + s.Intn([]int{10, 40}[s.Intn(2)])
	if s.Bool(0.5) {
		r.onDisks()
		r.d.parts = max(r.d.parts, 512<<10) // a load has large records
	}
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

// runTrade lets the clients work, and looks at what they leave.
func (r *simulation) runTrade(x *cluster) (*outcome, error) {
	ctx := context.Background()
	out := &outcome{counts: map[string]int{}}
	deeds, errs := make([][]tpcc.Deed, r.l.Clients), make([]error, r.l.Clients)
	var wg sync.WaitGroup
	for i := range deeds {
		s := rng.New(r.l.Seed).Split("trade").SplitN(uint64(i))
		if !r.present(i) {
			continue
		}
		wg.Go(func() { r.u.as(clientName, func() { deeds[i], errs[i] = r.trader(ctx, x.DB, i, s) }) })
	}
	wg.Wait()
	x.calm()
	err := errors.Join(errs...)
	for _, d := range deeds {
		r.trade.deeds += len(d)
	}
	r.u.as(clientName, func() { err = errors.Join(err, x.settled(ctx), r.audit(ctx, x, slices.Concat(deeds...), out)) })
	for _, srv := range x.Servers {
		err = errors.Join(err, srv.Check())
	}
	return out, err
}

// trader is one client.
func (r *simulation) trader(ctx context.Context, db *txn.DB, i int, s *rng.Stream) (deeds []tpcc.Deed, err error) {
	c := tpcc.NewLedgerClient(r.l.Seed, uint64(i), r.trade.info)
	c.Begin, c.End, c.Failed = func(tpcc.Deed) {}, func(d tpcc.Deed) { deeds = append(deeds, d) }, func(error) {}
	sess, err := db.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	defer sess.Close()
	term := tpcc.NewTerminal(db, sess, r.trade.schema, r.trade.mode(s))
	for range r.l.TxnsPerClient {
		ctx, cancel := ctx, context.CancelFunc(func() {})
		if r.l.Patience > 0 && i%2 == 1 {
			ctx, cancel = context.WithTimeout(ctx, r.l.Patience)
		}
		err := c.Run(ctx, term)
		cancel()
		if err != nil && !errors.Is(err, txn.ErrUnavailable) {
			return deeds, err
		}
		if s.Bool(0.05) {
			time.Sleep(between(s, 0, 50))
		}
	}
	return deeds, nil
}

// audit compares the database with the ledgers, and checks the conditions.
func (r *simulation) audit(ctx context.Context, x *cluster, deeds []tpcc.Deed, out *outcome) error {
	rep, err := tpcc.VerifyLedger(ctx, x.DB, deeds, func(id txn.ID) (committed bool, err error) {
		err = retryUnavailable(func() error {
			switch err := x.DB.Outcome(ctx, id); {
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
	got, err := tpcc.Check(ctx, x.DB, tpcc.CheckConfig{AtRest: true, Parallel: 1})
	for _, condition := range slices.Sorted(maps.Keys(got)) {
		if !tpcc.Passes(got[condition]) {
			errs = append(errs, fmt.Errorf("condition %s: %s", condition, got[condition]))
		}
	}
	return errors.Join(append(errs, err)...)
}
