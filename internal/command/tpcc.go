package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/tpcc"
	"drtmx/tpcc/bench"
)

func (a *app) tpccCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "tpcc",
		Short: "Load, run and check TPC-C",
		Long: `Loads, runs and checks the TPC-C workload.

"drtmx tpcc run" alone needs nothing else: it starts data servers of its own,
loads them, runs, checks, and leaves nothing behind. To keep data between
commands, run "drtmx serve --runtime-dir DIR" beside them and give each of them
--runtime-dir DIR: prepare loads, run and check use what is loaded, cleanup
empties. Without --data-dir, the data is in the memory of the servers and nowhere
else.`,
	}
	c.AddCommand(a.runCommand(), a.compareCommand(), a.prepareCommand(), a.checkCommand(), a.cleanupCommand(), a.durabilityCommand())
	group(c)
	return c
}

// requireCluster is for commands that make no sense on a cluster of their own.
// Without flags they are for the cluster of drtmx cluster up.
func requireCluster(w *whereFlags) error {
	if !w.given() {
		w.runtimeDir = cluster.DefaultDir()
	}
	if err := w.check(); err != nil {
		return cli.Usage(err)
	}
	return nil
}

func (a *app) prepareCommand() *cobra.Command {
	var own ownFlags
	var load loadFlags
	c := &cobra.Command{
		Use:   "prepare --runtime-dir DIR",
		Short: "Load warehouses into a running cluster",
		Long: `Loads the initial population of TPC-C into the cluster that drtmx serve runs in
DIR. The cluster must be empty: drtmx tpcc cleanup empties it. With --data-dir it
starts data servers on that directory, loads, and stops them, unless a cluster
runs on it.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if _, err := own.check(c.Context(), c.Flags().Changed); err != nil {
				return err
			}
			if err := load.check(); err != nil {
				return cli.Usage(err)
			}
			return a.prepare(c.Context(), &own, &load)
		},
	}
	own.add(c)
	load.add(c)
	a.addGoTPC(c, ofPrepare...)
	return c
}

func (a *app) prepare(ctx context.Context, own *ownFlags, load *loadFlags) error {
	return a.attached(ctx, own, func(ctx context.Context, s *session) error {
		info, err := tpcc.ReadLoadInfo(ctx, s.db)
		if err == nil {
			return fmt.Errorf("the cluster holds %d warehouses already; drtmx tpcc cleanup empties it", info.Warehouses)
		}
		if !errors.Is(err, tpcc.ErrNotLoaded) {
			return err
		}
		if n := len(s.Addrs()); load.warehouses < n {
			return cli.Usagef("--warehouses %d: want at least one for each of the %d data servers", load.warehouses, n)
		}
		_, err = a.load(ctx, s, load)
		return err
	})
}

// attached runs f with the database of a running cluster, or of one that it starts
// on a data directory.
func (a *app) attached(ctx context.Context, own *ownFlags, f func(context.Context, *session) error) (err error) {
	s, err := a.open(ctx, own)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	watched, stop := s.watch(ctx)
	defer stop()
	if err := s.open(watched, &bench.Config{Design: &bench.Designs[0]}); err != nil {
		return s.cause(err)
	}
	if s.found {
		a.Say("%s", s.routes())
	}
	err = s.cause(f(watched, s))
	if stopped := interrupted(ctx); stopped != nil {
		return stopped
	}
	return err
}

// load loads the initial population and says what it took.
func (a *app) load(ctx context.Context, s *session, l *loadFlags) (*tpcc.LoadReport, error) {
	if err := fitsMemory(ctx, s, l); err != nil {
		return nil, err
	}
	bar := a.progressOf("loading")
	defer bar.done()
	cfg := l.config()
	cfg.Progress = func(p tpcc.LoadProgress) { bar.set(p.Rows, p.TotalRows, "%d rows", p.Rows) }
	start := time.Now()
	report, err := tpcc.Load(ctx, s.db, cfg)
	if err != nil {
		return nil, fmt.Errorf("load: %w", err)
	}
	report.Elapsed = time.Since(start)
	bar.done()
	a.Say("loaded %d warehouses: %d rows, %s, in %.1f s", l.warehouses, report.Rows, cli.BytesText(uint64(report.Bytes)), report.Elapsed.Seconds())
	return &report, nil
}

func (a *app) checkCommand() *cobra.Command {
	var own ownFlags
	var running bool
	c := &cobra.Command{
		Use:   "check --runtime-dir DIR",
		Short: "Check the consistency conditions of TPC-C on a running cluster",
		Long: `Checks conditions 3.3.2.1 to 3.3.2.12 of TPC-C, and that secondary indexes
agree with their tables. No transactions should run meanwhile, except with
--running, which checks each warehouse and district as of one moment, and leaves
out the conditions that span warehouses. The exit status is not zero if any
condition fails.

With --data-dir it starts data servers on that directory, which recover its data,
checks, and stops them, unless a cluster runs on it.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			data, err := own.check(c.Context(), c.Flags().Changed)
			switch {
			case err != nil:
				return err
			case data == nil && !own.where.given():
				return cli.Usagef("--data-dir %s: it has no data", own.data.dir)
			}
			return a.attached(c.Context(), &own, func(ctx context.Context, s *session) error {
				verdicts, err := a.check(ctx, s, running)
				if err != nil {
					return notLoaded(err)
				}
				printVerdicts(a.stdout, verdicts)
				return verdicts.Err()
			})
		},
	}
	own.add(c)
	c.Flags().BoolVar(&running, "running", false, "transactions run meanwhile: check by snapshots")
	a.addGoTPC(c)
	return c
}

// check evaluates the consistency conditions, with progress.
func (a *app) check(ctx context.Context, s *session, running bool) (tpcc.Consistency, error) {
	bar := a.progressOf("checking")
	defer bar.done()
	return tpcc.Check(ctx, s.db, tpcc.CheckConfig{
		AtRest:   !running,
		Progress: func(p tpcc.CheckProgress) { bar.set(p.Done, p.Total, "") },
	})
}

// notLoaded says what to do about an empty cluster.
func notLoaded(err error) error {
	if errors.Is(err, tpcc.ErrNotLoaded) {
		return errors.New("the cluster holds no warehouses; load some with drtmx tpcc prepare")
	}
	return err
}
