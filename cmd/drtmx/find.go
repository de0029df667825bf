package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"drtmx/internal/cluster"
	"drtmx/tpcc"
)

// found is a running cluster of others, and what is known of it.
type found struct {
	*cluster.Cluster
	where   string        // for people
	info    *cluster.Info // of a supervisor; nil without
	members *cluster.Map  // if data servers were asked for it
}

// find finds a running cluster.
func (w *whereFlags) find(ctx context.Context) (*found, error) {
	switch a, err := w.address(); {
	case err != nil:
		return nil, usageError{err}
	case a != nil:
		return w.ask(ctx, a)
	case len(w.connect) > 0:
		return w.list()
	}
	c, info, err := cluster.Attach(ctx, w.dataDir, w.clientOf)
	if err == nil {
		return &found{Cluster: c, where: w.dataDir, info: info}, nil
	}
	if errors.Is(err, cluster.ErrNoCluster) {
		// Data servers with --index share a directory without cluster.json.
		if f, aerr := w.askIn(ctx, w.dataDir); !errors.Is(aerr, cluster.ErrNoCluster) {
			return f, aerr
		}
	}
	return nil, hint(err, w.dataDir)
}

// list takes the addresses of all data servers from the command line.
func (w *whereFlags) list() (*found, error) {
	fabric := fabricShm
	if cluster.IsHostPort(w.connect[0]) {
		if fabric = fabricTCP; w.tls.device != "" {
			fabric = fabricVerbs
		}
	}
	p, err := w.clientOf(fabric)
	if err != nil {
		return nil, err
	}
	c, err := cluster.AttachAddrs(p, w.connect)
	if err != nil {
		return nil, err
	}
	return &found{Cluster: c, where: strings.Join(w.connect, ",")}, nil
}

// ask asks the data servers of an address for the others.
func (w *whereFlags) ask(ctx context.Context, a *cluster.Address) (*found, error) {
	c, m, err := cluster.Connect(ctx, a, w.tls.client())
	if err != nil {
		return nil, err
	}
	return &found{Cluster: c, where: a.String(), members: m}, nil
}

// askIn asks the data servers whose sockets are in a directory.
func (w *whereFlags) askIn(ctx context.Context, dir string) (*found, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	return w.ask(ctx, &cluster.Address{Dir: dir})
}

// serves refuses data servers of another workload than TPC-C, as far as they
// have told; else opening the database shows.
func (f *found) serves() error {
	switch {
	case f.info != nil && f.info.Workload != workloadTPCC:
		return fmt.Errorf("the cluster in %s serves workload %q, want %s", f.where, workloadTitle(f.info.Workload), workloadTPCC)
	case f.members == nil:
		return nil
	}
	catalog, err := f.members.Tables()
	if err != nil {
		return fmt.Errorf("the cluster at %s: %w", f.where, err)
	}
	own := tpcc.Catalog().Tables
	if len(catalog.Tables) != len(own) || catalog.Tables[0].Name() != own[0].Name() {
		return fmt.Errorf("the cluster at %s serves table %s and %d others, want those of workload %s",
			f.where, catalog.Tables[0].Name(), len(catalog.Tables)-1, workloadTPCC)
	}
	return nil
}
