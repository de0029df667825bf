package exec

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// Session is one goroutine's access to a cluster: connections, buffers and the
// state of the exactly-once protocol. It runs one transaction at a time. DB's
// methods use sessions from a pool. A worker that needs exact counters, or must
// not wait for the pool, holds its own session.
type Session struct {
	db         *DB
	id         uint64 // client half of transaction IDs
	seq        uint64
	rng        *rand.Rand
	mu         sync.Mutex // for writing links, and for reading them in another goroutine
	links      []*link    // by server
	touched    []*link    // links with requests in the round being built
	active     []activeOp
	txn        Txn
	pools      []*opPool // by index number × partition
	closed     atomic.Bool
	req        []byte
	resp       []byte
	proofs     []proof  // of the attempt being validated
	words      []uint64 // where they are read again
	controlled []int    // partitions whose control words are among them
	reads      []wire.Read
	commit     wire.Commit
	stats      SessionStats
	uncounted  []*link     // used since Stats last asked them
	await      func() bool // of RunProcedure
}

// link is a connection to one server with the two batches that operations
// alternate between.
type link struct {
	server  int
	conn    rdma.Conn
	hello   *wire.Hello
	batch   [2]rdma.Batch
	part    rdma.Batch // part of a batch that is larger than the fabric takes at once
	flip    int
	touched bool
	decides bool // transactions of the session were sent here to be committed

	uncounted bool          // listed in the session's uncounted
	counted   rdma.Counters // the part of conn's counters that the session's statistics include
}

func (l *link) done() *rdma.Batch { return &l.batch[l.flip^1] }
func (l *link) next() *rdma.Batch { return &l.batch[l.flip] }

type activeOp struct {
	op index.Op
	l  *link
}

// opPool keeps the read operations of one index in one partition: their
// buffers hold the rows of a transaction, so each is used once in it.
type opPool struct {
	client       index.Client
	gets         []index.GetOp
	scans        []index.ScanOp
	nGet, nScan  int
	part         int
	began        *clock.Mark // of the attempt
	usedThisTime bool
}

func newSession(db *DB, id, seed uint64) *Session {
	if db.cfg.Seed != 0 {
		db.nclient++
		seed = db.cfg.Seed + uint64(db.nclient)
	}
	s := &Session{
		db: db, id: id, rng: rand.New(rand.NewPCG(seed, id)),
		links: make([]*link, len(db.servers)),
		pools: make([]*opPool, len(db.catalog.Indexes)*len(db.parts)),
	}
	s.txn.s = s
	s.txn.init(db.catalog, len(db.parts), db.local)
	return s
}

// Stats is a snapshot of the session's counters, for its own goroutine. A load
// loop takes one for every transaction, so Stats reads only connections used
// since the last call.
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
	delete(s.db.mu.all, s)
	s.db.mu.Unlock()
	s.closeLinks()
	return nil
}

// goodbyeTimeout bounds the wait for servers to hear that a session has ended.
const goodbyeTimeout = 250 * time.Millisecond

// goodbye tells the servers that have run transactions for the session that
// they need not keep the last answer. A server that does not hear it forgets
// the session after a while.
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
			l.conn.Close()
		}
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

