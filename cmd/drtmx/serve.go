package main

import (
	"errors"

	"github.com/spf13/cobra"

	"drtmx/internal/cluster"
)

func (a *app) serveCommand() *cobra.Command {
	var dir string
	var size sizeFlags
	var workload workloadFlags
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
			if err := size.check(); err != nil {
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
			return a.serve(c, dir, size.size(), name)
		},
	}
	c.Flags().StringVar(&dir, "data-dir", "", "runtime directory, made if it does not exist")
	size.add(c)
	workload.add(c)
	c.Flags().BoolVar(&child, "child", false, "run one data server for a parent process")
	_ = c.Flags().MarkHidden("child")
	return c
}

// serve runs a cluster for others.
func (a *app) serve(c *cobra.Command, dir string, size cluster.Size, workload string) error {
	p, err := newShm()
	if err != nil {
		return err
	}
	command, err := childCommand()
	if err != nil {
		return err
	}
	return cluster.Serve(c.Context(), cluster.ServeOptions{
		ProcessOptions: cluster.ProcessOptions{
			Size: size, Provider: p, Command: command, Workload: workload,
		},
		Dir: dir, Version: version,
		Crashed: func(output []byte) { _, _ = a.stderr.Write(output) },
		Ready: func(i cluster.Info) {
			state := "ready"
			if i.Generation > 1 {
				state = "emptied and ready"
			}
			a.say("%d data servers %s in %s; data is in memory only; stop with Ctrl-C", len(i.Servers), state, dir)
		},
	})
}

// child is one data server's process.
func (a *app) child(c *cobra.Command) error {
	p, err := newShm()
	if err != nil {
		return err
	}
	err = cluster.RunChild(c.Context(), p, lookupWorkload, nil)
	if errors.Is(err, cluster.ErrOptions) {
		return usageError{err}
	}
	return err
}
