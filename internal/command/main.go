// Package command is the command drtmx, and what it shares with programs that
// serve their own tables: their commands are in [Serve].
package command

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
)

// Main is the program drtmx. It returns the exit status.
func Main(args []string, stdout, stderr io.Writer) int {
	return run("drtmx", nil, args, stdout, stderr)
}

// Serve is a program that serves a workload of its own, by the commands serve
// and cluster of drtmx. It returns the exit status.
func Serve(w cluster.Workload, args []string, stdout, stderr io.Writer) int {
	return run(w.Name, &w, args, stdout, stderr)
}

func run(name string, own *cluster.Workload, args []string, stdout, stderr io.Writer) int {
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	out := cli.NewOutput(stdout)
	a := &app{own: own, Program: cli.Program{Name: name, Stdout: out, Stderr: stderr, Exit: os.Exit}, stdout: out, stderr: stderr}
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
	own            *cluster.Workload // nil in drtmx
}

// lookup returns the workload of a name.
func (a *app) lookup(name string) (cluster.Workload, error) {
	switch {
	case a.own == nil:
		return lookupWorkload(name)
	case name != a.own.Name:
		return cluster.Workload{}, fmt.Errorf("unknown workload %q, want %s", name, a.own.Name)
	}
	return *a.own, nil
}

func (a *app) command() *cobra.Command {
	root := &cobra.Command{
		Use:   "drtmx",
		Short: "A distributed in-memory OLTP engine with one-sided reads",
		Long: `drtmx is a distributed in-memory OLTP engine. Data servers hold tables in
registered memory and apply all writes; clients read with one-sided READs.

  drtmx tpcc run     loads and runs TPC-C on a cluster of its own

Without --data-dir, data is in memory only: it is gone when the data servers
stop.`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       a.versionLine(),
	}
	commands := []*cobra.Command{a.serveCommand(), a.clusterCommand(), a.backupCommand(), a.restoreCommand(), a.changesCommand(), a.verifyCommand(), a.logCommand(), a.certsCommand(), a.versionCommand()}
	if a.own == nil {
		commands = append([]*cobra.Command{a.tpccCommand(), a.reportCommand()}, commands...)
	} else {
		root.Use, root.Short, root.Long = a.Name, "Data servers of "+a.Name, "Runs data servers with the tables and procedures of "+a.Name+"."
	}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetFlagErrorFunc(flagError)
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(commands...)
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
