package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"drtmx/index/learned"
	"drtmx/internal/member"
	"drtmx/internal/replica"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/rdma/multi"
	"drtmx/server"
	"drtmx/tables"
	"drtmx/txn"
)

// Bounds of a cluster.
const (
	// MaxServers bounds the data servers of one cluster.
	MaxServers = member.MaxServers
	// MaxPartitions bounds the partitions of one cluster.
	MaxPartitions = member.MaxPartitions
)

// Errors of this package; all are wrapped with the names involved.
var (
	// ErrOptions reports options that cannot be served.
	ErrOptions = errors.New("cluster: bad options")
	// ErrStart reports a data server that did not start.
	ErrStart = errors.New("cluster: data server did not start")
	// ErrLost reports a data server that ended by itself.
	ErrLost = errors.New("data server lost")
	// ErrStopped reports that another process has stopped a cluster.
	ErrStopped = errors.New("the cluster was stopped")
)

// Workload is the catalogue and the procedures of data servers. It must be the
// same at all servers of a cluster.
type Workload struct {
	Name       string // child processes look up the rest by it
	Catalog    *tables.Catalog
	Procedures []txn.Procedure
}

// Size is the shape of a cluster.
type Size struct {
	Servers    int // 1 to MaxServers
	Partitions int // 0: one for each server
	// PartitionBytes bounds the memory of each partition; 0 means the server
	// package's bound.
	PartitionBytes uint64 `json:",omitempty"`
	// Retain is how long versions of overwritten rows are kept for snapshots, and
	// RetainBytes bounds their memory in each partition; 0 means the server
	// package's defaults.
	Retain      time.Duration `json:",omitempty"`
	RetainBytes uint64        `json:",omitempty"`
	// Models is the family of the models of ordered indexes; 0 means the index
	// package's default.
	Models learned.Family `json:",omitempty"`
	// PublishInner publishes the inner nodes of ordered indexes: see server.Config.
	PublishInner bool `json:",omitempty"`
	// WriterLease is server.Config's; 0 means DefaultWriterLease.
	WriterLease time.Duration `json:",omitempty"`
	// DataDir, if set, is the directory of the data, and makes the data servers
	// durable: each keeps its data in a directory of its own there. Empty means
	// that data is in memory only.
	DataDir string `json:",omitempty"`
	// CheckpointBytes is how much the log of a durable data server grows between
	// two checkpoints; 0 means the server package's default.
	CheckpointBytes uint64 `json:",omitempty"`
	// Replicas is how many copies of its data each durable data server has, its own
	// included; 0 means 1. The data servers run on one host.
	Replicas int `json:",omitempty"`
	// MinInSync is how many copies must be in sync, the data server's own included, before
	// it takes writes; 0 means 1.
	MinInSync int `json:",omitempty"`
	// Zones are the zones of the hosts, in order, or nil: see JoinOptions.Zone.
	Zones []string `json:",omitempty"`
}

// Values of Size.Retain: the default, and to keep no versions.
const (
	DefaultRetain               = server.DefaultRetain
	RetainNothing time.Duration = -1
)

// DefaultWriterLease is the default of Size.WriterLease.
const DefaultWriterLease = server.DefaultWriterLease

// faults fills in defaults and lists the invalid fields.
func (s *Size) faults() []error {
	if s.Servers < 1 || s.Servers > MaxServers {
		return []error{fmt.Errorf("%d data servers, want 1 to %d", s.Servers, MaxServers)}
	}
	if s.Partitions == 0 {
		s.Partitions = s.Servers
	}
	if s.Partitions < s.Servers || s.Partitions > MaxPartitions {
		return []error{fmt.Errorf("%d partitions, want %d (the number of data servers) to %d", s.Partitions, s.Servers, MaxPartitions)}
	}
	switch most := min(s.Servers, replica.MaxMembers); {
	case s.Replicas < 0 || s.Replicas > most:
		return []error{fmt.Errorf("%d replicas, want 1 to %d with %d data servers", s.Replicas, most, s.Servers)}
	case s.MinInSync < 0 || s.MinInSync > max(s.Replicas, 1):
		return []error{fmt.Errorf("%d copies in sync required, want 1 to %d, the number of replicas", s.MinInSync, max(s.Replicas, 1))}
	case len(s.Zones) != 0 && len(s.Zones) != s.Servers:
		return []error{fmt.Errorf("%d zones, want one for each of the %d hosts, or none", len(s.Zones), s.Servers)}
	case s.Replicas > 1 && s.DataDir == "":
		return []error{fmt.Errorf("%d replicas without a data directory: data in memory has none", s.Replicas)}
	}
	return nil
}

