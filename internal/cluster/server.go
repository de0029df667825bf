package cluster

import (
	"context"
	"errors"

	"drtmx/rdma"
	"drtmx/server"
)

// dataServer is what this package needs of a data server.
type dataServer interface {
	Close() error
}

// startServer starts data server index of a cluster. A variable, for tests of
// the processes around it.
var startServer = func(_ context.Context, p rdma.Provider, w Workload, size Size, index int, addrs []string) (dataServer, error) {
	s, err := server.New(server.Config{
		Index: index, Addrs: addrs, Partitions: size.Partitions, MemoryBytes: size.PartitionBytes,
		Catalog: w.Catalog, Procedures: w.Procedures, Provider: p, Log: w.Log, Incarnation: w.Incarnation,
	})
	if err != nil {
		return nil, err
	}
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}