// link returns the connection to a server, and makes it on first use and after
// a failure. It refuses a server that was restarted without its memory.
func (s *Session) link(ctx context.Context, server int) (*link, error) {
	if l := s.links[server]; l != nil {
		s.use(l)
		return l, nil
	}
	if s.closed.Load() {
		return nil, ErrClosed
	}
	addr := s.db.servers[server]
	c, h, err := greet(ctx, s.db.cfg.Dial, addr)
	if err != nil {
		if errors.Is(err, ErrProtocol) {
			return nil, err
		}
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if h.Server != server {
		err = fmt.Errorf("%w: server %d answers at %s, want server %d", ErrProtocol, h.Server, addr, server)
	} else {
		err = s.db.meet(h, c.InOrder())
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	l := &link{server: server, conn: c, hello: h}
	if err := s.keep(l); err != nil {
		c.Close()
		return nil, err
	}
	s.use(l)
	return l, nil
}

// use marks a connection for the next Stats.
func (s *Session) use(l *link) {
	if !l.uncounted {
		l.uncounted = true
		s.uncounted = append(s.uncounted, l)
	}
}

// drop forgets a broken connection.
func (s *Session) drop(l *link) {
	s.count(l)
	l.conn.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.links[l.server] == l {
		s.links[l.server] = nil
	}
}

// broken converts a connection's error to an error of the API and drops the
// connection.
func (s *Session) broken(ctx context.Context, l *link, err error) error {
	s.drop(l)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.closed.Load() {
		return ErrClosed
	}
	return fmt.Errorf("%w: server %s: %w", ErrUnavailable, s.db.servers[l.server], err)
}

// call makes one RPC; the response is valid until the next call.
func (s *Session) call(ctx context.Context, l *link, req []byte) ([]byte, error) {
	resp, err := rdma.Call(ctx, l.conn, req, s.resp)
	if err != nil {
		if errors.Is(err, rdma.ErrTooLarge) {
			return nil, fmt.Errorf("%w: %w", ErrTooLarge, err)
		}
		return nil, s.broken(ctx, l, err)
	}
	s.resp = resp
	s.stats.Rounds++
	if len(resp) == 0 {
		return nil, fmt.Errorf("%w: empty response", ErrProtocol)
	}
	return resp, nil
}

// controlOp makes an RPC without arguments and without a result.
func (s *Session) controlOp(ctx context.Context, server int, op wire.Op) error {
	l, err := s.link(ctx, server)
	if err != nil {
		return err
	}
	resp, err := s.call(ctx, l, []byte{byte(op)})
	if err != nil {
		return err
	}
	if wire.Code(resp[0]) != wire.OK {
		return fmt.Errorf("%w: server %s: %s", ErrProtocol, s.db.servers[server], resp[1:])
	}
	return nil
}

// touch adds a link's batches to the round being built.
func (s *Session) touch(l *link) {
	if !l.touched {
		l.touched = true
		l.batch[0].Reset()
		l.batch[1].Reset()
		s.touched = append(s.touched, l)
	}
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
			if a := s.active[i]; !a.op.Next(a.l.done(), a.l.next()) {
				s.active[n] = a
				n++
			}
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
	for from, more := 0, true; more; from += rdma.MaxBatch {
		var err error
		if more, err = s.exchangeFrom(ctx, from); err != nil {
			return err
		}
	}
	for _, l := range s.touched {
		l.flip ^= 1
		l.next().Reset()
	}
	return nil
}

// exchangeFrom performs one round. It posts, of every link's next batch, as
// many requests as the fabric takes, starting at the given one. more reports
// that some are left.
func (s *Session) exchangeFrom(ctx context.Context, from int) (more bool, err error) {
	for i, l := range s.touched {
		if b := l.piece(from); b.Len() > 0 {
			if err := l.conn.Post(b); err != nil {
				s.dropPosted(s.touched[:i], from)
				return false, s.broken(ctx, l, err)
			}
		}
	}
	for i, l := range s.touched {
		if b := l.posted(from); b.Len() > 0 {
			// Access faults belong to the operation that posted them, which
			// sees the status; only a broken connection ends the round.
			if err := l.conn.Wait(ctx, b); err != nil && !errors.Is(err, rdma.ErrAccess) && !errors.Is(err, rdma.ErrUnsupported) {
				s.dropPosted(s.touched[i+1:], from)
				return false, s.broken(ctx, l, err)
			}
		}
		more = more || l.next().Len() > from+rdma.MaxBatch
	}
	s.stats.Rounds++
	return more, nil
}

// piece returns the batch to post, with the requests from the given one on. It
// shares their memory, so that completions land in the next batch.
func (l *link) piece(from int) *rdma.Batch {
	all := l.next()
	if all.Len() > rdma.MaxBatch {
		l.part.WRs = all.WRs[min(from, all.Len()):min(from+rdma.MaxBatch, all.Len())]
	}
	return l.posted(from)
}

// posted returns the batch that piece returned.
func (l *link) posted(from int) *rdma.Batch {
	if l.next().Len() > rdma.MaxBatch {
		return &l.part
	}
	if from > 0 {
		return &noRequests
	}
	return l.next()
}

var noRequests rdma.Batch

// dropPosted closes the connections on which a round was posted but not waited
// for. Until the wait, the buffers belong to the connection, and the next
// transaction will reuse these buffers.
func (s *Session) dropPosted(links []*link, from int) {
	for _, l := range links {
		if l.posted(from).Len() > 0 {
			s.drop(l)
		}
	}
}

// pool returns the operations for one index in one partition. The first use of
// a client half loads it.
func (s *Session) pool(ix, part int) *opPool {
	i := ix*len(s.db.parts) + part
	p := s.pools[i]
	if p == nil {
		p = &opPool{client: s.db.parts[part].clients[ix], part: part, began: &s.txn.began}
		s.pools[i] = p
	}
	if !p.usedThisTime {
		p.usedThisTime = true
		s.txn.used = append(s.txn.used, p)
	}
	return p
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

// maintain refreshes client halves that the last transaction found stale.
func (s *Session) maintain(ctx context.Context, pools []*opPool) error {
	for _, p := range pools {
		if !p.client.Stale() {
			continue
		}
		l, err := s.link(ctx, s.db.parts[p.part].server)
		if err != nil {
			return err
		}
		if err := p.client.Maintain(ctx, l.conn); err != nil {
			if errors.Is(err, index.ErrCorrupt) {
				continue // being rewritten; reads fall back to the server until the next refresh
			}
			return s.broken(ctx, l, err)
		}
	}
	return nil
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
