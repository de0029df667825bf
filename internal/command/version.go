package command

import (
	"fmt"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
)

// commit is set by the Makefile.
var commit = ""

func (a *app) versionLine() string {
	line := fmt.Sprintf("drtmx %s (%s)", cli.Version, cli.Build(commit))
	if a.own != nil {
		line = a.Name + " on " + line
	}
	return line
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(a.stdout, a.versionLine())
			return err
		},
	}
}
