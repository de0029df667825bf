package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
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
	data     dataFlags
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
	recovers bool   // the data directory has data
	shows    telemetryFlags
	delivery string
	log      string // of deliveries
	chaos    []string
	cache    string
	models   modelsFlag
}

// runPlan is a checked runFlags.
type runPlan struct {
	runFlags
	config   bench.Config  // what the flags say of it
	fallback bool          // the fabric was not asked for, so another will do
	found    *cluster.Data // what the data directory has; nil: nothing
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
--runtime-dir or --connect it runs on a cluster that was started by drtmx serve
and loaded by drtmx tpcc prepare.

Without --mix it runs 10 % NEW-ORDER and 90 % ORDER-STATUS; --mix full is the
whole TPC-C, --output plain prints it as go-tpc does. With several --clients it
loads once, runs and checks with each number in turn, and prints a line for each.

Ctrl-C ends the run and prints what ran; a second one kills. The exit status is
not zero if a condition fails (1), the input is bad (2) or the run was
interrupted (130).

With --data-dir the data stays there. If the directory has data, it is recovered
and not loaded again, and --servers and --partitions are those of the data. A
cluster that runs on the directory (drtmx serve --data-dir) is used.

The flags of go-tpc work, too: --threads, --time, --parts, --count, --wait,
--weight, --interval, --metrics-addr. Those that have no meaning here are
refused, or ignored with a line.

With --chaos it runs the mix of drtmx tpcc durability on hosts with --replicas
copies (2 without the flag), and kills, pauses and cuts off hosts, one at a time
and never more than the copies allow, on a schedule that --seed determines. It says
what it does, and at the end how many failovers there were and how long data servers
committed nothing. The exit status is 1 if anything was lost, doubled or wrong, or if
a View showed less than what was acknowledged before it began.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if c.Flags().Changed("weight") && c.Flags().Changed("mix") {
				return cli.Usagef("--mix and --weight: want one of them")
			}
			if c.Flags().Changed("chaos") {
				o, err := f.chaosOf(c)
				if err != nil {
					return cli.Usage(asGiven(c, err))
				}
				return a.chaos(c.Context(), o)
			}
			found, err := f.settleData(c.Context(), c.Flags().Changed)
			if err != nil {
				return cli.Usage(asGiven(c, err))
			}
			plan, err := f.plan(c.Flags().Changed)
			if err != nil {
				return cli.Usage(asGiven(c, err))
			}
			plan.found = found
			return a.run(c.Context(), plan)
		},
	}
	f.size.add(c)
	f.load.add(c)
	f.pace.add(c)
	c.Flags().StringVar(&f.mix, "mix", "new-order=10,order-status=90", "shares of transaction types, which add up to 100; full means the mix of TPC-C")
	c.Flags().StringVar(&f.design, "design", bench.Designs[0].Name, "how clients read: drtmx (one-sided), drtmh (ordered lookups by RPC), rpc (all by RPC); with inner nodes cached: treecache, fullcache; tables stored in another way: rolex, hstore, finestore")
	c.Flags().StringVar(&f.fabric, "fabric", fabricShm, "fabric: shm (data servers are processes that share memory), tcp (processes, over the loopback network), verbs (processes, over an RDMA device) or inproc (data servers run in this process)")
	c.Flags().StringVar(&f.newOrder, "new-order", tpcc.Procedure.String(), "where NEW-ORDER runs: procedure (at its home server) or client")
	c.Flags().StringVar(&f.payment, "payment", tpcc.Procedure.String(), "where PAYMENT runs: procedure (at its home server) or client")
	c.Flags().StringVar(&f.homes, "homes", "", "home warehouses of terminals: fixed, as TPC-C requires, or random for each transaction (default: random if the mix is of new-order and order-status alone)")
	c.Flags().StringVar(&f.delivery, "delivery", bench.DeliveryDeferred, "when DELIVERY runs: deferred (queued, as TPC-C requires) or now (the terminal waits)")
	c.Flags().StringVar(&f.log, "delivery-log", "", "write the result of each deferred DELIVERY to this file, as JSON lines")
	c.Flags().StringVar(&f.cache, "cache", "full", cacheHelp)
	f.models.add(c)
	f.output.add(c)
	c.Flags().StringVar(&f.json, "json", "", "write the report as JSON to this file, a list of them with several --clients; - for standard output")
	f.where.add(c)
	f.data.add(c)
	f.shows.add(c)
	c.Flags().StringSliceVar(&f.chaos, "chaos", nil, "with --replicas: kill, pause (SIGSTOP), cut off, move (the data server of) or restart hosts during the run, one at a time, check that nothing is lost and no View stale, and report failovers, moves and stalls; without a value kill and pause. cut needs root: each host then has a network namespace of its own")
	c.Flags().Lookup("chaos").NoOptDefVal = chaosDefault
	c.Flags().Var(weightFlag{&f.mix}, "weight", "go-tpc's form of --mix: 45,43,4,4,4")
	c.Flags().Lookup("weight").Hidden = true
	a.addGoTPC(c, ofRun...)
	return c
}

