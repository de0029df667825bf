package main

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
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
	cache    string
	models   modelsFlag
}

// runPlan is a checked runFlags.
type runPlan struct {
	runFlags
	config   bench.Config // what the flags say of it
	fallback bool         // the fabric was not asked for, so another will do
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
				return cli.Usage(err)
			}
			return a.run(c.Context(), plan)
		},
	}
	f.size.add(c)
	f.load.add(c)
	f.pace.add(c)
	c.Flags().StringVar(&f.mix, "mix", "new-order=10,order-status=90", "shares of transaction types, which add up to 100; full means the mix of TPC-C")
	c.Flags().StringVar(&f.design, "design", bench.Designs[0].Name, "how clients read: drtmx (one-sided), drtmh (ordered lookups by RPC), rpc (all by RPC)")
	c.Flags().StringVar(&f.fabric, "fabric", fabricShm, "fabric: shm (data servers are processes that share memory), tcp (processes, over the loopback network), verbs (processes, over an RDMA device) or inproc (data servers run in this process)")
	c.Flags().StringVar(&f.newOrder, "new-order", tpcc.Procedure.String(), "where NEW-ORDER runs: procedure (at its home server) or client")
	c.Flags().StringVar(&f.payment, "payment", tpcc.Procedure.String(), "where PAYMENT runs: procedure (at its home server) or client")
	c.Flags().StringVar(&f.homes, "homes", "", "home warehouses of terminals: fixed, as TPC-C requires, or random for each transaction (default: random if the mix is of new-order and order-status alone)")
	c.Flags().StringVar(&f.delivery, "delivery", bench.DeliveryDeferred, "when DELIVERY runs: deferred (queued, as TPC-C requires) or now (the terminal waits)")
	c.Flags().StringVar(&f.log, "delivery-log", "", "write the result of each deferred DELIVERY to this file, as JSON lines")
	c.Flags().StringVar(&f.cache, "cache", "full", cacheHelp)
	f.models.add(c)
	f.output.add(c)
	c.Flags().StringVar(&f.json, "json", "", "write the report as JSON to this file; - for standard output")
	f.where.add(c)
	f.shows.add(c)
	return c
}

// plan checks the flags; its error reports all faults together.
func (f *runFlags) plan(given func(string) bool) (*runPlan, error) {
	p := &runPlan{runFlags: *f, given: given, fallback: !given("fabric")}
	c := &p.config
	*c = bench.Config{
		Clients: f.pace.clients, Warmup: f.pace.warmup, Duration: f.pace.duration,
		KeyingThink: f.pace.keyingThink, TimeScale: f.pace.timeScale, Homes: f.homes, Delivery: f.delivery,
		Seed: f.load.seed, Version: cli.Version, Commit: cli.Revision(commit),
	}
	var errs []error
	add := func(err error) {
		if err != nil {
			errs = append(errs, err)
		}
	}
	var err error
	c.Mix, err = tpcc.ParseMix(f.mix)
	add(flagFault("mix", f.mix, err))
	c.Design, err = bench.FindDesign(f.design)
	add(flagFault("design", f.design, err))
	c.NewOrder, err = parseMode("new-order", f.newOrder)
	add(err)
	c.Payment, err = parseMode("payment", f.payment)
	add(err)
	c.Cache, err = txn.ParseCache(f.cache)
	add(flagFault("cache", f.cache, err))
	if c.Homes == "" {
		c.Homes = bench.DefaultHomes(c.Mix, c.KeyingThink)
	}
	add(checkChoice("homes", c.Homes, bench.Homes))
	add(checkChoice("delivery", f.delivery, bench.Deliveries))
	if f.log != "" && f.delivery == bench.DeliveryNow {
		add(errors.New("--delivery-log: want --delivery deferred with it"))
	}
	add(checkChoice("fabric", f.fabric, fabrics))
	add(f.models.check())
	add(f.size.check())
	add(f.load.check())
	add(f.pace.check(given))
	add(f.where.check())
	add(p.output.check(f.json, given))
	switch {
	case len(errs) > 0:
	case !f.where.given() && f.size.servers > f.load.warehouses:
		add(fmt.Errorf("--servers %d: want at most one for each of the %d warehouses (--warehouses)", f.size.servers, f.load.warehouses))
	case f.where.given() && f.fabric == fabricInproc:
		add(fmt.Errorf("--fabric %s: a running cluster is reached over its own fabric, %s or %s", f.fabric, fabricShm, fabricTCP))
	case f.where.given() && given("models"):
		add(fmt.Errorf("--models %s: the data servers of a running cluster have theirs; want it with drtmx serve", f.models.name))
	}
	return p, errors.Join(errs...)
}

// parseMode parses where a transaction that writes runs.
func parseMode(flag, v string) (tpcc.Mode, error) {
	mode, err := tpcc.ParseMode(v)
	if err != nil || mode == tpcc.Default {
		return mode, fmt.Errorf("--%s %q: want %v or %v", flag, v, tpcc.Procedure, tpcc.Client)
	}
	return mode, nil
}

