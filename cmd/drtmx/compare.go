package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
	"drtmx/txn"
)

// compareFlags are the flags of tpcc compare.
type compareFlags struct {
	where   whereFlags
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
}

// comparison is the JSON object of tpcc compare.
type comparison struct {
	Runs        []*bench.Report `json:"runs"` // in the order they were made
	Ratios      []ratioReport   `json:"ratios"`
	Interrupted bool            `json:"interrupted,omitempty"`
	Error       string          `json:"error,omitempty"` // why it ended early
}

// ratioReport compares the first design with another, within each repetition.
type ratioReport struct {
	Mix     string `json:"mix"`
	Rival   string `json:"rival"`
	Design  string `json:"design"`
	Through spread `json:"throughput_ratio"`
	// CPU ratios are of processor time for each transaction: of clients and
	// data servers together, and of the data servers alone.
	CPU       spread `json:"cpu_ratio"`
	ServerCPU spread `json:"server_cpu_ratio"`
}

// spread is the least, the middle and the greatest of the repetitions.
type spread struct{ Min, Median, Max float64 }

func spreadOf(v []float64) spread {
	v = slices.Sorted(slices.Values(v))
	return spread{v[0], v[len(v)/2], v[len(v)-1]}
}

func (s spread) String() string {
	return fmt.Sprintf("%s (%s to %s)", number(s.Median), number(s.Min), number(s.Max))
}