// Cluster is a set of data servers that answer. Methods are safe for
// concurrent use.
type Cluster struct {
	provider rdma.Provider
	addrs    []string
	all      bool  // addrs are newer than the addresses that the servers know
	pids     []int // of child processes, or of those found in a directory; empty in one process
	where    string
	info     *Info
	store    member.Store // of the members; nil if there is none
	hello    *wire.Hello  // what a data server said of the cluster; nil if none was asked

	family *family // the child processes of this cluster, nil if there are none

	stop func() error // ends what this process started; called once
	kill func()       // likewise, without waiting for anything; may be nil

	emptying <-chan struct{} // receives when a child process asks to empty the cluster; nil without children

	lost chan struct{}
	mu   struct {
		sync.Mutex
		err    error // why lost was closed
		output []byte
		closed bool
	}
	closeOnce sync.Once
	closeErr  error
}

func newCluster(p rdma.Provider, addrs []string) *Cluster {
	return &Cluster{provider: p, addrs: addrs, lost: make(chan struct{}), stop: func() error { return nil }}
}

// Fabric returns the name of the provider that carries the verbs.
func (c *Cluster) Fabric() string { return c.provider.Name() }

// Routes returns, by server, the fabric over which this process has reached the data
// server, "" if it has not, or if there is no choice.
func (c *Cluster) Routes() []string {
	routes := make([]string, len(c.addrs))
	if f, ok := c.provider.(*multi.Provider); ok {
		for i, a := range c.addrs {
			routes[i] = f.Route(a)
		}
	}
	return routes
}

// Addrs returns the addresses of the data servers, by server.
func (c *Cluster) Addrs() []string { return c.addrs }

// PIDs returns the process numbers of the data servers, none if they run in this
// process or are not known.
func (c *Cluster) PIDs() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pids
}

// Config returns the configuration with which a client opens the database.
func (c *Cluster) Config() txn.Config {
	return txn.Config{
		Servers: c.addrs, AllServers: c.all,
		Dial: func(ctx context.Context, addr string) (rdma.Conn, error) { return c.provider.Dial(ctx, addr) },
	}
}

// openTimeout bounds how long a cluster may take to answer.
const openTimeout = 10 * time.Second

// Open opens the database. set, which may be nil, changes the configuration first.
func (c *Cluster) Open(ctx context.Context, set func(*txn.Config)) (*txn.DB, error) {
	cfg := c.Config()
	if set != nil {
		set(&cfg)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, openTimeout, fmt.Errorf("no answer within %v", openTimeout))
	defer cancel()
	db, err := txn.Open(ctx, cfg)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, fmt.Errorf("open the database at %s: %w", strings.Join(c.addrs, ", "), err)
	}
	return db, nil
}

// Where describes where Connect found the cluster, for messages.
func (c *Cluster) Where() string { return c.where }

// Members returns the present state of the store of members; nil if the cluster was
// not found by one.
func (c *Cluster) Members(ctx context.Context) (*member.State, error) {
	if c.store == nil {
		return nil, nil
	}
	return c.store.State(ctx)
}

// Info describes a cluster that was found in a runtime directory; nil for others.
func (c *Cluster) Info() *Info { return c.info }

// Tables returns the catalogue of the data servers, nil unless Connect had to ask a
// data server for the list of all.
func (c *Cluster) Tables() (*tables.Catalog, error) {
	if c.hello == nil {
		return nil, nil
	}
	return tables.ParseCatalog(c.hello.Catalog)
}

// Lost returns a channel that is closed when a data server has ended by itself, or
// another process has stopped a cluster in a directory. Err then returns the reason.
func (c *Cluster) Lost() <-chan struct{} { return c.lost }

// Err is nil until Lost is closed. The error wraps ErrLost or ErrStopped.
func (c *Cluster) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.err
}

// Output returns the end of the lost data server's standard error.
func (c *Cluster) Output() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.mu.output
}

// fail records the first loss.
func (c *Cluster) fail(err error, output []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed || c.mu.err != nil {
		return
	}
	c.mu.err, c.mu.output = err, output
	close(c.lost)
}

// Close ends the data servers that this process started, and waits for them. It does
// not stop a cluster that others started.
func (c *Cluster) Close() error {
	c.closeOnce.Do(func() {
		c.mu.Lock()
		c.mu.closed = true
		c.mu.Unlock()
		c.closeErr = c.stop()
	})
	return c.closeErr
}

// Kill ends child processes at once and waits for nothing, for an impatient user. Close
// should still follow if this process lives on.
func (c *Cluster) Kill() {
	if c.kill != nil {
		c.kill()
	}
}
