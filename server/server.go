package server

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"drtmx/index/learned"
	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/mem"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
	"drtmx/txn"
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
	// Checksums keeps checksums in every block, for clients on fabrics that do
	// not read in order. They are always kept if the provider is one of those.
	Checksums bool
	// Epoch of the partitions; 0 means 1.
	Epoch uint32
	// Incarnation identifies this start of the server; 0 means a random number.
	Incarnation uint64
	// Registered, if not nil, reads from the membership store which incarnation
	// of a data server is registered now, 0 if none is. It must not answer from
	// a cache. Another incarnation proves that the memory of the one before is
	// gone; nothing else does, but word from the server itself.
	Registered func(ctx context.Context, server int) (incarnation uint64, err error)
	// Family of the models of ordered indexes; 0 means PLR. See learned.ParseFamily.
	Family learned.Family
	// ManualTraining turns background training off, so that models change only
	// when the caller calls Train.
	ManualTraining bool
	// Log receives records of start and stop, partitions and models, and at
	// debug level of clients; nil means no log. Transactions are never logged.
	Log *slog.Logger

	clock clock.Source // that quarantines are measured on; nil means clock.Now
}

const defaultMemoryBytes = 16 << 30

func (c *Config) check() error {
	var errs []error
	bad := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	bad(len(c.Addrs) > 0, "no server addresses")
	bad(c.Index >= 0 && c.Index < max(len(c.Addrs), 1), "server index %d of %d", c.Index, len(c.Addrs))
	bad(c.Catalog != nil, "no catalogue")
	bad(c.Provider != nil, "no fabric provider")
	bad(c.Partitions >= 0 && c.Partitions <= wire.MaxParts, "%d partitions, want 1 to %d", c.Partitions, wire.MaxParts)
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
	cfg         Config
	incarnation uint64
	primaries   []int        // by partition
	parts       []*partition // by partition; nil if elsewhere
	ep          rdma.Endpoint
	procs       map[string]*exec.Procedure
	outcomes    *outcomes
	acquainted  acquaintance
	ticks       clock.Ticks   // its own clock
	present     atomic.Uint64 // the tick that it showed last
	running     *clock.Running
	work        sync.Pool // *work
	tasks       sync.Pool // *task

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	idle   struct {
		sync.Mutex
		workers []chan func() // the one that worked last is last
	}
	shared struct {
		sync.Mutex
		ctx  context.Context // see deadline
		made time.Duration   // by clock.Fast
	}

	peers  []*peer  // by server; connections are made when first needed
	client struct { // of the cluster, for procedures that leave their partition
		sync.Mutex
		db *exec.DB
	}
	coordinated atomic.Uint64
	calls       atomic.Uint64
	slowCalls   atomic.Uint64
	lookups     atomic.Uint64
	scans       atomic.Uint64
	handovers   atomic.Uint64
	forbidden   forbidden
	repliesLost atomic.Uint64

	log                   *slog.Logger
	started               time.Time
	greeted, disconnected atomic.Uint64

	closeOnce sync.Once
	closeErr  error
}

