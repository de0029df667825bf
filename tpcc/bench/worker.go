package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"drtmx/internal/load"
	"drtmx/internal/rng"
	"drtmx/tpcc"
	"drtmx/txn"
)

// Homes of terminals.
const (
	HomesFixed  = "fixed"  // as TPC-C demands
	HomesRandom = "random" // another warehouse for each transaction
)

// Homes are the names of both.
var Homes = []string{HomesFixed, HomesRandom}

// DefaultHomes returns HomesRandom for a mix of only NEW-ORDER and ORDER-STATUS,
// which is not TPC-C, if terminals do not wait. The load then spreads evenly whatever
// the number of clients. A slow server slows down all clients; with fixed homes the
// others would run on into its locks.
func DefaultHomes(m tpcc.Mix, keyingThink bool) string {
	for _, ty := range m.Types() {
		if ty != tpcc.NewOrder && ty != tpcc.OrderStatus {
			return HomesFixed
		}
	}
	if keyingThink {
		return HomesFixed
	}
	return HomesRandom
}

// terminals makes the workers of a run, each a TPC-C terminal.
type terminals struct {
	db        *txn.DB
	schema    *tpcc.Schema
	info      tpcc.LoadInfo
	mix       tpcc.Mix
	types     []tpcc.Type
	config    tpcc.TerminalConfig
	timeScale float64            // of keying and think times; 0: none
	homes     string             // HomesFixed or HomesRandom
	delivery  string             // DeliveryDeferred or DeliveryNow
	count     func(id int) int64 // transactions of a terminal after the warm-up; nil: no bound
	root      *rng.Stream
	constants rng.Constants

	// NEW-ORDERs of the whole run, including the warm-up and transactions under way
	// at its end: those that committed, and those of unknown outcome.
	ordered, unknown atomic.Int64

	deliverers []*deliverer
	waited     atomic.Int64  // DELIVERYs that found their queue full
	withSkips  atomic.Uint64 // DELIVERYs that were not deferred and skipped some district
}

func newTerminals(db *txn.DB, info tpcc.LoadInfo, cfg *Config) (*terminals, error) {
	schema, err := tpcc.NewSchema(db.Catalog())
	if err != nil {
		return nil, err
	}
	root := rng.New(cfg.Seed).Split("tpcc.run")
	t := &terminals{
		db: db, schema: schema, info: info, mix: cfg.Mix, types: cfg.Mix.Types(), homes: cfg.Homes, delivery: cfg.Delivery,
		config: tpcc.TerminalConfig{
			NewOrderMode: cfg.NewOrder, PaymentMode: cfg.Payment,
			OrderStatusMode: cfg.Design.orderStatus, StockLevelMode: cfg.Design.stockLevel,
		},
		root: root, constants: info.RunConstants(root.Split("constants")),
	}
	if cfg.KeyingThink {
		t.timeScale = cfg.TimeScale
	}
	if cfg.Count > 0 {
		t.count = func(id int) int64 {
			n := cfg.Count / int64(cfg.Clients)
			if int64(id) < cfg.Count%int64(cfg.Clients) {
				n++
			}
			return n
		}
	}
	t.makeQueues(cfg.Clients, cfg.DeliveryLog)
	return t, nil
}

// Names returns the names of transaction types, as reports show them.
func Names(types []tpcc.Type) []string {
	names := make([]string, len(types))
	for i, ty := range types {
		names[i] = ty.String()
	}
	return names
}

func (t *terminals) worker(ctx context.Context, id int, rec *load.Recorder) (load.Worker, error) {
	sess, err := t.db.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	own := t.root.SplitN(uint64(id))
	w := &worker{
		id: id, Session: sess, terminals: t, deck: tpcc.NewDeck(t.mix, own.Split("choices")),
		terminal: tpcc.NewTerminal(t.db, sess, t.schema, t.config),
		inputs:   tpcc.NewInputs(own.Split("inputs"), t.info, t.constants),
		pacing:   tpcc.NewPacing(own.Split("pacing"), t.timeScale),
		homing:   own.Split("homes"), rec: rec, left: -1,
	}
	if t.count != nil {
		w.left = t.count(id)
	}
	w.w, w.d = tpcc.TerminalHome(id, t.info.Warehouses)
	for i, ty := range t.types {
		w.place[ty] = i
	}
	return w, nil
}

