package cluster

import (
	"context"
	"errors"
	"fmt"

	"drtmx/rdma"
)

// StartInProcess starts the data servers in this process, over p.
func StartInProcess(ctx context.Context, p rdma.Provider, w Workload, size Size) (*Cluster, error) {
	if err := size.check(); err != nil {
		return nil, err
	}
	addrs := make([]string, size.Servers)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("server-%d", i)
	}
	c := newCluster(p, addrs)
	var servers []dataServer
	c.stop = func() error {
		var errs []error
		for _, s := range servers {
			errs = append(errs, s.Close())
		}
		return errors.Join(errs...)
	}
	for i := range addrs {
		s, err := startServer(ctx, p, w, size, i, addrs)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: server %d: %w", ErrStart, i, err), c.Close())
		}
		servers = append(servers, s)
	}
	return c, nil
}