// New creates the server's memory and opens its endpoint. The server serves
// nothing before Start.
func New(c Config) (*Server, error) {
	if c.Partitions == 0 {
		c.Partitions = len(c.Addrs)
	}
	if c.MemoryBytes == 0 {
		c.MemoryBytes = defaultMemoryBytes
	}
	if c.Epoch == 0 {
		c.Epoch = 1
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	if c.Incarnation == 0 {
		var id [8]byte
		if _, err := rand.Read(id[:]); err != nil {
			return nil, err
		}
		c.Incarnation = binary.LittleEndian.Uint64(id[:]) | 1
	}
	s := &Server{
		cfg: c, incarnation: c.Incarnation, parts: make([]*partition, c.Partitions), procs: map[string]*exec.Procedure{},
	}
	s.outcomes = newOutcomes(s.reply)
	if s.log = c.Log; s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = s.log.With("server", c.Index)
	// This server dials other servers with the role of a data server.
	s.cfg.Provider = rdma.As(c.Provider, rdma.Identity{Role: rdma.RoleServer, Name: fmt.Sprintf("server-%d", c.Index)})
	s.started, s.ticks = time.Now(), clock.NewTicks()
	s.running = clock.NewRunning(runningStep, c.clock)
	s.readClock()
	s.work.New = func() any { return &work{} }
	s.tasks.New = func() any { return newTask(s) }
	s.ctx, s.cancel = context.WithCancel(context.Background())
	for i := range c.Addrs {
		s.peers = append(s.peers, &peer{s: s, server: i})
	}
	for _, p := range c.Procedures {
		s.procs[p.Name] = &exec.Procedure{Name: p.Name, ReadOnly: p.ReadOnly, Body: func(ctx context.Context, t *exec.Txn, args []byte) ([]byte, error) {
			res, err := p.Body(ctx, (*txn.Txn)(t), args)
			var typed *txn.ProcedureError
			if errors.As(err, &typed) {
				err = &typedError{err, (*exec.ProcedureError)(typed)}
			}
			return res, err
		}}
	}
	ep, err := c.Provider.Listen(c.Addrs[c.Index], s.listenOptions())
	if err != nil {
		return nil, fmt.Errorf("server %d: %w", c.Index, err)
	}
	s.ep = ep
	if err := s.open(); err != nil {
		ep.Close()
		return nil, err
	}
	return s, nil
}

func (s *Server) open() error {
	h := wire.Hello{
		Version: wire.Version, Incarnation: s.incarnation, Server: s.cfg.Index, Servers: s.cfg.Addrs, Epoch: s.cfg.Epoch,
	}
	var err error
	if h.Catalog, err = json.Marshal(s.cfg.Catalog); err != nil {
		return err
	}
	for id := range s.parts {
		server := id % len(s.cfg.Addrs)
		s.primaries = append(s.primaries, server)
		if server != s.cfg.Index {
			continue
		}
		r, err := mem.New(mem.Options{Name: fmt.Sprintf("p%d", id), MaxBytes: s.cfg.MemoryBytes})
		if err != nil {
			return err
		}
		p, err := newPartition(id, &s.cfg, r, s.cfg.Checksums || rdma.Unordered(s.cfg.Provider), &s.present, s.running)
		if err != nil {
			return err
		}
		if p.rkey, err = s.ep.Register(r, rdma.AccessRead); err != nil {
			return err
		}
		p.parking.init(s)
		p.side = newSide(s.party(p))
		p.runner = exec.NewRunner(s.cfg.Catalog, len(s.parts), onlyPartition{p})
		s.parts[id] = p
		hosted := wire.Hosted{Partition: id, RKey: uint32(p.rkey)}
		for _, ix := range p.indexes {
			hosted.Roots = append(hosted.Roots, ix.Root())
		}
		h.Hosted = append(h.Hosted, hosted)
	}
	h.Primaries = s.primaries
	return s.acquainted.introduce(h)
}

// typedError is a body's error, with what of it travels to the caller.
type typedError struct {
	error
	typed *exec.ProcedureError
}

// Unwrap implements errors.Is and errors.As.
func (e *typedError) Unwrap() []error { return []error{e.error, e.typed} }

// Start serves. It returns at once.
func (s *Server) Start() error {
	if err := s.ep.Serve(s.handle); err != nil {
		return err
	}
	s.logStart()
	s.wg.Go(func() { s.ticker(s.ctx) })
	s.wg.Go(func() { s.keepTime(s.ctx) })
	for server := range s.cfg.Addrs {
		if server != s.cfg.Index {
			s.wg.Go(func() { s.acquaint(s.ctx, server) })
		}
	}
	if !s.cfg.ManualTraining {
		s.wg.Go(func() { s.trainer(s.ctx) })
	}
	return nil
}

// Addr returns the address for clients.
func (s *Server) Addr() string { return s.ep.Addr() }

// Close fences the partitions, so that validation against their memory fails,
// and stops the server.
func (s *Server) Close() error {
	s.closeOnce.Do(func() {
		s.cancel()
		for _, p := range s.parts {
			if p != nil {
				p.fence()
				s.log.Info("partition fenced", "partition", p.id)
				p.stopParking()
			}
		}
		for _, p := range s.peers {
			p.close()
		}
		s.client.Lock()
		if s.client.db != nil {
			s.client.db.Close()
		}
		s.client.Unlock()
		s.closeErr = s.ep.Close()
		s.stopWorkers()
		s.wg.Wait()
		s.logStop()
	})
	return s.closeErr
}

// The trainer rests trainRest times as long as the processor worked for it: a
// stale model costs a reader a round, but training takes processor time from
// writers. It looks for work at least every trainIdleMax.
const (
	trainRest    = 30
	trainIdleMin = time.Millisecond
	trainIdleMax = 50 * time.Millisecond
)

// trainer keeps models in step with their trees.
func (s *Server) trainer(ctx context.Context) {
	// The trainer has its own thread, so that its processor time can be
	// measured. On a busy machine most of the elapsed time belongs to other
	// threads.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	idle, logged := trainIdleMin, &trainingLog{s: s, seen: map[[2]int]trained{}}
	t := time.NewTimer(idle)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		start := threadTime()
		worked := false
		for _, p := range s.parts {
			if p == nil {
				continue
			}
			turn := time.Now()
			worked = p.trainTurn() || worked
			p.arena.Tidy()
			logged.turn(p, time.Since(turn)) // sealing also trains
		}
		if worked {
			idle = max(trainRest*(threadTime()-start), trainIdleMin)
		} else {
			idle = min(idle*2, trainIdleMax)
		}
		t.Reset(idle)
	}
}

