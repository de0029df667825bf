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
	"strings"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/ycsb"
	"drtmx/ycsb/props"
)

// commit is set by the Makefile.
var commit = ""

func main() {
	os.Exit(Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// Main is the program. It returns the exit status.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	out := cli.NewOutput(stdout)
	a := &app{
		Program: cli.Program{Name: "go-ycsb", Stdout: out, Stderr: stderr, Exit: os.Exit},
		stdin:   stdin, stdout: out, stderr: stderr,
	}
	a.Signalled = func(s os.Signal) { fmt.Fprintf(a.stdout, "\nGot signal [%v] to exit.\n", s) }
	stop := a.WatchSignals(cancel)
	defer stop()
	ycsb.ChildArgs = []string{childCommand}
	root := a.command()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if errors.Is(err, props.ErrProperty) || errors.Is(err, ycsb.ErrMemory) {
		err = cli.Usage(err)
	}
	return a.Status(err)
}

// app has what all commands share.
type app struct {
	cli.Program
	stdin          io.Reader
	stdout, stderr io.Writer
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
drtmx serve --workload ycsb --runtime-dir DIR runs.`,
		SilenceUsage: true, SilenceErrors: true, Version: versionLine(),
		Args: cobra.ArbitraryArgs,
		RunE: func(_ *cobra.Command, args []string) error {
			const commands = "compare, load, loadrun, run or shell"
			if len(args) == 0 {
				return cli.Usagef("name a command: %s (see go-ycsb --help)", commands)
			}
			return cli.Usagef("unknown command %q, want %s", args[0], commands)
		},
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return cli.Usagef("%s: %w (see %s --help)", c.CommandPath(), err, c.CommandPath())
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	child := &cobra.Command{
		Use: childCommand, Hidden: true, Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return ycsb.RunChild(c.Context()) },
	}
	root.AddCommand(a.loadCommand(), a.runCommand(), a.loadRunCommand(), a.compareCommand(), a.shellCommand(), child)
	return root
}

func versionLine() string {
	return fmt.Sprintf("go-ycsb of drtmx %s (%s; drivers %s)", cli.Version, cli.Build(commit), strings.Join(drivers, ", "))
}
