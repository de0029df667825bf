package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"drtmx/index/engine"
	"drtmx/index/learned"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/hosting"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/internal/replica"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
	"drtmx/txn/stats"
)

// ErrConfig reports an invalid configuration; its text has all faults.
var ErrConfig = errors.New("server: bad configuration")

// Config configures a data server. Catalog, Provider and Addrs are required.
type Config struct {
	// Index is this server's number: its position in Addrs.
	Index int
	// Addrs are the addresses of all data servers of the cluster, in order.
	Addrs []string
	// Partitions is the number of partitions of the cluster; partition p is
	// at server p mod len(Addrs). 0 means one each.
	Partitions int
	// Catalog has the tables that the server holds.
	Catalog *tables.Catalog
	// Procedures are the procedures that clients can call. They must be the
	// same at all servers.
	Procedures []txn.Procedure
	// Provider carries verbs and RPCs.
	Provider rdma.Provider
	// MemoryBytes bounds the region of each partition; 0 means 16 GiB. The
	// region grows as needed.
	MemoryBytes uint64
	// Retain is how long the versions of overwritten rows are kept for snapshots; 0 means
	// DefaultRetain, a negative value none. RetainBytes bounds their memory in each
	// partition; 0 means one part in eight of MemoryBytes. Writes are never refused for
	// versions: if memory runs out, the oldest versions go. A row that is overwritten in
	// place leaves a version only if a snapshot has asked for versions within the last
	// two Retain.
	Retain      time.Duration
	RetainBytes uint64
	// Checksums keeps checksums in every block, for clients on fabrics that do
	// not read in order. They are always kept if the provider is one of those.
	Checksums bool
	// Family of the models of ordered indexes; 0 means PLR. See learned.ParseFamily.
	Family learned.Family
	// PublishInner publishes the inner nodes of ordered indexes with native keys, for clients
	// whose cache keeps those instead of models: see txn.CacheTree.
	PublishInner bool
	// WriterLease is how long a client that writes a table of the engine tables.Rolex without the
	// data server may hold rows that others wait for; 0 means DefaultWriterLease. Then its connection is ended,
	// and what it has begun is completed or undone.
	WriterLease time.Duration
	// slots of a leaf of an ordered index, and the unit in which memory grows; 0 means the
	// defaults. Tests make both small.
	slots   int
	segment uint64
	// Log receives records of start and stop, partitions and models, and at
	// debug level of clients; nil means no log. Transactions are never logged.
	Log *slog.Logger

	// Durability is what must hold before a commit is acknowledged. With Disk, Dir is the
	// data directory of this server, which is made if there is none; a server that starts
	// on a directory with data continues where the last one stopped. Catalog may then be
	// nil, and if it is set it must be the one with which the directory was made.
	Durability Durability
	Dir        string
	// FS is the file system of Dir; nil means the operating system's. SegmentBytes
	// is the size of the log's files; 0 means the default.
	FS           vfs.FS
	SegmentBytes int64
	// CheckpointBytes is how much the log grows between two checkpoints, and
	// CheckpointRate how many bytes of one are written in a second; 0 means the
	// defaults.
	CheckpointBytes, CheckpointRate int64

	// Replicas is how many copies of its data directory a durable server has, its own
	// included; 0 means 1. The others are at the servers after it. Sets holds the sets of
	// copies in sync: see FileSets. It is required if Replicas is more than 1, and as long
	// as there may be copies. A copy in sync that does not answer for CopyPatience leaves
	// the set; 0 means 2 s.
	Replicas     int
	Sets         Sets
	CopyPatience time.Duration
	// MinInSync is how many copies must be in sync, the server's own included, before the
	// server takes writes and acknowledges them; 0 means 1.
	MinInSync int
	// Recovering, if set, is called now and then while the server recovers, from
	// one goroutine, and not after Start has returned.
	Recovering func(stats.Recovering)

	hosted hosting.Options
	clock  clock.Source // measures quarantines; nil means clock.Now
}

// Hosted returns the configuration with what other packages of this module know of the
// server: its place in a membership store, data that is restored, and work that tests do
// by hand.
func (c Config) Hosted(o hosting.Options) Config {
	c.hosted = o
	return c
}

const defaultMemoryBytes = 16 << 30

// DefaultWriterLease is the default of Config.WriterLease.
const DefaultWriterLease = engine.WriterLease

// DefaultRetain is how long the versions of overwritten rows are kept by default.
const DefaultRetain = 5 * time.Second

