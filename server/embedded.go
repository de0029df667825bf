package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"drtmx/index/learned"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"
)

// EmbeddedConfig configures a cluster inside this process. Catalog is required.
type EmbeddedConfig struct {
	Catalog    *tables.Catalog
	Procedures []txn.Procedure
	// Servers is the number of data servers; 0 means 1.
	Servers int
	// Partitions is the number of partitions of the cluster; 0 means one per
	// server.
	Partitions int
	// Client configures the DB; Embedded sets its Servers and Dial.
	Client txn.Config
	// Network carries the cluster's verbs; nil makes a plain one. Set Checksums
	// if its reads do not arrive in order.
	Network   *inproc.Network
	Checksums bool
	// MemoryBytes bounds each partition; 0 means the server's default.
	MemoryBytes uint64
	// Family is every server's Config.Family.
	Family learned.Family
	// Log is every server's Config.Log.
	Log *slog.Logger
}

// Cluster is an embedded cluster.
type Cluster struct {
	DB      *txn.DB
	Servers []*Server
}

// Embedded starts data servers in this process and opens a DB on them: the
// whole engine as a library.
func Embedded(ctx context.Context, c EmbeddedConfig) (*Cluster, error) {
	if c.Servers == 0 {
		c.Servers = 1
	}
	if c.Network == nil {
		c.Network = inproc.New(inproc.Options{})
	}
	var provider rdma.Provider = c.Network
	addrs := make([]string, max(c.Servers, 0))
	for i := range addrs {
		addrs[i] = fmt.Sprintf("server-%d", i)
	}
	cl := &Cluster{}
	for i := range addrs {
		s, err := New(Config{
			Index: i, Addrs: addrs, Partitions: c.Partitions, Catalog: c.Catalog, Procedures: c.Procedures,
			Provider: provider, Checksums: c.Checksums, MemoryBytes: c.MemoryBytes, Family: c.Family, Log: c.Log,
		})
		if err == nil {
			cl.Servers = append(cl.Servers, s)
			err = s.Start()
		}
		if err != nil {
			return nil, errors.Join(err, cl.Close())
		}
	}
	c.Client.Servers, c.Client.Dial = addrs, provider.Dial
	db, err := txn.Open(ctx, c.Client)
	if err != nil {
		return nil, errors.Join(err, cl.Close())
	}
	cl.DB = db
	return cl, nil
}

// Close closes the DB and the servers.
func (c *Cluster) Close() error {
	var errs []error
	if c.DB != nil {
		errs = append(errs, c.DB.Close())
	}
	for _, s := range c.Servers {
		errs = append(errs, s.Close())
	}
	return errors.Join(errs...)
}
