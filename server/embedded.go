package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"drtmx/index/learned"
	"drtmx/internal/datadir"
	"drtmx/internal/hosting"
	"drtmx/rdma"
	"drtmx/rdma/inproc"
	"drtmx/tables"
	"drtmx/txn"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// EmbeddedConfig configures a cluster inside this process. Either Tables or
// Catalog is required.
type EmbeddedConfig struct {
	// Tables are the tables of the cluster, such as those of tables.Of. Catalog is
	// a catalogue that the program has made itself.
	Tables     []tables.Definer
	Catalog    *tables.Catalog
	Procedures []txn.Procedure
	// Servers is the number of data servers; 0 means 1.
	Servers int
	// Partitions is the number of partitions of the cluster; 0 means one per
	// server.
	Partitions int
	// Client configures the DB; Embedded sets its Servers and Dial.
	Client txn.Config
	// Network carries the cluster's verbs; nil makes a plain one.
	Network *inproc.Network
	// MemoryBytes bounds each partition; 0 means the server's default.
	MemoryBytes uint64
	// Retain and RetainBytes are those of every server's Config.
	Retain      time.Duration
	RetainBytes uint64
	// Family is every server's Config.Family.
	Family learned.Family
	// PublishInner is every server's Config.PublishInner. It is set if Client.Cache needs it.
	PublishInner bool
	// WriterLease is every server's Config.WriterLease.
	WriterLease time.Duration
	// Durability is that of every server's Config. With Disk, Dir is the data directory of
	// the cluster, in which each server has its own: a program that opens it again
	// continues with the data that it left. FS, SegmentBytes, CheckpointBytes and
	// CheckpointRate are those of every server's Config.
	Durability      Durability
	Dir             string
	FS              vfs.FS
	SegmentBytes    int64
	CheckpointBytes int64
	CheckpointRate  int64
	// Replicas is how many copies of each server's data directory there are, the server's
	// own included; 0 means 1. It needs Durability Disk and as many servers. The file
	// COPIES in Dir says which copies are in sync. If the directory of a server is lost, a
	// copy in sync takes its place; if there is none, Embedded fails with ErrLost.
	// CopyPatience and MinInSync are those of every server's Config.
	Replicas     int
	CopyPatience time.Duration
	MinInSync    int
	// Log is every server's Config.Log.
	Log *slog.Logger

	origin hosting.Origin
}

// Restored returns the configuration with where the data comes from, for package
// internal/backup.
func (c EmbeddedConfig) Restored(from hosting.Origin) EmbeddedConfig {
	c.origin = from
	return c
}

// Cluster is an embedded cluster.
type Cluster struct {
	DB      *txn.DB
	Servers []*Server
}

// Embedded starts data servers in this process and opens a DB on them: the whole engine
// as a library. The caller closes the cluster.
func Embedded(ctx context.Context, c EmbeddedConfig) (*Cluster, error) {
	if c.Servers < 0 {
		return nil, fmt.Errorf("%w: %d data servers, want 1 or more, or 0 for 1", ErrConfig, c.Servers)
	}
	if len(c.Tables) > 0 {
		if c.Catalog != nil {
			return nil, fmt.Errorf("%w: both Tables and Catalog", ErrConfig)
		}
		var err error
		if c.Catalog, err = tables.CatalogOf(c.Tables...); err != nil {
			return nil, err
		}
	}
	if c.Servers == 0 {
		c.Servers = 1
	}
	if c.Network == nil {
		c.Network = inproc.New(inproc.Options{})
	}
	var provider rdma.Provider = c.Network
	addrs := make([]string, c.Servers)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("server-%d", i)
	}
	if c.Durability == Disk && !c.origin.Restore {
		fs := c.FS
		if fs == nil {
			fs = vfs.Default
		}
		if err := datadir.Finished(fs, c.Dir); err != nil { // before anything is written there
			return nil, err
		}
	}
	sets, err := c.sets(ctx)
	if err != nil {
		return nil, err
	}
	cl := &Cluster{}
	for i := range addrs {
		s, err := New(Config{
			Index: i, Addrs: addrs, Partitions: c.Partitions, Catalog: c.Catalog, Procedures: c.Procedures,
			Provider: provider, MemoryBytes: c.MemoryBytes, Family: c.Family, Log: c.Log, PublishInner: c.PublishInner || c.Client.Cache.Keep.Inner(), WriterLease: c.WriterLease,
			Retain: c.Retain, RetainBytes: c.RetainBytes,
			Durability: c.Durability, Dir: ServerDir(c.Dir, i), FS: c.FS, SegmentBytes: c.SegmentBytes,
			CheckpointBytes: c.CheckpointBytes, CheckpointRate: c.CheckpointRate, hosted: hosting.Options{Origin: c.origin},
			Replicas: c.Replicas, Sets: sets, CopyPatience: c.CopyPatience, MinInSync: c.MinInSync,
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

// sets lets copies take the places of lost data directories, and returns the sets of
// copies in sync, nil for clusters in memory.
func (c *EmbeddedConfig) sets(ctx context.Context) (Sets, error) {
	if c.Durability != Disk || c.Dir == "" {
		return nil, nil
	}
	if c.FS == nil {
		c.FS = vfs.Default
	}
	adopted, err := AdoptCopies(ctx, c.FS, c.Dir)
	if err != nil {
		return nil, err
	}
	if len(adopted) > 0 && c.Log != nil {
		c.Log.Warn("copies have taken the places of lost data directories", "copies", adopted)
	}
	return FileSets(c.FS, c.Dir), nil
}

// ServerDir returns the data directory of a server in that of its cluster, "" if dir is
// "".
func ServerDir(dir string, server int) string {
	if dir == "" {
		return ""
	}
	return filepath.Join(dir, fmt.Sprintf("server-%d", server))
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
