// Package bench runs TPC-C against a loaded database and reports the measurements. It
// has the terminals, the deferred deliveries, the comparison with the specification's
// terms, and the report. It prints nothing.
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

// Design says how a run reads: by one-sided READs, by RPCs or in procedures.
type Design struct {
	Name  string
	Reads txn.ReadPath
	// Where read-only transactions run. Config has where NEW-ORDER and PAYMENT run,
	// in all designs.
	orderStatus, stockLevel tpcc.Mode
	// Cache is what the clients cache if the design says so: inner nodes. Else Config has it.
	Cache txn.Cache
	// Storage is how the tables are stored. Designs of one storage can run on one database.
	Storage tpcc.Storage
}

// HasModels reports whether clients read by models, of which they cache what Config says.
func (d *Design) HasModels() bool { return d.Reads == txn.OneSided && !d.Cache.Keep.Inner() }

// treeCacheBytes bounds the inner nodes that a client of treecache holds of each index and
// partition.
const treeCacheBytes = 128 << 10

// Designs are the designs that a run can have; the first is the default.
var Designs = []Design{
	{Name: "drtmx", Reads: txn.OneSided, orderStatus: tpcc.Client, stockLevel: tpcc.Default},
	{Name: "drtmh", Reads: txn.OrderedByRPC, orderStatus: tpcc.Client, stockLevel: tpcc.Default},
	{Name: "rpc", Reads: txn.OrderedByRPC, orderStatus: tpcc.Procedure, stockLevel: tpcc.Procedure},
	{
		Name: "treecache", Reads: txn.OneSided, orderStatus: tpcc.Client, stockLevel: tpcc.Default,
		Cache: txn.Cache{Keep: txn.CachePartTree, TableBytes: treeCacheBytes},
	},
	{Name: "fullcache", Reads: txn.OneSided, orderStatus: tpcc.Client, stockLevel: tpcc.Default, Cache: txn.Cache{Keep: txn.CacheTree}},
	{Name: "rolex", Reads: txn.OneSided, orderStatus: tpcc.Client, stockLevel: tpcc.Default, Storage: tpcc.StoredRolex},
	{Name: "hstore", Reads: txn.OneSided, orderStatus: tpcc.Client, stockLevel: tpcc.Default, Storage: tpcc.StoredHStore},
	{Name: "finestore", Reads: txn.OneSided, orderStatus: tpcc.Client, stockLevel: tpcc.Default, Storage: tpcc.StoredFineStore},
}

// FindDesign returns the design with a name. Its error lists the valid names.
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
	Rate              float64       // transactions due per second; 0: terminals run them as fast as they can
	Arrivals          load.Arrivals // when the transactions of Rate are due
	Warmup, Duration  time.Duration // Duration 0: until Count
	Count             int64         // transactions after the warm-up, in equal shares; 0: no bound
	KeyingThink       bool          // terminals wait as TPC-C demands
	TimeScale         float64       // multiplies these waits
	Homes             string        // HomesFixed or HomesRandom
	Delivery          string        // DeliveryDeferred or DeliveryNow
	Seed              uint64
	DeliveryLog       io.Writer // results of deferred DELIVERYs; nil means none

	// Used by the report only: how clients reach the data servers, how many there
	// are, the family of their models, and the program's version.
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

// Run is one benchmark run on a loaded database.
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

// Measure runs the load and adds its measurements to the report, also if it fails.
// Its error is that of load.Run.
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

// conditionOrders is the condition that the database holds exactly the new orders
// whose commit was confirmed to a terminal.
const conditionOrders = "orders"

// Verify checks consistency and adds the verdicts to the report. An error means that
// a check could not be made; a violated condition is a verdict, not an error.
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
