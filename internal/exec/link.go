package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/rdma"
)

// link is a connection to one server with the two batches between which operations
// alternate.
type link struct {
	server  placement.Server
	conn    rdma.Conn
	done    *rdma.Batch // of the previous round
	next    *rdma.Batch // of the next round
	part    rdma.Batch  // part of a batch that is larger than the fabric takes at once
	touched bool
	counts  atomic.Bool // counted among the open connections, see room
	writers map[writerKey]*linkWriter
	decides bool // transactions of the session were sent here to be committed

	// Requests of a transaction whose context ended before the answers came. The
	// session waits for these before it sends anything else: see settle.
	pending struct {
		batch *rdma.Batch
		call  bool
		until time.Duration // by clock.Fast; then the connection is dropped
	}

	uncounted bool          // in network.uncounted
	counted   rdma.Counters // the part of conn's counters that the session's statistics include
}

// network is the session's connections to the servers. It keeps requests to a server in
// order: none begins after a later one. So a connection first waits for the answers to
// requests that transactions gave up, and a new one first settles the transactions of
// unknown outcome.
type network struct {
	db      *DB
	stats   *SessionStats
	closed  *atomic.Bool
	txn     *Txn                          // its attempts must not read in two lives of a server
	rebound func(server placement.Server) // called when the session is to use another life of a server

	mu           sync.Mutex  // guards writes to links and dials, and reads by other goroutines
	links        []*link     // by server
	lives        []*life     // by server: the life that its present or last connection leads to
	dials        []*dialing  // connections being made, by server; nil before the first
	uncounted    []*link     // used since Stats last asked them
	pendingLinks int         // links with pending answers
	unsettled    []unsettled // transactions of unknown outcome
	req, resp    []byte
	lacks        []bool   // by server: connections that the transaction has lacked; nil: none
	borrower     *network // of the session whose transaction this one of the pool runs; nil: none
}

// pendingPatience bounds the wait for the answer to a request that was given up.
// After it the connection is replaced.
const pendingPatience = time.Second

// link returns the connection to a server for the attempt under way. It aborts the
// attempt if the server has begun another life since the attempt read there.
func (n *network) link(ctx context.Context, server placement.Server) (*link, error) {
	if n.links[server] == nil && n.dial(server) == nil {
		if k, ok := n.db.room.takeSpare(server); ok {
			if err := n.takeOn(ctx, k); err != nil {
				return nil, err
			}
		} else if !n.db.room.mayDial(server) {
			n.lack(server)
			return nil, n.db.Unavailable(server, errNoRoom)
		}
	}
	l, err := n.reach(ctx, server)
	if t := n.txn; err == nil && t.outlived && t.mode != closed {
		return nil, t.abandon(CauseFence)
	}
	return l, err
}

// reach returns the connection to a server. It makes the connection on first use and
// after a failure. It returns ErrRestarted for a server that was restarted without
// its memory.
func (n *network) reach(ctx context.Context, server placement.Server) (*link, error) {
	if l := n.links[server]; l != nil {
		if l.pending.until != 0 {
			if err := n.settle(ctx, l); err != nil {
				return nil, err
			}
		}
		if n.links[server] == l {
			n.use(l)
			return l, nil
		}
	}
	if n.closed.Load() {
		return nil, ErrClosed
	}
	g, err := n.greet(ctx, server)
	var k lentLink
	if err == nil {
		k, err = n.db.accept(g, server)
	}
	if err != nil {
		if lacksRoom(err) {
			n.db.room.refused(server)
			n.lack(server)
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case n.closed.Load():
			return nil, ErrClosed
		}
		return nil, err
	}
	return k.l, n.takeOn(ctx, k)
}

// accept checks a new connection, and returns a link over it.
func (db *DB) accept(g greeting, server placement.Server) (k lentLink, err error) {
	if k.lf, err = db.check(g, server); err == nil {
		k.l = &link{server: server, conn: g.conn, done: new(rdma.Batch), next: new(rdma.Batch)}
		k.l.counts.Store(true)
		db.room.count(server, 1)
	}
	return k, err
}

// check checks that a connection leads to the server as known before, and returns the
// life that the server is in. On an error it closes the connection.
func (db *DB) check(g greeting, server placement.Server) (lf *life, err error) {
	if g.hello.Server != server {
		err = fmt.Errorf("%w: server %d answers at %s, want server %d", ErrProtocol, g.hello.Server, db.servers[server], server)
	} else {
		lf, err = db.meet(g.hello, g.conn.InOrder())
	}
	if err != nil {
		g.conn.Close()
	}
	return lf, err
}

// use lists a connection in n.uncounted, for the next Stats.
func (n *network) use(l *link) {
	if !l.uncounted {
		l.uncounted = true
		n.uncounted = append(n.uncounted, l)
	}
}

// count adds a connection's new counts to the statistics.
func (n *network) count(l *link) {
	now := l.conn.Counters()
	n.stats.Fabric = n.stats.Fabric.Add(now.Sub(l.counted))
	l.counted = now
}