// worker is one terminal with its session.
type worker struct {
	*txn.Session
	*terminals
	terminal *tpcc.Terminal
	inputs   *tpcc.Inputs
	deck     *tpcc.Deck
	pacing   *tpcc.Pacing
	rec      *load.Recorder
	left     int64                // transactions to run after the warm-up; -1: no bound
	homing   *rng.Stream          // draws homes, if they are random
	id       int                  // from 0
	w, d     int64                // home
	place    [len(tpcc.Types)]int // index of a type in load.Config.Types

	noIn   tpcc.NewOrderInput
	noOut  tpcc.NewOrderOutput
	payIn  tpcc.PaymentInput
	payOut tpcc.PaymentOutput
	osIn   tpcc.OrderStatusInput
	osOut  tpcc.OrderStatusOutput
	dlIn   tpcc.DeliveryInput
	dlOut  tpcc.DeliveryOutput
	slIn   tpcc.StockLevelInput
	slOut  tpcc.StockLevelOutput
}

// Next draws a type and its input. The measured latency does not include it.
func (w *worker) Next() int {
	if w.left == 0 {
		return load.NoMore
	}
	if w.left > 0 && w.rec.Measuring() {
		w.left--
	}
	ty := w.deck.Draw()
	if w.terminals.homes == HomesRandom {
		w.w = w.homing.Range(1, w.info.Warehouses)
	}
	switch ty {
	case tpcc.NewOrder:
		w.inputs.NewOrder(w.w, &w.noIn)
	case tpcc.Payment:
		w.inputs.Payment(w.w, &w.payIn)
	case tpcc.OrderStatus:
		w.inputs.OrderStatus(w.w, &w.osIn)
	case tpcc.Delivery:
		w.inputs.Delivery(w.w, &w.dlIn)
	case tpcc.StockLevel:
		w.inputs.StockLevel(w.w, w.d, &w.slIn)
	}
	return w.place[ty]
}

// Pause draws keying and think time. They are 0 if the terminals do not wait.
func (w *worker) Pause(typ int) (before, after time.Duration) {
	if w.timeScale == 0 {
		return 0, 0
	}
	ty := w.types[typ]
	return w.pacing.Keying(ty), w.pacing.Think(ty)
}

// Run runs one transaction; a rolled back order is an outcome, not a failure.
func (w *worker) Run(ctx context.Context, typ int) (r load.Result, err error) {
	switch w.types[typ] {
	case tpcc.NewOrder:
		err = w.newOrder(ctx)
	case tpcc.Payment:
		err = w.terminal.Payment(ctx, &w.payIn, &w.payOut)
	case tpcc.OrderStatus:
		err = w.terminal.OrderStatus(ctx, &w.osIn, &w.osOut)
	case tpcc.Delivery:
		if len(w.deliverers) > 0 {
			return w.deferDelivery(ctx)
		}
		err = w.terminal.Delivery(ctx, &w.dlIn, &w.dlOut)
		if r.Count = uint64(w.dlOut.Skipped()); r.Count > 0 {
			w.withSkips.Add(1)
		}
	case tpcc.StockLevel:
		before := w.terminal.Stats().StockLevelsEscalated
		err = w.terminal.StockLevel(ctx, &w.slIn, &w.slOut)
		r.Count = w.terminal.Stats().StockLevelsEscalated - before
	}
	if errors.Is(err, tpcc.ErrRolledBack) {
		return load.Result{Outcome: load.RolledBack}, nil
	}
	return r, err
}

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
