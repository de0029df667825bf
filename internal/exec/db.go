package exec

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"drtmx/index"
	"drtmx/index/hash"
	"drtmx/index/learned"
	"drtmx/internal/mem"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

const defaultLocationCache = 1 << 16

// DB is a client of a cluster: its catalogue, its partition map, and the
// client halves of all indexes, which its sessions share. Safe for concurrent
// use.
type DB struct {
	cfg     Config
	catalog *tables.Catalog
	servers []string
	parts   []partition
	local   Local // of a data server's own DB
	nclient int   // distinguishes sessions' random streams

	mu struct {
		sync.Mutex
		idle        []*Session
		incarnation []uint64 // by server; 0 until first seen
		closed      bool
		all         map[*Session]struct{}
	}
}

// partition is what a client knows of one: where it is and how to read it.
type partition struct {
	server  int
	rkey    rdma.RKey
	epoch   uint32
	roots   []uint64
	clients []index.Client // by index number
}

// Open connects to a cluster and fetches its catalogue, its partition map and
// the caches of its indexes. It returns ErrUnavailable if no server answers,
// and ErrProtocol if one speaks another version.
func Open(ctx context.Context, c Config) (*DB, error) {
	if len(c.Servers) == 0 || c.Dial == nil {
		return nil, errors.New("txn: Config.Servers and Config.Dial are required")
	}
	if c.Retry.Attempts == 0 {
		c.Retry.Attempts = 1000
	}
	if c.Retry.BackoffMin == 0 {
		c.Retry.BackoffMin = 2 * time.Microsecond
	}
	if c.Retry.BackoffMax == 0 {
		c.Retry.BackoffMax = time.Millisecond
	}
	if c.LocationCache == 0 {
		c.LocationCache = defaultLocationCache
	}
	if c.Cache.Budget > learned.RouterOnly || c.Cache.TTBytes < 0 {
		return nil, fmt.Errorf("txn: Config.Cache %v is out of range", c.Cache)
	}
	db := &DB{cfg: c}
	db.mu.all = map[*Session]struct{}{}
	if err := db.connect(ctx); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// connect learns the topology from the first server that answers, then says
// hello to all of them through the first session.
func (db *DB) connect(ctx context.Context) error {
	var first *wire.Hello
	var errs []error
	for _, addr := range db.cfg.Servers {
		h, err := helloAt(ctx, db.cfg.Dial, addr)
		if err == nil {
			first = h
			break
		}
		if errors.Is(err, ErrProtocol) || ctx.Err() != nil {
			return err
		}
		errs = append(errs, err)
	}
	if first == nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, errors.Join(errs...))
	}
	cat, err := tables.ParseCatalog(first.Catalog)
	if err != nil {
		return fmt.Errorf("%w: catalogue: %w", ErrProtocol, err)
	}
	db.catalog, db.servers = cat, first.Servers
	if db.cfg.AllServers {
		if len(db.cfg.Servers) != len(first.Servers) {
			return fmt.Errorf("%w: the cluster has %d data servers, %d addresses are given", ErrProtocol, len(first.Servers), len(db.cfg.Servers))
		}
		db.servers = db.cfg.Servers
	}
	db.mu.incarnation = make([]uint64, len(db.servers))
	db.parts = make([]partition, len(first.Primaries))
	for p, srv := range first.Primaries {
		db.parts[p].server = srv
	}
	s, err := db.NewSession(ctx)
	if err != nil {
		return err
	}
	defer db.release(s)
	for i := range db.servers {
		l, err := s.link(ctx, i)
		if err != nil {
			return err
		}
		if err := db.bind(l.hello, l.conn.InOrder()); err != nil {
			return err
		}
	}
	for p := range db.parts {
		if db.parts[p].clients == nil {
			return fmt.Errorf("%w: server %s does not hold partition %d", ErrProtocol, db.servers[db.parts[p].server], p)
		}
	}
	return nil
}

func helloAt(ctx context.Context, dial func(context.Context, string) (rdma.Conn, error), addr string) (*wire.Hello, error) {
	c, err := dial(ctx, addr)
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", addr, err)
	}
	defer c.Close()
	return hello(ctx, c, addr)
}

func hello(ctx context.Context, c rdma.Conn, addr string) (*wire.Hello, error) {
	resp, err := rdma.Call(ctx, c, []byte{byte(wire.OpHello)}, nil)
	if err != nil {
		return nil, fmt.Errorf("server %s: %w", addr, err)
	}
	h, err := wire.DecodeHello(resp)
	if err != nil {
		return nil, fmt.Errorf("%w: server %s: %w", ErrProtocol, addr, err)
	}
	return h, nil
}

