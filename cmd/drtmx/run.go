package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/load"
	"drtmx/tpcc"
	"drtmx/txn"
)

// defaultClients keeps four data servers on a small machine busy without
// queueing: see docs/operations.md.
const defaultClients = 16

// runFlags are the flags of tpcc run.
type runFlags struct {
	where    whereFlags
	size     sizeFlags
	load     loadFlags
	pace     paceFlags
	mix      string
	design   string
	fabric   string
	newOrder string
	payment  string
	json     string
	output   outputFlags
	homes    string // "" until plan has settled it
	shows    telemetryFlags
	delivery string
	log      string // of deliveries
}

// runPlan is a checked runFlags.
type runPlan struct {
	runFlags
	types    tpcc.Mix
	how      *design
	terminal tpcc.TerminalConfig
	fallback bool // the fabric was not asked for, so another will do
	given    func(flag string) bool
}

func (a *app) runCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run",
		Short: "Load and run TPC-C, check consistency, and report",
		Long: `Starts data servers as child processes over shared memory (in this process
where the machine has none), loads warehouses, runs the mix, checks the
consistency conditions, prints a report and leaves nothing behind. With
--data-dir or --connect it runs on a cluster that was started by drtmx serve
and loaded by drtmx tpcc prepare.

Without --mix it runs 10 % NEW-ORDER and 90 % ORDER-STATUS; --mix full is the
whole TPC-C, --output plain prints it as go-tpc does.

Ctrl-C ends the run and prints what ran; a second one kills. The exit status is
not zero if a condition fails (1), the input is bad (2) or the run was
interrupted (130).`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			plan, err := f.plan(c.Flags().Changed)
			if err != nil {
				return usageError{err}
			}
			return a.run(c.Context(), plan)
		},
	}
	f.size.add(c)
	f.load.add(c)
	f.pace.add(c)
	c.Flags().StringVar(&f.mix, "mix", "new-order=10,order-status=90", "shares of transaction types, which add up to 100, or full for TPC-C's")
	c.Flags().StringVar(&f.design, "design", designs[0].name, "how reads travel: drtmx (one-sided), drtmh (ordered lookups by RPC), rpc (all by RPC)")
	c.Flags().StringVar(&f.fabric, "fabric", fabricShm, "what carries the verbs: shm (data servers are processes), tcp (likewise, over the loopback network), verbs (likewise, over an RDMA device) or inproc (they are in this process)")
	c.Flags().StringVar(&f.newOrder, "new-order", tpcc.Procedure.String(), "where NEW-ORDER runs: procedure (at its home server) or client")
	c.Flags().StringVar(&f.payment, "payment", tpcc.Procedure.String(), "where PAYMENT runs: procedure (at its home server) or client")
	c.Flags().StringVar(&f.homes, "homes", "", "home warehouses of terminals: fixed, as TPC-C asks, or random for each transaction (default: random if the mix is of new-order and order-status alone)")
	c.Flags().StringVar(&f.delivery, "delivery", deliveryDeferred, "when DELIVERY runs: deferred (queued, as TPC-C asks) or now (the terminal waits)")
	c.Flags().StringVar(&f.log, "delivery-log", "", "write the result of each deferred DELIVERY to this file, as JSON lines")
	f.output.add(c)
	c.Flags().StringVar(&f.json, "json", "", "write the report as JSON to this file; - for standard output")
	f.where.add(c)
	f.shows.add(c)
	return c
}

