// Command drtmx runs the data servers of a drtmx cluster and the TPC-C
// workload against them.
//
// Its command line and the JSON report are a contract that scripts rely on;
// docs/operations.md describes both.
package main

import (
	"context"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
)

func main() {
	os.Exit(Main(os.Args[1:], os.Stdout, os.Stderr))
}

// Main is the program. It returns the exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	out := cli.NewOutput(stdout)
	a := &app{Program: cli.Program{Name: "drtmx", Stdout: out, Stderr: stderr, Exit: os.Exit}, stdout: out, stderr: stderr}
	stop := a.WatchSignals(cancel)
	defer stop()
	root := a.command()
	root.SetArgs(args)
	root.SetOut(out)
	root.SetErr(stderr)
	return a.Status(root.ExecuteContext(ctx))
}

// app is what commands share.
type app struct {
	cli.Program
	stdout, stderr io.Writer
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
			return cli.Usagef("%s: name a command: %s (see %s --help)", c.CommandPath(), names(c), c.CommandPath())
		}
		return cli.Usagef("%s: unknown command %q, want %s", c.CommandPath(), args[0], names(c))
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
		return cli.Usagef("%s: unexpected argument %q, want flags only", c.CommandPath(), args[0])
	}
	return nil
}
