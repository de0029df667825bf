package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
)

func (a *app) clusterCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "cluster",
		Short: "Start, look at and stop a cluster in the background",
		Long: `Starts a local cluster in the background for experiments, shows what a running
cluster does, and stops it. Without --data-dir, data is in memory only and down loses it.`,
	}
	c.AddCommand(a.upCommand(), a.downCommand(), a.statusCommand(), a.killCommand(), a.stopCommand(), a.startCommand(),
		a.moveCommand(), a.drainCommand(), a.undrainCommand(), a.removeCommand(), a.addCommand(), a.restartCommand())
	group(c)
	return c
}

// upFlags are the flags of cluster up; most are handed on to serve.
type upFlags struct {
	serve   serveFlags
	logFile string
}

func (a *app) upCommand() *cobra.Command {
	f := &upFlags{}
	c := &cobra.Command{
		Use:   "up",
		Short: "Start a local cluster in the background",
		Long: `Starts data servers as processes of this machine and returns when they serve.
They run until drtmx cluster down. The runtime directory holds their sockets and
no data; --data-dir is where data is that must last.

With --replicas each data server is a host, and the end of one is not that of the
cluster: see drtmx cluster kill.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.serve.settleData(a, c); err != nil {
				return cli.Usage(err)
			}
			if err := errors.Join(f.serve.checkHosts(), f.serve.check(), f.serve.size.check()); err != nil {
				return cli.Usage(err)
			}
			if _, err := f.serve.workload.resolve(a, f.serve.partitions()); err != nil {
				return err
			}
			return a.up(c.Context(), f)
		},
	}
	s, fl := &f.serve, c.Flags()
	addRuntimeDir(c, &s.dir, cluster.DefaultDir(), "runtime directory for sockets, made if it does not exist")
	s.data.add(c)
	s.size.add(c)
	s.workload.add(a, c)
	s.models.add(c)
	s.models.addInner(c)
	s.addFabrics(c)
	s.tls.add(c)
	s.log.add(c)
	addLease(c, &s.etcd.lease)
	fl.StringVar(&f.logFile, "log-file", "", "append the log to this file (default: no log)")
	s.shows.add(c)
	return c
}

// args are those of the process that serves.
func (f *upFlags) args() []string {
	s := &f.serve
	args := []string{
		"serve", "--runtime-dir", s.dir, "--servers", strconv.Itoa(s.size.servers), "--partitions", strconv.Itoa(s.size.partitions),
		"--models", s.models.name, fmt.Sprintf("--publish-inner=%v", s.models.inner), "--fabrics", strings.Join(s.fabrics, ","), "--listen", s.listen,
		"--metrics", s.shows.metrics, "--pprof", s.shows.pprof, "--log-format", s.log.format,
	}
	if s.data.dir != "" {
		args = append(args, "--data-dir", s.data.dir)
	}
	if s.workload.name != "" && s.workload.data == nil { // not of a program with a workload of its own
		args = append(args, "--workload", s.workload.name)
	}
	for _, p := range s.workload.files {
		args = append(args, "-P", p)
	}
	for _, p := range s.workload.values {
		args = append(args, "-p", p)
	}
	if s.hosts() && s.etcd.lease != 0 {
		args = append(args, "--lease", s.etcd.lease.String())
	}
	level := s.log.level
	if f.logFile == "" {
		level = "error" // what would be read by nobody
	}
	args = append(append(args, "--log-level", level), s.size.args()...)
	return append(args, s.tls.args()...)
}

// Bounds of how long the cluster may take until it serves: without data, longer than
// its supervisor waits for a data server, and with data to recover.
const (
	upTimeout        = 2 * time.Minute
	upRecoverTimeout = 24 * time.Hour
)

// up starts the cluster.
func (a *app) up(ctx context.Context, f *upFlags) (err error) {
	dir, err := filepath.Abs(f.serve.dir)
	if err != nil {
		return err
	}
	f.serve.dir = dir
	if info, err := cluster.Describe(ctx, dir); err == nil {
		return fmt.Errorf("%w in %s, of %d data servers, since %s", cluster.ErrBusy, dir, len(info.Servers), info.Started.Format(time.DateTime))
	}
	out, err := f.output()
	if err != nil {
		return err
	}
	defer out.Close()
	from, _ := out.Seek(0, io.SeekEnd)
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program to start the cluster: %w", err)
	}
	cmd := exec.Command(exe, f.args()...)
	cmd.Stderr = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // it outlives this terminal
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start the cluster: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	limit := upTimeout
	if f.serve.data.dir != "" {
		limit = upRecoverTimeout
	}
	info, err := awaitCluster(ctx, dir, cmd.Process.Pid, ended, limit)
	switch {
	case errors.Is(err, errEnded):
		return upError(out, from)
	case err != nil:
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-ended
		if stopped := interrupted(ctx); stopped != nil {
			return stopped
		}
		return err
	}
	a.Say("%d data servers ready in %s%s; %s; stop with: drtmx cluster down%s",
		len(info.Servers), dir, networkOf(info), f.serve.data.where(), dirFlag(dir))
	return nil
}

// dirFlag is the flag that later commands need to find the cluster.
func dirFlag(dir string) string {
	if dir == cluster.DefaultDir() {
		return ""
	}
	return " --runtime-dir " + dir
}

// networkOf is where other machines find the cluster, for people.
func networkOf(i *cluster.Info) string {
	if s := i.Servers[0]; s.Addr != "" {
		return " and at " + cluster.SchemeTCP + "://" + s.Addr
	}
	return ""
}

// output is where the serving process writes: the log file, or one without a
// name, which keeps what it says if it does not start.
func (f *upFlags) output() (*os.File, error) {
	if f.logFile != "" {
		out, err := os.OpenFile(f.logFile, os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o600)
		if err != nil {
			return nil, cli.Usagef("--log-file: want a file that can be written: %w", err)
		}
		return out, nil
	}
	out, err := os.CreateTemp("", "drtmx-up-")
	if err != nil {
		return nil, err
	}
	return out, os.Remove(out.Name())
}

var errEnded = errors.New("the serving process has ended")

// awaitCluster waits until the process serves in the directory.
func awaitCluster(ctx context.Context, dir string, pid int, ended <-chan error, limit time.Duration) (*cluster.Info, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the cluster does not serve after %v", limit))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if info, err := cluster.Describe(ctx, dir); err == nil && info.Supervisor == pid {
			return info, nil
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-ended:
			return nil, errEnded
		case <-tick.C:
		}
	}
}

// upError is the last line that a process wrote which did not serve.
func upError(out *os.File, from int64) error {
	b, err := io.ReadAll(io.NewSectionReader(out, from, 1<<20))
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	last := strings.TrimPrefix(lines[len(lines)-1], "drtmx: ")
	if err != nil || last == "" {
		last = "it did not say why"
	}
	return fmt.Errorf("the cluster did not start: %s", last)
}

func (a *app) downCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "down",
		Short: "Stop a local cluster; data in memory is lost",
		Long: `Stops the cluster that drtmx cluster up or drtmx serve runs in the runtime
directory, and leaves nothing behind there: of a cluster that is dead, too. Data
in memory is lost; that in a data directory stays.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.down(c.Context(), dir) },
	}
	addRuntimeDir(c, &dir, cluster.DefaultDir(), "runtime directory of the cluster")
	return c
}

// down stops the cluster.
func (a *app) down(ctx context.Context, dir string) error {
	switch err := cluster.Stop(ctx, dir); {
	case err == nil:
		a.Say("the cluster in %s was stopped", dir)
		return nil
	case !errors.Is(err, cluster.ErrStale):
		return err
	default:
		if cerr := cluster.Clear(ctx, dir); cerr != nil {
			return errors.Join(err, cerr)
		}
		a.Say("removed what a dead cluster had left in %s", dir)
		return nil
	}
}
