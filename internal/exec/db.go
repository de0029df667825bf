package exec

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/index/learned/read"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

const (
	defaultLocationCache = 1 << 16
	defaultPatience      = 10 * time.Second
)

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

	// incarnation is by server, and 0 until first seen. Once set it stays. It
	// is set under mu, and read by every commit.
	incarnation []atomic.Uint64

	mu struct {
		sync.Mutex
		idle   []*Session
		closed bool
		all    map[*Session]struct{}
	}
}

// partition is a client's view of a partition: its server and its client
// halves.
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
	if c.Retry.Patience == 0 {
		c.Retry.Patience = defaultPatience
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
	if c.Cache.Budget > read.RouterOnly || c.Cache.TTBytes < 0 {
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

// Catalog returns the cluster's catalogue.
func (db *DB) Catalog() *tables.Catalog { return db.catalog }

// Table returns the table of a name.
func (db *DB) Table(name string) (*tables.Table, error) { return db.catalog.Table(name) }

// Partitions returns the number of partitions.
func (db *DB) Partitions() int { return len(db.parts) }

// Servers returns the addresses of the data servers.
func (db *DB) Servers() []string { return db.servers }

// Home returns the partition that holds a key of a table.
func (db *DB) Home(t *tables.Table, key tables.Key) (Home, error) {
	ix := t.Primary()
	if err := ix.CheckKey(key); err != nil {
		return 0, err
	}
	return Home(ix.Partition.Of(key, len(db.parts))), nil
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
	return append([]byte(nil), res...), err // the session returns to the pool with its buffer
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

// NewSession opens a session for one goroutine, with a connection to each
// server that it uses. DB's own methods use sessions of a pool.
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
	all, idle := db.mu.all, db.mu.idle
	db.mu.all, db.mu.idle = nil, nil
	db.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	for _, s := range idle { // no goroutine uses them
		s.goodbye(ctx)
	}
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
	db.mu.Lock()
	defer db.mu.Unlock()
	for p := range db.parts { // those of servers that were needed so far
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
