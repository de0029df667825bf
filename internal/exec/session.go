package exec

import (
	"cmp"
	"context"
	"math/rand/v2"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// Session is one goroutine's access to a cluster. It runs one transaction at a time:
// it makes the attempts, and its parts do the rest. A part uses only parts above it.
// The session keeps buffers of up to a few megabytes for the next transaction, and
// frees larger ones. DB's methods use sessions from a pool. A worker that needs exact
// counters, or must not wait for the pool, holds its own session.
type Session struct {
	db *DB
	crowdState
	number int // in the order in which the DB's sessions were opened
	rng    *rand.Rand
	txn    Txn
	commit wire.Commit
	await  func() bool // of RunProcedure
	kept   keptReads   // of RunProcedure

	net          network      // connections and calls
	round        round        // READs
	lines        controlLines // of partitions
	leases       leases       // of servers, and their clocks
	validator    validator    // of reads
	snap         snapshotTime // of a Snapshot
	reader       reader
	outcomes     outcomes     // of commits and calls
	writers      writers      // of indexes that clients write
	reservations reservations // of rows, after a lost attempt
	admission    admission    // at the gate
}

func newSession(db *DB, id, seed uint64) *Session {
	db.nclient++
	if db.cfg.Seed != 0 {
		seed = db.cfg.Seed + uint64(db.nclient)
	}
	s := &Session{db: db, number: db.nclient, rng: rand.New(rand.NewPCG(seed, id))}
	s.txn.s = s
	s.txn.init(db.Catalog(), db.Partitions(), db.local)
	s.net = network{
		db: db, stats: &s.stats, closed: &s.closed, txn: &s.txn, rebound: s.rebound,
		links: make([]*link, len(db.servers)), lives: make([]*life, len(db.servers)),
	}
	s.round.net = &s.net
	s.lines.round = &s.round
	s.leases = leases{db: db, net: &s.net}
	s.validator = validator{db: db, net: &s.net, round: &s.round, lines: &s.lines, leases: &s.leases}
	s.snap = snapshotTime{db: db, net: &s.net, lines: &s.lines, leases: &s.leases, validator: &s.validator}
	s.reader = reader{
		db: db, net: &s.net, round: &s.round, snap: &s.snap,
		pools: make([]*opPool, len(db.Catalog().Indexes)*db.Partitions()),
	}
	s.outcomes = outcomes{db: db, net: &s.net, id: id, rng: s.rng}
	s.writers.s = s
	s.reservations = reservations{db: db, net: &s.net, outcomes: &s.outcomes}
	s.admission.gate = &db.gate
	return s
}

// Stats returns a snapshot of the session's counters. Only the session's goroutine
// may call it. A load loop calls it for every transaction, so it reads only
// connections used since the last call.
func (s *Session) Stats() SessionStats {
	s.net.countUsed()
	return s.stats
}

// Close releases the session's connections.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	s.outcomes.goodbye(ctx)
	s.db.mu.Lock()
	if _, open := s.db.mu.all[s]; open {
		delete(s.db.mu.all, s)
		s.db.sessions.Add(-1)
	}
	s.db.mu.Unlock()
	s.net.close()
	return nil
}

// goodbyeTimeout bounds the time in which a session that ends notifies servers.
const goodbyeTimeout = 250 * time.Millisecond

// rebound drops what the session knows of a server's former life. An attempt that has
// read there must be repeated.
func (s *Session) rebound(server placement.Server) {
	s.txn.outlived = s.txn.outlived || s.txn.hasRead(server)
	s.reader.drop(server)
	s.lines.drop(server)
}

// controlOp makes an RPC without arguments and without a result.
func (s *Session) controlOp(ctx context.Context, server placement.Server, op wire.Op) error {
	l, err := s.net.link(ctx, server)
	if err != nil {
		return err
	}
	resp, err := s.net.call(ctx, l, []byte{byte(op)})
	if err != nil {
		return err
	}
	if wire.Code(resp[0]) != wire.OK {
		kind := cmp.Or(codeKinds[wire.Code(resp[0])], ErrProtocol)
		return &tables.Error{Err: kind, Partition: -1, Server: s.db.servers[server], Detail: string(resp[1:])}
	}
	return nil
}
