package exec

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
	"drtmx/tables"
)

// Session is one goroutine's access to a cluster: connections, buffers and the state
// of the exactly-once protocol. It runs one transaction at a time. It keeps buffers
// of up to a few megabytes for the next transaction, and frees larger ones. DB's
// methods use sessions from a pool. A worker that needs exact counters, or must not
// wait for the pool, holds its own session.
type Session struct {
	db *DB
	crowdState
	id           uint64 // client half of transaction IDs
	number       int    // in the order in which the DB's sessions were opened
	seq          uint64
	rng          *rand.Rand
	mu           sync.Mutex // guards writes to links, and reads by other goroutines
	links        []*link    // by server
	lives        []*life    // by server: the life that its present or last connection leads to
	unsettled    []unsettled
	touched      []*link // links with requests in the round being built
	active       []activeOp
	txn          Txn
	pools        []*opPool // by index number × partition
	req          []byte
	resp         []byte
	proofs       []proof  // of the attempt being validated
	words        []uint64 // into which they are re-read
	controlled   []rested // partitions whose control words are among them
	reads        []wire.Read
	commit       wire.Commit
	uncounted    []*link     // used since Stats last asked them
	await        func() bool // of RunProcedure
	snap         snapshotState
	dials        []*dialing            // connections being made, by server; nil before the first
	pendingLinks int                   // links with pending answers
	turns        Turns                 // of RunProcedure
	home         placement.Partition   // of RunProcedure: the home partition of the procedure
	reserved     []placement.Partition // partitions that may have a reservation for this session
	asked        []placement.Partition // partitions in which the transaction has asked for a turn
	keptTurns    int                   // consecutive attempts that kept the reservations
	asksClock    bool                  // a server has refused proofs as too old
	kept         keptReads             // of RunProcedure
	past         history
	losing       bool     // the transaction is counted in gate.losing
	visit        visit    // to the gate
	borrower     *Session // the session whose transaction this session of the pool runs; nil: none
	lacks        []bool   // by server: connections that the transaction has lacked; nil: none
}

type activeOp struct {
	op index.Op
	l  *link
}

// opPool keeps the read operations of one index in one partition. Their buffers hold
// the rows of a transaction, so a transaction uses each once.
type opPool struct {
	client       index.Client
	gets         []index.GetOp
	scans        []index.ScanOp
	nGet, nScan  int
	server       placement.Server
	began        *clock.Mark // of the attempt
	usedThisTime bool
}

func newSession(db *DB, id, seed uint64) *Session {
	db.nclient++
	if db.cfg.Seed != 0 {
		seed = db.cfg.Seed + uint64(db.nclient)
	}
	s := &Session{
		db: db, id: id, number: db.nclient, rng: rand.New(rand.NewPCG(seed, id)),
		links: make([]*link, len(db.servers)), lives: make([]*life, len(db.servers)),
		pools: make([]*opPool, len(db.Catalog().Indexes)*db.Partitions()),
	}
	s.txn.s = s
	s.txn.init(db.Catalog(), db.Partitions(), db.local)
	return s
}

// Stats returns a snapshot of the session's counters. Only the session's goroutine
// may call it. A load loop calls it for every transaction, so it reads only
// connections used since the last call.
func (s *Session) Stats() SessionStats {
	for _, l := range s.uncounted {
		l.uncounted = false
		s.count(l)
	}
	s.uncounted = s.uncounted[:0]
	return s.stats
}

// count adds a connection's new counts to the statistics.
func (s *Session) count(l *link) {
	now := l.conn.Counters()
	s.stats.Fabric = s.stats.Fabric.Add(now.Sub(l.counted))
	l.counted = now
}

// Close releases the session's connections.
func (s *Session) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), goodbyeTimeout)
	defer cancel()
	s.goodbye(ctx)
	s.db.mu.Lock()
	if _, open := s.db.mu.all[s]; open {
		delete(s.db.mu.all, s)
		s.db.sessions.Add(-1)
	}
	s.db.mu.Unlock()
	s.closeLinks()
	return nil
}

// goodbyeTimeout bounds the time in which a session that ends notifies servers.
const goodbyeTimeout = 250 * time.Millisecond

