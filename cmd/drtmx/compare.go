package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"drtmx/tpcc"
)

// compareFlags are the flags of tpcc compare.
type compareFlags struct {
	where   whereFlags
	size    sizeFlags
	load    loadFlags
	pace    paceFlags
	designs []string
	mixes   []string
	fabric  string
	repeat  int
	json    string
}

// comparison is the JSON object of tpcc compare.
type comparison struct {
	Runs   []*report     `json:"runs"` // in the order they were made
	Ratios []ratioReport `json:"ratios"`
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
				return usageError{err}
			}
			return a.compare(c.Context(), &f, plans)
		},
	}
	f.where.add(c)
	f.size.add(c)
	f.load.add(c)
	f.pace.add(c)
	c.Flags().StringSliceVar(&f.designs, "designs", []string{"drtmx", "drtmh", "rpc"}, "designs to compare; ratios are of the first to each other one")
	c.Flags().StringArrayVar(&f.mixes, "mix", []string{"new-order=10,order-status=90", "order-status=100"}, "mix of transactions; may be given several times")
	c.Flags().StringVar(&f.fabric, "fabric", fabricShm, "what carries the verbs: shm, tcp, verbs or inproc")
	c.Flags().IntVar(&f.repeat, "repeat", 3, "repetitions")
	c.Flags().StringVar(&f.json, "json", "", "write all reports and the ratios as JSON to this file; - for standard output")
	return c
}

// plans makes one plan of tpcc run for each mix and design.
func (f *compareFlags) plans(given func(string) bool) ([]*runPlan, error) {
	if f.repeat < 1 || f.repeat > 1000 {
		return nil, fmt.Errorf("--repeat %d: want 1 to 1000", f.repeat)
	}
	if len(f.designs) < 2 {
		return nil, fmt.Errorf("--designs %s: want two or more", strings.Join(f.designs, ","))
	}
	var plans []*runPlan
	for _, m := range f.mixes {
		for _, d := range f.designs {
			r := runFlags{
				where: f.where, size: f.size, load: f.load, pace: f.pace, mix: m, design: d,
				fabric: f.fabric, newOrder: tpcc.Procedure.String(), payment: tpcc.Procedure.String(), output: outputFlags{style: outputTable}, delivery: deliveryDeferred,
			}
			p, err := r.plan(given)
			if err != nil {
				return nil, err
			}
			plans = append(plans, p)
		}
	}
	return plans, nil
}

func (a *app) compare(ctx context.Context, f *compareFlags, plans []*runPlan) (err error) {
	out, err := openJSON(f.json, a.stdout)
	if err != nil {
		return usageError{err}
	}
	defer func() { err = errors.Join(err, out.close()) }()
	first := plans[0]
	s, err := a.cluster(ctx, first, &telemetry{})
	if err != nil {
		return a.early(ctx, err)
	}
	defer func() { err = errors.Join(err, s.close()) }()
	watched, stop := s.watch(ctx)
	defer stop()
	load := newReport(first, s)
	if err := a.ready(watched, s, first, load); err != nil {
		return a.early(ctx, s.cause(err))
	}
	result := &comparison{}
	for rep := range f.repeat {
		for i := range plans {
			// Every repetition starts at another design: none is always first.
			n := len(f.designs)
			p := plans[i/n*n+(i+rep)%n]
			r, err := a.runOne(watched, s, p, load)
			if stopped := interrupted(ctx); stopped != nil {
				return stopped
			}
			if err != nil {
				return s.cause(err)
			}
			result.Runs = append(result.Runs, r)
			a.say("%d of %d  %-6s %-30s %s per second", rep+1, f.repeat, r.Design, r.Mix, number(r.Throughput))
		}
	}
	result.compare(f)
	a.printComparison(result, f, out)
	if err := out.write(result); err != nil {
		return err
	}
	return a.verify(ctx, s, load)
}

