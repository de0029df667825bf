// Command drtmx runs the data servers of a drtmx cluster and the TPC-C
// workload against them.
//
// Its command line and the JSON report are a contract that scripts rely on;
// docs/operations.md describes both.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit statuses.
const (
	exitOK          = 0
	exitFailed      = 1   // the command failed, or a consistency condition does not hold
	exitUsage       = 2   // bad input: nothing was started
	exitInterrupted = 130 // by SIGINT, SIGTERM or SIGHUP
)

func main() {
	os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr))
}

// Main is the program. It returns the exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	a := &app{stdout: stdout, stderr: stderr}
	stop := a.watchSignals(cancel)
	defer stop()
	root := a.command()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	return a.status(err)
}

// errInterrupted is the cause of a context that a signal ended.
var errInterrupted = errors.New("interrupted")

// usageError is bad input. Its text names the input and what was expected.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// app is what commands share.
type app struct {
	stdout, stderr io.Writer

	mu     sync.Mutex
	onKill []func() // run by the second signal, before the process exits
}

// atKill arranges for f to run if the user insists on leaving now.
func (a *app) atKill(f func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.onKill = append(a.onKill, f)
}

// watchSignals makes the first signal end the context and the second one the process.
func (a *app) watchSignals(cancel context.CancelCauseFunc) (stop func()) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	done := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			case <-signals:
			}
			if n == 0 {
				cancel(errInterrupted)
				continue
			}
			a.mu.Lock()
			for _, f := range a.onKill {
				f()
			}
			os.Exit(exitInterrupted)
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
	case errors.As(err, &usage):
		a.say("%v", err)
		return exitUsage
	}
	a.say("%v", err)
	return exitFailed
}

// say prints one line for people.
func (a *app) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	fmt.Fprintln(a.stderr, "drtmx: "+strings.Join(lines, "; "))
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "drtmx",
		Short: "A distributed in-memory OLTP engine with one-sided reads",
		Long: `drtmx is a distributed in-memory OLTP engine. Data servers hold tables in
registered memory and apply all writes; clients read with one-sided READs.

  drtmx tpcc run     loads and runs TPC-C on a cluster of its own

Data is in memory only: it is gone when the data servers stop.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       versionLine(),
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(a.tpccCommand(), a.serveCommand(), a.clusterCommand(), a.certsCommand())
	group(root)
	return root
}

// group makes a command that only holds others report what it cannot find.
func group(c *cobra.Command) {
	c.Args = cobra.ArbitraryArgs
	c.RunE = func(c *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef("%s: name a command: %s (see %s --help)", c.CommandPath(), names(c), c.CommandPath())
		}
		return usagef("%s: unknown command %q, want %s", c.CommandPath(), args[0], names(c))
	}
}

func names(c *cobra.Command) string {
	var all []string
	for _, sub := range c.Commands() {
		if sub.IsAvailableCommand() && sub.Name() != "help" {
			all = append(all, sub.Name())
		}
	}
	return oneOf(all)
}

// oneOf lists choices: "a, b or c".
func oneOf(all []string) string {
	if len(all) < 2 {
		return strings.Join(all, "")
	}
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

// noArgs refuses positional arguments.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("%s: unexpected argument %q, want flags only", c.CommandPath(), args[0])
	}
	return nil
}