// plan checks the flags; its error reports all faults together.
func (f *runFlags) plan(given func(string) bool) (*runPlan, error) {
	p := &runPlan{runFlags: *f, given: given, fallback: !given("fabric")}
	var errs []error
	var err error
	if p.types, err = parseMix(f.mix); err != nil {
		errs = append(errs, err)
	}
	if p.how, err = findDesign(f.design); err != nil {
		errs = append(errs, err)
	}
	newOrder, err := parseMode("new-order", f.newOrder)
	if err != nil {
		errs = append(errs, err)
	}
	payment, err := parseMode("payment", f.payment)
	if err != nil {
		errs = append(errs, err)
	}
	if p.homes == "" {
		p.homes = defaultHomes(p.types, f.pace.keyingThink)
	} else if !slices.Contains(homes, p.homes) {
		errs = append(errs, fmt.Errorf("--homes %q: want %s", f.homes, oneOf(homes)))
	}
	if !slices.Contains(deliveries, f.delivery) {
		errs = append(errs, fmt.Errorf("--delivery %q: want %s", f.delivery, oneOf(deliveries)))
	} else if f.log != "" && f.delivery == deliveryNow {
		errs = append(errs, errors.New("--delivery-log: want --delivery deferred with it"))
	}
	for _, err := range []error{checkFabric(f.fabric), f.size.check(), f.load.check(), f.pace.check(given), f.where.check(), p.output.check(f.json, given)} {
		if err != nil {
			errs = append(errs, err)
		}
	}
	switch {
	case len(errs) > 0:
	case !f.where.given() && f.size.servers > f.load.warehouses:
		errs = append(errs, fmt.Errorf("--servers %d: want at most one for each of the %d warehouses (--warehouses)", f.size.servers, f.load.warehouses))
	case f.where.given() && f.fabric == fabricInproc:
		errs = append(errs, fmt.Errorf("--fabric %s: a running cluster is reached over its own fabric, %s or %s", f.fabric, fabricShm, fabricTCP))
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	p.terminal = tpcc.TerminalConfig{
		NewOrderMode: newOrder, PaymentMode: payment, OrderStatusMode: p.how.orderStatus, StockLevelMode: p.how.stockLevel,
	}
	return p, nil
}

// parseMode parses where a transaction that writes runs.
func parseMode(flag, v string) (tpcc.Mode, error) {
	mode, err := tpcc.ParseMode(v)
	if err != nil || mode == tpcc.Default {
		return mode, fmt.Errorf("--%s %q: want %v or %v", flag, v, tpcc.Procedure, tpcc.Client)
	}
	return mode, nil
}

// run is tpcc run.
func (a *app) run(ctx context.Context, p *runPlan) (err error) {
	out, err := openJSON(p.json, a.stdout)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, out.close()) }()
	live, err := a.openLive(p)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, live.close()) }()
	if live.deliveries, err = openDeliveryLog(p.log); err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, live.deliveries.close()) }()
	shown, err := p.shows.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shown.close()) }()
	s, err := a.cluster(ctx, p, shown)
	if err != nil {
		return a.early(ctx, err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := a.show(s, shown, live); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shown.close()) }() // before the cluster
	watched, stop := s.watch(ctx)
	defer stop()
	r := newReport(p, s)
	if err := a.ready(watched, s, p, r); err != nil {
		return a.early(ctx, s.cause(err))
	}
	shown.db.Store(s.db)
	failure := a.measure(watched, s, p, r, live)
	failure = s.cause(failure)
	switch {
	case failure != nil:
		r.Error = failure.Error()
	case interrupted(ctx) != nil:
		failure = errInterrupted
		r.Interrupted = true
	default:
		failure = a.verify(ctx, s, r)
	}
	a.finish(r, p, out, &failure)
	if lost := s.Output(); len(lost) > 0 {
		fmt.Fprintf(a.stderr, "%s", lost)
	}
	return failure
}

// early is the error of a run that ended before anything was measured.
func (a *app) early(ctx context.Context, err error) error {
	if stopped := interrupted(ctx); stopped != nil {
		return fmt.Errorf("%w before anything was measured", stopped)
	}
	return notLoaded(err)
}

// cluster starts or finds the data servers.
func (a *app) cluster(ctx context.Context, p *runPlan, shown *telemetry) (*session, error) {
	if p.where.given() {
		return a.attach(ctx, &p.where)
	}
	shown.expect(p.size.servers)
	return a.start(ctx, p.fabric, p.fallback, p.size.size(), shown.debug, &p.where.tls)
}

// show starts to answer those who ask what the run does.
func (a *app) show(s *session, shown *telemetry, l *live) error {
	if s.meter = shown.meter; s.meter != nil {
		l.observe(shown.ran.Add)
	}
	if !s.separate {
		shown.debug = nil // the data servers are in this process
	}
	return shown.serve(s.Fabric(), s.Config().Dial, s.Addrs, true, func(what, url string) { a.say("%s at %s", what, url) })
}