// runOne measures one design with a database of its own on the cluster.
func (a *app) runOne(ctx context.Context, s *session, p *runPlan, load *report) (*report, error) {
	own := &session{Cluster: s.Cluster, separate: s.separate}
	if err := own.open(ctx, p.how.reads, p.load.seed); err != nil {
		return nil, err
	}
	defer own.db.Close()
	r := newReport(p, own)
	r.Partitions, r.Warehouses, r.info = load.Partitions, load.Warehouses, load.info
	r.LoadS, r.LoadRows, r.LoadRowBytes = load.LoadS, load.LoadRows, load.LoadRowBytes
	return r, a.measure(ctx, own, p, r, &live{})
}

// of lists the runs of a mix and design, by repetition.
func (c *comparison) of(mix, design string) (rs []*report) {
	for _, r := range c.Runs {
		if r.Mix == mix && r.Design == design {
			rs = append(rs, r)
		}
	}
	return rs
}

func (r *report) finished() (n float64) {
	for _, t := range r.Types {
		n += float64(t.Committed + t.RolledBack)
	}
	return n
}

// compare computes the ratios.
func (c *comparison) compare(f *compareFlags) {
	for _, m := range f.mixes {
		parsed, _ := parseMix(m) // checked before
		mix := parsed.String()
		ours := c.of(mix, f.designs[0])
		for _, rival := range f.designs[1:] {
			theirs := c.of(mix, rival)
			var through, cpu, server []float64
			for i := range ours {
				x, y := ours[i], theirs[i]
				through = append(through, ratio(x.Throughput, y.Throughput))
				cpu = append(cpu, ratio((x.ClientCPUS+x.ServerCPUS)/x.finished(), (y.ClientCPUS+y.ServerCPUS)/y.finished()))
				server = append(server, ratio(x.ServerCPUS/x.finished(), y.ServerCPUS/y.finished()))
			}
			c.Ratios = append(c.Ratios, ratioReport{
				Mix: mix, Design: f.designs[0], Rival: rival,
				Through: spreadOf(through), CPU: spreadOf(cpu), ServerCPU: spreadOf(server),
			})
		}
	}
}

func (a *app) printComparison(c *comparison, f *compareFlags, out *jsonFile) {
	w := a.stdout
	if out.toStdout {
		w = a.stderr
	}
	r := c.Runs[0]
	fmt.Fprintf(w, "\nTPC-C over %s: %d warehouses, %d data servers, %d clients, %d repetitions of %v; median (least to greatest)\n",
		r.Fabric, r.Warehouses, r.Servers, r.Clients, f.repeat, f.pace.duration.Round(time.Millisecond))
	for _, m := range f.mixes {
		parsed, _ := parseMix(m)
		mix := parsed.String()
		fmt.Fprintf(w, "\n%s\n\n", mix)
		rows := [][]string{{"design", "per second", "µs CPU of clients", "of data servers"}}
		for _, name := range typeNames(parsed.Types()) {
			rows[0] = append(rows[0], "rounds "+name, "RPCs")
		}
		for _, d := range f.designs {
			rows = append(rows, designRow(c.of(mix, d), typeNames(parsed.Types())))
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

func designRow(rs []*report, types []string) []string {
	var through, client, server []float64
	for _, r := range rs {
		through = append(through, r.Throughput)
		client = append(client, 1e6*ratio(r.ClientCPUS, r.finished()))
		server = append(server, 1e6*ratio(r.ServerCPUS, r.finished()))
	}
	row := []string{rs[0].Design, spreadOf(through).String(), spreadOf(client).String(), spreadOf(server).String()}
	for _, name := range types {
		var rounds, rpcs []float64
		for _, r := range rs {
			rounds, rpcs = append(rounds, r.Rounds[name]), append(rpcs, r.RPCs[name])
		}
		row = append(row, fmt.Sprintf("%.2f", spreadOf(rounds).Median), fmt.Sprintf("%.2f", spreadOf(rpcs).Median))
	}
	return row
}
