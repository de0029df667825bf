package ycsb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"drtmx/internal/cluster"
	"drtmx/internal/member"
	"drtmx/internal/member/etcd"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/rdma/shm"
	"drtmx/tables"
	"drtmx/txn"
	"drtmx/ycsb/props"
	"drtmx/ycsb/usertable"
)

// ChildArgs are the arguments with which this program, started again, calls
// RunChild to run a data server. A program's main sets them. Without them
// drtmx.fabric=shm, which starts data servers as processes, is refused.
var ChildArgs []string

// RunChild runs a data server until it is stopped: see ChildArgs.
func RunChild(ctx context.Context) error {
	p, err := newShm()
	if err != nil {
		return err
	}
	return cluster.RunChild(ctx, p, Workload, nil)
}

// Workload returns the workload with which data servers start, by the name that
// usertable.WorkloadName gave it.
func Workload(name string) (cluster.Workload, error) {
	c, err := usertable.ParseWorkload(name)
	if err != nil {
		return cluster.Workload{}, err
	}
	return workloadOf(c), nil
}

func workloadOf(c *tables.Catalog) cluster.Workload {
	return cluster.Workload{Catalog: c, Procedures: usertable.Procedures(c)}
}

func newShm() (rdma.Provider, error) {
	if err := shm.Available(); err != nil {
		return nil, err
	}
	return shm.New(shm.Options{})
}

// openTimeout bounds how long a cluster may take to answer.
const openTimeout = 10 * time.Second

// open starts or finds the cluster and opens its database.
func open(ctx context.Context, o *options) (*database, error) {
	c, where, err := connect(ctx, o)
	if err != nil {
		return nil, err
	}
	d := &database{options: o, cluster: c}
	if err := d.open(ctx, where); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *database) open(ctx context.Context, where string) error {
	cfg := d.cluster.Config()
	cfg.Reads, cfg.LocationCache, cfg.Seed = d.reads, d.locationCache, d.seed
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, fmt.Errorf("no answer within %v", openTimeout))
	defer cancel()
	var err error
	if d.db, err = txn.Open(ctx, cfg); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return fmt.Errorf("open the database at %s: %w", where, err)
	}
	d.table, err = d.layout.Fits(d.db.Catalog(), where, d.primaryGiven)
	if err != nil {
		return err
	}
	d.resolveFields()
	d.keysInEach()
	return nil
}

// connect starts or finds the cluster.
func connect(ctx context.Context, o *options) (c *cluster.Cluster, where string, err error) {
	if o.addr != "" {
		return attach(ctx, o.addr)
	}
	catalog, err := o.layout.Catalog(o.size.Partitions)
	if err != nil {
		return nil, "", err
	}
	if o.fabric == fabricInproc {
		c, err = cluster.StartInProcess(ctx, inproc.New(inproc.Options{}), workloadOf(catalog), o.size)
		return c, "this process", err
	}
	if ChildArgs == nil {
		return nil, "", fmt.Errorf("%s=%s: this program cannot start data servers as processes: want %s=%s, or %s of a running cluster",
			props.Fabric, fabricShm, props.Fabric, fabricInproc, props.Addr)
	}
	p, err := newShm()
	if err != nil {
		return nil, "", fmt.Errorf("%s=%s: %w", props.Fabric, fabricShm, err)
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("find this program to start data servers: %w", err)
	}
	name, err := usertable.WorkloadName(catalog)
	if err != nil {
		return nil, "", err
	}
	c, err = cluster.StartProcesses(ctx, cluster.ProcessOptions{
		Size: o.size, Provider: p, Command: append([]string{exe}, ChildArgs...), Workload: name,
	})
	return c, "child processes", err
}

// clientOf returns a client provider for the fabric of a cluster found in a
// directory.
func clientOf(fabric string) (rdma.Provider, error) {
	if fabric == fabricShm {
		return newShm()
	}
	return cluster.NewFabrics(cluster.ClientOptions{})
}

// reach connects to the cluster at an address with a scheme.
func reach(ctx context.Context, addr string) (*cluster.Cluster, string, error) {
	a, err := cluster.ParseAddress(addr)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", props.Addr, err)
	}
	c, _, err := cluster.Connect(ctx, a, cluster.ClientOptions{Members: openMembers})
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", props.Addr, err)
	}
	return c, a.String(), nil
}

// openMembers opens the member store that an etcd address names.
func openMembers(ctx context.Context, a *cluster.Address) (member.Store, error) {
	o := etcd.Options{Endpoints: a.Etcd, Name: a.Name, Existing: true}
	if t := a.EtcdTLS; t != nil {
		o.TLS = &etcd.TLS{CA: t.CA, Cert: t.Cert, Key: t.Key, ServerName: t.ServerName}
	}
	s, err := etcd.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// attach connects to the cluster at an address: an address with a scheme, a
// runtime directory, or sockets.
func attach(ctx context.Context, addr string) (*cluster.Cluster, string, error) {
	if cluster.IsAddress(addr) {
		return reach(ctx, addr)
	}
	if info, err := os.Stat(addr); err == nil && info.IsDir() {
		c, info, err := cluster.Attach(ctx, addr, clientOf)
		if err != nil {
			hint := ""
			if errors.Is(err, cluster.ErrNoCluster) || errors.Is(err, cluster.ErrStale) {
				hint = "; start one with: drtmx serve --workload ycsb --data-dir " + addr
			}
			return nil, "", fmt.Errorf("%s %s: %w%s", props.Addr, addr, err, hint)
		}
		if !usertable.IsWorkload(info.Workload) {
			_ = c.Close()
			return nil, "", fmt.Errorf("%s %s: the cluster serves workload %q: want one started by drtmx serve --workload ycsb",
				props.Addr, addr, info.Workload)
		}
		return c, addr, nil
	}
	p, err := newShm()
	if err != nil {
		return nil, "", err
	}
	var addrs []string
	for a := range strings.SplitSeq(addr, ",") {
		if a = strings.TrimSpace(a); a != "" {
			addrs = append(addrs, a)
		}
	}
	c, err := cluster.AttachAddrs(p, addrs)
	return c, props.Addr + " " + addr, err
}