// settleData settles what --data-dir means: a cluster that runs on it, or the
// shape of the data there, nil if there is none.
func (f *runFlags) settleData(ctx context.Context, given func(string) bool) (found *cluster.Data, err error) {
	if f.data.dir != "" && f.where.given() {
		return nil, fmt.Errorf("--data-dir %s: want it, --runtime-dir or --connect", f.data.dir)
	}
	if given("durability") && f.where.given() {
		return nil, fmt.Errorf("--durability %s: the data servers of a running cluster have theirs; want it with drtmx serve", f.data.durability)
	}
	if f.data.dir != "" && f.data.check(given) == nil {
		if f.where.runtimeDir = f.data.running(ctx); f.where.runtimeDir != "" {
			return nil, nil
		}
	}
	found, err = f.data.settle(given, &f.size)
	f.recovers = found != nil
	return found, err
}

// plan checks the flags; its error reports all faults together.
func (f *runFlags) plan(given func(string) bool) (*runPlan, error) {
	p := &runPlan{runFlags: *f, given: given, fallback: !given("fabric")}
	c := &p.config
	*c = bench.Config{
		Warmup: f.pace.warmup, Duration: f.pace.limit(given), Count: f.pace.count,
		KeyingThink: f.pace.keyingThink, TimeScale: f.pace.timeScale, Homes: f.homes, Delivery: f.delivery,
		Rate: f.pace.rate, Seed: f.load.seed, Version: cli.Version, Commit: cli.Revision(commit),
	}
	c.Arrivals, _ = bench.ParseArrivals(f.pace.arrivals) // checked below
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
	if d := c.Design; d != nil && d.Cache.Keep.Inner() {
		c.Cache = d.Cache
	}
	p.models.inner = c.Cache.Keep.Inner()
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
	if p.ladder() && p.output.series != "" {
		add(fmt.Errorf("--series and --clients %s: want one number of clients with a time series", listed(p.pace.clients)))
	}
	switch {
	case len(errs) > 0:
	case c.Design.Storage != "" && (f.where.given() || f.data.dir != ""):
		add(fmt.Errorf("--design %s: it stores tables in another way, and so needs data servers of its own, in memory: want no --runtime-dir, --connect or --data-dir with it", f.design))
	case !f.where.given() && f.size.servers > f.load.warehouses && !f.recovers:
		add(fmt.Errorf("--servers %d: want at most one for each of the %d warehouses (--warehouses)", f.size.servers, f.load.warehouses))
	case f.where.given() && f.fabric == fabricInproc:
		add(fmt.Errorf("--fabric %s: a running cluster is reached over its own fabric, %s or %s", f.fabric, fabricShm, fabricTCP))
	case f.where.given() && given("replicas"):
		add(errors.New("--replicas: the data servers of a running cluster have theirs; want it with drtmx serve"))
	case f.where.given() && (given("retain") || given("retain-bytes")):
		add(errors.New("--retain and --retain-bytes: the data servers of a running cluster have theirs; want them with drtmx serve"))
	case f.where.given() && given("writer-lease"):
		add(fmt.Errorf("--writer-lease %v: the data servers of a running cluster have theirs; want it with drtmx serve", f.size.writerLease))
	case f.where.given() && given("memory"):
		add(fmt.Errorf("--memory %v: the data servers of a running cluster have theirs; want it with drtmx serve", &f.size.memory))
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
	loaded, err := a.prepareRun(watched, s, p)
	if err != nil {
		return a.early(ctx, s.cause(err))
	}
	out.telemetry.db.Store(s.db)
	reports, err := a.climb(ctx, watched, s, p, out, loaded)
	if len(reports) == 0 {
		return a.early(ctx, s.cause(err))
	}
	err = errors.Join(err, a.writeReports(reports, p, out))
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
		l.observe(defaultEvery, telemetry.ran.Add)
	}
	if !s.separate {
		telemetry.debug = nil // the data servers are in this process
	}
	return telemetry.serve(s.Fabric(), s.Config().Dial, s.Addrs, true, func(what, url string) { a.Say("%s at %s", what, url) })
}