// bind makes the client halves of a server's partitions.
func (db *DB) bind(h *wire.Hello, inOrder bool) error {
	for _, hp := range h.Hosted {
		p := &db.parts[hp.Partition]
		if p.server != h.Server || p.clients != nil {
			continue
		}
		if len(hp.Roots) != len(db.catalog.Indexes) {
			return fmt.Errorf("%w: server %s has another catalogue", ErrProtocol, db.servers[h.Server])
		}
		p.rkey, p.epoch, p.roots = rdma.RKey(hp.RKey), h.Epoch, hp.Roots
		for _, ix := range db.catalog.Indexes {
			p.clients = append(p.clients, db.newClient(ix, p, inOrder))
		}
	}
	return nil
}

func (db *DB) newClient(ix *tables.Index, p *partition, inOrder bool) index.Client {
	if ix.Ordered {
		return learned.NewClient(p.roots[ix.ID], p.rkey, learned.ClientOptions{InOrder: inOrder, RowWords: ix.RowBytes / 8, Strings: ix.Strings, Cache: db.cfg.Cache})
	}
	return hash.NewClient(p.roots[ix.ID], p.rkey, hash.ClientOptions{
		InOrder: inOrder, LocationCacheEntries: max(db.cfg.LocationCache, 0),
	})
}

// Catalog is the cluster's catalogue.
func (db *DB) Catalog() *tables.Catalog { return db.catalog }

// Table finds a table by name.
func (db *DB) Table(name string) (*tables.Table, error) { return db.catalog.Table(name) }

// Partitions is the number of partitions.
func (db *DB) Partitions() int { return len(db.parts) }

// Servers are the addresses of the data servers.
func (db *DB) Servers() []string { return db.servers }

// Home is the partition that holds a key of a table.
func (db *DB) Home(t *tables.Table, key uint64) Home {
	return Home(t.Primary().Partition.Of(key, len(db.parts)))
}

// HomeS is Home for a table with string keys.
func (db *DB) HomeS(t *tables.Table, key []byte) Home {
	return Home(t.Primary().Partition.OfString(mem.String(key), len(db.parts)))
}

// View runs a read-only transaction, strictly serializable. See Session.View.
func (db *DB) View(ctx context.Context, fn Body) error {
	s, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.release(s)
	return s.View(ctx, fn)
}

// Update runs a transaction that may write. See Session.Update.
func (db *DB) Update(ctx context.Context, fn Body) error {
	s, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.release(s)
	return s.Update(ctx, fn)
}

// Call runs a procedure at the primary of h. See Session.Call.
func (db *DB) Call(ctx context.Context, h Home, proc string, args []byte) ([]byte, error) {
	s, err := db.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer db.release(s)
	res, err := s.Call(ctx, h, proc, args)
	return append([]byte(nil), res...), err // the session's buffer goes back with it
}

func (db *DB) acquire(ctx context.Context) (*Session, error) {
	db.mu.Lock()
	if n := len(db.mu.idle); n > 0 && !db.mu.closed {
		s := db.mu.idle[n-1]
		db.mu.idle = db.mu.idle[:n-1]
		db.mu.Unlock()
		return s, nil
	}
	db.mu.Unlock()
	return db.NewSession(ctx)
}

func (db *DB) release(s *Session) {
	db.mu.Lock()
	closed := db.mu.closed
	if !closed {
		db.mu.idle = append(db.mu.idle, s)
	}
	db.mu.Unlock()
	if closed {
		s.Close()
	}
}

// NewSession opens a session of its own for one goroutine, with a connection
// to each server it comes to use. DB's own methods draw from a pool.
func (db *DB) NewSession(ctx context.Context) (*Session, error) {
	var seed [16]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if db.mu.closed {
		return nil, ErrClosed
	}
	s := newSession(db, binary.LittleEndian.Uint64(seed[:]), binary.LittleEndian.Uint64(seed[8:]))
	db.mu.all[s] = struct{}{}
	return s, nil
}

// Close closes all sessions. Transactions under way fail.
func (db *DB) Close() error {
	db.mu.Lock()
	db.mu.closed = true
	all := db.mu.all
	db.mu.all, db.mu.idle = nil, nil
	db.mu.Unlock()
	for s := range all {
		s.closeLinks()
	}
	return nil
}

// IndexStats are the counters of one client half.
type IndexStats struct {
	Index     string
	Table     string
	Partition int
	index.ClientStats
}

// IndexStats snapshots the client halves of all indexes.
func (db *DB) IndexStats() []IndexStats {
	var out []IndexStats
	for p := range db.parts {
		for i, c := range db.parts[p].clients {
			out = append(out, IndexStats{db.catalog.Indexes[i].Name, db.catalog.Indexes[i].Table.Name(), p, c.Stats()})
		}
	}
	return out
}

// ServerStats asks every server.
func (db *DB) ServerStats(ctx context.Context) ([]wire.ServerStats, error) {
	s, err := db.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer db.release(s)
	out := make([]wire.ServerStats, len(db.servers))
	for i := range db.servers {
		if err := s.serverStats(ctx, i, &out[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}
