package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"drtmx/internal/driver"
	"drtmx/internal/rng"
	"drtmx/tpcc"
	"drtmx/txn"
)

// terminals makes the workers of a run: each a TPC-C terminal that draws a
// home warehouse for every transaction, so that load spreads evenly whatever
// the number of clients.
type terminals struct {
	db        *txn.DB
	schema    *tpcc.Schema
	info      tpcc.LoadInfo
	mix       *mix
	config    tpcc.TerminalConfig
	root      *rng.Stream
	constants rng.Constants

	// NEW-ORDERs of the whole run, warm-up and what was under way at its end
	// included: those that committed, and those of unknown outcome.
	ordered, unknown atomic.Int64
}

func newTerminals(db *txn.DB, info tpcc.LoadInfo, m *mix, cfg tpcc.TerminalConfig, seed uint64) (*terminals, error) {
	schema, err := tpcc.NewSchema(db.Catalog())
	if err != nil {
		return nil, err
	}
	root := rng.New(seed).Split("tpcc.run")
	return &terminals{
		db: db, schema: schema, info: info, mix: m, config: cfg,
		root: root, constants: info.RunConstants(root.Split("constants")),
	}, nil
}

func (t *terminals) worker(ctx context.Context, id int) (driver.Worker, error) {
	sess, err := t.db.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	own := t.root.SplitN(uint64(id))
	w := &worker{
		Session: sess, terminals: t, total: t.mix.total(), rnd: own.Split("choices"),
		terminal: tpcc.NewTerminal(t.db, sess, t.schema, t.config),
		inputs:   tpcc.NewInputs(own.Split("inputs"), t.info, t.constants),
	}
	for _, name := range t.mix.names {
		switch name {
		case "new-order":
			w.kinds = append(w.kinds, kind{w.drawNewOrder, w.newOrder})
		case "order-status":
			w.kinds = append(w.kinds, kind{w.drawOrderStatus, w.orderStatus})
		default:
			return nil, fmt.Errorf("transaction %s is not there yet", name)
		}
	}
	return w, nil
}

// kind is a transaction type: how its input is drawn, outside the measured
// latency, and how it runs.
type kind struct {
	draw func()
	run  func(ctx context.Context) error
}

// worker is one terminal with its session.
type worker struct {
	*txn.Session
	*terminals
	terminal *tpcc.Terminal
	inputs   *tpcc.Inputs
	rnd      *rng.Stream
	total    int
	kinds    []kind

	noIn  tpcc.NewOrderInput
	noOut tpcc.NewOrderOutput
	osIn  tpcc.OrderStatusInput
	osOut tpcc.OrderStatusOutput
}

// Next draws a type and its input.
func (w *worker) Next() int {
	typ := w.mix.pick(w.rnd.Intn(w.total))
	w.kinds[typ].draw()
	return typ
}

// Run runs one transaction; a rolled back order is an outcome, not a failure.
func (w *worker) Run(ctx context.Context, typ int) (driver.Outcome, error) {
	err := w.kinds[typ].run(ctx)
	if errors.Is(err, tpcc.ErrRolledBack) {
		return driver.RolledBack, nil
	}
	return driver.Committed, err
}

func (w *worker) home() int64 { return w.rnd.Range(1, w.info.Warehouses) }

func (w *worker) drawNewOrder()    { w.inputs.NewOrder(w.home(), &w.noIn) }
func (w *worker) drawOrderStatus() { w.inputs.OrderStatus(w.home(), &w.osIn) }

func (w *worker) newOrder(ctx context.Context) error {
	err := w.terminal.NewOrder(ctx, &w.noIn, &w.noOut)
	switch {
	case err == nil:
		w.ordered.Add(1)
	case errors.Is(err, txn.ErrOutcomeUnknown):
		w.unknown.Add(1)
	}
	return err
}

func (w *worker) orderStatus(ctx context.Context) error {
	return w.terminal.OrderStatus(ctx, &w.osIn, &w.osOut)
}
