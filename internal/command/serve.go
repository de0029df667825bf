package command

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/member/etcd"
	"drtmx/internal/metrics"
	"drtmx/internal/placement"
	"drtmx/rdma/multi"
	"drtmx/txn/stats"
)

// serveFlags are the flags of drtmx serve.
type serveFlags struct {
	config   string
	dir      string
	data     dataFlags
	size     sizeFlags
	workload workloadFlags
	fabrics  []string
	listen   string
	tls      tlsFlags
	log      logFlags
	shows    telemetryFlags
	one      oneFlags
	etcd     etcdFlags
	models   modelsFlag
	child    bool
}

// check is of what data servers of one and of all processes have in common.
func (f *serveFlags) check() error {
	var err error
	for i, name := range f.fabrics {
		if !slices.Contains(multi.Names, name) || slices.Contains(f.fabrics[:i], name) {
			err = fmt.Errorf("--fabrics %q: want %s, each once", name, oneOf(multi.Names))
		}
	}
	switch {
	case err != nil:
	case len(f.fabrics) == 0:
		err = fmt.Errorf("--fabrics: want one or more of %s", oneOf(multi.Names))
	case !f.network() && f.listen != "":
		err = fmt.Errorf("--listen %s: want --fabrics with tcp or verbs", f.listen)
	case !f.offers(multi.TCP) && (f.tls.given() || f.tls.insecure):
		err = errors.New("--insecure and the --tls flags: want --fabrics with tcp")
	case !f.offers(multi.Verbs) && f.tls.device != "":
		err = fmt.Errorf("--device %s: want --fabrics with verbs", f.tls.device)
	}
	return errors.Join(err, f.log.check(), f.tls.check(), f.models.check())
}

// hosts reports whether the data servers are hosts.
func (f *serveFlags) hosts() bool {
	return f.data.asHosts(f.size.replicas)
}

// checkAll is of a process that runs all data servers.
func (f *serveFlags) checkAll(c *cobra.Command) error {
	if f.dir == "" {
		return errors.New("drtmx serve: --runtime-dir is required: a directory for the servers' sockets")
	}
	return errors.Join(f.one.unused(c), f.checkHosts(), f.check(), f.size.check())
}

func (f *serveFlags) offers(fabric string) bool { return slices.Contains(f.fabrics, fabric) }

func (f *serveFlags) network() bool {
	return f.offers(multi.TCP) || f.offers(multi.Verbs)
}

// partitions is the number asked for.
func (f *serveFlags) partitions() int {
	if f.size.partitions == 0 {
		return f.size.servers
	}
	return f.size.partitions
}

// clusterSize is the size asked for, with what is published of ordered indexes.
func (f *serveFlags) clusterSize() cluster.Size {
	s := f.size.size()
	s.Models, s.PublishInner, s.DataDir = f.models.family(), f.models.inner, f.data.dir
	return s
}