// run is tpcc run: outputs, cluster, load, run, check, report.
func (a *app) run(ctx context.Context, p *runPlan) (err error) {
	out, err := a.openOutputs(p)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.close()) }()
	s, err := a.openSession(ctx, p, out.telemetry)
	if err != nil {
		return a.early(ctx, err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if err := a.show(s, out.telemetry, out.live); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.telemetry.close()) }() // before the cluster
	watched, stop := s.watch(ctx)
	defer stop()
	run, err := a.prepareRun(watched, s, p, out)
	if err != nil {
		return a.early(ctx, s.cause(err))
	}
	out.telemetry.db.Store(s.db)
	err = a.measure(ctx, watched, s, run)
	out.bar.done()
	if err == nil {
		err = a.verify(ctx, s, run)
	}
	err = errors.Join(err, a.writeReport(run.Report, p, out.json))
	_, _ = a.stderr.Write(s.Output()) // of a data server that was lost
	return err
}

// early is the error of a run that ended before anything was measured.
func (a *app) early(ctx context.Context, err error) error {
	if stopped := interrupted(ctx); stopped != nil {
		return fmt.Errorf("%w before anything was measured", stopped)
	}
	return notLoaded(err)
}

// openSession starts or finds the data servers.
func (a *app) openSession(ctx context.Context, p *runPlan, telemetry *telemetry) (*session, error) {
	if p.where.given() {
		return a.attach(ctx, &p.where)
	}
	telemetry.expect(p.size.servers)
	return a.start(ctx, p, telemetry.debug)
}

// show starts to answer requests for metrics and profiles of the run.
func (a *app) show(s *session, telemetry *telemetry, l *live) error {
	if s.meter = telemetry.meter; s.meter != nil {
		l.observe(telemetry.ran.Add)
	}
	if !s.separate {
		telemetry.debug = nil // the data servers are in this process
	}
	return telemetry.serve(s.Fabric(), s.Config().Dial, s.Addrs, true, func(what, url string) { a.Say("%s at %s", what, url) })
}

// prepareRun opens the database, loads it if this command started the cluster,
// and prepares the benchmark.
func (a *app) prepareRun(ctx context.Context, s *session, p *runPlan, out *outputs) (*bench.Run, error) {
	if err := s.open(ctx, &p.config); err != nil {
		return nil, err
	}
	if s.found {
		a.Say("%s", s.routes())
	}
	loaded, err := a.loadOwn(ctx, s, p)
	if err != nil {
		return nil, err
	}
	return a.newRun(ctx, s, p, out, loaded)
}

// loadOwn loads a cluster that this command has started, and checks what the
// flags say of another. The report is nil for that.
func (a *app) loadOwn(ctx context.Context, s *session, p *runPlan) (*tpcc.LoadReport, error) {
	if s.own {
		return a.load(ctx, s, &p.load)
	}
	info, err := tpcc.ReadLoadInfo(ctx, s.db)
	if err != nil {
		return nil, err
	}
	if p.given("warehouses") && int64(p.load.warehouses) != info.Warehouses {
		return nil, cli.Usagef("--warehouses %d: the cluster holds %d", p.load.warehouses, info.Warehouses)
	}
	if p.given("servers") && p.size.servers != len(s.Addrs()) {
		return nil, cli.Usagef("--servers %d: the cluster has %d", p.size.servers, len(s.Addrs()))
	}
	return nil, nil
}

// newRun makes the benchmark of a plan on a loaded database.
func (a *app) newRun(ctx context.Context, s *session, p *runPlan, out *outputs, loaded *tpcc.LoadReport) (*bench.Run, error) {
	c := p.config
	c.Fabric, c.Servers, c.Lost = s.Fabric(), len(s.Addrs()), s.Err
	if s.own {
		c.Models = p.models.name
	}
	c.DeliveryLog, c.Every, c.Interval = out.deliveries.writer(), out.live.every, out.live.interval()
	c.Tick = out.bar.tick
	run, err := bench.New(ctx, s.db, c)
	if err != nil {
		return nil, err
	}
	if loaded != nil {
		run.Report.AddLoad(loaded)
	}
	return run, nil
}

// measure runs the load. Its error says why the run did not last.
func (a *app) measure(ctx, watched context.Context, s *session, run *bench.Run) error {
	err := s.cause(run.Measure(watched))
	switch {
	case err != nil:
		run.Report.Error = err.Error()
	case interrupted(ctx) != nil:
		run.Report.Interrupted = true
		err = cli.ErrInterrupted
	}
	return err
}

// verify checks consistency.
func (a *app) verify(ctx context.Context, s *session, run *bench.Run) error {
	watched, stop := s.watch(ctx)
	defer stop()
	bar := a.progressOf("checking")
	err := run.Verify(watched, func(p tpcc.CheckProgress) { bar.set(p.Done, p.Total, "") })
	bar.done()
	if stopped := interrupted(ctx); stopped != nil {
		run.Report.Interrupted = true
		return fmt.Errorf("%w during the consistency check", stopped)
	}
	if err != nil {
		err = s.cause(err)
		run.Report.Error = err.Error()
		return err
	}
	return run.Report.Consistency.Err()
}

// writeReport prints the report for people, and writes it as JSON.
func (a *app) writeReport(r *bench.Report, p *runPlan, out *jsonFile) error {
	var people io.Writer = a.stdout
	if out.toStdout {
		people = a.stderr
	}
	var err error
	switch p.output.style {
	case outputJSON:
		err = (&jsonFile{w: a.stdout, toStdout: true}).write(r)
	case outputPlain:
		printPlain(people, r)
	default:
		printReport(people, r)
	}
	return errors.Join(err, out.write(r))
}
