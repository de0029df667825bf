package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
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
commands, run "drtmx serve --data-dir DIR" beside them and give each of them
--data-dir DIR: prepare loads, run and check use what is loaded, cleanup
empties. The data is in the memory of the servers and nowhere else.`,
	}
	c.AddCommand(a.runCommand(), a.compareCommand(), a.prepareCommand(), a.checkCommand(), a.cleanupCommand())
	group(c)
	return c
}

// requireCluster is for commands that make no sense on a cluster of their own.
func requireCluster(c *cobra.Command, w *whereFlags) error {
	if err := w.check(); err != nil {
		return cli.Usage(err)
	}
	if !w.given() {
		return cli.Usagef("%s: want --data-dir DIR of a cluster started by drtmx serve --data-dir DIR (data is in the memory of its servers)",
			c.CommandPath())
	}
	return nil
}

func (a *app) prepareCommand() *cobra.Command {
	var where whereFlags
	var load loadFlags
	c := &cobra.Command{
		Use:   "prepare --data-dir DIR",
		Short: "Load warehouses into a running cluster",
		Long: `Loads the initial population of TPC-C into the cluster that drtmx serve runs in
DIR. The cluster must be empty: drtmx tpcc cleanup empties it.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireCluster(c, &where); err != nil {
				return err
			}
			if err := load.check(); err != nil {
				return cli.Usage(err)
			}
			return a.prepare(c.Context(), &where, &load)
		},
	}
	where.add(c)
	load.add(c)
	return c
}

func (a *app) prepare(ctx context.Context, where *whereFlags, load *loadFlags) error {
	return a.attached(ctx, where, func(ctx context.Context, s *session) error {
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

// attached runs f with the database of a running cluster.
func (a *app) attached(ctx context.Context, where *whereFlags, f func(context.Context, *session) error) (err error) {
	s, err := a.attach(ctx, where)
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
	a.Say("loaded %d warehouses: %d rows, %s, in %.1f s", l.warehouses, report.Rows, bytesText(uint64(report.Bytes)), report.Elapsed.Seconds())
	return &report, nil
}

func (a *app) checkCommand() *cobra.Command {
	var where whereFlags
	c := &cobra.Command{
		Use:   "check --data-dir DIR",
		Short: "Check the consistency conditions of TPC-C on a running cluster",
		Long: `Checks conditions 3.3.2.1 to 3.3.2.12 of TPC-C, and that secondary indexes
agree with their tables. No transactions should run meanwhile. The exit status
is not zero if any condition fails.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireCluster(c, &where); err != nil {
				return err
			}
			return a.attached(c.Context(), &where, func(ctx context.Context, s *session) error {
				verdicts, err := a.check(ctx, s)
				if err != nil {
					return notLoaded(err)
				}
				printVerdicts(a.stdout, verdicts)
				return verdicts.Err()
			})
		},
	}
	where.add(c)
	return c
}

// check evaluates the consistency conditions, with progress.
func (a *app) check(ctx context.Context, s *session) (tpcc.Consistency, error) {
	bar := a.progressOf("checking")
	defer bar.done()
	return tpcc.Check(ctx, s.db, tpcc.CheckConfig{
		AtRest:   true,
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
