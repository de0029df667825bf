package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/internal/member"
	"drtmx/internal/placement"
	"drtmx/rdma"
	"drtmx/rdma/multi"
	"drtmx/server"
	"drtmx/txn/stats"
)

// StartOptions describe a cluster whose data servers this process starts.
type StartOptions struct {
	Size
	// Provider carries the verbs.
	Provider rdma.Provider
	// Workload is what the data servers serve. Child processes are given its
	// Name only, and look the rest up.
	Workload Workload
	// Command, if set, runs each data server in a child process of its own. It
	// is the child's argument list, which begins with the executable, and must
	// call RunChild. Without it the data servers run in this process.
	Command []string
	// Addrs are where child processes listen, in the form of the provider; nil
	// means sockets that no file system holds. In a runtime directory they are
	// the network addresses.
	Addrs []string
	// Log is where child processes write log records; the zero value is nowhere.
	Log Log
	// Recovered, if set, is called for each data server that has recovered data,
	// before Start returns.
	Recovered func(server placement.Server, r *stats.Recovery)
	// Recovering, if set, is called now and then while data servers recover, for
	// several of them at the same time.
	Recovering func(server placement.Server, r stats.Recovering)
	// Debug, if set, are the sockets, by server, on which child processes
	// serve RunChild's debug, such as profiles.
	Debug []string

	// Dir, if set, is a runtime directory, in which other processes find the
	// cluster and may empty or stop it. It needs a Command.
	Dir string
	// Fabrics are the names of the fabrics that a cluster in a directory offers:
	// shm at sockets in the directory, others at Addrs. Empty means shm, or
	// tcp if there are Addrs.
	Fabrics []string
	// Version is the version of the binary, for processes that read the directory.
	Version string
	// Ready, if set, is called whenever a cluster in a directory serves: at the
	// start, and each time it was emptied.
	Ready func(Info)
	// OnLoss, if set, is called with the reason, an ErrLost, when a data server
	// of a cluster in a directory has ended by itself. The directory still has
	// its files then, so OnLoss has returned before any process finds the
	// directory empty.
	OnLoss func(error)

	// Hosts, if set, makes the data servers hosts. It needs a Dir and a DataDir.
	Hosts *Hosts

	members *member.Location           // of hosts, for child processes
	ended   func(host int, why error)  // of hosts: called instead of reporting a loss
	keeps   func(host int, keeps bool) // of hosts: its server has gone to another host, or is back
	lenient bool                       // of hosts: it is enough that one of them starts

	patience time.Duration // a test's: instead of startTimeout
}

// Start starts all data servers of a cluster and returns when they serve. If
// ctx ends before that, or one of them fails, none is left. The error wraps
// ErrOptions, ErrStart, ErrDir or ErrBusy.
func Start(ctx context.Context, o StartOptions) (*Cluster, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	switch {
	case o.Dir != "":
		return startInDir(ctx, o)
	case len(o.Command) > 0:
		return startChildren(ctx, o)
	}
	return startHere(o)
}

// check completes the options and reports all their faults.
func (o *StartOptions) check() error {
	faults := o.Size.faults()
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if o.Provider == nil {
		fault("no provider")
	}
	if o.Debug != nil && len(o.Debug) != o.Servers {
		fault("%d debug sockets for %d data servers", len(o.Debug), o.Servers)
	}
	network := slices.ContainsFunc(o.Fabrics, func(name string) bool { return name != multi.Shm })
	if (o.Addrs != nil || o.Dir != "" && network) && len(o.Addrs) != o.Servers {
		fault("%d addresses for %d data servers", len(o.Addrs), o.Servers)
	}
	if o.Hosts != nil && (o.Dir == "" || o.DataDir == "") {
		fault("hosts, want a runtime directory and a data directory")
	}
	if o.Dir != "" && len(o.Command) == 0 {
		fault("no command for the data servers of directory %s", o.Dir)
	}
	return optionsError(faults)
}

func optionsError(faults []error) error {
	if len(faults) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrOptions, errors.Join(faults...))
}

// startHere starts the data servers in this process.
func startHere(o StartOptions) (*Cluster, error) {
	addrs := make([]string, o.Servers)
	for i := range addrs {
		addrs[i] = fmt.Sprintf("server-%d", i)
	}
	c := newCluster(o.Provider, addrs)
	var servers []dataServer
	c.stop = func() error {
		var errs []error
		for _, s := range servers {
			errs = append(errs, s.Close())
		}
		return errors.Join(errs...)
	}
	for i := range placement.Server(len(addrs)) {
		cfg := serverConfig(o.Workload, o.Size, i, addrs)
		cfg.Provider = o.Provider
		if o.Recovering != nil {
			cfg.Recovering = func(r stats.Recovering) { o.Recovering(i, r) }
		}
		s, err := startServer(cfg)
		if err != nil {
			return nil, errors.Join(startError(i, err), c.Close())
		}
		servers = append(servers, s)
		if r := recovered(s); r != nil && o.Recovered != nil {
			o.Recovered(i, r)
		}
	}
	return c, nil
}

// recovered returns what a data server has recovered, nil if nothing.
func recovered(s dataServer) *stats.Recovery {
	if s, ok := s.(interface{ Recovery() *stats.Recovery }); ok {
		return s.Recovery()
	}
	return nil
}

// dataServer is the part of a data server's methods that this package uses.
type dataServer interface {
	Close() error
}

// serverConfig returns the configuration of one data server, without its provider.
func serverConfig(w Workload, size Size, self placement.Server, addrs []string) server.Config {
	c := server.Config{
		Index: int(self), Addrs: addrs, Partitions: size.Partitions, MemoryBytes: size.PartitionBytes, Family: size.Models, PublishInner: size.PublishInner,
		WriterLease: size.WriterLease,
		Retain:      size.Retain, RetainBytes: size.RetainBytes,
		Catalog: w.Catalog, Procedures: w.Procedures,
	}
	if size.DataDir != "" {
		c.Durability, c.Dir = server.Disk, server.ServerDir(size.DataDir, int(self))
		c.CheckpointBytes = int64(size.CheckpointBytes)
		c.MinInSync = size.MinInSync
		c.Replicas, c.Sets = size.Replicas, server.FileSets(vfs.Default, size.DataDir)
	}
	return c
}

// startServer starts a data server. A variable, for tests of the processes
// around it.
var startServer = func(c server.Config) (dataServer, error) {
	s, err := server.New(c)
	if err != nil {
		return nil, err
	}
	if err := s.Start(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Log configures the log of child processes.
type Log struct {
	File  *os.File   `json:"-"` // nil: nothing
	Level slog.Level `json:"level"`
	JSON  bool       `json:"json"` // else text
}

// Logger returns a logger that writes to the file, and is silent if there is none.
func (l Log) Logger() *slog.Logger {
	o := &slog.HandlerOptions{Level: l.Level}
	switch {
	case l.File == nil:
		return slog.New(slog.DiscardHandler)
	case l.JSON:
		return slog.New(slog.NewJSONHandler(l.File, o))
	}
	return slog.New(slog.NewTextHandler(l.File, o))
}
