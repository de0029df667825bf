package command

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/datadir"
	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/rdma"
	"drtmx/rdma/multi"
	"drtmx/rdma/tcp"
	"drtmx/txn/stats"
)

// oneFlags are about one data server of a cluster.
type oneFlags struct {
	index   int
	members []string
	zone    string
}

var oneNames = []string{"index", "members", "zone", "secret-file"}

func (o *oneFlags) add(c *cobra.Command) {
	fl := c.Flags()
	fl.IntVar(&o.index, "index", -1, "run one data server, with this number, from 0 on")
	fl.StringVar(&o.zone, "zone", "", "with --index and --replicas: what may fail together with this host, such as a rack; copies are kept in as many zones as there are")
	fl.StringSliceVar(&o.members, "members", nil, "with --index: host:port of all data servers in order, the same list for each server; required for tcp and verbs")
}

// unused refuses flags that mean nothing without --index. See checkHosts for --lease.
func (o *oneFlags) unused(c *cobra.Command) error {
	for _, n := range append(oneNames[:len(oneNames):len(oneNames)], etcdNames...) {
		if c.Flags().Changed(n) && n != "lease" {
			return fmt.Errorf("--%s %s: want --index with it, the number of the data server to run", n, c.Flags().Lookup(n).Value)
		}
	}
	return nil
}

// checkOne looks at what the flags of one data server say together.
func (f *serveFlags) checkOne(c *cobra.Command) error {
	o := &f.one
	if err := f.check(); err != nil {
		return err
	}
	if len(o.members) > 0 {
		if f.size.servers != len(o.members) && c.Flags().Changed("servers") {
			return fmt.Errorf("--servers %d: want %d, the number of --members, or nothing", f.size.servers, len(o.members))
		}
		f.size.servers = len(o.members)
	}
	if err := f.size.check(); err != nil {
		return err
	}
	if f.size.replicas > 1 && !f.etcd.given() {
		return fmt.Errorf("--replicas %d: want --etcd with it: copies of data servers that are started one by one are known there", f.size.replicas)
	}
	if o.zone != "" && f.size.replicas < 2 {
		return fmt.Errorf("--zone %s: want --replicas 2 or more with it", o.zone)
	}
	if err := member.CheckZone(o.zone); err != nil {
		return fmt.Errorf("--zone: %w", err)
	}
	if o.index < 0 || o.index >= f.size.servers {
		return fmt.Errorf("--index %d: want 0 to %d, a data server of %d", o.index, f.size.servers-1, f.size.servers)
	}
	if err := f.etcd.check(c, f); err != nil {
		return err
	}
	if err := f.data.check(c.Flags().Changed); err != nil {
		return err
	}
	if f.data.dir != "" {
		if err := datadir.Finished(vfs.Default, f.data.dir); err != nil {
			return err
		}
	}
	switch {
	case f.network() && len(o.members) == 0 && !f.etcd.given():
		return errors.New("--members is required for fabrics tcp and verbs: host:port of all data servers, in order; or --etcd")
	case f.offers(multi.Shm) && f.dir == "":
		return errors.New("--runtime-dir is required for fabric shm: a directory for the servers' sockets")
	}
	if _, err := cluster.ParseMembers(o.members); err != nil {
		return fmt.Errorf("--members %w", err)
	}
	if f.listen != "" {
		if _, err := cluster.ParseMembers([]string{f.listen}); err != nil {
			return fmt.Errorf("--listen %w", err)
		}
	}
	if f.tls.secret != "" && f.tls.given() && !f.offers(multi.Shm) && !f.offers(multi.Verbs) {
		return errors.New("--secret-file: want none with certificates and fabric tcp alone: data servers know each other by their certificates")
	}
	if f.size.servers > 1 && !f.knowsOthers() {
		return errors.New("--secret-file is required for data servers that share neither --runtime-dir nor --etcd and have no certificates: it is how they know each other")
	}
	return nil
}

// knowsOthers reports whether the flags name something by which the data servers of
// a network can tell each other from clients.
func (f *serveFlags) knowsOthers() bool {
	certified := f.tls.given() && !f.offers(multi.Verbs)
	return !f.network() || f.dir != "" || f.tls.secret != "" || f.etcd.given() || certified
}

