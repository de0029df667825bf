package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	decides bool        // transactions of the session were sent here to be committed

	// Requests of a transaction whose context ended before the answers came. The
	// session waits for these before it sends anything else: see settle.
	pending struct {
		batch *rdma.Batch
		call  bool
		until time.Duration // by clock.Fast; then the connection is dropped
	}

	uncounted bool          // in Session.uncounted
	counted   rdma.Counters // the part of conn's counters that the session's statistics include
}

// pendingPatience bounds the wait for the answer to a request that was given up.
// After it the connection is replaced.
const pendingPatience = time.Second

// link returns the connection to a server for the attempt under way. It aborts the
// attempt if the server has begun another life since the attempt read there.
func (s *Session) link(ctx context.Context, server placement.Server) (*link, error) {
	if s.links[server] == nil && s.dial(server) == nil {
		if k, ok := s.db.room.takeSpare(server); ok {
			if err := s.takeOn(ctx, k); err != nil {
				return nil, err
			}
		} else if !s.db.room.mayDial(server) {
			s.lack(server)
			return nil, s.db.unavailable(server, errNoRoom)
		}
	}
	l, err := s.reach(ctx, server)
	if t := &s.txn; err == nil && t.outlived && t.mode != closed {
		return nil, t.abandon(CauseFence)
	}
	return l, err
}

// reach returns the connection to a server. It makes the connection on first use and
// after a failure. It returns ErrRestarted for a server that was restarted without
// its memory.
func (s *Session) reach(ctx context.Context, server placement.Server) (*link, error) {
	if l := s.links[server]; l != nil {
		if l.pending.until != 0 {
			if err := s.settle(ctx, l); err != nil {
				return nil, err
			}
		}
		if s.links[server] == l {
			s.use(l)
			return l, nil
		}
	}
	if s.closed.Load() {
		return nil, ErrClosed
	}
	g, err := s.greet(ctx, server)
	if err == nil {
		err = s.accept(g, server)
	}
	if err != nil {
		if lacksRoom(err) {
			s.db.room.refused(server)
			s.lack(server)
		}
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case s.closed.Load():
			return nil, ErrClosed
		}
		return nil, err
	}
	l := s.db.newLink(g, server)
	if err := s.keep(l); err != nil {
		s.db.room.shut(l)
		return nil, err
	}
	s.use(l)
	return l, s.settleAt(ctx, l)
}

// newLink returns a link over a connection that was checked.
func (db *DB) newLink(g greeting, server placement.Server) *link {
	l := &link{server: server, conn: g.conn, done: new(rdma.Batch), next: new(rdma.Batch)}
	l.counts.Store(true)
	db.room.count(server, 1)
	return l
}

// accept checks a connection, and makes the session use the life that the server is
// in.
func (s *Session) accept(g greeting, server placement.Server) error {
	lf, err := s.db.check(g, server)
	if err == nil {
		s.rebind(server, lf)
	}
	return err
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

// use lists a connection in s.uncounted, for the next Stats.
func (s *Session) use(l *link) {
	if !l.uncounted {
		l.uncounted = true
		s.uncounted = append(s.uncounted, l)
	}
}

// join adds the batches of the connection to a server to the round being built.
func (s *Session) join(ctx context.Context, server placement.Server) (*link, error) {
	l := s.links[server]
	if l == nil || l.pending.until != 0 {
		var err error
		if l, err = s.link(ctx, server); err != nil {
			return nil, err
		}
	}
	if !l.touched {
		s.use(l)
		l.touched = true
		l.done.Reset()
		l.next.Reset()
		s.touched = append(s.touched, l)
	}
	return l, nil
}

// drop forgets a broken connection.
func (s *Session) drop(l *link) {
	s.count(l)
	s.db.room.shut(l)
	s.clearPending(l)
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
	return s.db.unavailable(l.server, err)
}

// gaveUp handles the error of a wait for the answers to a batch, or to a call if b is
// nil. If only ctx has ended, the connection stays and the answers are pending;
// otherwise gaveUp does the same as broken.
func (s *Session) gaveUp(ctx context.Context, l *link, b *rdma.Batch, err error) error {
	ended := ctx.Err()
	if ended == nil || !errors.Is(err, ended) {
		return s.broken(ctx, l, err)
	}
	s.addPending(l, b)
	return ended
}

// addPending notes that answers to a batch, or to a call if b is nil, are pending on
// a connection. Until they come, the connection owns the buffers of the batch.
func (s *Session) addPending(l *link, b *rdma.Batch) {
	if l.pending.until == 0 {
		l.pending.until = clock.Fast() + pendingPatience
		s.pendingLinks++
	}
	if b == nil {
		l.pending.call = true
	} else {
		l.pending.batch = b
	}
}

// addPosted does the same as addPending for connections on which a round was posted
// but not waited for.
func (s *Session) addPosted(links []*link, from int) {
	for _, l := range links {
		if b := l.piece(from); b.Len() > 0 {
			s.addPending(l, b)
		}
	}
}

// settle waits for the pending answers of a connection and discards them. If they do
// not come within pendingPatience it drops the connection, so that other transactions
// need not wait on it.
func (s *Session) settle(ctx context.Context, l *link) error {
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
		if resp, err = l.conn.FinishCall(short, s.resp); err == nil {
			s.resp = resp
			s.unsettled = slices.DeleteFunc(s.unsettled, func(u unsettled) bool { return u.server == l.server })
		}
	}
	switch {
	case err == nil:
		s.clearPending(l)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return ctx.Err()
	case s.closed.Load():
		return ErrClosed
	default:
		s.drop(l)
	}
	return nil
}

