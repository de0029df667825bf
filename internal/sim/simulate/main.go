// Command simulate runs simulated clusters, one for each seed, in processes of a test
// binary of package server that is built with Go's scheduler made repeatable.
//
//	go run ./internal/sim/simulate -seeds 1-2000          clusters, each from its seed
//	go run ./internal/sim/simulate -seeds 17 -trace       all events of one
//	go run ./internal/sim/simulate -seeds 17 -shrink      makes the case of a failure smaller
//
// The Makefile has short forms. It prints a line for each failure, and ends with
// code 1 if there is one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	switch err := run(ctx, os.Args[1:]); {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errFailed):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "simulate:", err)
		os.Exit(2)
	}
}

// errFailed says that clusters have failed, which has been printed.
var errFailed = errors.New("simulated clusters have failed")

// options are the flags.
type options struct {
	seeds    seedRange
	kept     string
	kind     string
	order    uint64
	without  string
	replay   int
	jobs     int
	failures int
	limit    time.Duration
	overlay  string
	binary   string
	table    string
	patience time.Duration
	race     bool
	trace    bool
	shrink   bool
	json     bool
}

func run(ctx context.Context, args []string) (err error) {
	var o options
	f := flag.NewFlagSet("simulate", flag.ContinueOnError)
	f.Var(&o.seeds, "seeds", "`seeds`, as 17, 1-2000, or 1- with -time")
	f.StringVar(&o.kept, "kept", "", "simulate the cases of this `file` first")
	f.StringVar(&o.kind, "kind", "", "`kind` of cluster: memory, writers, bins, twins, faults, disk, hosts, storm, tpcc, bank, queue or lost; drawn if empty")
	f.Uint64Var(&o.order, "order", 0, "other delays for the same cases")
	f.StringVar(&o.without, "without", "", "`parts` of the cases to leave out, separated by commas")
	f.IntVar(&o.replay, "replay", 10, "run every `n`-th seed again, in a process of its own, and compare; 0: none")
	f.IntVar(&o.jobs, "jobs", runtime.NumCPU(), "processes at a time")
	f.IntVar(&o.failures, "failures", 5, "end after so many failures")
	f.DurationVar(&o.limit, "time", 0, "begin no seed after this time")
	f.StringVar(&o.overlay, "overlay", "", "overlay `file` of the engine, to simulate a planted bug")
	f.StringVar(&o.binary, "binary", "", "simulate with this `file`, an absolute path, and build it first if it is not there")
	f.StringVar(&o.table, "table", "", "add a row for this run to the page `file`")
	f.DurationVar(&o.patience, "patience", time.Minute, "how long a process may take for a seed")
	f.BoolVar(&o.race, "race", false, "build with the race detector")
	f.BoolVar(&o.trace, "trace", false, "print the events of the one seed")
	f.BoolVar(&o.shrink, "shrink", false, "leave out one part of a failing case after the other while it still fails")
	f.BoolVar(&o.json, "json", false, "print what each cluster has shown, as JSON")
	if err := f.Parse(args); err != nil {
		return err
	}
	switch one := o.seeds.last == o.seeds.first; {
	case f.NArg() > 0:
		return fmt.Errorf("argument %q: want none", f.Arg(0))
	case o.seeds.first == 0 && o.kept == "":
		return errors.New("-seeds is missing: want a seed or a range, such as 1-2000")
	case o.seeds.open() && o.limit == 0:
		return fmt.Errorf("-seeds %s has no end: want one, or -time", &o.seeds)
	case (o.trace || o.shrink) && !one:
		return fmt.Errorf("-seeds %s: want one seed with -trace and -shrink", &o.seeds)
	case (o.trace || o.shrink) && o.table != "":
		return fmt.Errorf("-table %s: want neither -trace nor -shrink beside it, which are no runs to count", o.table)
	}
	if o.binary != "" && !filepath.IsAbs(o.binary) {
		return fmt.Errorf("-binary %s: want an absolute path", o.binary)
	}
	kept, err := readCases(o.kept)
	if err != nil {
		return err
	}
	var table *page
	if o.table != "" {
		at, err := commit(ctx)
		if err != nil {
			return err
		}
		if table, err = openPage(o.table, at); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, table.close()) }()
	}
	dir, err := os.MkdirTemp("", "simulate-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	say("building")
	b, err := build(ctx, dir, &o)
	say("")
	if err != nil {
		return err
	}
	if err := b.knows(ctx, o.kind); err != nil {
		return err
	}
	c := simCase{Kind: o.kind, Order: o.order, Seed: o.seeds.first}
	if o.without != "" {
		c.Without = strings.Split(o.without, ",")
	}
	switch {
	case o.trace:
		return trace(ctx, b, c, os.Stdout)
	case o.shrink:
		return shrinkCase(ctx, b, c)
	}
	r := newRuns(b, &o)
	err = r.all(ctx, kept, c)
	if table != nil && r.clusters > 0 {
		err = errors.Join(err, table.add(r, time.Now(), ctx.Err() != nil))
	}
	return err
}

// say shows progress on a terminal, in place of what was there.
func say(format string, args ...any) {
	if st, err := os.Stderr.Stat(); err != nil || st.Mode()&os.ModeCharDevice == 0 {
		return
	}
	fmt.Fprintf(os.Stderr, "\r\033[K"+format, args...)
}
