package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/placement"
)

// moveLimit is how long a command waits for a move unless the flags say so.
const moveLimit = 10 * time.Minute

// operateFlags are those of commands that say what a cluster of hosts is to do.
type operateFlags struct {
	where   whereFlags
	timeout time.Duration
	json    bool
}

func (f *operateFlags) add(c *cobra.Command) {
	f.where.add(c)
	c.Flags().DurationVar(&f.timeout, "timeout", moveLimit, "how long to wait; what was asked for goes on after that")
	c.Flags().BoolVar(&f.json, "json", false, "print JSON instead of a line")
}

func (f *operateFlags) check() error {
	if !f.where.given() {
		f.where.runtimeDir = cluster.DefaultDir()
	}
	if f.timeout <= 0 {
		return fmt.Errorf("--timeout %v: want more than 0s", f.timeout)
	}
	return f.where.check()
}

// operate finds the cluster, and lets do its work within the time.
func (a *app) operate(ctx context.Context, f *operateFlags, do func(ctx context.Context, c *cluster.Cluster) error) (err error) {
	c, err := f.where.connectTo(ctx, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	limited, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	err = do(limited, c)
	if stopped := interrupted(ctx); stopped != nil && err != nil {
		return stopped
	}
	return err
}

// tell prints a result, as a line or as JSON.
func (a *app) tell(asJSON bool, v any, format string, args ...any) error {
	if !asJSON {
		a.Say(format, args...)
		return nil
	}
	e := json.NewEncoder(a.stdout)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// moveResult is the JSON object of cluster move.
type moveResult struct {
	Server     placement.Server      `json:"server"`
	Partitions []placement.Partition `json:"partitions"`
	From       int                   `json:"from"`
	To         int                   `json:"to"`
	Seconds    float64               `json:"seconds"`
}

func (a *app) moveCommand() *cobra.Command {
	f := &operateFlags{}
	var server, partition, to int
	c := &cobra.Command{
		Use:   "move --server S | --partition P --to H",
		Short: "Move a data server to another host while clients run",
		Long: `Moves data server S, or the one that has partition P, with all its partitions to host
H, and returns when it serves there. The host gets a copy, which catches up; then the
data server is handed over, and clients wait for its recovery. It stays there until it
is moved again: to the host of its own number it goes back. Also after the end of this
command the cluster goes on with the move. Until it is made, a move to where the data
server is takes it back.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			set := c.Flags().Changed
			switch {
			case set("server") == set("partition"):
				return cli.Usagef("%s: want --server or --partition", c.CommandPath())
			case !set("to"):
				return cli.Usagef("%s: want --to, the number of a host", c.CommandPath())
			}
			if err := f.check(); err != nil {
				return cli.Usage(err)
			}
			return a.operate(c.Context(), f, func(ctx context.Context, cl *cluster.Cluster) (err error) {
				at := placement.Server(server)
				if set("partition") {
					if at, err = cl.ServerOf(ctx, placement.Partition(partition)); err != nil {
						return asUsage(err, cluster.ErrMove)
					}
				}
				return a.move(ctx, f, cl, at, to)
			})
		},
	}
	fl := c.Flags()
	fl.IntVar(&server, "server", 0, "number of the data server")
	fl.IntVar(&partition, "partition", 0, "a partition; all partitions of its data server go along")
	fl.IntVar(&to, "to", 0, "number of the host")
	f.add(c)
	return c
}

func (a *app) move(ctx context.Context, f *operateFlags, c *cluster.Cluster, server placement.Server, to int) error {
	began := time.Now()
	was, err := c.Move(ctx, server, to)
	if err != nil {
		return asUsage(err, cluster.ErrMove)
	}
	if _, err := c.AwaitPlaced(ctx, server); err != nil {
		return err
	}
	r := moveResult{Server: server, Partitions: was.Partitions, From: was.Host, To: to, Seconds: time.Since(began).Seconds()}
	if was.Host == to {
		return a.tell(f.json, r, "data server %d is at host %d already", server, to)
	}
	return a.tell(f.json, r, "data server %d with %s went from host %d to host %d, after %.1f s", server, partitionsText(was.Partitions), was.Host, to, r.Seconds)
}

func partitionsText(all []placement.Partition) string {
	if len(all) == 1 {
		return fmt.Sprintf("partition %d", all[0])
	}
	return "partitions " + intsText(all)
}

// hostArg is the number of a host in the arguments of a command.
func hostArg(c *cobra.Command, args []string) (int, error) {
	if len(args) != 1 {
		return 0, cli.Usagef("%s: want the number of one host, from 0 on", c.CommandPath())
	}
	host, err := strconv.Atoi(args[0])
	if err != nil || host < 0 {
		return 0, cli.Usagef("%s %q: want the number of a host, from 0 on", c.CommandPath(), args[0])
	}
	return host, nil
}

// drainResult is the JSON object of cluster drain and undrain.
type drainResult struct {
	Host    int             `json:"host"`
	Drained bool            `json:"drained"`
	Servers []cluster.Where `json:"servers"` // that have gone
	Seconds float64         `json:"seconds"`
}

func (a *app) drainCommand() *cobra.Command {
	f := &operateFlags{}
	c := &cobra.Command{
		Use:   "drain H",
		Short: "Move all data servers and copies away from a host",
		Long: `Moves all data servers away from host H, lets copies of them be made elsewhere where
enough hosts are left, and keeps new ones away. When the command returns, the host can
be stopped and nobody waits for anything. It stays drained, also when it is started
again, until drtmx cluster undrain.`,
		RunE: a.onHost(f, f.host, func(ctx context.Context, c *cobra.Command, cl *cluster.Cluster, host int) error {
			began := time.Now()
			goes, err := cl.Drain(ctx, host)
			if err != nil {
				return asUsage(err, cluster.ErrMove)
			}
			if err := drained(ctx, cl, host, goes); err != nil {
				return err
			}
			r := drainResult{Host: host, Drained: true, Servers: append([]cluster.Where{}, goes...), Seconds: time.Since(began).Seconds()}
			return a.tell(f.json, r, "host %d is drained, after %.1f s; undo with: drtmx cluster undrain %d", host, r.Seconds, host)
		}),
	}
	f.add(c)
	return c
}

// drained waits until a host is drained, and what was there serves elsewhere.
func drained(ctx context.Context, c *cluster.Cluster, host int, goes []cluster.Where) error {
	if err := c.AwaitDrained(ctx, host); err != nil {
		return err
	}
	for _, w := range goes { // one whose own host does not run goes there later
		if _, err := c.AwaitServing(ctx, w.Server); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) undrainCommand() *cobra.Command {
	f := &operateFlags{}
	var wait bool
	c := &cobra.Command{
		Use:   "undrain H",
		Short: "Let data servers and copies be at a drained host again",
		Long: `Ends drtmx cluster drain H. Data servers that are to be at the host come back by
themselves, when it runs and has copies in sync; with --wait the command returns then.`,
		RunE: a.onHost(f, f.host, func(ctx context.Context, c *cobra.Command, cl *cluster.Cluster, host int) error {
			began := time.Now()
			if err := cl.Undrain(ctx, host); err != nil {
				return asUsage(err, cluster.ErrMove)
			}
			if wait {
				if err := cl.AwaitInSync(ctx, nil); err != nil {
					return err
				}
			}
			r := drainResult{Host: host, Servers: []cluster.Where{}, Seconds: time.Since(began).Seconds()}
			return a.tell(f.json, r, "host %d is not drained any more", host)
		}),
	}
	f.add(c)
	c.Flags().BoolVar(&wait, "wait", false, "wait until all data servers are where they are to be")
	return c
}

// hostResult is the JSON object of cluster remove and add.
type hostResult struct {
	Host    int     `json:"host"`
	Removed bool    `json:"removed"`
	Seconds float64 `json:"seconds"`
}

func (a *app) removeCommand() *cobra.Command {
	f := &operateFlags{}
	c := &cobra.Command{
		Use:   "remove H",
		Short: "Remove a drained host of a local cluster, with its directory",
		Long: `Stops host H, which must be drained, and removes its directory. The cluster goes on
without it, until drtmx cluster add. It is for the user of the cluster on its machine; a
host that was started by itself is removed by ending its process when it is drained.`,
		RunE: a.onHost(f, f.localHost, func(ctx context.Context, c *cobra.Command, cl *cluster.Cluster, host int) error {
			began := time.Now()
			if err := cl.CheckDrained(ctx, host); err != nil {
				return asUsage(err, cluster.ErrMove)
			}
			i := cl.Info()
			if i == nil || host >= len(i.Servers) {
				return cli.Usagef("%s %d: the cluster in %s has no process that starts its hosts", c.CommandPath(), host, cl.Where())
			}
			switch i.Servers[host].State {
			case cluster.HostKilled, cluster.HostStops, cluster.HostIdle:
			default: // a host that is started again by itself would make its directory anew
				if err := cluster.EndHost(ctx, f.where.runtimeDir, host); err != nil {
					return err
				}
			}
			if err := cl.AwaitLeft(ctx, host); err != nil {
				return err
			}
			if err := cluster.RemoveHost(i.DataDir, host); err != nil {
				return err
			}
			r := hostResult{Host: host, Removed: true, Seconds: time.Since(began).Seconds()}
			return a.tell(f.json, r, "host %d is removed, with its directory; undo with: drtmx cluster add %d", host, host)
		}),
	}
	f.add(c)
	return c
}

func (a *app) addCommand() *cobra.Command {
	f := &operateFlags{}
	c := &cobra.Command{
		Use:   "add H",
		Short: "Add a host of a local cluster that was removed",
		Long: `Starts host H, which drtmx cluster remove has removed, with an empty directory, and
undrains it. It keeps copies at first, and has its data server back when its copy is in
sync; the command returns then.`,
		RunE: a.onHost(f, f.localHost, func(ctx context.Context, c *cobra.Command, cl *cluster.Cluster, host int) error {
			began := time.Now()
			if err := cl.CheckDrained(ctx, host); err != nil {
				return asUsage(err, cluster.ErrMove)
			}
			if _, err := cluster.StartHost(ctx, f.where.runtimeDir, host); err != nil {
				return err
			}
			if err := cl.Undrain(ctx, host); err != nil {
				return err
			}
			if err := cl.AwaitInSync(ctx, nil); err != nil {
				return err
			}
			r := hostResult{Host: host, Seconds: time.Since(began).Seconds()}
			return a.tell(f.json, r, "host %d is there again, after %.1f s", host, r.Seconds)
		}),
	}
	f.add(c)
	return c
}

// onHost is a command about one host, whose number check returns.
func (a *app) onHost(
	f *operateFlags, check func(c *cobra.Command, args []string) (host int, err error),
	do func(ctx context.Context, c *cobra.Command, cl *cluster.Cluster, host int) error,
) func(c *cobra.Command, args []string) error {
	return func(c *cobra.Command, args []string) error {
		host, err := check(c, args)
		if err != nil {
			return err
		}
		return a.operate(c.Context(), f, func(ctx context.Context, cl *cluster.Cluster) error {
			return do(ctx, c, cl, host)
		})
	}
}

// host checks the flags and the argument of a command about a host.
func (f *operateFlags) host(c *cobra.Command, args []string) (host int, err error) {
	if host, err = hostArg(c, args); err != nil {
		return 0, err
	}
	if err := f.check(); err != nil {
		return 0, cli.Usage(err)
	}
	return host, nil
}

// localHost is host for a command about a host's process.
func (f *operateFlags) localHost(c *cobra.Command, args []string) (host int, err error) {
	if host, err = f.host(c, args); err == nil && len(f.where.connect) > 0 {
		err = errNoRuntime
	}
	return host, err
}

var errNoRuntime = cli.Usagef("--connect: want --runtime-dir, where the process runs that starts the hosts")

// restartResult is the JSON object of cluster restart.
type restartResult struct {
	Hosts   []int   `json:"hosts"`
	Seconds float64 `json:"seconds"`
}

func (a *app) restartCommand() *cobra.Command {
	f := &operateFlags{}
	c := &cobra.Command{
		Use:   "restart [H...]",
		Short: "Start all hosts of a local cluster again, one after the other, while clients run",
		Long: `For each host in turn, or for those that are named: drains it, stops it, starts it
again, undrains it, and waits until all data servers are where they are to be and have
as many copies in sync as before. It is for the user of the cluster on its machine. If it
is interrupted the present host may be drained, or not run.`,
		RunE: func(c *cobra.Command, args []string) error {
			var hosts []int
			for _, arg := range args {
				host, err := hostArg(c, []string{arg})
				if err != nil {
					return err
				}
				hosts = append(hosts, host)
			}
			if err := f.check(); err != nil {
				return cli.Usage(err)
			}
			if len(f.where.connect) > 0 {
				return errNoRuntime
			}
			return a.operate(c.Context(), f, func(ctx context.Context, cl *cluster.Cluster) error {
				return a.restart(ctx, f, cl, hosts)
			})
		},
	}
	f.add(c)
	return c
}

func (a *app) restart(ctx context.Context, f *operateFlags, c *cluster.Cluster, hosts []int) error {
	began := time.Now()
	copies, err := c.InSync(ctx)
	if err != nil {
		return asUsage(err, cluster.ErrMove)
	}
	if len(hosts) == 0 {
		for host := range len(copies) {
			hosts = append(hosts, host)
		}
	}
	for _, host := range hosts {
		goes, err := c.Drain(ctx, host)
		if err != nil {
			return asUsage(err, cluster.ErrMove)
		}
		for _, step := range []func() error{
			func() error { return drained(ctx, c, host, goes) },
			func() error { return cluster.EndHost(ctx, f.where.runtimeDir, host) },
			func() error { _, err := cluster.StartHost(ctx, f.where.runtimeDir, host); return err },
			func() error { return c.Undrain(ctx, host) },
			func() error { return c.AwaitInSync(ctx, copies) },
		} {
			if err := step(); err != nil {
				return err
			}
		}
		if !f.json {
			a.Say("host %d was started again", host)
		}
	}
	r := restartResult{Hosts: slices.Clone(hosts), Seconds: time.Since(began).Seconds()}
	return a.tell(f.json, r, "all is as it was, after %.1f s", r.Seconds)
}
