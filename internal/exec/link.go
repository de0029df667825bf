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

// link is a connection to one server with the two batches that operations
// alternate between.
type link struct {
	server  placement.Server
	conn    rdma.Conn
	done    *rdma.Batch // of the round before
	next    *rdma.Batch // of the next round
	part    rdma.Batch  // part of a batch that is larger than the fabric takes at once
	touched bool
	counts  atomic.Bool // among the open ones, see room
	decides bool        // transactions of the session were sent here to be committed

	// What was sent by a transaction whose context then ended. It must be
	// waited for before anything else is sent: see settle.
	owes struct {
		batch *rdma.Batch
		call  bool
		until time.Duration // by clock.Fast; afterwards the connection is given up
	}

	uncounted bool          // listed in the session's uncounted
	counted   rdma.Counters // the part of conn's counters that the session's statistics include
}

// owedPatience bounds the wait for the answer to a request that was given up. A
// new connection is made if there is none by then.
const owedPatience = time.Second

// link returns the connection to a server for the attempt under way. If the
// server has another life than the attempt has read in, the attempt is over.
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

// reach returns the connection to a server, and makes it on first use and after
// a failure. It refuses a server that was restarted without its memory.
func (s *Session) reach(ctx context.Context, server placement.Server) (*link, error) {
	if l := s.links[server]; l != nil {
		if l.owes.until != 0 {
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

// newLink is a link over a connection that was checked.
func (db *DB) newLink(g greeting, server placement.Server) *link {
	l := &link{server: server, conn: g.conn, done: new(rdma.Batch), next: new(rdma.Batch)}
	l.counts.Store(true)
	db.room.count(server, 1)
	return l
}

// accept checks a connection, and takes the life that the server is in.
func (s *Session) accept(g greeting, server placement.Server) error {
	lf, err := s.db.check(g, server)
	if err == nil {
		s.rebind(server, lf)
	}
	return err
}

// check checks that a connection leads to the server, as known before, and returns
// the life that the server is in. It closes one that does not.
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

// use marks a connection for the next Stats.
func (s *Session) use(l *link) {
	if !l.uncounted {
		l.uncounted = true
		s.uncounted = append(s.uncounted, l)
	}
}

// join adds the batches of the connection to a server to the round being built.
func (s *Session) join(ctx context.Context, server placement.Server) (*link, error) {
	l := s.links[server]
	if l == nil || l.owes.until != 0 {
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
	s.settled(l)
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

// gaveUp is broken for the error of a wait: for the answers to a batch, or to a
// call if there is none. If only ctx has ended the connection stays, and owes
// them.
func (s *Session) gaveUp(ctx context.Context, l *link, b *rdma.Batch, err error) error {
	ended := ctx.Err()
	if ended == nil || !errors.Is(err, ended) {
		return s.broken(ctx, l, err)
	}
	s.owe(l, b)
	return ended
}

// owe notes what a connection must still answer. Until then the buffers of the
// batch belong to the connection.
func (s *Session) owe(l *link, b *rdma.Batch) {
	if l.owes.until == 0 {
		l.owes.until = clock.Fast() + owedPatience
		s.owing++
	}
	if b == nil {
		l.owes.call = true
	} else {
		l.owes.batch = b
	}
}

// owePosted notes the connections on which a round was posted but not waited
// for.
func (s *Session) owePosted(links []*link, from int) {
	for _, l := range links {
		if b := l.piece(from); b.Len() > 0 {
			s.owe(l, b)
		}
	}
}

// settle waits for the answers that a connection owes and discards them. If
// they do not come within owedPatience it drops the connection, as one on which
// other transactions need not wait.
func (s *Session) settle(ctx context.Context, l *link) error {
	short, cancel := context.WithTimeout(ctx, max(l.owes.until-clock.Fast(), 0))
	defer cancel()
	var err error
	if b := l.owes.batch; b != nil {
		if err = l.conn.Wait(short, b); refused(err) {
			err = nil // the operation that posted it is over
		}
	}
	if err == nil && l.owes.call {
		l.owes.batch = nil
		var resp []byte
		if resp, err = l.conn.FinishCall(short, s.resp); err == nil {
			s.resp = resp
			s.unsettled = slices.DeleteFunc(s.unsettled, func(u unsettled) bool { return u.server == l.server })
		}
	}
	switch {
	case err == nil:
		s.settled(l)
	case ctx.Err() != nil && errors.Is(err, ctx.Err()):
		return ctx.Err()
	case s.closed.Load():
		return ErrClosed
	default:
		s.drop(l)
	}
	return nil
}

func (s *Session) settled(l *link) {
	if l.owes.until != 0 {
		s.owing--
	}
	l.owes.batch, l.owes.call, l.owes.until = nil, false, 0
}

// call makes one RPC; the response is valid until the next call.
func (s *Session) call(ctx context.Context, l *link, req []byte) ([]byte, error) {
	if _, err := s.send(ctx, l, req); err != nil {
		return nil, err
	}
	return s.answer(ctx, l)
}

// send sends the request of an RPC. never says, with an error, that the server
// does not handle the request. That is so only if the connection itself says so:
// one that breaks may have delivered the request, also if ctx has ended by now.
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

// answer waits for the response.
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

// greeting is a new connection and what its server said of itself.
type greeting struct {
	conn  rdma.Conn
	hello *wire.Hello
	err   error
}

// dialing is a connection being made in another goroutine. It goes on when the
// transaction that needs it gives up, because otherwise transactions with short
// deadlines would never have a connection.
type dialing struct {
	cancel context.CancelFunc
	result chan greeting // of one
}

// stop ends it, and closes the connection if there is one already.
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

// greet connects to a server. A connection that ctx does not wait for is taken
// by a later call.
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

// startDial begins to connect to a server, or returns what has begun before.
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

// callWithTick is call for a request whose answer may carry a tick.
func (s *Session) callWithTick(ctx context.Context, l *link, req []byte) ([]byte, error) {
	resp, err := s.call(ctx, l, req)
	if err != nil {
		return nil, err
	}
	return s.cutTick(resp)
}

// answerWithTick is answer for such a request.
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
