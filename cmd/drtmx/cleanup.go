package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
)

func (a *app) cleanupCommand() *cobra.Command {
	var dir string
	c := &cobra.Command{
		Use:   "cleanup --data-dir DIR",
		Short: "Empty a running cluster, or remove what a dead one left",
		Long: `Empties the cluster that drtmx serve runs in DIR, by replacing its data servers
with new ones: their memory is all the data there is. If the cluster is dead,
removes the sockets and cluster.json it has left in DIR.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if dir == "" {
				return cli.Usagef("%s: want --data-dir DIR, as given to drtmx serve", c.CommandPath())
			}
			return a.cleanup(c.Context(), dir)
		},
	}
	addDataDir(c, &dir, "", "runtime directory of the cluster")
	return c
}

func (a *app) cleanup(ctx context.Context, dir string) error {
	info, err := cluster.Reset(ctx, dir)
	if err == nil {
		a.Say("the %d data servers in %s are empty", len(info.Servers), dir)
		return nil
	}
	if !errors.Is(err, cluster.ErrStale) && !errors.Is(err, cluster.ErrNoCluster) {
		return err
	}
	switch cleared := cluster.Clear(dir); {
	case cleared == nil:
		a.Say("removed what a dead cluster had left in %s", dir)
		return nil
	case errors.Is(cleared, cluster.ErrNoCluster):
		return hint(err, dir)
	default:
		return cleared
	}
}
