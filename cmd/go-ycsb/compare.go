package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/magiconair/properties"
	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/ycsb"
	"drtmx/ycsb/bench"
	"drtmx/ycsb/props"
)

// Bounds of a comparison.
const (
	repeatMax   = 1000
	lengthMax   = 24 * time.Hour
	loadThreads = 8
)

// compareFlags are the flags of compare.
type compareFlags struct {
	engines          []string
	clients          []int
	repeat           int
	warmup, duration time.Duration
	count            int64
	node             string
	json             string

	model *ycsb.Node // parsed from node; nil without it
}

func (a *app) compareCommand() *cobra.Command {
	var in input
	var f compareFlags
	var all []string
	for _, e := range engines {
		all = append(all, "  "+e.name+strings.Repeat(" ", max(11-len(e.name), 1))+e.what)
	}
	c := &cobra.Command{
		Use:   "compare drtmx -P FILE",
		Short: "Run a workload with several engines, in turn, and report counts and ratios",
		Long: `Starts an embedded store for each engine, loads it, and runs the workload on all in
turn, repeatedly, with each number of clients. Reports throughput and processor time
with their spread, what each kind of operation costs in rounds, READs, bytes and RPCs,
and the ratios of the first engine to each other one, within a repetition.

Engines:
` + strings.Join(all, "\n") + `
A + and a property without "drtmx." makes another one: xstore+cache=models.

Flags say how many clients there are and how long runs are, not properties. With -p drtmx.fabric=shm the data
servers are processes, and their processor time is apart from that of clients. Stores whose records a run inserts are made anew for the
next run.

With --node, data servers are modelled as machines behind a fast network: verbs, atomics,
bytes and requests queue at their NICs and cores, which are slow, and all times are
stretched by a factor (dilation) so that this machine does not limit them. Figures are
those of the modelled machines. Beside each throughput is the bound that exact counts
give, and what it is a bound of. What clients and handlers compute is measured before the
runs with each number of clients, with all engines in turn: the stores of all are open
then. --duration and --warmup are of this machine.`,
		Args: database,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := in.properties(c)
			if err != nil {
				return err
			}
			return a.compare(c.Context(), args[0], p, &f)
		},
	}
	in.add(c, false)
	c.Flags().StringSliceVar(&f.engines, "engines", []string{engines[0].name, engines[1].name}, "engines to compare; ratios are of the first to each other one")
	c.Flags().IntSliceVar(&f.clients, "clients", []int{1, 4, 16}, "numbers of clients")
	c.Flags().IntVar(&f.repeat, "repeat", 3, "repetitions")
	c.Flags().DurationVar(&f.warmup, "warmup", time.Second, "time before each measurement")
	c.Flags().DurationVar(&f.duration, "duration", 5*time.Second, "length of each measurement; 0: until --count")
	c.Flags().Int64Var(&f.count, "count", 0, "operations of each measurement; 0: as many as --duration allows")
	c.Flags().StringVar(&f.node, "node", "", "model the machines of data servers behind a fast network: weak, or some of rtt=2us,verb=25ns,atomic=100ns,byte=0.08,cores=1,rpc=1us,dilation=1000")
	c.Flags().StringVar(&f.json, "json", "", "write all figures as JSON to this file; - for standard output")
	return c
}

