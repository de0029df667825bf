package exec

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
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
	cfg       Config
	catalog   atomic.Pointer[tables.Catalog] // the latest version known; changes under mu
	servers   []string
	placement placement.Map
	durable   bool    // servers recover what they have acknowledged
	lives     []*life // by server: the latest one known, nil if none; under mu
	local     Local   // of a data server's own DB
	nclient   int     // sessions opened so far; distinguishes their random streams
	gate      gate
	room      room
	sessions  atomic.Int32    // that are open
	oneSided  atomic.Uint64   // commits without a data server
	dials     []chan struct{} // by server: has an element for each connection that is being made
	asks      sync.WaitGroup  // questions about leases; they begin under mu
	seen      clock.Seen
	hopeless  hopeless

	// incarnation is by server, and 0 until first seen. Once set it stays. It
	// is set under mu, and read by every commit.
	incarnation []atomic.Uint64

	mu struct {
		sync.Mutex
		closed bool
		all    map[*Session]struct{}
	}
}

// Open connects to a cluster and fetches its catalogue, its partition map and
// the caches of its indexes. It returns ErrUnavailable if no server answers,
// and ErrProtocol if one speaks another version.
func Open(ctx context.Context, c Config) (*DB, error) {
	if len(c.Servers) == 0 || c.Dial == nil {
		return nil, errors.New("txn: Config.Servers and Config.Dial are required")
	}
	c.Retry.Patience = cmp.Or(c.Retry.Patience, defaultPatience)
	c.Retry.BackoffMin = cmp.Or(c.Retry.BackoffMin, 2*time.Microsecond)
	c.Retry.BackoffMax = cmp.Or(c.Retry.BackoffMax, time.Millisecond)
	c.LocationCache = cmp.Or(c.LocationCache, defaultLocationCache)
	if !c.Cache.Budget.Valid() || c.Cache.TTBytes < 0 {
		return nil, fmt.Errorf("txn: Config.Cache %v is out of range", c.Cache)
	}
	c.BodyAge = cmp.Or(c.BodyAge, MaxBodyAge)
	if c.BodyAge < 0 || c.BodyAge > MaxBodyAge {
		return nil, fmt.Errorf("txn: Config.BodyAge %v is out of range, want at most %v (MaxBodyAge)", c.BodyAge, MaxBodyAge)
	}
	db := &DB{cfg: c}
	db.mu.all = map[*Session]struct{}{}
	if err := db.connect(ctx); err != nil {
		db.Close()
		return nil, err
	}
	if err := db.checkInner(ctx); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

// checkInner returns ErrCache if the cache is to keep inner nodes that there are not. Other
// errors are left to the transactions that meet them.
func (db *DB) checkInner(ctx context.Context) error {
	if !db.cfg.Cache.Budget.Inner() {
		return nil
	}
	for _, ix := range db.Catalog().Indexes {
		if err := db.cacheable(ix); err != nil {
			return err
		}
	}
	s, err := db.acquire(ctx)
	if err != nil {
		return nil
	}
	defer db.release(s)
	for _, ix := range db.Catalog().Indexes {
		for part := range placement.Partition(db.Partitions()) {
			if !ix.Ordered {
				break
			}
			p, err := s.reader.pool(ctx, ix.ID, part)
			if err == nil {
				err = s.reader.maintain(ctx, p)
			}
			if errors.Is(err, ErrCache) {
				return err
			}
		}
	}
	return nil
}

// cacheable returns why the cache cannot hold an index.
func (db *DB) cacheable(ix *tables.Index) error {
	if ix.Ordered && ix.Strings && db.cfg.Cache.Budget.Inner() {
		return fmt.Errorf("%w: index %s has string keys, want a cache other than %v", ErrCache, ix.Name, db.cfg.Cache)
	}
	return nil
}

// Catalog returns the latest version of the cluster's catalogue that the DB knows.
func (db *DB) Catalog() *tables.Catalog { return db.catalog.Load() }

// Table returns the table with a name.
func (db *DB) Table(name string) (*tables.Table, error) { return db.Catalog().Table(name) }

// Partitions returns the number of partitions.
func (db *DB) Partitions() int { return db.placement.Partitions() }

// Servers returns the addresses of the data servers.
func (db *DB) Servers() []string { return db.servers }

// Home returns the partition that holds a key of a table.
func (db *DB) Home(t *tables.Table, key tables.Key) (placement.Partition, error) {
	t, err := db.Catalog().Resolve(t)
	if err != nil {
		return 0, err
	}
	ix := t.Primary()
	if err := ix.CheckKey(key); err != nil {
		return 0, err
	}
	return placement.Partition(ix.Partition.Of(key, db.Partitions())), nil
}

// Observed returns a tick that is no lower than those of all commits that transactions of
// this DB have made or read. Every transaction that begins later at this DB is
// serialized after those.
func (db *DB) Observed() clock.Tick { return db.seen.Tick() }

// Observe records another DB's Observed: every transaction that begins later at this DB is
// serialized after the commits up to t.
func (db *DB) Observe(t clock.Tick) { db.seen.Saw(t) }

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
	s, err := db.admit(ctx, nil)
	if err != nil {
		return err
	}
	defer db.release(s)
	return s.run(ctx, update, math.MaxInt, fn, nil)
}

