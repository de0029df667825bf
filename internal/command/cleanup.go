package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"drtmx/internal/cluster"
)

func (a *app) cleanupCommand() *cobra.Command {
	var where whereFlags
	c := &cobra.Command{
		Use:   "cleanup",
		Short: "Empty a running cluster, or remove what a dead one left",
		Long: `Empties the cluster of drtmx cluster up, or of drtmx serve by --runtime-dir, by
replacing its data servers with new ones: their memory is all the data there is.
With --connect it does so from another machine, for which the client needs the
role of a loader. Data servers that were started one by one (drtmx serve
--index) have no process that could replace them: stop them all and start them
again.

If the cluster in --runtime-dir is dead, removes the sockets and cluster.json it
has left.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := requireCluster(&where); err != nil {
				return err
			}
			if len(where.connect) > 0 {
				return a.cleanupAt(c.Context(), &where)
			}
			return a.cleanup(c.Context(), where.runtimeDir)
		},
	}
	where.add(c)
	return c
}

// cleanupAt empties a cluster at an address.
func (a *app) cleanupAt(ctx context.Context, w *whereFlags) error {
	c, err := w.connectRunning(ctx)
	if err != nil {
		return err
	}
	where := c.Where()
	if err := errors.Join(servesTPCC(c), c.Close()); err != nil {
		return err
	}
	o, err := w.options()
	if err != nil {
		return err
	}
	n, err := cluster.Empty(ctx, o)
	if stopped := interrupted(ctx); stopped != nil {
		return stopped
	}
	if err != nil {
		return fmt.Errorf("empty the cluster at %s: %w", where, err)
	}
	a.Say("the %d data servers at %s are empty", n, where)
	return nil
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
	switch cleared := cluster.Clear(ctx, dir); {
	case cleared == nil:
		a.Say("removed what a dead cluster had left in %s", dir)
		return nil
	case errors.Is(cleared, cluster.ErrNoCluster):
		return hint(err, dir)
	default:
		return cleared
	}
}
