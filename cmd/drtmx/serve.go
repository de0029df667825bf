package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/spf13/cobra"

	"drtmx/internal/cluster"
	"drtmx/internal/metrics"
	"drtmx/rdma"
)

// serveFlags are the flags of drtmx serve.
type serveFlags struct {
	dir      string
	size     sizeFlags
	workload workloadFlags
	fabric   string
	listen   string
	tls      tlsFlags
	log      logFlags
	shows    telemetryFlags
}

func (f *serveFlags) check() error {
	var err error
	switch {
	case f.dir == "":
		err = fmt.Errorf("drtmx serve: --data-dir is required: a directory for the servers' sockets")
	case f.fabric != fabricShm && f.fabric != fabricTCP && f.fabric != fabricVerbs:
		err = fmt.Errorf("--fabric %q: want %s, %s or %s", f.fabric, fabricShm, fabricTCP, fabricVerbs)
	case f.fabric == fabricShm && f.listen != "":
		err = fmt.Errorf("--listen: want --fabric tcp or verbs with it")
	case f.fabric != fabricTCP && (f.tls.given() || f.tls.insecure):
		err = fmt.Errorf("--insecure and the --tls flags: want --fabric tcp with them")
	case f.fabric != fabricVerbs && f.tls.device != "":
		err = fmt.Errorf("--device: want --fabric verbs with it")
	}
	return errors.Join(err, f.size.check(), f.log.check(), f.tls.check())
}

func (a *app) serveCommand() *cobra.Command {
	var f serveFlags
	var child bool
	c := &cobra.Command{
		Use:   "serve --data-dir DIR",
		Short: "Run data servers in the foreground, for other commands to use",
		Long: `Runs data servers as child processes over shared memory, or over TCP, until it
is interrupted. DIR is the runtime directory: it holds the servers' sockets and
cluster.json, by which drtmx tpcc prepare, run, check and cleanup find them, or
with --workload ycsb go-ycsb (property drtmx.addr=DIR). Servers that listen at a
network address are found from other machines with --connect.

Data is in memory only: DIR holds none of it, and it is gone when the servers
stop. If one server dies, all stop.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if child {
				return a.child(c, &f)
			}
			if err := f.check(); err != nil {
				return usageError{err}
			}
			partitions := f.size.partitions
			if partitions == 0 {
				partitions = f.size.servers
			}
			name, err := f.workload.resolve(partitions)
			if err != nil {
				return err
			}
			return a.serve(c.Context(), &f, name)
		},
	}
	c.Flags().StringVar(&f.dir, "data-dir", "", "runtime directory, made if it does not exist")
	f.size.add(c)
	f.workload.add(c)
	c.Flags().StringVar(&f.fabric, "fabric", fabricShm, "what carries the verbs: shm, tcp or verbs")
	c.Flags().StringVar(&f.listen, "listen", "", "with --fabric tcp or verbs: host:port of the first data server, by which others dial it; the rest take the next ports (default: free ports of the loopback address)")
	f.tls.add(c)
	f.log.add(c)
	f.shows.add(c)
	c.Flags().BoolVar(&child, "child", false, "run one data server for a parent process")
	_ = c.Flags().MarkHidden("child")
	return c
}

// serve runs a cluster for others.
func (a *app) serve(ctx context.Context, o *serveFlags, workload string) (err error) {
	children, err := processes(o.fabric, &o.tls, o.listen, o.size.size())
	if err != nil {
		return err
	}
	shown, err := o.shows.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shown.close()) }()
	shown.expect(o.size.servers)
	records := o.log.log(a)
	log := records.Logger()
	var addrs atomic.Pointer[[]string]
	running := func() []string {
		if all := addrs.Load(); all != nil {
			return *all
		}
		return nil
	}
	err = shown.serve(children.Provider.Name(), children.Provider.Dial, running, false, func(what, url string) { a.announce(records, what+" at "+url, what, "url", url) })
	if err != nil {
		return err
	}
	children.Workload, children.Log, children.Debug = workload, records, shown.debug
	err = cluster.Serve(ctx, cluster.ServeOptions{
		ProcessOptions: children,
		Dir:            o.dir, Version: version,
		Crashed: func(output []byte) { _, _ = a.stderr.Write(output) },
		Ready: func(i cluster.Info) {
			all := make([]string, len(i.Servers))
			for k, s := range i.Servers {
				all[k] = s.Address(o.dir)
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
func (a *app) child(c *cobra.Command, f *serveFlags) error {
	var p rdma.Provider
	var err error
	switch f.fabric {
	case fabricTCP:
		p, err = f.tls.provider()
	case fabricVerbs:
		p, err = f.tls.verbs()
	default:
		p, err = newShm()
	}
	if err != nil {
		return err
	}
	err = cluster.RunChild(c.Context(), p, lookupWorkload, metrics.ServeProfiles)
	if errors.Is(err, cluster.ErrOptions) {
		return usageError{err}
	}
	return err
}