func (s *Session) clearPending(l *link) {
	if l.pending.until != 0 {
		s.pendingLinks--
	}
	l.pending.batch, l.pending.call, l.pending.until = nil, false, 0
}

// call makes one RPC. The response is valid until the next call.
func (s *Session) call(ctx context.Context, l *link, req []byte) ([]byte, error) {
	if _, err := s.send(ctx, l, req); err != nil {
		return nil, err
	}
	return s.answer(ctx, l)
}

// send sends the request of an RPC. With an error, never reports that the server
// certainly does not handle the request. Only the connection can know that: one that
// breaks may have delivered the request, even if ctx has ended by now.
func (s *Session) send(ctx context.Context, l *link, req []byte) (never bool, err error) {
	err = l.conn.StartCall(ctx, req)
	switch {
	case err == nil:
		return false, nil
	case errors.Is(err, rdma.ErrTooLarge):
		return true, tooLarge("a message", len(req), rdma.MaxMessageBytes, "rdma.MaxMessageBytes")
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return true, ctx.Err() // if a part was sent, the next use finds the connection broken
	}
	return false, s.broken(ctx, l, err)
}

// answer waits for the response to send, which is valid until the next call.
func (s *Session) answer(ctx context.Context, l *link) ([]byte, error) {
	resp, err := l.conn.FinishCall(ctx, s.resp)
	if err != nil {
		return nil, s.gaveUp(ctx, l, nil, err)
	}
	s.resp = resp
	s.stats.Rounds++
	if len(resp) == 0 {
		return nil, fmt.Errorf("%w: empty response", ErrProtocol)
	}
	return resp, nil
}

// greeting is a new connection and its server's hello, or an error.
type greeting struct {
	conn  rdma.Conn
	hello *wire.Hello
	err   error
}

// dialing is a connection being made in another goroutine. It goes on when the
// transaction that needs it gives up, because otherwise transactions with short
// deadlines would never get a connection.
type dialing struct {
	cancel context.CancelFunc
	result chan greeting // has room for one
}

// stop cancels the dial, and closes the connection if there is one already.
func (d *dialing) stop() {
	if d != nil {
		d.cancel()
		g := <-d.result
		d.result <- greeting{err: ErrClosed} // for a concurrent greet
		if g.conn != nil {
			g.conn.Close()
		}
	}
}

// greet connects to a server. If ctx ends before the connection is there, a later
// call takes it.
func (s *Session) greet(ctx context.Context, server placement.Server) (greeting, error) {
	s.db.gate.dials.Add(1)
	defer s.db.gate.dials.Add(-1)
	if ctx.Done() == nil && s.dial(server) == nil {
		g := s.db.dial(ctx, server)
		return g, g.err
	}
	d, err := s.startDial(ctx, server)
	if err != nil {
		return greeting{}, err
	}
	select {
	case g := <-d.result:
		d.result <- greeting{err: ErrClosed} // for a concurrent stop
		d.cancel()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.dials[server] = nil
		return g, g.err
	case <-ctx.Done():
		return greeting{}, ctx.Err()
	}
}

func (s *Session) dial(server placement.Server) *dialing {
	if s.dials == nil {
		return nil
	}
	return s.dials[server]
}

// startDial begins to connect to a server, or returns the dial that has begun before.
func (s *Session) startDial(ctx context.Context, server placement.Server) (*dialing, error) {
	if d := s.dial(server); d != nil {
		return d, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Load() {
		return nil, ErrClosed
	}
	if s.dials == nil {
		s.dials = make([]*dialing, len(s.db.servers))
	}
	own, cancel := context.WithTimeout(context.WithoutCancel(ctx), dialTimeout)
	d := &dialing{cancel: cancel, result: make(chan greeting, 1)}
	s.dials[server] = d
	go func() {
		d.result <- s.db.dial(own, server)
	}()
	return d, nil
}

// dialTimeout bounds an attempt to connect that no transaction waits for.
const dialTimeout = 10 * time.Second

// callWithTick does the same as call, for a request whose answer may carry a tick.
func (s *Session) callWithTick(ctx context.Context, l *link, req []byte) ([]byte, error) {
	resp, err := s.call(ctx, l, req)
	if err != nil {
		return nil, err
	}
	return s.cutTick(resp)
}

// answerWithTick does the same as answer, for such a request.
func (s *Session) answerWithTick(ctx context.Context, l *link) ([]byte, error) {
	resp, err := s.answer(ctx, l)
	if err != nil {
		return nil, err
	}
	return s.cutTick(resp)
}

func (s *Session) cutTick(resp []byte) ([]byte, error) {
	resp, tick, err := wire.CutTick(resp)
	if err != nil {
		return nil, fmt.Errorf("%w: an answer without its tick", ErrProtocol)
	}
	s.db.seen.Saw(tick)
	return resp, nil
}