// retainShare is the default share of a partition's memory for versions.
const retainShare = 8

func (c *Config) check() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(len(c.Addrs) > 0, "no server addresses")
	bad(c.Index >= 0 && c.Index < max(len(c.Addrs), 1), "server index %d of %d", c.Index, len(c.Addrs))
	bad(c.Catalog != nil || c.Durability == Disk, "no catalogue")
	bad(c.Durability <= Disk, "%v, want memory or disk", c.Durability)
	bad(c.Durability != Disk || c.Dir != "", "durability disk without a data directory")
	bad(c.CheckpointBytes >= 0, "checkpoints after %d bytes of the log, want at least 0", c.CheckpointBytes)
	bad(c.WriterLease >= 0, "a writer lease of %v, want at least 0", c.WriterLease)
	bad(c.CheckpointRate >= 0, "checkpoints at %d bytes a second, want at least 0", c.CheckpointRate)
	bad(c.Durability == Disk || c.Dir == "", "data directory %q with durability memory, want disk", c.Dir)
	bad(c.Replicas >= 0 && c.Replicas <= min(max(len(c.Addrs), 1), replica.MaxMembers), "%d replicas with %d data servers, want 1 to %d",
		c.Replicas, len(c.Addrs), min(max(len(c.Addrs), 1), replica.MaxMembers))
	bad(c.Replicas <= 1 || c.Durability == Disk, "%d replicas with durability %v, want disk", c.Replicas, c.Durability)
	bad(c.Replicas <= 1 || c.Durability != Disk || c.Sets != nil, "%d replicas without Sets, which holds those in sync", c.Replicas)
	bad(c.MinInSync >= 0 && c.MinInSync <= max(c.Replicas, 1), "%d copies in sync required, want 1 to %d, the number of replicas", c.MinInSync, max(c.Replicas, 1))
	bad(c.CopyPatience >= 0, "a patience of %v with copies, want at least 0", c.CopyPatience)
	bad(c.Provider != nil, "no fabric provider")
	bad(c.Partitions >= 0 && c.Partitions <= wire.MaxParts, "%d partitions, want 1 to %d", c.Partitions, wire.MaxParts)
	bad(c.Partitions == 0 || c.Partitions >= len(c.Addrs), "%d partitions for %d data servers, want at least one for each", c.Partitions, len(c.Addrs))
	if c.Catalog != nil && c.Durability == Disk {
		for _, ix := range c.Catalog.Indexes {
			bad(!ix.KeepsInMemory(), "table %s of %s with durability disk, want memory", ix.Table.Name(), ix.MadeBy())
		}
	}
	seen := map[string]bool{}
	for _, p := range c.Procedures {
		bad(p.Name != "" && p.Body != nil && !seen[p.Name], "procedure %q has no name, no body, or is registered twice", p.Name)
		seen[p.Name] = true
	}
	if len(errs) > 0 {
		return fmt.Errorf("%w: %w", ErrConfig, errors.Join(errs...))
	}
	return nil
}

// Server is a running data server. Methods are safe for concurrent use.
type Server struct {
	cfg     Config
	log     *slog.Logger
	started time.Time
	ep      rdma.Endpoint
	parts   partitions
	catalog catalogue
	clocks  clocks
	workers workers
	pace    pace

	// What requests need, besides partitions:
	work        sync.Pool // *work
	permissions permissions
	outcomes    *outcomes
	oneSided    oneSided
	answers     answers
	procs       map[string]*exec.Procedure
	slow        slowProcedures
	elsewhere   elsewhere
	client      ownClient
	counters    counters

	driver     driver
	peers      []*peer // by server
	acquainted acquaintance
	durable    *durable // nil in memory
	recovered  Recovered

	closeOnce sync.Once
	closeErr  error
}

