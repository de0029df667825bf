package command

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/member"
	"drtmx/internal/member/etcd/embedded"
	"drtmx/rdma"
)

// hostLease is how long the lease of a host lasts unless the flags say so. Nobody
// takes the place of a host before its lease has ended.
const hostLease = 2 * time.Second

// findPause is the time between attempts to find the hosts of this process.
const findPause = 100 * time.Millisecond

// addLease adds the flag --lease of hosts.
func addLease(c *cobra.Command, lease *time.Duration) {
	c.Flags().DurationVar(lease, "lease", hostLease, "with --replicas: time after which a host that does not renew its lease has lost its place")
}

// checkHosts looks at what the flags say of hosts.
func (f *serveFlags) checkHosts() error {
	switch lease := f.etcd.lease; {
	case lease == 0:
		return nil
	case !f.hosts():
		return fmt.Errorf("--lease %v: want --replicas and --data-dir with it, or --index", lease)
	default:
		return flagFault("lease", lease.String(), member.CheckTTL(lease))
	}
}

// hosts makes the data servers of a cluster hosts, which find each other in an etcd
// that this process runs.
func (a *app) hosts(records cluster.Log, lease time.Duration) *cluster.Hosts {
	if lease == 0 {
		lease = hostLease
	}
	return &cluster.Hosts{
		Lease: lease,
		Members: func(ctx context.Context, dir, at string) (func() error, error) {
			s, err := embedded.Start(ctx, embedded.Options{Dir: dir, Listen: at, Insecure: true, Log: etcdLog(records)})
			if err != nil {
				return nil, err
			}
			return s.Close, nil
		},
	}
}

// foundHosts are the data servers of the hosts that this process has started, where
// they are now. It has none until they were found.
type foundHosts struct {
	now atomic.Pointer[cluster.Cluster]
}

func (f *foundHosts) addrs() []string {
	if c := f.now.Load(); c != nil {
		return c.Addrs()
	}
	return nil
}

func (f *foundHosts) dial(ctx context.Context, addr string) (rdma.Conn, error) {
	c := f.now.Load()
	if c == nil {
		return nil, fmt.Errorf("%w: the hosts start", cluster.ErrNoAnswer)
	}
	return c.Config().Dial(ctx, addr)
}

// follow finds the hosts, and again when all were replaced, until stop is called.
func (f *foundHosts) follow(o cluster.ConnectOptions) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			c, err := cluster.Connect(ctx, o)
			if err == nil {
				f.now.Store(c)
				select {
				case <-c.Lost():
				case <-ctx.Done():
				}
				f.now.Store(nil)
				_ = c.Close()
			}
			select {
			case <-ctx.Done():
			case <-time.After(findPause):
			}
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

// killCommand kills a host.
func (a *app) killCommand() *cobra.Command {
	return a.hostCommand("kill", "Kill a data server of a cluster with copies", `Ends the process of data server N with SIGKILL, as a crash would. The cluster that
was started with --replicas goes on, and starts it again only when drtmx cluster
start says so. A process that ends by itself is started again after a pause.`,
		func(ctx context.Context, dir string, host int) error {
			if err := cluster.KillHost(ctx, dir, host); err != nil {
				return err
			}
			a.Say("host %d was killed; start it again with: drtmx cluster start %d%s", host, host, dirFlag(dir))
			return nil
		})
}

// stopCommand stops a host.
func (a *app) stopCommand() *cobra.Command {
	return a.hostCommand("stop", "Stop a data server of a cluster with copies", `Stops the process of data server N, as the end of the cluster would, and returns when it
has ended. Other hosts take over what it has. Drained before, it has nothing, and
nobody waits for anything: see drtmx cluster drain.`,
		func(ctx context.Context, dir string, host int) error {
			if err := cluster.EndHost(ctx, dir, host); err != nil {
				return err
			}
			a.Say("host %d was stopped; start it again with: drtmx cluster start %d%s", host, host, dirFlag(dir))
			return nil
		})
}

// startCommand starts a host again.
func (a *app) startCommand() *cobra.Command {
	return a.hostCommand("start", "Start a data server again that was killed or stopped", `Starts the process of data server N again, which drtmx cluster kill has ended, or
which has ended by itself, and returns when it serves. If another host has taken its
data server over it keeps copies, and gets the data server back when its copy has
caught up.`,
		func(ctx context.Context, dir string, host int) error {
			began := time.Now()
			serves, err := cluster.StartHost(ctx, dir, host)
			if err != nil {
				return err
			}
			if !serves {
				a.Say("host %d runs and keeps copies; its data server is at another host, and comes back by itself", host)
				return nil
			}
			a.Say("host %d serves again, after %.1f s", host, time.Since(began).Seconds())
			return nil
		})
}

func (a *app) hostCommand(name, short, long string, do func(ctx context.Context, dir string, host int) error) *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use: name + " N", Short: short, Long: long,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return cli.Usagef("%s: want the number of one data server, from 0 on", c.CommandPath())
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			host, err := strconv.Atoi(args[0])
			if err != nil || host < 0 {
				return cli.Usagef("%s %q: want the number of a data server, from 0 on", c.CommandPath(), args[0])
			}
			err = do(c.Context(), dir, host)
			if stopped := interrupted(c.Context()); stopped != nil {
				return stopped
			}
			return err
		},
	}
	addRuntimeDir(c, &dir, cluster.DefaultDir(), "runtime directory of the cluster")
	return c
}