// goodbye notifies the servers that have run transactions for the session that they
// need not keep the last answer. It is best effort: a server forgets a session after
// a while anyway.
func (s *Session) goodbye(ctx context.Context) {
	if s.closed.Load() {
		return
	}
	req := binary.LittleEndian.AppendUint64([]byte{byte(wire.OpGoodbye)}, s.id)
	for _, l := range s.links {
		if l != nil && l.decides && l.conn.StartCall(ctx, req) != nil {
			s.drop(l)
		}
	}
	for _, l := range s.links {
		if l == nil || !l.decides {
			continue
		}
		resp, err := l.conn.FinishCall(ctx, s.resp)
		if err != nil {
			s.drop(l)
			continue
		}
		s.resp = resp
	}
}

// closeLinks may be called by another goroutine while a transaction runs. It
// only closes connections; the session does the rest.
func (s *Session) closeLinks() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Swap(true) {
		return
	}
	for _, l := range s.links {
		if l != nil {
			s.db.room.shut(l)
		}
	}
	for _, d := range s.dials {
		d.stop()
	}
}

// keep adds a connection, unless the session has been closed.
func (s *Session) keep(l *link) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return ErrClosed
	}
	s.links[l.server] = l
	return nil
}

// controlOp makes an RPC without arguments and without a result.
func (s *Session) controlOp(ctx context.Context, server placement.Server, op wire.Op) error {
	l, err := s.link(ctx, server)
	if err != nil {
		return err
	}
	resp, err := s.call(ctx, l, []byte{byte(op)})
	if err != nil {
		return err
	}
	if wire.Code(resp[0]) != wire.OK {
		kind := cmp.Or(codeKinds[wire.Code(resp[0])], ErrProtocol)
		return &tables.Error{Err: kind, Partition: -1, Server: s.db.servers[server], Detail: string(resp[1:])}
	}
	return nil
}

func (s *Session) untouchAll() {
	for _, l := range s.touched {
		l.touched = false
	}
	s.touched, s.active = s.touched[:0], s.active[:0]
}

// maxRounds bounds the rounds of one read; operations fall back long before.
const maxRounds = 4096

// rounds drives the active operations until all have finished. Requests to
// several servers, and of several operations to one, share each round.
func (s *Session) rounds(ctx context.Context) error {
	defer s.untouchAll()
	for range maxRounds {
		n := 0
		for i := range s.active {
			a := &s.active[i]
			if a.op.Next(a.l.done, a.l.next) {
				continue
			}
			if n < i {
				s.active[n] = *a
			}
			n++
		}
		if s.active = s.active[:n]; n == 0 {
			return nil
		}
		if err := s.exchange(ctx); err != nil {
			return err
		}
	}
	return fmt.Errorf("%w: a read did not end after %d rounds", ErrProtocol, maxRounds)
}

// exchange posts every link's next batch and waits for all: one round, or
// several if a batch is larger than the fabric takes at once.
func (s *Session) exchange(ctx context.Context) error {
	l := s.touched[0]
	if n := len(l.next.WRs); len(s.touched) > 1 || n == 0 || n > rdma.MaxBatch {
		return s.exchangeMany(ctx)
	}
	if err := l.conn.Post(l.next); err != nil {
		return s.broken(ctx, l, err)
	}
	if err := l.conn.Wait(ctx, l.next); err != nil && !refused(err) {
		return s.gaveUp(ctx, l, l.next, err)
	}
	s.stats.Rounds++
	l.turn()
	return nil
}

// refused reports whether err is the server's refusal of a single request of a batch.
// The operation that posted the request handles it, by the status; any other error
// ends the round.
func refused(err error) bool {
	return errors.Is(err, rdma.ErrAccess) || errors.Is(err, rdma.ErrUnsupported)
}