// Train trains all sub-models that are due and reports whether there were any.
// A sub-model is due only RetrainInterval (see learned.Options) after its last
// training, so some may still wait afterwards: see Stats. Train may be called
// at any time and from any goroutine.
func (s *Server) Train() (worked bool) {
	for _, p := range s.parts {
		if p != nil {
			worked = p.train(1<<20) || worked
		}
	}
	return worked
}

// threadTime returns the processor time of the calling thread.
func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}

// hosted returns a partition of this server, nil if the partition is elsewhere
// or does not exist.
func (s *Server) hosted(part int) *partition {
	if part < 0 || part >= len(s.parts) {
		return nil
	}
	return s.parts[part]
}

// clientDB is the server's own client of the cluster, opened when first needed.
// Nothing is locked while it is opened, so that a server which does not answer
// holds up those alone who need it.
func (s *Server) clientDB(ctx context.Context) (*exec.DB, error) {
	s.client.Lock()
	db := s.client.db
	s.client.Unlock()
	if db != nil {
		return db, nil
	}
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	db, err := exec.OpenLocal(ctx, exec.Config{Servers: s.cfg.Addrs, AllServers: true, Dial: s.cfg.Provider.Dial}, allPartitions{s})
	if err != nil {
		return nil, err
	}
	s.client.Lock()
	defer s.client.Unlock()
	switch {
	case s.ctx.Err() != nil:
		db.Close()
		return nil, rdma.ErrClosed
	case s.client.db != nil: // another was faster
		db.Close()
	default:
		s.client.db = db
	}
	return s.client.db, nil
}

// Check verifies the structure of every index of this server.
func (s *Server) Check() error {
	var errs []error
	for _, p := range s.parts {
		if p == nil {
			continue
		}
		p.training.Lock() // publishes models beside the executor
		p.mu.Lock()
		for i, ix := range p.indexes {
			if err := ix.Check(); err != nil {
				errs = append(errs, fmt.Errorf("partition %d: index %s: %w", p.id, s.cfg.Catalog.Indexes[i].Name, err))
			}
		}
		p.mu.Unlock()
		p.training.Unlock()
	}
	return errors.Join(errs...)
}