// New creates the server's memory and opens its endpoint; with Disk it also recovers
// the data. The server serves nothing before Start. The error wraps ErrConfig if c is
// invalid.
func New(c Config) (*Server, error) {
	c.Partitions = cmp.Or(c.Partitions, len(c.Addrs))
	c.MemoryBytes = cmp.Or(c.MemoryBytes, defaultMemoryBytes)
	c.hosted.Epoch = cmp.Or(c.hosted.Epoch, 1)
	c.Retain = cmp.Or(c.Retain, DefaultRetain)
	c.RetainBytes = cmp.Or(c.RetainBytes, c.MemoryBytes/retainShare)
	c.CheckpointBytes = cmp.Or(c.CheckpointBytes, checkpointBytesDefault)
	c.CheckpointRate = cmp.Or(c.CheckpointRate, checkpointRateDefault)
	c.CopyPatience = cmp.Or(c.CopyPatience, copyPatienceDefault)
	c.MinInSync = cmp.Or(c.MinInSync, 1)
	if c.FS == nil {
		c.FS = vfs.Default
	}
	if err := c.check(); err != nil {
		if c.hosted.Opened != nil {
			err = errors.Join(err, c.hosted.Opened.Close())
		}
		return nil, err
	}
	c.Checksums = c.Checksums || rdma.Unordered(c.Provider)
	if c.hosted.Incarnation == 0 {
		var id [8]byte
		if _, err := rand.Read(id[:]); err != nil {
			return nil, err
		}
		c.hosted.Incarnation = binary.LittleEndian.Uint64(id[:]) | 1
	}
	// This server dials other servers with the role of a data server.
	c.Provider = rdma.As(c.Provider, rdma.Identity{Role: rdma.RoleServer, Name: fmt.Sprintf("server-%d", c.Index)})
	s := &Server{
		cfg: c, log: c.Log, started: time.Now(),
		clocks: clocks{ticks: clock.NewTicks(), running: clock.NewRunning(runningStep, c.clock)},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = s.log.With("server", c.Index)
	s.workers.ctx, s.workers.cancel = context.WithCancel(context.Background())
	if c.Durability == Disk {
		var err error
		if s.durable, err = newDurable(s); err != nil {
			return nil, fmt.Errorf("server %d: %w", c.Index, err)
		}
	}
	s.assemble()
	if err := s.listen(); err != nil {
		return nil, err
	}
	return s, nil
}

// assemble makes the parts of the server that need no memory, and connects them. The
// log is open.
func (s *Server) assemble() {
	c, life := &s.cfg, wire.Sent{Incarnation: s.cfg.hosted.Incarnation, Epoch: s.cfg.hosted.Epoch}
	s.parts = partitions{
		self: placement.Server(c.Index), incarnation: life.Incarnation, addrs: c.Addrs,
		placement: placement.Spread(c.Partitions, len(c.Addrs)), of: make([]*partition, c.Partitions),
	}
	s.clocks.life, s.clocks.durable = life, s.durable
	s.outcomes = newOutcomes(s.answers.tellOutcome, s.clocks.present)
	s.oneSided = oneSided{s: s, of: map[uint64]*clientWriter{}, peer: map[rdma.PeerID]int{}}
	s.outcomes.forgotten.restored = s.durable != nil
	s.client = ownClient{
		workers: &s.workers, local: allPartitions{&s.parts, s.clocks.running},
		cfg: exec.Config{Servers: c.Addrs, AllServers: true, Dial: c.Provider.Dial},
	}
	s.answers = answers{durable: s.durable, outcomes: s.outcomes, clocks: &s.clocks, client: &s.client, log: s.log}
	s.permissions = permissions{answers: &s.answers, catalog: &s.catalog}
	s.catalog.s, s.catalog.builds.of = s, map[int]*build{}
	for i := range placement.Server(len(c.Addrs)) {
		s.peers = append(s.peers, &peer{s: s, server: i})
	}
	s.driver = driver{
		parts: &s.parts, peers: s.peers, clocks: &s.clocks, answers: &s.answers, outcomes: s.outcomes, workers: &s.workers, durable: s.durable, log: s.log,
		tasks: sync.Pool{New: func() any { return newTask(&s.driver) }},
	}
	s.elsewhere = elsewhere{client: &s.client, driver: &s.driver, max: MaxCallsElsewhere, time: MaxCallTime}
	s.work.New = func() any { return &work{resp: make([]byte, 0, 64)} }
	s.procs, s.slow.of = map[string]*exec.Procedure{}, map[*exec.Procedure]*slowness{}
	for _, p := range c.Procedures {
		s.procs[p.Name] = procedureOf(p)
		s.slow.of[s.procs[p.Name]] = &slowness{}
	}
}

// listen opens the endpoint and the partitions.
func (s *Server) listen() (err error) {
	if s.durable != nil {
		defer func() {
			if err != nil {
				err = errors.Join(err, s.durable.close())
			}
		}()
	}
	if s.ep, err = s.cfg.Provider.Listen(s.cfg.Addrs[s.parts.self], s.listenOptions()); err != nil {
		return fmt.Errorf("server %d: %w", s.parts.self, err)
	}
	if err = s.open(); err != nil {
		s.ep.Close()
	}
	return err
}

func (s *Server) open() error {
	h := wire.Hello{
		Version: wire.Version, Incarnation: s.parts.incarnation, Server: s.parts.self, Servers: s.cfg.Addrs, Epoch: s.cfg.hosted.Epoch,
		Placement: s.parts.placement, Durable: s.durable != nil, Leased: s.durable.leased(), Checksums: s.cfg.Checksums, Moves: s.cfg.hosted.Kept != nil && s.cfg.Replicas > 1,
	}
	s.catalog.Store(s.cfg.Catalog)
	for id := range s.parts.placement.Of(s.parts.self) {
		r, err := mem.New(mem.Options{Name: fmt.Sprintf("p%d", id), MaxBytes: s.cfg.MemoryBytes, SegmentBytes: s.cfg.segment})
		if err != nil {
			return err
		}
		p, err := newPartition(s, id, r)
		if err != nil {
			return err
		}
		s.parts.of[id], s.parts.here = p, append(s.parts.here, p)
	}
	if s.durable != nil {
		r := &recovery{s: s, tick: s.cfg.hosted.After, got: Recovered{Epoch: s.durable.dir.Epoch}, doubts: map[placement.Partition]*doubts{}}
		if err := r.run(); err != nil {
			return fmt.Errorf("server %d: %w", s.parts.self, err)
		}
		s.recovered = r.got
	}
	if s.cfg.Retain > 0 {
		for _, p := range s.parts.here {
			p.keepVersions()
		}
	}
	if err := s.catalog.describe(&h); err != nil {
		return err
	}
	return s.acquainted.introduce(h)
}

// Start begins to serve, in the background.
func (s *Server) Start() error {
	if s.durable != nil && !s.durable.mayAnswer() {
		s.Suspend()
	}
	if err := s.ep.Serve(s.handle); err != nil {
		return err
	}
	s.pace.request() // so that the loops below begin at once
	s.logStart()
	s.catalog.resumeChanges()
	s.workers.wg.Go(func() { s.driver.run(s.workers.ctx, &s.pace) })
	s.workers.wg.Go(func() { s.keepTime(s.workers.ctx) })
	if s.cfg.Retain > 0 {
		s.workers.wg.Go(func() { s.forget(s.workers.ctx) })
	}
	if s.durable != nil {
		s.workers.wg.Go(func() { s.durable.checkpoints.keep(s.workers.ctx) })
		if s.durable.group != nil {
			s.durable.group.start()
		}
	}
	for _, p := range s.peers {
		if p.server != s.parts.self {
			s.workers.wg.Go(func() { p.acquaint(s.workers.ctx) })
		}
	}
	if !s.cfg.hosted.ManualTraining {
		s.workers.wg.Go(func() { (&trainer{&s.parts, s.log, map[[2]int]trained{}}).run(s.workers.ctx, &s.pace) })
	}
	return nil
}

// Addr returns the address for clients.
func (s *Server) Addr() string { return s.ep.Addr() }

// Close fences the partitions, so that validation against their memory fails, and stops
// the server. It may be called again.
func (s *Server) Close() error {
	s.closeOnce.Do(func() {
		if s.durable != nil {
			s.durable.noteLastTick()
		}
		s.workers.cancel()
		for _, p := range s.parts.here {
			p.fence()
			s.log.Info("partition fenced", "partition", p.id)
			p.requests.stop()
		}
		for _, p := range s.peers {
			p.close()
		}
		s.client.close()
		s.elsewhere.await()
		s.closeErr = s.ep.Close()
		s.workers.stop()
		s.workers.wg.Wait()
		if s.durable != nil {
			s.durable.backups.endAll()
			s.closeErr = errors.Join(s.closeErr, s.durable.close())
		}
		if s.closeErr != nil {
			s.log.Error("data server stopped", "error", s.closeErr)
			return
		}
		s.log.Info("data server stopped")
	})
	return s.closeErr
}

// Check verifies the structure of every index of this server.
func (s *Server) Check() error {
	var errs []error
	for _, p := range s.parts.here {
		p.training.mu.Lock() // publishes models beside the executor
		p.mu.Lock()
		for _, ix := range p.has.Load().indexes {
			if err := ix.Check(); err != nil {
				errs = append(errs, fmt.Errorf("partition %d: index %s: %w", p.id, ix.def.Name, err))
			}
		}
		p.mu.Unlock()
		p.training.mu.Unlock()
	}
	return errors.Join(errs...)
}