// exchangeMany does the same as exchange over several connections, or with a large
// batch.
func (s *Session) exchangeMany(ctx context.Context) error {
	for from, more := 0, true; more; from += rdma.MaxBatch {
		for i, l := range s.touched {
			if b := l.piece(from); len(b.WRs) > 0 {
				if err := l.conn.Post(b); err != nil {
					s.addPosted(s.touched[:i], from)
					return s.broken(ctx, l, err)
				}
			}
		}
		more = false
		for i, l := range s.touched {
			if b := l.piece(from); len(b.WRs) > 0 {
				if err := l.conn.Wait(ctx, b); err != nil && !refused(err) {
					s.addPosted(s.touched[i+1:], from)
					return s.gaveUp(ctx, l, b, err)
				}
				more = more || len(l.next.WRs) > from+rdma.MaxBatch
			}
		}
		s.stats.Rounds++
	}
	for _, l := range s.touched {
		l.turn()
	}
	return nil
}

// turn ends a round: the batch that was posted becomes the one that is done.
func (l *link) turn() {
	l.done, l.next = l.next, l.done
	l.next.Reset()
}

// piece returns the batch to post, with the requests from the given one on. It shares
// the memory of l.next, so that completions are stored there.
func (l *link) piece(from int) *rdma.Batch {
	if from == 0 && len(l.next.WRs) <= rdma.MaxBatch {
		return l.next
	}
	return l.cut(from)
}

// cut does the same as piece for a batch that is larger than the fabric takes at
// once, and for the others of its round.
func (l *link) cut(from int) *rdma.Batch {
	all := l.next.WRs
	l.part.WRs = all[min(from, len(all)):min(from+rdma.MaxBatch, len(all))]
	return &l.part
}

// pool returns the operations for one index in one partition. It connects to
// the server if it has to, and refreshes a client half that a transaction has
// found stale, or loads it on its first use.
func (s *Session) pool(ctx context.Context, ix int, part placement.Partition) (*opPool, error) {
	p, server := s.poolAt(ix, part), s.db.placement.At(part)
	if p == nil || s.pendingLinks > 0 || s.links[server] == nil {
		l, err := s.link(ctx, server)
		if err == nil {
			if p = s.poolAt(ix, part); p == nil { // or it was dropped with its life
				p, err = s.newPool(ctx, l, ix, part)
			}
		}
		if err != nil {
			return nil, err
		}
	}
	if !p.usedThisTime {
		p.usedThisTime = true
		s.txn.used = append(s.txn.used, p)
	}
	if p.client.Stale() {
		return p, s.maintain(ctx, p)
	}
	return p, nil
}

func (s *Session) poolAt(ix int, part placement.Partition) *opPool {
	if at := ix*s.db.Partitions() + int(part); at < len(s.pools) {
		return s.pools[at]
	}
	return nil
}

func (p *opPool) get() index.GetOp {
	if p.nGet == len(p.gets) {
		op := p.client.NewGet()
		if d, ok := op.(index.Dated); ok {
			d.Within(p.began)
		}
		p.gets = append(p.gets, op)
	}
	p.nGet++
	return p.gets[p.nGet-1]
}

func (p *opPool) scan() index.ScanOp {
	if p.nScan == len(p.scans) {
		p.scans = append(p.scans, p.client.NewScan())
	}
	p.nScan++
	return p.scans[p.nScan-1]
}

// maintain refreshes a stale client half, or loads one that is not loaded yet.
func (s *Session) maintain(ctx context.Context, p *opPool) error {
	l, err := s.link(ctx, p.server)
	if err != nil {
		return err
	}
	if err := p.client.Maintain(ctx, l.conn); err != nil && !errors.Is(err, index.ErrCorrupt) {
		return s.broken(ctx, l, err)
	}
	return nil // a corrupt index is being rewritten; reads fall back to the server until the next refresh
}

// backoff waits before attempt n+1. It spins first, because locks are held for
// microseconds, and then sleeps.
func (s *Session) backoff(ctx context.Context, n int) error {
	d := s.db.cfg.Retry.BackoffMax
	if n < 20 {
		d = min(s.db.cfg.Retry.BackoffMin<<n, d)
	}
	d = d/2 + time.Duration(s.rng.Int64N(int64(d/2)+1))
	if d < 20*time.Microsecond {
		for start := time.Now(); time.Since(start) < d; {
			runtime.Gosched()
		}
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
