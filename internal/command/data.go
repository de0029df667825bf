package command

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/placement"
	"drtmx/rdma/multi"
	"drtmx/server"
	"drtmx/txn/stats"
)

// Policies of durability.
var (
	durabilityMemory = server.Memory.String()
	durabilityDisk   = server.Disk.String()
)

var durabilities = []string{durabilityMemory, durabilityDisk}

// dataFlags say what must hold before a client learns of a commit, and where the
// data is.
type dataFlags struct {
	durability string
	dir        string
	hosts      bool // the directory is that of a cluster of hosts; see settle
	uncopied   bool // the directory has never had copies, or has no data
}

func (d *dataFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&d.durability, "durability", durabilityMemory, "what must hold before a client learns of a commit: memory (the data is gone when the servers stop) or disk (it is in the log of each data server, in --data-dir)")
	c.Flags().Var((*dirValue)(&d.dir), "data-dir", "directory of the data, made if it does not exist; implies --durability disk")
}

// check refuses contradictions, and settles the policy.
func (d *dataFlags) check(given func(string) bool) error {
	if err := checkChoice("durability", d.durability, durabilities); err != nil {
		return err
	}
	switch {
	case d.dir == "" && d.durability == durabilityDisk:
		return fmt.Errorf("--durability %s: want --data-dir with it, a directory for the data", d.durability)
	case d.dir != "" && d.durability == durabilityMemory && given("durability"):
		return fmt.Errorf("--durability %s and --data-dir %s: want --durability %s, or no directory", d.durability, d.dir, durabilityDisk)
	case d.dir != "":
		d.durability = durabilityDisk
	}
	return nil
}

// asHosts reports whether the data servers of the directory are hosts, or become hosts:
// they have copies, and the directory had none that are not those of hosts.
func (d *dataFlags) asHosts(replicas int) bool { return d.hosts || d.uncopied && replicas > 1 }

// runDir is the runtime directory of a cluster on a data directory, if it has no
// other one.
const runDir = "run"

// settle is check for a command that starts data servers: it makes the directory
// absolute, and takes the shape of the cluster from the data that is there. data
// is nil if there is none.
func (d *dataFlags) settle(given func(string) bool, size *sizeFlags) (data *cluster.Data, err error) {
	if err := d.check(given); err != nil {
		return nil, err
	}
	if d.dir == "" {
		if size.replicas > 1 {
			return nil, fmt.Errorf("--replicas %d: want --data-dir with it, data in memory has no copies", size.replicas)
		}
		return nil, nil
	}
	if d.dir, err = filepath.Abs(d.dir); err != nil {
		return nil, err
	}
	if _, err = server.AdoptCopies(context.Background(), vfs.Default, d.dir); err != nil {
		return nil, err
	}
	if data, err = cluster.ReadData(d.dir); data == nil {
		d.uncopied = err == nil
		return nil, err
	}
	if d.hosts, d.uncopied = data.Hosts, data.Replicas == 0; !given("replicas") {
		size.replicas = max(data.Replicas, 1)
	}
	switch {
	case data.Hosts && size.replicas != data.Replicas:
		return nil, fmt.Errorf("--replicas %d: the data in %s has %d replicas, which stay; a directory that drtmx restore makes of a backup can have another number", size.replicas, d.dir, data.Replicas)
	case given("servers") && size.servers != data.Servers:
		return nil, fmt.Errorf("--servers %d: the data in %s is that of %d data servers", size.servers, d.dir, data.Servers)
	case given("partitions") && cmp.Or(size.partitions, data.Servers) != data.Partitions:
		return nil, fmt.Errorf("--partitions %d: the data in %s has %d", size.partitions, d.dir, data.Partitions)
	}
	size.servers, size.partitions = data.Servers, data.Partitions
	return data, nil
}

// running finds the cluster that runs on the data directory, and returns its
// runtime directory, "" if none does.
func (d *dataFlags) running(ctx context.Context) string {
	dir, err := filepath.Abs(d.dir)
	if err != nil {
		return ""
	}
	for _, where := range []string{filepath.Join(dir, runDir), cluster.DefaultDir()} {
		if i, err := cluster.Describe(ctx, where); err == nil && i.DataDir == dir {
			return where
		}
	}
	return ""
}

// where says where the data is, for people.
func (d *dataFlags) where() string {
	if d.dir == "" {
		return "data is in memory only"
	}
	return "data is in " + d.dir
}

// ownFlags are those of commands that use a running cluster, or start data servers
// on a data directory for as long as they take.
type ownFlags struct {
	where whereFlags
	data  dataFlags
	size  sizeFlags
}

func (o *ownFlags) add(c *cobra.Command) {
	o.where.add(c)
	o.data.add(c)
	o.size.add(c)
}

// check settles which cluster it is. Without flags it is that of drtmx cluster up.
func (o *ownFlags) check(ctx context.Context, given func(string) bool) (data *cluster.Data, err error) {
	switch {
	case o.data.dir == "" && given("durability"):
		err = fmt.Errorf("--durability %s: want --data-dir with it", o.data.durability)
	case o.data.dir == "":
		for _, name := range []string{"servers", "partitions", "memory", "retain", "retain-bytes", "checkpoint-bytes", "replicas", "zones", "writer-lease"} {
			if given(name) {
				return nil, cli.Usagef("--%s: a running cluster has its own; want --data-dir with it", name)
			}
		}
		return nil, requireCluster(&o.where)
	case o.where.given():
		err = fmt.Errorf("--data-dir %s: want it, --runtime-dir or --connect", o.data.dir)
	default:
		if o.where.runtimeDir = o.data.running(ctx); o.where.runtimeDir != "" {
			return nil, nil
		}
		data, err = o.data.settle(given, &o.size)
		if err == nil {
			err = o.size.check()
		}
	}
	if err != nil {
		return nil, cli.Usage(err)
	}
	return data, nil
}

// open finds the cluster, or starts data servers.
func (a *app) open(ctx context.Context, o *ownFlags) (*session, error) {
	if o.where.given() {
		return a.attach(ctx, &o.where)
	}
	size := o.size.size()
	size.DataDir = o.data.dir
	p, err := processes([]string{fabricShm}, &tlsFlags{}, "", size)
	if err != nil {
		return nil, err
	}
	if o.data.asHosts(o.size.replicas) {
		p.Dir, p.Hosts = filepath.Join(o.data.dir, runDir), a.hosts(cluster.Log{}, 0)
	}
	return a.startRecovering(ctx, p, multi.Options{})
}

// startRecovering starts data servers as processes, and says what they recovered.
func (a *app) startRecovering(ctx context.Context, o cluster.StartOptions, fabrics multi.Options) (*session, error) {
	o.Recovered = a.sayRecovered
	var r recoveries
	defer r.done()
	o.Recovering = func(server placement.Server, now stats.Recovering) { r.set(a, server, now) }
	return a.startProcesses(ctx, o, fabrics)
}

// sayRecovered says how long each phase of the recovery of a data server took.
func (a *app) sayRecovered(server placement.Server, r *stats.Recovery) {
	a.Say("data server %d recovered %d rows: %s", server, r.Rows, phasesText(r))
}