// ready opens the database and sees to it that it is loaded.
func (a *app) ready(ctx context.Context, s *session, p *runPlan, r *report) error {
	if err := s.open(ctx, p.how.reads, p.load.seed); err != nil {
		return err
	}
	r.Partitions, r.Fabric = s.db.Partitions(), s.Fabric()
	if s.found {
		a.say("%s", s.routes())
	}
	if s.own {
		loaded, err := a.load(ctx, s, &p.load)
		if err != nil {
			return err
		}
		r.loaded(loaded)
	}
	info, err := tpcc.ReadLoadInfo(ctx, s.db)
	if err != nil {
		return err
	}
	if !s.own && p.given("warehouses") && int64(p.load.warehouses) != info.Warehouses {
		return usagef("--warehouses %d: the cluster holds %d", p.load.warehouses, info.Warehouses)
	}
	if !s.own && p.given("servers") && p.size.servers != len(s.Addrs()) {
		return usagef("--servers %d: the cluster has %d", p.size.servers, len(s.Addrs()))
	}
	r.Warehouses, r.info = int(info.Warehouses), info
	r.placed, err = tpcc.OrdersPlaced(ctx, s.db)
	return err
}

// measure runs the load and fills in what it measured.
func (a *app) measure(ctx context.Context, s *session, p *runPlan, r *report, l *live) error {
	terminals, err := newTerminals(s.db, r.info, p, l.deliveries.writer())
	if err != nil {
		return err
	}
	r.ran = terminals
	g := &gauges{session: s, terminals: terminals}
	bar, warm := a.runBar(p, "warming up"), true
	rec, err := load.Run(ctx, load.Config{
		Types: terminals.names(), Clients: p.pace.clients, Warmup: p.pace.warmup, Duration: p.pace.duration,
		NewWorker: terminals.worker, Backgrounds: len(terminals.deliverers), NewBackground: terminals.deliverer, Begin: g.begin, End: g.end,
		Every: l.every, Interval: l.interval(),
		Tick: func(t load.Progress) {
			if warm && !t.WarmingUp {
				warm = false
				bar.done()
				bar = a.runBar(p, "running")
			}
			bar.set(int64(t.Elapsed), int64(t.Of), "%.1f of %v, %s transactions per second",
				t.Elapsed.Seconds(), t.Of, number(ratio(float64(t.Finished), t.Elapsed.Seconds())))
		},
	})
	bar.done()
	if rec != nil {
		r.measured(rec, p, g)
	}
	return err
}

// runBar is silent where lines of the run appear on the way.
func (a *app) runBar(p *runPlan, name string) *progress {
	if p.output.style == outputPlain {
		return &progress{}
	}
	return a.progressOf(name)
}

// verify checks consistency.
func (a *app) verify(ctx context.Context, s *session, r *report) error {
	watched, stop := s.watch(ctx)
	defer stop()
	start := time.Now()
	verdicts, err := a.check(watched, s)
	if stopped := interrupted(ctx); stopped != nil {
		r.Interrupted = true
		return fmt.Errorf("%w during the consistency check", stopped)
	}
	if err != nil {
		err = s.cause(err)
		r.Error = err.Error()
		return err
	}
	if r.ran != nil {
		after, err := tpcc.OrdersPlaced(watched, s.db)
		if err != nil {
			return s.cause(err)
		}
		verdicts[conditionOrders] = tpcc.VerifyOrders(r.placed, after, r.ran.ordered.Load(), r.ran.unknown.Load())
	}
	r.Consistency, r.CheckS = verdicts, time.Since(start).Seconds()
	return verdictError(verdicts)
}

// conditionOrders is the verdict on what the clients were told: as many orders
// as committed, no more and no fewer, are in the database.
const conditionOrders = "orders"

// finish prints the report and writes it.
func (a *app) finish(r *report, p *runPlan, out *jsonFile, failure *error) {
	var people io.Writer = a.stdout
	if out.toStdout {
		people = a.stderr
	}
	switch p.output.style {
	case outputJSON:
		toStdout := &jsonFile{w: a.stdout, toStdout: true}
		*failure = errors.Join(*failure, toStdout.write(r))
	case outputPlain:
		r.printPlain(people)
	default:
		r.print(people)
	}
	*failure = errors.Join(*failure, out.write(r))
}

// readPathName is for the report.
func readPathName(r txn.ReadPath) string {
	return [...]string{"one-sided", "ordered by RPC"}[r]
}
