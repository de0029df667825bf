package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"

	"github.com/spf13/cobra"

	"drtmx/internal/cluster"
	"drtmx/internal/metrics"
)

func (a *app) serveCommand() *cobra.Command {
	var dir string
	var size sizeFlags
	var workload workloadFlags
	var log logFlags
	var shows telemetryFlags
	var child bool
	c := &cobra.Command{
		Use:   "serve --data-dir DIR",
		Short: "Run data servers in the foreground, for other commands to use",
		Long: `Runs data servers as child processes over shared memory until it is
interrupted. DIR is the runtime directory: it holds the servers' sockets and
cluster.json, by which drtmx tpcc prepare, run, check and cleanup find them, or
with --workload ycsb go-ycsb (property drtmx.addr=DIR).

Data is in memory only: DIR holds none of it, and it is gone when the servers
stop. If one server dies, all stop.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if child {
				return a.child(c)
			}
			if dir == "" {
				return usagef("drtmx serve: --data-dir is required: a directory for the servers' sockets")
			}
			if err := errors.Join(size.check(), log.check()); err != nil {
				return usageError{err}
			}
			partitions := size.partitions
			if partitions == 0 {
				partitions = size.servers
			}
			name, err := workload.resolve(partitions)
			if err != nil {
				return err
			}
			return a.serve(c.Context(), &served{dir: dir, size: size.size(), workload: name, log: log, shows: shows})
		},
	}
	c.Flags().StringVar(&dir, "data-dir", "", "runtime directory, made if it does not exist")
	size.add(c)
	workload.add(c)
	log.add(c)
	shows.add(c)
	c.Flags().BoolVar(&child, "child", false, "run one data server for a parent process")
	_ = c.Flags().MarkHidden("child")
	return c
}

// served is what serve runs.
type served struct {
	dir      string
	size     cluster.Size
	workload string
	log      logFlags
	shows    telemetryFlags
}

// serve runs a cluster for others.
func (a *app) serve(ctx context.Context, o *served) (err error) {
	p, err := newShm()
	if err != nil {
		return err
	}
	command, err := childCommand()
	if err != nil {
		return err
	}
	shown, err := o.shows.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shown.close()) }()
	shown.expect(o.size.Servers)
	records := o.log.log(a)
	log := records.Logger()
	var addrs atomic.Pointer[[]string]
	running := func() []string {
		if all := addrs.Load(); all != nil {
			return *all
		}
		return nil
	}
	err = shown.serve(p.Name(), p.Dial, running, false, func(what, url string) { a.announce(records, what+" at "+url, what, "url", url) })
	if err != nil {
		return err
	}
	err = cluster.Serve(ctx, cluster.ServeOptions{
		ProcessOptions: cluster.ProcessOptions{
			Size: o.size, Provider: p, Command: command, Workload: o.workload, Log: records, Debug: shown.debug,
		},
		Dir: o.dir, Version: version,
		Crashed: func(output []byte) { _, _ = a.stderr.Write(output) },
		Ready: func(i cluster.Info) {
			all := make([]string, len(i.Servers))
			for k, s := range i.Servers {
				all[k] = filepath.Join(o.dir, s.Socket)
			}
			addrs.Store(&all)
			a.announceReady(records, o.dir, &i)
		},
	})
	switch {
	case errors.Is(err, cluster.ErrLost):
		log.Error("data server lost", "error", err)
	case err == nil:
		log.Info("cluster stopped")
	}
	return err
}

// announce tells people a line, or those who read records one of them.
func (a *app) announce(l cluster.Log, text, message string, args ...any) {
	if l.JSON {
		l.Logger().Info(message, args...)
		return
	}
	a.say("%s", text)
}

func (a *app) announceReady(l cluster.Log, dir string, i *cluster.Info) {
	state := "ready"
	if i.Generation > 1 {
		state = "emptied and ready"
	}
	a.announce(l, fmt.Sprintf("%d data servers %s in %s; data is in memory only; stop with Ctrl-C", len(i.Servers), state, dir),
		"cluster ready", "dir", dir, "servers", len(i.Servers), "partitions", i.Partitions, "workload", i.Workload,
		"generation", i.Generation, "version", i.Version)
}

// child is one data server's process.
func (a *app) child(c *cobra.Command) error {
	p, err := newShm()
	if err != nil {
		return err
	}
	err = cluster.RunChild(c.Context(), p, lookupWorkload, metrics.ServeProfiles)
	if errors.Is(err, cluster.ErrOptions) {
		return usageError{err}
	}
	return err
}