// prepareRun opens the database, and loads it if this command started the
// cluster.
func (a *app) prepareRun(ctx context.Context, s *session, p *runPlan) (*tpcc.LoadReport, error) {
	if err := s.open(ctx, &p.config); err != nil {
		return nil, err
	}
	if s.found {
		a.Say("%s", s.routes())
	}
	return a.loadOwn(ctx, s, p)
}

// loadOwn loads a cluster that this command has started, and checks what the
// flags say of another. The report is nil for that.
func (a *app) loadOwn(ctx context.Context, s *session, p *runPlan) (*tpcc.LoadReport, error) {
	if s.own && p.found == nil {
		return a.load(ctx, s, &p.load)
	}
	info, err := tpcc.ReadLoadInfo(ctx, s.db)
	if s.own && errors.Is(err, tpcc.ErrNotLoaded) {
		return nil, fmt.Errorf("%s holds no complete load, because one was interrupted; remove the directory to begin anew", p.data.dir)
	}
	if err != nil {
		return nil, err
	}
	if s.own {
		a.Say("%s holds %d warehouses, which are used and not loaded again", p.data.dir, info.Warehouses)
	}
	return nil, p.fits(s, &info)
}

// fits returns an error if a flag that was given says of a running cluster what
// is not so.
func (p *runPlan) fits(s *session, info *tpcc.LoadInfo) error {
	full := tpcc.FullScale()
	for _, f := range []struct {
		flag      string
		want, has int64
		holds     string
	}{
		{"warehouses", int64(p.load.warehouses), info.Warehouses, "holds"},
		{"items", cmp.Or(int64(p.load.items), full.Items), info.Scale.Items, "holds"},
		{"customers", cmp.Or(int64(p.load.customers), full.Customers), info.Scale.Customers, "holds, in each district,"},
		{"servers", int64(p.size.servers), int64(len(s.Addrs())), "has"},
		{"partitions", int64(cmp.Or(p.size.partitions, len(s.Addrs()))), int64(s.db.Partitions()), "has"},
	} {
		if p.given(f.flag) && f.want != f.has {
			return cli.Usagef("--%s %d: the cluster %s %d", f.flag, f.want, f.holds, f.has)
		}
	}
	if !p.given("fabric") {
		return nil
	}
	for i, name := range s.Routes() {
		if name = cmp.Or(name, s.Fabric()); name != p.fabric {
			return cli.Usagef("--fabric %s: data server %d of the cluster is reached over %s", p.fabric, i, name)
		}
	}
	return nil
}

// newRun makes the benchmark of a plan on a loaded database, for so many
// clients.
func (a *app) newRun(ctx context.Context, s *session, p *runPlan, out *outputs, loaded *tpcc.LoadReport, clients int) (*bench.Run, error) {
	c := p.config
	c.Clients = clients
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

// writeReports prints the reports for people, and writes them as JSON: one
// object, or a list if several numbers of clients were asked for.
func (a *app) writeReports(reports []*bench.Report, p *runPlan, out *outputs) error {
	var people io.Writer = a.stdout
	if out.json.ToStdout {
		people = a.stderr
	}
	var all any = reports[0]
	if p.ladder() {
		all = reports
	}
	var err error
	switch {
	case p.output.style == outputJSON:
		err = cli.JSONTo(a.stdout).Put(all)
	case p.output.style == outputPlain:
		for _, r := range reports {
			printPlain(people, r, p.ladder())
		}
	case p.ladder():
		printLadder(people, reports)
	default:
		printReport(people, reports[0])
	}
	return errors.Join(err, out.json.Put(all), out.html.write(fmt.Sprintf("TPC-C, design %s over %s", p.design, reports[0].Fabric)))
}