// options are what the cluster package needs; place is where the data server
// finds the others, nil without etcd.
func (f *serveFlags) options(a *app, p rdma.Provider, place *membership) (o cluster.JoinOptions, err error) {
	if f.data.dir != "" {
		if f.data.dir, err = filepath.Abs(f.data.dir); err != nil {
			return o, err
		}
	}
	name, err := f.workload.resolve(a, f.partitions())
	if err != nil {
		return o, err
	}
	o = cluster.JoinOptions{
		Size: f.clusterSize(), Index: placement.Server(f.one.index), Zone: f.one.zone,
		Provider: p, MemoryBytes: uint64(f.size.memory),
	}
	if o.Workload, err = a.lookup(name); err != nil {
		return o, err
	}
	if f.dir != "" {
		if o.Dir, err = filepath.Abs(f.dir); err != nil {
			return o, err
		}
	}
	if f.tls.secret != "" {
		if o.Secret, err = cluster.ReadSecret(f.tls.secret); err != nil {
			return o, fmt.Errorf("--secret-file: %w", err)
		}
	}
	if place == nil {
		o.Addrs = cluster.MemberAddrs(f.size.servers, f.fabrics, o.Dir, f.one.members)
		o.Addr = o.Addrs[o.Index]
		return o, nil
	}
	o.Store, o.Lease, o.Return = place.store, f.etcd.lease, true
	o.Addr = cluster.MemberAddr(o.Index, f.fabrics, o.Dir, f.self())
	return o, nil
}

// serveOne runs one data server until the command is ended.
func (a *app) serveOne(c *cobra.Command, f *serveFlags) (err error) {
	if err := f.checkOne(c); err != nil {
		return cli.Usage(fmt.Errorf("drtmx serve: %w", err))
	}
	p, err := cluster.NewFabrics(f.tls.options(), f.fabrics...)
	if err != nil {
		return asUsage(err, tcp.ErrCertificateFile)
	}
	p.ListenAt = f.listen
	telemetry, err := f.shows.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, telemetry.close()) }()
	records := f.log.log(a)
	var place *membership
	if f.etcd.given() {
		if place, err = a.openMembership(c.Context(), f, records); err != nil {
			return asUsage(err, member.ErrInput, member.ErrTLS)
		}
		defer func() { err = errors.Join(err, place.close()) }()
	}
	o, err := f.options(a, p, place)
	if err != nil {
		return asUsage(err, cluster.ErrOptions)
	}
	o.Log = records.Logger()
	o.Waiting = func(text string) { a.announce(records, text, "waiting for members", "reason", text) }
	o.Recovering = func(r stats.Recovering) { telemetry.recoveries.set(a, o.Index, r) }
	var addrs atomic.Pointer[[]string] // nil while it starts
	err = telemetry.serve(p.Name(), p.Quiet().Dial, func() []string {
		if all := addrs.Load(); all != nil {
			return *all
		}
		return nil
	}, false, func(what, url string) { a.announce(records, what+" at "+url, what, "url", url) })
	if err != nil {
		return err
	}
	s, err := cluster.Join(c.Context(), o)
	telemetry.recoveries.done()
	if err != nil {
		if stopped := interrupted(c.Context()); stopped != nil && place != nil {
			err = stopped
		}
		return asUsage(err, cluster.ErrOptions, member.ErrInput, member.ErrTLS)
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	addrs.Store(&[]string{o.Addr})
	if r := s.Recovery(); r != nil {
		a.sayRecovered(o.Index, r)
	}
	a.announce(records, fmt.Sprintf("data server %d of %d ready at %s; %s; stop with Ctrl-C", o.Index, o.Servers, o.Addr, f.data.where()),
		"data server ready", "server", o.Index, "servers", o.Servers, "address", o.Addr, "partitions", o.Hosted())
	select {
	case <-c.Context().Done():
		return nil
	case <-s.Lost():
		return s.Err()
	}
}

// asUsage marks an error as the user's if it is of one of these kinds.
func asUsage(err error, kinds ...error) error {
	for _, k := range kinds {
		if errors.Is(err, k) {
			return cli.Usage(err)
		}
	}
	return err
}
