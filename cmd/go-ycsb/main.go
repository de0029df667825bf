// Command go-ycsb runs YCSB workloads against drtmx, with the command line,
// the property files and the result lines of go-ycsb.
//
// docs/ycsb.md describes it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"

	"drtmx/ycsb"
	"drtmx/ycsb/props"
)

// Exit statuses; those of drtmx.
const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// version is the release; commit is set by the Makefile.
var (
	version = "0.1.0"
	commit  = ""
)

func main() {
	os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Main is the program. It returns the exit status.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	a := &app{stdin: stdin, stdout: &lockedWriter{w: stdout}, stderr: stderr}
	stop := a.watchSignals(cancel)
	defer stop()
	ycsb.ChildArgs = []string{childCommand}
	root := a.command()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	return a.status(root.ExecuteContext(ctx))
}

var errInterrupted = errors.New("interrupted")

// usageError is bad input. Its text names the input and what was expected.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// app is what commands share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

// lockedWriter lets a signal and a run write at once.
type lockedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lockedWriter) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// watchSignals makes the first signal end the context and the second one the
// process. Data servers that are child processes end with it.
func (a *app) watchSignals(cancel context.CancelCauseFunc) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case s := <-signals:
				if n > 0 {
					os.Exit(exitInterrupted)
				}
				fmt.Fprintf(a.stdout, "\nGot signal [%v] to exit.\n", s)
				cancel(errInterrupted)
			}
		}
	}()
	return func() {
		signal.Stop(signals)
		close(done)
	}
}

// status prints an error as one line and maps it to the exit status.
func (a *app) status(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errInterrupted):
		a.say("%v", err)
		return exitInterrupted
	case errors.As(err, &usage), errors.Is(err, props.ErrProperty):
		a.say("%v", err)
		return exitUsage
	}
	a.say("%v", err)
	return exitFailed
}

// say prints one line for people.
func (a *app) say(format string, args ...any) {
	lines := strings.FieldsFunc(fmt.Sprintf(format, args...), func(r rune) bool { return r == '\n' || r == '\r' })
	fmt.Fprintln(a.stderr, "go-ycsb: "+strings.Join(lines, "; "))
}

// childCommand runs one data server for a parent process.
const childCommand = "data-server"

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "go-ycsb",
		Short: "YCSB against drtmx",
		Long: `Runs YCSB workloads against drtmx, with the command line, the property files
and the result lines of go-ycsb.

  go-ycsb loadrun drtmx -P ycsb/workloads/workloada

Without drtmx.addr the data servers run in this process (or, with
drtmx.fabric=shm, are its children) and their data is gone when it ends: loadrun
loads and runs. With drtmx.addr=DIR, load and run use the cluster that
drtmx serve --workload ycsb --data-dir DIR runs.`,
		SilenceUsage: true, SilenceErrors: true, Version: versionLine(),
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			const commands = "load, loadrun, run or shell"
			if len(args) == 0 {
				return usagef("name a command: %s (see go-ycsb --help)", commands)
			}
			return usagef("unknown command %q, want %s", args[0], commands)
		},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%s: %w (see %s --help)", c.CommandPath(), err, c.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	child := &cobra.Command{
		Use: childCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return ycsb.RunChild(c.Context()) },
	}
	root.AddCommand(a.loadCommand(), a.runCommand(), a.loadRunCommand(), a.shellCommand(), child)
	return root
}

func versionLine() string {
	revision := commit
	if info, ok := debug.ReadBuildInfo(); ok && revision == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	if revision == "" {
		revision = "unknown"
	}
	return fmt.Sprintf("go-ycsb of drtmx %s (commit %s, %s, %s/%s; drivers %s)",
		version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH, strings.Join(drivers, ", "))
}