// Call runs a procedure at the primary of h. See Session.Call.
func (db *DB) Call(ctx context.Context, h placement.Partition, proc string, args []byte) ([]byte, error) {
	s, err := db.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer db.release(s)
	res, err := s.Call(ctx, h, proc, args)
	return append([]byte(nil), res...), err // the session returns to the pool with its buffer
}

// admit waits at the gate, and returns a session of the pool that has entered. own is
// the state of the caller's session, nil if it has none.
func (db *DB) admit(ctx context.Context, own *crowdState) (*Session, error) {
	s, entered := db.gate.tryEnter()
	if !entered {
		v := visits.Get().(*visit)
		v.own, v.depth = own, mem.Here()
		entered = db.gate.enter(ctx, v)
		s, v.session, v.inside, v.own = v.session, nil, false, nil
		visits.Put(v)
		if !entered {
			return nil, ctx.Err()
		}
	}
	if s == nil {
		var err error
		if s, err = db.NewSession(ctx); err != nil {
			db.gate.leave(&visit{inside: true}, false)
			return nil, err
		}
	}
	s.admission.visit.inside, s.admission.visit.pooled = true, true
	return s, nil
}

func (db *DB) acquire(ctx context.Context) (*Session, error) {
	db.gate.mu.Lock()
	s := db.gate.take()
	db.gate.mu.Unlock()
	if s != nil {
		return s, nil
	}
	return db.NewSession(ctx)
}

// release returns a session to the pool. If the session is still inside the gate,
// because its first attempt did not lose, it leaves.
func (db *DB) release(s *Session) {
	g := &db.gate
	g.mu.Lock()
	closed := g.mu.closed
	if !closed {
		g.mu.idle = append(g.mu.idle, s)
	}
	if s.admission.visit.inside {
		g.out(&s.admission.visit, false)
	}
	next := g.admit()
	g.mu.Unlock()
	next.wake()
	if db.room.short.Load() {
		db.room.lendIdle(&db.gate)
	}
	if closed {
		s.Close()
	}
}

// NewSession opens a session for one goroutine, with its own connection to each
// server that it uses. DB's methods use sessions of a pool.
func (db *DB) NewSession(ctx context.Context) (*Session, error) {
	var seed [16]byte
	if _, err := rand.Read(seed[:]); err != nil {
		return nil, err
	}
	db.mu.Lock()
	if db.mu.closed {
		db.mu.Unlock()
		return nil, ErrClosed
	}
	s := newSession(db, binary.LittleEndian.Uint64(seed[:]), binary.LittleEndian.Uint64(seed[8:]))
	db.mu.all[s] = struct{}{}
	n := db.sessions.Add(1)
	db.mu.Unlock()
	db.gate.shareAnew(n)
	return s, nil
}

// Close closes all sessions. Transactions under way fail.
func (db *DB) Close() error {
	db.mu.Lock()
	db.mu.closed = true
	all := db.mu.all
	db.mu.all = nil
	db.mu.Unlock()
	idle := db.gate.close()
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	for _, s := range idle { // no goroutine uses them
		s.outcomes.goodbye(ctx)
	}
	byNumber := func(a, b *Session) int { return cmp.Compare(a.number, b.number) }
	for _, s := range slices.SortedFunc(maps.Keys(all), byNumber) { // so that a simulation can be repeated
		s.net.close()
	}
	db.room.close()
	db.asks.Wait()
	return nil
}

// OneSided returns how many Updates of the DB were committed without a data server.
func (db *DB) OneSided() uint64 { return db.oneSided.Load() }

// IndexStats are the counters of one client half.
type IndexStats struct {
	Index     string
	Table     string
	Partition int
	Ordered   bool
	index.ClientStats
}

// IndexStats returns the counters of the client halves of all indexes.
func (db *DB) IndexStats() []IndexStats {
	var out []IndexStats
	db.mu.Lock()
	defer db.mu.Unlock()
	for p := range placement.Partition(db.Partitions()) { // only client halves that were used so far
		lf := db.lives[db.placement.At(p)]
		if lf == nil {
			continue
		}
		for i, st := range lf.parts[p].counts() {
			ix := db.Catalog().Indexes[i]
			out = append(out, IndexStats{ix.Name, ix.Table.Name(), int(p), ix.Ordered, st})
		}
	}
	return out
}

// ServerStats asks every server for its statistics. It waits for durable servers as
// transactions do.
func (db *DB) ServerStats(ctx context.Context) ([]wire.ServerStats, error) {
	s, err := db.acquire(ctx)
	if err != nil {
		return nil, err
	}
	defer db.release(s)
	out := make([]wire.ServerStats, len(db.servers))
	for i := range placement.Server(len(db.servers)) {
		var patience time.Duration
		for n := 0; ; n++ {
			if err = s.serverStats(ctx, i, &out[i]); err == nil {
				break
			}
			if db.Returns(err) {
				err = s.net.awaitReturn(ctx, n, err, &patience)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}
