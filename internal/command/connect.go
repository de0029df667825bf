package command

import (
	"context"
	"errors"
	"fmt"

	"drtmx/internal/cli"
	"drtmx/internal/cluster"
	"drtmx/internal/member/etcd"
	"drtmx/rdma/tcp"
	"drtmx/tpcc"
)

// connectRunning connects to the running cluster that the flags name.
func (w *whereFlags) connectRunning(ctx context.Context) (*cluster.Cluster, error) {
	return w.connectTo(ctx, false)
}

// connectTo is connectRunning; unasked is that of cluster.ConnectOptions.
func (w *whereFlags) connectTo(ctx context.Context, unasked bool) (*cluster.Cluster, error) {
	o, err := w.options()
	if err != nil {
		return nil, err
	}
	o.Unasked = unasked
	c, err := cluster.Connect(ctx, o)
	if err != nil {
		return nil, asUsage(hint(err, w.runtimeDir), tcp.ErrCertificateFile)
	}
	return c, nil
}

// options locate the running cluster that the flags name.
func (w *whereFlags) options() (cluster.ConnectOptions, error) {
	o := cluster.ConnectOptions{Fabrics: w.tls.options(), Members: etcd.OpenExisting}
	switch a, err := w.address(); {
	case err != nil:
		return o, cli.Usage(err)
	case a != nil:
		o.Address = a
	case len(w.connect) > 0:
		o.Addrs = w.connect
	default:
		o.Dir = w.runtimeDir
	}
	return o, nil
}

// servesTPCC refuses data servers of another workload, where the cluster has
// said which it serves. Opening the database finds the others.
func servesTPCC(c *cluster.Cluster) error {
	if i := c.Info(); i != nil && i.Workload != workloadTPCC {
		return fmt.Errorf("the cluster in %s serves workload %q, want %s", c.Where(), workloadTitle(i.Workload), workloadTPCC)
	}
	catalog, err := c.Tables()
	if err != nil {
		return fmt.Errorf("the cluster at %s: %w", c.Where(), err)
	}
	own := tpcc.Catalog().Tables
	if catalog != nil && (len(catalog.Tables) != len(own) || catalog.Tables[0].Name() != own[0].Name()) {
		return fmt.Errorf("the cluster at %s serves table %s and %d others, want those of workload %s",
			c.Where(), catalog.Tables[0].Name(), len(catalog.Tables)-1, workloadTPCC)
	}
	return nil
}

// hint adds what can be done about a directory.
func hint(err error, dir string) error {
	switch {
	case errors.Is(err, cluster.ErrNoCluster):
		return fmt.Errorf("%w; start one with: drtmx serve --runtime-dir %s", err, dir)
	case errors.Is(err, cluster.ErrStale):
		return fmt.Errorf("%w; start anew with: drtmx serve --runtime-dir %s", err, dir)
	}
	return err
}