func (a *app) serveCommand() *cobra.Command {
	f := &serveFlags{}
	c := &cobra.Command{
		Use:   "serve --runtime-dir DIR | --config FILE",
		Short: "Run data servers in the foreground, for other commands to use",
		Long: `Runs data servers as child processes over shared memory, TCP or both until it
is interrupted. DIR is the runtime directory: it holds the servers' sockets and
cluster.json, by which drtmx tpcc prepare, run, check and cleanup find them, or
with --workload ycsb go-ycsb (property drtmx.addr=DIR). Servers that listen at a
network address are found from other machines with --connect. If one server
dies, all stop, except with --replicas: then each is a host, which is started again.

With --index it runs one data server, in this process: that one of a cluster
whose others are started in the same way, here or on other hosts. They know each
other by a list (--members), or find each other in etcd (--etcd), which the first
of them can run itself (--etcd-embedded). Clients find the cluster by
drtmx://host:port of any server, drtmx+shm:///dir, or drtmx+etcd://host:port/name.

All flags can be set in a file, as keys of TOML (--config), and by environment
variables: DRTMX_RUNTIME_DIR is --runtime-dir. The command line comes before the
environment, and that before the file.

Without --data-dir, data is in memory only: DIR holds none of it, and it is gone
when the servers stop. With it, a directory that has data is recovered: it knows
the numbers of data servers and partitions, and whether its tables are those of
TPC-C or YCSB. DIR then is by default the directory run in it.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.child {
				return a.child(c, f)
			}
			var s settings
			if err := s.fill(c); err != nil {
				return err
			}
			return s.blame(a.serveAsAsked(c, f))
		},
	}
	f.add(a, c)
	return c
}

func (f *serveFlags) add(a *app, c *cobra.Command) {
	fl := c.Flags()
	fl.StringVar(&f.config, "config", "", "file with settings, TOML")
	addRuntimeDir(c, &f.dir, "", "runtime directory for sockets, made if it does not exist")
	f.data.add(c)
	f.size.add(c)
	f.workload.add(a, c)
	f.models.add(c)
	f.models.addInner(c)
	f.addFabrics(c)
	f.tls.add(c)
	fl.StringVar(&f.tls.secret, "secret-file", "", "with --index: file with the secret by which the data servers of the cluster know each other without certificates, the same for all of them (default: a secret in etcd, or in the runtime directory)")
	f.log.add(c)
	f.shows.add(c)
	f.one.add(c)
	f.etcd.add(c)
	fl.BoolVar(&f.child, "child", false, "run one data server for a parent process")
	_ = fl.MarkHidden("child")
}

// addFabrics adds the flags of what the data servers listen on.
func (f *serveFlags) addFabrics(c *cobra.Command) {
	fl := c.Flags()
	fl.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "fabric" {
			name = "fabrics"
		}
		return pflag.NormalizedName(name)
	})
	fl.StringSliceVar(&f.fabrics, "fabrics", []string{multi.Shm}, "fabrics: shm, verbs, tcp or several of them; a client uses the best one that reaches the server; --fabric is a synonym")
	fl.StringVar(&f.listen, "listen", "", "over a network: host:port of the first data server; the other servers take the next ports (default: free ports of the loopback address). With --index: host:port on which the server listens, if not its own of --members")
}

// serveAsAsked runs all servers or one.
func (a *app) serveAsAsked(c *cobra.Command, f *serveFlags) error {
	if f.one.index >= 0 || c.Flags().Changed("index") {
		return a.serveOne(c, f)
	}
	if err := f.settleData(a, c); err != nil {
		return cli.Usage(fmt.Errorf("drtmx serve: %w", err))
	}
	if err := f.checkAll(c); err != nil {
		return cli.Usage(err)
	}
	name, err := f.workload.resolve(a, f.partitions())
	if err != nil {
		return err
	}
	return a.serve(c.Context(), f, name)
}

// settleData takes from a data directory what the flags do not say.
func (f *serveFlags) settleData(a *app, c *cobra.Command) error {
	if !c.Flags().Changed("lease") {
		f.etcd.lease = 0 // of hosts: see hostLease
	}
	data, err := f.data.settle(c.Flags().Changed, &f.size)
	if err != nil || f.data.dir == "" {
		return err
	}
	if f.dir == "" {
		f.dir = filepath.Join(f.data.dir, runDir)
	}
	if data != nil && a.own == nil && !c.Flags().Changed("workload") {
		f.workload.data = data.Catalog
	}
	return nil
}

// serve runs a cluster for others.
func (a *app) serve(ctx context.Context, o *serveFlags, workload string) (err error) {
	children, err := processes(o.fabrics, &o.tls, o.listen, o.clusterSize())
	if err != nil {
		return err
	}
	telemetry, err := o.shows.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, telemetry.close()) }()
	telemetry.expect(o.size.servers)
	records := o.log.log(a)
	log := records.Logger()
	var addrs atomic.Pointer[[]string]
	running := func() []string {
		if all := addrs.Load(); all != nil {
			return *all
		}
		return nil
	}
	dial, found := children.Provider.Dial, &foundHosts{}
	if o.hosts() {
		running, dial = found.addrs, found.dial
	}
	err = telemetry.serve(children.Provider.Name(), dial, running, false, func(what, url string) { a.announce(records, what+" at "+url, what, "url", url) })
	if err != nil {
		return err
	}
	children.Workload.Name, children.Log, children.Debug = workload, records, telemetry.debug
	children.Dir, children.Version, children.Fabrics = o.dir, cli.Version, o.fabrics
	if o.hosts() {
		children.Hosts = a.hosts(records, o.etcd.lease)
	}
	children.Ready = func(i cluster.Info) {
		all := make([]string, len(i.Servers))
		for k, s := range i.Servers {
			all[k] = s.Address(o.dir)
		}
		addrs.Store(&all)
		a.announceReady(records, o, &i)
	}
	children.Recovered = func(server placement.Server, r *stats.Recovery) {
		telemetry.recoveries.done() // the bar must not erase what is said now
		a.sayRecovered(server, r)
	}
	children.Recovering = func(server placement.Server, r stats.Recovering) { telemetry.recoveries.set(a, server, r) }
	children.OnLoss = func(err error) { log.Error("data server lost", "error", err) }
	c, err := cluster.Start(ctx, children)
	telemetry.recoveries.done()
	if err != nil {
		return err
	}
	if o.hosts() && telemetry.metrics != nil {
		defer found.follow(cluster.ConnectOptions{Dir: o.dir, Fabrics: o.tls.options(), Members: etcd.OpenExisting})()
	}
	select {
	case <-ctx.Done():
	case <-c.Lost():
		err = c.Err()
	}
	if lost := c.Output(); len(lost) > 0 {
		_, _ = a.stderr.Write(lost)
	}
	err = errors.Join(err, c.Close())
	if errors.Is(err, cluster.ErrStopped) {
		err = nil
	}
	if err == nil {
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
	a.Say("%s", text)
}

func (a *app) announceReady(l cluster.Log, o *serveFlags, i *cluster.Info) {
	state := "ready"
	if i.Generation > 1 {
		state = "emptied and ready"
	}
	a.announce(l, fmt.Sprintf("%d data servers %s in %s; %s; stop with Ctrl-C", len(i.Servers), state, o.dir, o.data.where()),
		"cluster ready", "dir", o.dir, "durability", o.data.durability, "data_dir", o.data.dir, "servers", len(i.Servers), "partitions", i.Partitions, "workload", i.Workload,
		"generation", i.Generation, "version", i.Version)
}

// child is one data server's process.
func (a *app) child(c *cobra.Command, f *serveFlags) error {
	p, err := f.tls.provider(f.fabrics)
	if err != nil {
		return err
	}
	err = cluster.RunChild(c.Context(), cluster.ChildOptions{Provider: p, Lookup: a.lookup, Debug: metrics.ServeProfiles, Members: etcd.OpenAt})
	if errors.Is(err, cluster.ErrOptions) {
		return cli.Usage(err)
	}
	return err
}
