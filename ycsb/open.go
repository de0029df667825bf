package ycsb

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"drtmx/internal/cluster"
	"drtmx/internal/member/etcd"
	"drtmx/rdma/inproc"
	"drtmx/rdma/multi"
	"drtmx/tables"
	"drtmx/txn"
	"drtmx/ycsb/props"
	"drtmx/ycsb/usertable"
)

// ChildArgs are the arguments with which this program, started as a child process,
// calls RunChild to run a data server. A program's main sets them. Without them
// drtmx.fabric=shm, which starts data servers as processes, is an error.
var ChildArgs []string

// RunChild runs a data server in a child process until it is stopped: see ChildArgs.
func RunChild(ctx context.Context) error {
	p, err := cluster.NewProvider(multi.Options{}, multi.Shm)
	if err != nil {
		return err
	}
	return cluster.RunChild(ctx, cluster.ChildOptions{Provider: p, Lookup: Workload})
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

// open starts or finds the cluster and opens its database.
func open(ctx context.Context, o *options) (*database, error) {
	var network *inproc.Network
	if o.addr == "" && o.fabric == fabricInproc {
		network = inproc.New(inproc.Options{})
	}
	c, where, err := connect(ctx, o, network)
	if err != nil {
		return nil, err
	}
	d := &database{options: o, cluster: c, network: network}
	if err := d.open(ctx, where); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

func (d *database) open(ctx context.Context, where string) error {
	var err error
	d.db, err = d.cluster.Open(ctx, func(c *txn.Config) {
		c.Reads, c.LocationCache, c.Cache, c.Seed = d.reads, d.locationCache, d.cache, d.seed
		c.ServerWrites = d.serverWrites
	})
	if err != nil {
		return err
	}
	d.table, err = d.layout.Fits(d.db.Catalog(), where, d.primaryGiven)
	if err != nil {
		return err
	}
	d.resolveFields()
	return d.keysInEach()
}

// connect starts or finds the cluster. network is that of a store in this process.
func connect(ctx context.Context, o *options, network *inproc.Network) (c *cluster.Cluster, where string, err error) {
	if o.addr != "" {
		c, err := connectRunning(ctx, o.addr)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", props.Addr, err)
		}
		where := c.Where()
		if c.Info() == nil && !cluster.IsAddress(o.addr) {
			where = props.Addr + " " + where
		}
		return c, where, nil
	}
	catalog, err := o.layout.Catalog(o.size.Partitions)
	if err != nil {
		return nil, "", err
	}
	start := cluster.StartOptions{Size: o.size, Workload: workloadOf(catalog)}
	if network != nil {
		start.Provider = network
		c, err = cluster.Start(ctx, start)
		return c, "this process", err
	}
	if ChildArgs == nil {
		return nil, "", fmt.Errorf("%s=%s: this program cannot start data servers as processes: want %s=%s, or %s of a running cluster",
			props.Fabric, fabricShm, props.Fabric, fabricInproc, props.Addr)
	}
	if start.Provider, err = cluster.NewProvider(multi.Options{}, multi.Shm); err != nil {
		return nil, "", fmt.Errorf("%s=%s: %w", props.Fabric, fabricShm, err)
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, "", fmt.Errorf("find this program to start data servers: %w", err)
	}
	start.Command = append([]string{exe}, ChildArgs...)
	if start.Workload.Name, err = usertable.WorkloadName(catalog); err != nil {
		return nil, "", err
	}
	c, err = cluster.Start(ctx, start)
	return c, "child processes", err
}

// connectRunning connects to the cluster at an address: an address with a scheme, a
// runtime directory, or the sockets of all data servers.
func connectRunning(ctx context.Context, addr string) (*cluster.Cluster, error) {
	o := cluster.ConnectOptions{Members: etcd.OpenExisting}
	switch info, err := os.Stat(addr); {
	case cluster.IsAddress(addr):
		if o.Address, err = cluster.ParseAddress(addr); err != nil {
			return nil, err
		}
	case err == nil && info.IsDir():
		o.Dir = addr
	default:
		for a := range strings.SplitSeq(addr, ",") {
			if a = strings.TrimSpace(a); a != "" {
				o.Addrs = append(o.Addrs, a)
			}
		}
	}
	c, err := cluster.Connect(ctx, o)
	if errors.Is(err, cluster.ErrNoCluster) || errors.Is(err, cluster.ErrStale) {
		err = fmt.Errorf("%w; start one with: drtmx serve --workload ycsb --runtime-dir %s", err, addr)
	}
	if err != nil {
		return nil, err
	}
	if i := c.Info(); i != nil && !usertable.IsWorkload(i.Workload) {
		_ = c.Close()
		return nil, fmt.Errorf("%s: the cluster serves workload %q: want one started by drtmx serve --workload ycsb", addr, i.Workload)
	}
	return c, nil
}
