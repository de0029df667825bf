package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
)

// compareFlags are the flags of tpcc compare.
type compareFlags struct {
	where   whereFlags
	data    dataFlags
	size    sizeFlags
	load    loadFlags
	pace    paceFlags
	designs []string
	caches  []string
	models  modelsFlag
	mixes   []string
	fabric  string
	repeat  int
	json    string
	html    htmlFlag
	hdr     string
}

// comparison is the JSON object of tpcc compare.
type comparison struct {
	Runs        []*bench.Report `json:"runs"` // in the order they were made
	Ratios      []ratioReport   `json:"ratios"`
	Interrupted bool            `json:"interrupted,omitempty"`
	Error       string          `json:"error,omitempty"` // why it ended early

	page *htmlFile
}

// ratioReport compares the first design with another, within each repetition.
type ratioReport struct {
	Mix    string `json:"mix"`
	Rival  string `json:"rival"`
	Design string `json:"design"`
	cli.Ratios
}

func (a *app) compareCommand() *cobra.Command {
	var f compareFlags
	c := &cobra.Command{
		Use:   "compare",
		Short: "Run TPC-C with several designs, in turn, and report ratios",
		Long: `Starts data servers and loads them once, or takes a running cluster that is
loaded (--runtime-dir or --connect), then runs every mix with every design,
repeatedly and in turn, so that all see the same machine and the same data.
Designs that store tables in another way (rolex, hstore, finestore) have data
servers of their own, beside the others.
Ratios are of the first design to each other one, within a repetition. Latencies
are medians over the repetitions. Ends with the consistency check. Says before it
starts how long the runs take.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			data := runFlags{where: f.where, data: f.data, size: f.size}
			found, err := data.settleData(c.Context(), c.Flags().Changed)
			if err != nil {
				return cli.Usage(asGiven(c, err))
			}
			f.where, f.data, f.size = data.where, data.data, data.size
			plans, err := f.plans(c.Flags().Changed, found)
			if err != nil {
				return cli.Usage(asGiven(c, err))
			}
			return a.compare(c.Context(), &f, plans)
		},
	}
	f.where.add(c)
	f.data.add(c)
	f.size.add(c)
	f.load.add(c)
	f.pace.add(c)
	c.Flags().StringSliceVar(&f.designs, "designs", []string{"drtmx", "drtmh", "rpc"}, "designs to compare; ratios are of the first to each other one")
	c.Flags().StringSliceVar(&f.caches, "cache", []string{"full"}, cacheHelp+"; several are compared with each other, for designs that read one-sided")
	f.models.add(c)
	c.Flags().StringArrayVar(&f.mixes, "mix", []string{"new-order=10,order-status=90", "order-status=100"}, "mix of transactions; may be given several times")
	c.Flags().StringVar(&f.fabric, "fabric", fabricShm, "fabric: shm, tcp, verbs or inproc")
	c.Flags().IntVar(&f.repeat, "repeat", 3, "repetitions")
	a.addGoTPC(c, ofRun...)
	f.html.add(c)
	c.Flags().StringVar(&f.hdr, "hdr", "", "write latencies as HDR percentiles to files with this name, which ends in .hgrm, and the design, the number of the mix if there are several, and the transaction before that")
	c.Flags().StringVar(&f.json, "json", "", "write all reports and the ratios as JSON to this file; - for standard output")
	return c
}

// plans makes one plan of tpcc run for each mix and design.
func (f *compareFlags) plans(given func(string) bool, found *cluster.Data) ([]*runPlan, error) {
	if f.repeat < 1 || f.repeat > 1000 {
		return nil, fmt.Errorf("--repeat %d: want 1 to 1000", f.repeat)
	}
	if len(f.designs)*len(f.caches) < 2 {
		return nil, fmt.Errorf("--designs %s: want two or more, or several --cache", strings.Join(f.designs, ","))
	}
	if err := f.html.check(); err != nil {
		return nil, err
	}
	if f.hdr != "" && !hdrIsPercentiles(f.hdr) {
		return nil, fmt.Errorf("--hdr %q: want a name that ends in %s", f.hdr, hdrPercentiles)
	}
	if len(f.pace.clients) > 1 {
		return nil, fmt.Errorf("--clients %s: want one number; tpcc run takes several", listed(f.pace.clients))
	}
	var plans []*runPlan
	for _, m := range f.mixes {
		for _, d := range f.designs {
			for i, cache := range f.caches {
				r := runFlags{
					where: f.where, data: f.data, recovers: found != nil, size: f.size, load: f.load, pace: f.pace, mix: m, design: d, cache: cache, models: f.models,
					fabric: f.fabric, newOrder: tpcc.Procedure.String(), payment: tpcc.Procedure.String(),
					output: outputFlags{style: outputTable}, delivery: bench.DeliveryDeferred,
				}
				p, err := r.plan(given)
				if err != nil {
					return nil, err
				}
				p.found = found
				if i == 0 || p.config.Design.HasModels() {
					plans = append(plans, p)
				}
			}
		}
	}
	for _, p := range plans {
		starts := plans[slices.IndexFunc(plans, p.sharesData)]
		starts.models.inner = starts.models.inner || p.models.inner // it starts the data servers
	}
	if len(plans) < 2*len(f.mixes) {
		return nil, fmt.Errorf("--designs %s: want two or more", strings.Join(f.designs, ","))
	}
	return plans, nil
}

// label names a design among those that are compared: with its cache, if
// several are.
func (f *compareFlags) label(design, cache string) string {
	d, err := bench.FindDesign(design)
	if err == nil && d.HasModels() && len(f.caches) > 1 {
		return design + " cache " + cache
	}
	return design
}

// labels are those of plans for one mix.
func (f *compareFlags) labels(plans []*runPlan) (all []string) {
	for _, p := range plans[:len(plans)/len(f.mixes)] {
		all = append(all, f.label(p.design, p.config.Cache.String()))
	}
	return all
}

func (a *app) compare(ctx context.Context, f *compareFlags, plans []*runPlan) (err error) {
	out, err := cli.OpenJSON(f.json, a.stdout)
	if err != nil {
		return cli.Usage(err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	page, err := openHTML(f.html, &f.pace)
	if err != nil {
		return cli.Usage(err)
	}
	defer func() { err = errors.Join(err, page.close()) }()
	latencies, err := f.openHDR(plans)
	defer func() { err = errors.Join(err, latencies.close()) }()
	if err != nil {
		return cli.Usage(err)
	}
	a.Say("%s", f.expect(len(plans)))
	stages, watched, closeAll, err := a.openStages(ctx, plans)
	defer func() { err = errors.Join(err, closeAll()) }()
	if err != nil {
		return a.early(ctx, err)
	}
	result := &comparison{page: page}
	err = a.runPlans(watched, stages, f, plans, result)
	if stopped := interrupted(ctx); stopped != nil {
		result.Interrupted, err = true, stopped
	} else if err != nil {
		for _, g := range stages {
			err = g.cause(err)
		}
		result.Error = err.Error()
	}
	if len(result.Runs) > 0 {
		labels := f.labels(plans)
		result.compare(f, labels)
		a.printComparison(result, f, labels, out)
		err = errors.Join(err, out.Put(result), result.writeHDR(f, labels, latencies), page.write(fmt.Sprintf("TPC-C over %s: %s", result.Runs[0].Fabric, strings.Join(labels, ", "))))
	}
	if err != nil {
		return err
	}
	for _, g := range stages {
		if err := a.verifyAll(ctx, g.session); err != nil {
			return err
		}
	}
	return nil
}

// stage is a loaded cluster, on which the designs of one storage run in turn.
type stage struct {
	*session
	first  *runPlan // it says how the data servers are started
	loaded *tpcc.LoadReport
}

// sharesData reports whether two plans can run on one database.
func (p *runPlan) sharesData(q *runPlan) bool {
	return p.config.Design.Storage == q.config.Design.Storage
}

// openStages starts and loads a cluster for each storage among the plans, or finds the one that runs.
// The context ends when a data server of any of them is lost.
func (a *app) openStages(ctx context.Context, plans []*runPlan) (stages []*stage, watched context.Context, closeAll func() error, err error) {
	var closers []func() error
	closeAll = func() error {
		var errs []error
		for _, c := range slices.Backward(closers) {
			errs = append(errs, c())
		}
		return errors.Join(errs...)
	}
	watched = ctx
	for i, p := range plans {
		if slices.ContainsFunc(plans[:i], p.sharesData) {
			continue
		}
		s, err := a.openSession(watched, p, &telemetry{})
		if err != nil {
			return stages, watched, closeAll, err
		}
		closers = append(closers, s.close)
		var stop context.CancelFunc
		watched, stop = s.watch(watched)
		closers = append(closers, func() error { stop(); return nil })
		if err := s.open(watched, &p.config); err != nil {
			return stages, watched, closeAll, s.cause(err)
		}
		loaded, err := a.loadOwn(watched, s, p)
		if err != nil {
			return stages, watched, closeAll, s.cause(err)
		}
		stages = append(stages, &stage{s, p, loaded})
	}
	return stages, watched, closeAll, nil
}

// expect says how long the runs of n plans take.
func (f *compareFlags) expect(n int) string {
	runs := n * f.repeat
	end := "the consistency check comes on top"
	if !f.where.given() {
		end = "loading and the consistency check come on top"
	}
	return fmt.Sprintf("%d runs (%d mixes, %d designs, %d repetitions) %s; %s", runs, len(f.mixes), n/len(f.mixes), f.repeat, f.pace.takes(runs), end)
}

// hdrMark names the files of a label in the mix of a number.
func (f *compareFlags) hdrMark(mix int, label string) string {
	mark := "." + strings.ReplaceAll(label, " ", "-")
	if len(f.mixes) > 1 {
		mark += fmt.Sprintf(".mix%d", mix+1)
	}
	return mark
}

// openHDR opens the files of --hdr before the runs.
func (f *compareFlags) openHDR(plans []*runPlan) (*hdrFiles, error) {
	h := &hdrFiles{percentiles: map[string]*cli.OutFile{}}
	if f.hdr == "" {
		return h, nil
	}
	for i := range f.mixes {
		types := bench.Names(plans[i*len(plans)/len(f.mixes)].config.Mix.Types())
		for _, label := range f.labels(plans) {
			if err := h.open(f.hdr, f.hdrMark(i, label), types); err != nil {
				return h, err
			}
		}
	}
	return h, nil
}

// writeHDR writes the percentiles of each label in each mix, of all repetitions
// together.
func (c *comparison) writeHDR(f *compareFlags, labels []string, h *hdrFiles) error {
	var errs []error
	for i, mix := range f.mixNames() {
		for _, label := range slices.Compact(slices.Sorted(slices.Values(labels))) {
			errs = append(errs, h.write(f.hdr, f.hdrMark(i, label), c.of(f, mix, label)...))
		}
	}
	return errors.Join(errs...)
}

// runPlans runs all plans in turn, repeatedly. What ran before an error is in
// the result.
func (a *app) runPlans(ctx context.Context, stages []*stage, f *compareFlags, plans []*runPlan, result *comparison) error {
	n := len(plans) / len(f.mixes)
	for rep := range f.repeat {
		for i := range plans {
			// Every repetition starts at another design: none is always first.
			p := plans[i/n*n+(i+rep)%n]
			g := stages[slices.IndexFunc(stages, func(g *stage) bool { return g.first.sharesData(p) })]
			r, err := a.runOne(ctx, g.session, p, g.loaded, result.page)
			if err != nil || ctx.Err() != nil {
				return errors.Join(err, ctx.Err())
			}
			result.Runs = append(result.Runs, r)
			result.page.add(f.label(r.Design, r.Cache), r)
			a.Say("%d of %d  %-6s %-30s %s per second%s", rep+1, f.repeat, f.label(r.Design, r.Cache), r.Mix, cli.Number(r.Throughput), f.pace.left(len(plans)*f.repeat-len(result.Runs)))
		}
	}
	return nil
}

// verifyAll checks consistency after several runs.
func (a *app) verifyAll(ctx context.Context, s *session) error {
	verdicts, err := a.check(ctx, s, false)
	if stopped := interrupted(ctx); stopped != nil {
		return fmt.Errorf("%w during the consistency check", stopped)
	}
	if err != nil {
		return s.cause(err)
	}
	return verdicts.Err()
}

// runOne measures one design with a database of its own on the cluster.
func (a *app) runOne(ctx context.Context, s *session, p *runPlan, loaded *tpcc.LoadReport, page *htmlFile) (*bench.Report, error) {
	own := &session{Cluster: s.Cluster, own: s.own, separate: s.separate}
	if err := own.open(ctx, &p.config); err != nil {
		return nil, err
	}
	defer own.db.Close()
	out := &outputs{live: &live{every: defaultEvery}, bar: a.runBar(p)}
	page.observe(out.live)
	defer out.bar.done()
	run, err := a.newRun(ctx, own, p, out, loaded, p.pace.clients[0])
	if err != nil {
		return nil, err
	}
	return run.Report, run.Measure(ctx)
}

// of lists the runs of a mix and a label, by repetition.
func (c *comparison) of(f *compareFlags, mix, label string) (rs []*bench.Report) {
	for _, r := range c.Runs {
		if r.Mix == mix && f.label(r.Design, r.Cache) == label {
			rs = append(rs, r)
		}
	}
	return rs
}

// mixNames are the mixes as reports name them.
func (f *compareFlags) mixNames() (all []string) {
	for _, m := range f.mixes {
		parsed, _ := tpcc.ParseMix(m) // checked before
		all = append(all, parsed.String())
	}
	return all
}

// compare computes the ratios of the first label to each other one, from the
// repetitions in which both ran.
func (c *comparison) compare(f *compareFlags, labels []string) {
	for _, mix := range f.mixNames() {
		ours := c.of(f, mix, labels[0])
		for _, rival := range labels[1:] {
			if r, ok := cli.RatiosOf(costs(ours), costs(c.of(f, mix, rival))); ok {
				c.Ratios = append(c.Ratios, ratioReport{mix, rival, labels[0], r})
			}
		}
	}
}

// costs are what each run achieved and took.
func costs(rs []*bench.Report) (all []cli.Cost) {
	for _, r := range rs {
		all = append(all, cli.Cost{
			Throughput: r.Throughput,
			CPU:        bench.Ratio(r.ClientCPUS+r.ServerCPUS, r.Finished()), ServerCPU: bench.Ratio(r.ServerCPUS, r.Finished()),
		})
	}
	return all
}

func (a *app) printComparison(c *comparison, f *compareFlags, labels []string, out *cli.JSONFile) {
	w := a.stdout
	if out.ToStdout {
		w = a.stderr
	}
	r := c.Runs[0]
	fmt.Fprintf(w, "\nTPC-C over %s: %d warehouses, %d data servers, %d clients, %d repetitions of %v; median (least to greatest)\n",
		r.Fabric, r.Warehouses, r.Servers, r.Clients, f.repeat, f.pace.duration.Round(time.Millisecond))
	for i, mix := range f.mixNames() {
		if !slices.ContainsFunc(c.Runs, func(r *bench.Report) bool { return r.Mix == mix }) {
			continue // it ended before
		}
		parsed, _ := tpcc.ParseMix(f.mixes[i])
		types := bench.Names(parsed.Types())
		fmt.Fprintf(w, "\n%s\n\n", mix)
		rows := [][]string{{"design", "per second", "µs CPU of clients", "of data servers", "cached"}}
		for _, name := range types {
			rows[0] = append(rows[0], "rounds "+name, "RPCs")
		}
		for _, label := range labels {
			if rs := c.of(f, mix, label); len(rs) > 0 {
				rows = append(rows, designRow(label, rs, types))
			}
		}
		cli.Table(w, rows)
		fmt.Fprintln(w)
		printLatencies(w, labels, types, func(label string) []*bench.Report { return c.of(f, mix, label) })
		rows = [][]string{cli.RatioTitles("transaction")}
		for _, x := range c.Ratios {
			if x.Mix == mix {
				rows = append(rows, x.Row(x.Design, x.Rival))
			}
		}
		cli.Table(w, rows)
	}
	fmt.Fprintln(w)
}

// printLatencies writes the latencies of each transaction in each design.
func printLatencies(w io.Writer, labels, types []string, of func(label string) []*bench.Report) {
	rows := [][]string{{"latency", "", "p50 µs", "p95 µs", "p99 µs"}}
	for _, name := range types {
		for _, label := range labels {
			if rs := of(label); len(rs) > 0 {
				t := bench.MedianLatency(rs, name)
				rows = append(rows, []string{name, label, cli.Number(t.P50), cli.Number(t.P95), cli.Number(t.P99)})
			}
		}
	}
	cli.Table(w, rows)
	fmt.Fprintln(w)
}

func designRow(label string, rs []*bench.Report, types []string) []string {
	var through, client, server, cached []float64
	for _, r := range rs {
		through = append(through, r.Throughput)
		client = append(client, 1e6*bench.Ratio(r.ClientCPUS, r.Finished()))
		server = append(server, 1e6*bench.Ratio(r.ServerCPUS, r.Finished()))
		cached = append(cached, float64(r.CacheBytes))
	}
	row := []string{
		label, cli.SpreadOf(through).String(), cli.SpreadOf(client).String(), cli.SpreadOf(server).String(),
		cli.BytesText(uint64(cli.SpreadOf(cached).Median)),
	}
	for _, name := range types {
		var rounds, rpcs []float64
		for _, r := range rs {
			rounds, rpcs = append(rounds, r.Rounds[name]), append(rpcs, r.RPCs[name])
		}
		row = append(row, fmt.Sprintf("%.2f", cli.SpreadOf(rounds).Median), fmt.Sprintf("%.2f", cli.SpreadOf(rpcs).Median))
	}
	return row
}
