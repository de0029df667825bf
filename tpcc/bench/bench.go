// Package bench runs TPC-C against a loaded database and reports what it
// measured: terminals, deferred deliveries, the comparison with the
// specification's terms, and the report itself. It prints nothing.
package bench

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"drtmx/internal/load"
	"drtmx/tpcc"
	"drtmx/txn"
)

// Design says how reads travel.
type Design struct {
	Name  string
	Reads txn.ReadPath
	// Where transactions that only read run. The others run at their home
	// server in all designs.
	orderStatus, stockLevel tpcc.Mode
}

// Designs are those that a run can have; the first is the default.
var Designs = []Design{
	{"drtmx", txn.OneSided, tpcc.Client, tpcc.Default},
	{"drtmh", txn.OrderedByRPC, tpcc.Client, tpcc.Default},
	{"rpc", txn.OrderedByRPC, tpcc.Procedure, tpcc.Procedure},
}

// FindDesign returns the design of a name. Its error lists the names there are.
func FindDesign(name string) (*Design, error) {
	var names []string
	for i := range Designs {
		if Designs[i].Name == name {
			return &Designs[i], nil
		}
		names = append(names, Designs[i].Name)
	}
	last := len(names) - 1
	return nil, fmt.Errorf("want %s or %s", strings.Join(names[:last], ", "), names[last])
}

// Config describes a run.
type Config struct {
	Mix               tpcc.Mix
	Design            *Design
	NewOrder, Payment tpcc.Mode // where they run: tpcc.Procedure or tpcc.Client
	Cache             txn.Cache
	Clients           int
	Rate              float64       // transactions due each second; 0: terminals run them as fast as they can
	Arrivals          load.Arrivals // when these are due
	Warmup, Duration  time.Duration // Duration 0: until Count
	Count             int64         // transactions after the warm-up, in equal shares; 0: no bound
	KeyingThink       bool          // terminals wait, as TPC-C asks
	TimeScale         float64       // multiplies these waits
	Homes             string        // HomesFixed or HomesRandom
	Delivery          string        // DeliveryDeferred or DeliveryNow
	Seed              uint64
	DeliveryLog       io.Writer // results of deferred DELIVERYs; nil means none

	// What only the report has: how the data servers are reached, how many
	// there are, the family of their models, and which program runs.
	Fabric          string
	Servers         int
	Models          string
	Version, Commit string

	// Tick, Every and Interval are those of load.Config.
	Tick     func(load.Progress)
	Every    time.Duration
	Interval func(load.Interval)
	// Lost returns why a data server is gone, or nil if none is.
	Lost func() error
}

// Run is a benchmark of a loaded database.
type Run struct {
	Report *Report

	cfg       Config
	db        *txn.DB
	info      tpcc.LoadInfo
	placed    int64 // orders in the database before the run
	terminals *terminals
}

// New prepares a run. It fails with tpcc.ErrNotLoaded if the database holds no
// warehouses.
func New(ctx context.Context, db *txn.DB, cfg Config) (*Run, error) {
	info, err := tpcc.ReadLoadInfo(ctx, db)
	if err != nil {
		return nil, err
	}
	servers, err := db.ServerStats(ctx)
	if err != nil {
		return nil, err
	}
	r := &Run{cfg: cfg, db: db, info: info, Report: newReport(&cfg, db, info, servers[0].Durability)}
	if l := servers[0].Log; l != nil {
		r.Report.Copies = l.Copies
	}
	if r.placed, err = tpcc.OrdersPlaced(ctx, db); err != nil {
		return nil, err
	}
	r.terminals, err = newTerminals(db, info, &r.cfg)
	return r, err
}

// Measure runs the load and reports what it measured, also if it fails.
func (r *Run) Measure(ctx context.Context) error {
	t := r.terminals
	g := &gauges{db: r.db, lost: r.cfg.Lost, terminals: t}
	rec, err := load.Run(ctx, load.Config{
		Types: Names(t.types), Clients: r.cfg.Clients, Warmup: r.cfg.Warmup, Duration: r.cfg.Duration,
		Rate: r.cfg.Rate, Arrivals: r.cfg.Arrivals, Seed: r.cfg.Seed,
		NewWorker: t.worker, Backgrounds: len(t.deliverers), NewBackground: t.deliverer, Begin: g.begin, End: g.end,
		Tick: r.cfg.Tick, Every: r.cfg.Every, Interval: r.cfg.Interval,
	})
	if rec != nil {
		r.Report.addRecord(rec)
		r.Report.addGauges(g)
		r.Report.addCompliance(rec, &r.cfg, r.info)
	}
	return err
}

// conditionOrders is the verdict on what the clients were told: the database
// holds as many new orders as committed, no more and no fewer.
const conditionOrders = "orders"

// Verify checks consistency and reports the verdicts. Its error is that of a
// check that could not be made; what the verdicts say is the report's.
func (r *Run) Verify(ctx context.Context, progress func(tpcc.CheckProgress)) error {
	start := time.Now()
	verdicts, err := tpcc.Check(ctx, r.db, tpcc.CheckConfig{AtRest: true, Progress: progress})
	if err != nil {
		return err
	}
	after, err := tpcc.OrdersPlaced(ctx, r.db)
	if err != nil {
		return err
	}
	verdicts[conditionOrders] = tpcc.VerifyOrders(r.placed, after, r.terminals.ordered.Load(), r.terminals.unknown.Load())
	r.Report.Consistency, r.Report.CheckS = verdicts, time.Since(start).Seconds()
	return nil
}
