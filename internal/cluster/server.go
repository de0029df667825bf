package cluster

import (
	"context"
	"errors"

	"drtmx/rdma"
)

// dataServer is what this package needs of a data server.
type dataServer interface {
	Close() error
}

// startServer starts data server index of a cluster. A variable, for tests of
// the processes around it.
var startServer = func(ctx context.Context, p rdma.Provider, w Workload, size Size, index int, addrs []string) (dataServer, error) {
	return nil, errors.New("package server is not wired yet")
}