// countUsed adds the new counts of the connections that were used since the last call.
func (n *network) countUsed() {
	for _, l := range n.uncounted {
		l.uncounted = false
		n.count(l)
	}
	n.uncounted = n.uncounted[:0]
}

// drop forgets a broken connection.
func (n *network) drop(l *link) {
	n.count(l)
	n.db.room.shut(l)
	n.clearPending(l)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.links[l.server] == l {
		n.links[l.server] = nil
	}
}

// close may be called by another goroutine while a transaction runs. It only closes
// connections; the session does the rest.
func (n *network) close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed.Swap(true) {
		return
	}
	for _, l := range n.links {
		if l != nil {
			n.db.room.shut(l)
		}
	}
	for _, d := range n.dials {
		d.stop()
	}
}

// broken converts a connection's error to an error of the API and drops the
// connection.
func (n *network) broken(ctx context.Context, l *link, err error) error {
	n.drop(l)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if n.closed.Load() {
		return ErrClosed
	}
	return n.db.Unavailable(l.server, err)
}

// gaveUp handles the error of a wait for the answers to a batch, or to a call if b is
// nil. If only ctx has ended, the connection stays and the answers are pending;
// otherwise gaveUp does the same as broken.
func (n *network) gaveUp(ctx context.Context, l *link, b *rdma.Batch, err error) error {
	ended := ctx.Err()
	if ended == nil || !errors.Is(err, ended) {
		return n.broken(ctx, l, err)
	}
	n.addPending(l, b)
	return ended
}

// addPending notes that answers to a batch, or to a call if b is nil, are pending on
// a connection. Until they come, the connection owns the buffers of the batch.
func (n *network) addPending(l *link, b *rdma.Batch) {
	if l.pending.until == 0 {
		l.pending.until = clock.Fast() + pendingPatience
		n.pendingLinks++
	}
	if b == nil {
		l.pending.call = true
	} else {
		l.pending.batch = b
	}
}

// settle waits for the pending answers of a connection and discards them. If they do
// not come within pendingPatience it drops the connection, so that other transactions
// need not wait on it.
func (n *network) settle(ctx context.Context, l *link) error {
	short, cancel := context.WithTimeout(ctx, max(l.pending.until-clock.Fast(), 0))
	defer cancel()
	var err error
	if b := l.pending.batch; b != nil {
		if err = l.conn.Wait(short, b); refused(err) {
			err = nil // the operation that posted it is over
		}
	}
	if err == nil && l.pending.call {
		l.pending.batch = nil
		var resp []byte
		if resp, err = l.conn.FinishCall(short, n.resp); err == nil {
			n.resp = resp
			n.unsettled = slices.DeleteFunc(n.unsettled, func(u unsettled) bool { return u.server == l.server })
		}
	}
	switch {
	case err == nil:
		n.clearPending(l)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return ctx.Err()
	case n.closed.Load():
		return ErrClosed
	default:
		n.drop(l)
	}
	return nil
}

func (n *network) clearPending(l *link) {
	if l.pending.until != 0 {
		n.pendingLinks--
	}
	l.pending.batch, l.pending.call, l.pending.until = nil, false, 0
}

// call makes one RPC. The response is valid until the next call.
func (n *network) call(ctx context.Context, l *link, req []byte) ([]byte, error) {
	if _, err := n.send(ctx, l, req); err != nil {
		return nil, err
	}
	return n.answer(ctx, l)
}

// send sends the request of an RPC. With an error, never reports that the server
// certainly does not handle the request. Only the connection can know that: one that
// breaks may have delivered the request, even if ctx has ended by now.
func (n *network) send(ctx context.Context, l *link, req []byte) (never bool, err error) {
	err = l.conn.StartCall(ctx, req)
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, rdma.ErrTooLarge):
		return true, tooLarge("a message", len(req), rdma.MaxMessageBytes, "rdma.MaxMessageBytes")
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return true, ctx.Err() // if a part was sent, the next use finds the connection broken
	}
	return false, n.broken(ctx, l, err)
}

// answer waits for the response to send, which is valid until the next call.
func (n *network) answer(ctx context.Context, l *link) ([]byte, error) {
	resp, err := l.conn.FinishCall(ctx, n.resp)
	if err != nil {
		return nil, n.gaveUp(ctx, l, nil, err)
	}
	n.resp = resp
	n.stats.Rounds++
	if len(resp) == 0 {
		return nil, fmt.Errorf("%w: empty response", ErrProtocol)
	}
	return resp, nil
}

// request makes one RPC whose answer has a code, and returns what follows the code. It
// is valid until the next call. A conflict ends the attempt.
func (n *network) request(ctx context.Context, server placement.Server, req []byte) ([]byte, error) {
	l, err := n.link(ctx, server)
	if err != nil {
		return nil, err
	}
	resp, err := n.call(ctx, l, req)
	if err != nil {
		return nil, err
	}
	switch c := wire.Code(resp[0]); c {
	case wire.OK:
		return resp[1:], nil
	case wire.Conflict:
		return nil, n.txn.abandon(causeOf(resp))
	default:
		return nil, codeError(c, resp[1:])
	}
}