// check checks the flags.
func (f *compareFlags) check() error {
	for i, n := range f.clients {
		if slices.Contains(f.clients[:i], n) {
			return cli.Usagef("--clients %d: named twice", n)
		}
		if n < 1 || n > bench.MaxThreads {
			return cli.Usagef("--clients %d: want 1 to %d", n, bench.MaxThreads)
		}
		if f.count > 0 && f.count < int64(n) {
			return cli.Usagef("--count %d: want at least one operation for each of %d clients", f.count, n)
		}
	}
	switch {
	case len(f.clients) == 0:
		return cli.Usagef("--clients: want at least one number")
	case f.repeat < 1 || f.repeat > repeatMax:
		return cli.Usagef("--repeat %d: want 1 to %d", f.repeat, repeatMax)
	case f.warmup < 0 || f.warmup > lengthMax:
		return cli.Usagef("--warmup %v: want 0 to %v", f.warmup, lengthMax)
	case f.duration < 0 || f.duration > lengthMax:
		return cli.Usagef("--duration %v: want 0 to %v", f.duration, lengthMax)
	case f.count < 0:
		return cli.Usagef("--count %d: want a number of operations, or 0", f.count)
	case f.count == 0 && f.duration == 0:
		return cli.Usagef("--duration 0 with --count 0: want one of them")
	}
	if f.node != "" {
		model, err := ycsb.ParseNode(f.node)
		if err != nil {
			return cli.Usagef("--node %w", err)
		}
		f.model = &model
	}
	return nil
}

// compare runs all engines in turn.
func (a *app) compare(ctx context.Context, name string, p *properties.Properties, f *compareFlags) (err error) {
	if name != "drtmx" {
		return cli.Usagef("compare %s: want drtmx", name)
	}
	if err := f.check(); err != nil {
		return err
	}
	var all []*contender
	for _, label := range f.engines {
		if slices.ContainsFunc(all, func(c *contender) bool { return c.label == label }) {
			return cli.Usagef("--engines %s: named twice", label)
		}
		c, err := newContender(label, p)
		if err == nil && f.model != nil {
			err = c.stretch(f.model.Dilation)
		}
		if err != nil {
			return err
		}
		if fabric := c.p.GetString(props.Fabric, "inproc"); f.model != nil && fabric != "inproc" {
			return cli.Usagef("--node with %s %s: want %s=inproc", props.Fabric, fabric, props.Fabric)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return cli.Usagef("--engines: want at least one")
	}
	out, err := cli.OpenJSON(f.json, a.stdout)
	if err != nil {
		return cli.Usage(err)
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	defer func() {
		for _, c := range all {
			err = errors.Join(err, c.close())
		}
	}()
	result := &comparison{Fabric: fabrics(all), Records: all[0].records, Node: f.model}
	if err = a.runAll(ctx, name, f, all, result); err != nil {
		if errors.Is(context.Cause(ctx), cli.ErrInterrupted) {
			err = cli.ErrInterrupted
		}
		result.Error = err.Error()
	}
	if len(result.Runs) == 0 {
		return err
	}
	result.addRatios(f)
	w := a.stdout
	if out.ToStdout {
		w = a.stderr
	}
	plan, planErr := bench.NewPlan(all[0].p, bench.Run)
	if planErr != nil {
		return errors.Join(err, planErr)
	}
	result.print(w, f, plan.Workload().Describe())
	return errors.Join(err, out.Put(result))
}

func (a *app) runAll(ctx context.Context, name string, f *compareFlags, all []*contender, result *comparison) error {
	runs := f.repeat * len(f.clients) * len(all)
	for rep := range f.repeat {
		for _, clients := range f.clients {
			if f.model != nil {
				if err := calibrate(ctx, name, all); err != nil {
					return fmt.Errorf("%d clients: %w", clients, err)
				}
			}
			for i := range all {
				c := all[(i+rep)%len(all)] // every repetition starts at another one
				run, err := c.measure(ctx, name, f, clients)
				if err != nil {
					return fmt.Errorf("engine %s, %d clients: %w", c.label, clients, err)
				}
				run.Repetition = rep + 1
				result.Runs = append(result.Runs, run)
				a.Say("%d of %d  %-20s %4d clients  %s operations per second", len(result.Runs), runs, c.label, clients, cli.Number(run.Throughput))
				if run.Failed > 0 {
					a.Say("engine %s, %d clients: %d operations failed, the first with: %s", c.label, clients, run.Failed, run.First)
				}
			}
		}
	}
	return nil
}