func (a *app) compareCommand() *cobra.Command {
	var f compareFlags
	c := &cobra.Command{
		Use:   "compare",
		Short: "Run TPC-C with several designs on one cluster, in turn, and report ratios",
		Long: `Starts data servers and loads them once, or takes a running cluster that is
loaded (--data-dir or --connect), then runs every mix with every design,
repeatedly and in turn, so that all see the same machine and the same data.
Ratios are of the first design to each other one, within a repetition. Ends
with the consistency check.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			plans, err := f.plans(c.Flags().Changed)
			if err != nil {
				return cli.Usage(err)
			}
			return a.compare(c.Context(), &f, plans)
		},
	}
	f.where.add(c)
	f.size.add(c)
	f.load.add(c)
	f.pace.add(c)
	c.Flags().StringSliceVar(&f.designs, "designs", []string{"drtmx", "drtmh", "rpc"}, "designs to compare; ratios are of the first to each other one")
	c.Flags().StringSliceVar(&f.caches, "cache", []string{"full"}, cacheHelp+"; several are compared with each other, for designs that read one-sided")
	f.models.add(c)
	c.Flags().StringArrayVar(&f.mixes, "mix", []string{"new-order=10,order-status=90", "order-status=100"}, "mix of transactions; may be given several times")
	c.Flags().StringVar(&f.fabric, "fabric", fabricShm, "fabric: shm, tcp, verbs or inproc")
	c.Flags().IntVar(&f.repeat, "repeat", 3, "repetitions")
	c.Flags().StringVar(&f.json, "json", "", "write all reports and the ratios as JSON to this file; - for standard output")
	return c
}

// plans makes one plan of tpcc run for each mix and design.
func (f *compareFlags) plans(given func(string) bool) ([]*runPlan, error) {
	if f.repeat < 1 || f.repeat > 1000 {
		return nil, fmt.Errorf("--repeat %d: want 1 to 1000", f.repeat)
	}
	if len(f.designs)*len(f.caches) < 2 {
		return nil, fmt.Errorf("--designs %s: want two or more, or several --cache", strings.Join(f.designs, ","))
	}
	var plans []*runPlan
	for _, m := range f.mixes {
		for _, d := range f.designs {
			for i, cache := range f.caches {
				r := runFlags{
					where: f.where, size: f.size, load: f.load, pace: f.pace, mix: m, design: d, cache: cache, models: f.models,
					fabric: f.fabric, newOrder: tpcc.Procedure.String(), payment: tpcc.Procedure.String(),
					output: outputFlags{style: outputTable}, delivery: bench.DeliveryDeferred,
				}
				p, err := r.plan(given)
				if err != nil {
					return nil, err
				}
				if i == 0 || p.config.Design.Reads == txn.OneSided { // no other design has models to keep
					plans = append(plans, p)
				}
			}
		}
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
	if err == nil && d.Reads == txn.OneSided && len(f.caches) > 1 {
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
	first := plans[0]
	out, err := openJSON(f.json, a.stdout)
	if err != nil {
		return cli.Usage(err)
	}
	defer func() { err = errors.Join(err, out.close()) }()
	s, err := a.openSession(ctx, first, &telemetry{})
	if err != nil {
		return a.early(ctx, err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	watched, stop := s.watch(ctx)
	defer stop()
	if err := s.open(watched, &first.config); err != nil {
		return a.early(ctx, s.cause(err))
	}
	loaded, err := a.loadOwn(watched, s, first)
	if err != nil {
		return a.early(ctx, s.cause(err))
	}
	result := &comparison{}
	err = a.runPlans(watched, s, f, plans, loaded, result)
	if stopped := interrupted(ctx); stopped != nil {
		result.Interrupted, err = true, stopped
	} else if err != nil {
		err = s.cause(err)
		result.Error = err.Error()
	}
	if len(result.Runs) > 0 {
		labels := f.labels(plans)
		result.compare(f, labels)
		a.printComparison(result, f, labels, out)
		err = errors.Join(err, out.write(result))
	}
	if err != nil {
		return err
	}
	return a.verifyAll(ctx, s)
}

// runPlans runs all plans in turn, repeatedly. What ran before an error is in
// the result.
func (a *app) runPlans(ctx context.Context, s *session, f *compareFlags, plans []*runPlan, loaded *tpcc.LoadReport, result *comparison) error {
	n := len(plans) / len(f.mixes)
	for rep := range f.repeat {
		for i := range plans {
			// Every repetition starts at another design: none is always first.
			r, err := a.runOne(ctx, s, plans[i/n*n+(i+rep)%n], loaded)
			if err != nil || ctx.Err() != nil {
				return errors.Join(err, ctx.Err())
			}
			result.Runs = append(result.Runs, r)
			a.Say("%d of %d  %-6s %-30s %s per second", rep+1, f.repeat, f.label(r.Design, r.Cache), r.Mix, number(r.Throughput))
		}
	}
	return nil
}

// verifyAll checks consistency after several runs.
func (a *app) verifyAll(ctx context.Context, s *session) error {
	verdicts, err := a.check(ctx, s)
	if stopped := interrupted(ctx); stopped != nil {
		return fmt.Errorf("%w during the consistency check", stopped)
	}
	if err != nil {
		return s.cause(err)
	}
	return verdicts.Err()
}

// runOne measures one design with a database of its own on the cluster.
func (a *app) runOne(ctx context.Context, s *session, p *runPlan, loaded *tpcc.LoadReport) (*bench.Report, error) {
	own := &session{Cluster: s.Cluster, own: s.own, separate: s.separate}
	if err := own.open(ctx, &p.config); err != nil {
		return nil, err
	}
	defer own.db.Close()
	out := &outputs{live: &live{}, bar: a.runBar(p)}
	defer out.bar.done()
	run, err := a.newRun(ctx, own, p, out, loaded)
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
			theirs := c.of(f, mix, rival)
			var through, cpu, server []float64
			for i := range min(len(ours), len(theirs)) {
				x, y := ours[i], theirs[i]
				through = append(through, bench.Ratio(x.Throughput, y.Throughput))
				cpu = append(cpu, bench.Ratio((x.ClientCPUS+x.ServerCPUS)/x.Finished(), (y.ClientCPUS+y.ServerCPUS)/y.Finished()))
				server = append(server, bench.Ratio(x.ServerCPUS/x.Finished(), y.ServerCPUS/y.Finished()))
			}
			if len(through) == 0 {
				continue
			}
			c.Ratios = append(c.Ratios, ratioReport{
				Mix: mix, Design: labels[0], Rival: rival,
				Through: spreadOf(through), CPU: spreadOf(cpu), ServerCPU: spreadOf(server),
			})
		}
	}
}

func (a *app) printComparison(c *comparison, f *compareFlags, labels []string, out *jsonFile) {
	w := a.stdout
	if out.toStdout {
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
		rows := [][]string{{"design", "per second", "µs CPU of clients", "of data servers"}}
		for _, name := range types {
			rows[0] = append(rows[0], "rounds "+name, "RPCs")
		}
		for _, label := range labels {
			if rs := c.of(f, mix, label); len(rs) > 0 {
				rows = append(rows, designRow(label, rs, types))
			}
		}
		table(w, rows)
		fmt.Fprintln(w)
		rows = [][]string{{"ratio", "throughput", "CPU per transaction", "data-server CPU per transaction"}}
		for _, x := range c.Ratios {
			if x.Mix == mix {
				rows = append(rows, []string{x.Design + " ÷ " + x.Rival, x.Through.String(), x.CPU.String(), x.ServerCPU.String()})
			}
		}
		table(w, rows)
	}
	fmt.Fprintln(w)
}

func designRow(label string, rs []*bench.Report, types []string) []string {
	var through, client, server []float64
	for _, r := range rs {
		through = append(through, r.Throughput)
		client = append(client, 1e6*bench.Ratio(r.ClientCPUS, r.Finished()))
		server = append(server, 1e6*bench.Ratio(r.ServerCPUS, r.Finished()))
	}
	row := []string{label, spreadOf(through).String(), spreadOf(client).String(), spreadOf(server).String()}
	for _, name := range types {
		var rounds, rpcs []float64
		for _, r := range rs {
			rounds, rpcs = append(rounds, r.Rounds[name]), append(rpcs, r.RPCs[name])
		}
		row = append(row, fmt.Sprintf("%.2f", spreadOf(rounds).Median), fmt.Sprintf("%.2f", spreadOf(rpcs).Median))
	}
	return row
}
