package main

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
cluster does, and stops it. Data is in memory only: down loses it.`,
	}
	c.AddCommand(a.upCommand(), a.downCommand(), a.statusCommand())
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
no data.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(f.serve.check(), f.serve.size.check()); err != nil {
				return cli.Usage(err)
			}
			if _, err := f.serve.workload.resolve(f.serve.partitions()); err != nil {
				return err
			}
			return a.up(c.Context(), f)
		},
	}
	s, fl := &f.serve, c.Flags()
	addDataDir(c, &s.dir, cluster.DefaultDir(), "runtime directory for sockets, made if it does not exist")
	s.size.add(c)
	s.workload.add(c)
	s.models.add(c)
	s.addFabrics(c)
	s.tls.add(c)
	s.log.add(c)
	fl.StringVar(&f.logFile, "log-file", "", "append the log to this file (default: no log)")
	s.shows.add(c)
	return c
}

// args are those of the process that serves.
func (f *upFlags) args() []string {
	s := &f.serve
	args := []string{
		"serve", "--data-dir", s.dir, "--servers", strconv.Itoa(s.size.servers), "--partitions", strconv.Itoa(s.size.partitions),
		"--workload", s.workload.name, "--models", s.models.name, "--fabrics", strings.Join(s.fabrics, ","), "--listen", s.listen,
		"--metrics", s.shows.metrics, "--pprof", s.shows.pprof, "--log-format", s.log.format,
	}
	for _, p := range s.workload.files {
		args = append(args, "-P", p)
	}
	for _, p := range s.workload.values {
		args = append(args, "-p", p)
	}
	level := s.log.level
	if f.logFile == "" {
		level = "error" // what would be read by nobody
	}
	return append(append(args, "--log-level", level), s.tls.args()...)
}

// upTimeout bounds how long the cluster may take until it serves.
const upTimeout = 45 * time.Second

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
	info, err := awaitCluster(ctx, dir, cmd.Process.Pid, ended)
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
	a.Say("%d data servers ready in %s%s; data is in memory only; stop with: drtmx cluster down%s",
		len(info.Servers), dir, networkOf(info), dirFlag(dir))
	return nil
}

// dirFlag is the flag that later commands need to find the cluster.
func dirFlag(dir string) string {
	if dir == cluster.DefaultDir() {
		return ""
	}
	return " --data-dir " + dir
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
func awaitCluster(ctx context.Context, dir string, pid int, ended <-chan error) (*cluster.Info, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, upTimeout, fmt.Errorf("the cluster does not serve after %v", upTimeout))
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
		Short: "Stop a local cluster; its data is lost",
		Long: `Stops the cluster that drtmx cluster up or drtmx serve runs in the runtime
directory. Its data is lost, and nothing is left behind: of a cluster that is
dead, too.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.down(c.Context(), dir) },
	}
	addDataDir(c, &dir, cluster.DefaultDir(), "runtime directory of the cluster")
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
		if cerr := cluster.Clear(dir); cerr != nil {
			return errors.Join(err, cerr)
		}
		a.Say("removed what a dead cluster had left in %s", dir)
		return nil
	}
}
