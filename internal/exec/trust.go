package exec

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// A durable server has its place for the time of its lease. After that, another
// process may serve its partitions. The memory of a paused process still answers
// READs, and no word in it can prove that the lease holds: the process may be paused
// between a check of the lease and the store of the word. So clients use a challenge.
// They ask the server at a moment of their own clock how much of its lease is left,
// and it answers how much is left at some later moment. They trust it for that long
// from the moment before the question, however late the answer comes.
//
// An answer is also valid for the past: no other process has had the place since the
// server's epoch began. So reads in this life of the server that are proved before
// the lease ends are reads of the partition's only server.

// promise says for how long a server is trusted, by clock.Now.
type promise struct {
	until time.Duration
	renew time.Duration // when to ask again
}

// promiseMax bounds a promise, so that no answer makes the clock overflow.
const promiseMax = 24 * time.Hour

// promised returns the promise of an answer to a question that was asked at a given
// moment.
func promised(asked, left time.Duration) promise {
	if left == wire.NoLease {
		return promise{wire.NoLease, wire.NoLease}
	}
	left = min(left, promiseMax)
	left -= left/clock.Drift + clock.Slip
	return promise{asked + left, asked + left/2}
}

// trust is a DB's knowledge about the lease of a server in one life.
type trust struct {
	leased  bool
	promise atomic.Pointer[promise] // the longest one; nil: none yet
	asking  atomic.Pointer[question]
	rest    atomic.Int64 // by clock.Fast: no question ahead of time before this
}

// question is a request to a server under way, which all sessions of a DB share: for
// its lease, or to keep versions.
type question struct {
	since time.Duration // by clock.Fast
	done  chan struct{}
	err   error // once done is closed
}

const (
	// askTimeout bounds a question. A connection without an answer by then is
	// dropped.
	askTimeout = 2 * time.Second
	// askRest is the time between two questions ahead of time, if the first has
	// failed.
	askRest = 50 * time.Millisecond
)

// errNoLease reports a server that may have lost its place.
var errNoLease = errors.New("its lease has ended: another process may have its place")

// take records the answer to a question. asked must be a moment before the question
// was sent.
func (k *trust) take(asked, left time.Duration) {
	p := promised(asked, left)
	for {
		was := k.promise.Load()
		if was != nil && was.until >= p.until || k.promise.CompareAndSwap(was, &p) {
			return
		}
	}
}

// holds reports whether the server is trusted at a moment, and whether it is time
// to ask again.
func (k *trust) holds(now time.Duration) (holds, renew bool) {
	p := k.promise.Load()
	return p != nil && now < p.until, p != nil && now >= p.renew
}

// wanes reports whether it is time to ask again: the server is not trusted, or will
// soon not be.
func (k *trust) wanes(now time.Duration) bool {
	holds, renew := k.holds(now)
	return !holds || renew
}

// trusted reports whether the server is trusted at a moment. If less than half of the
// promise is left, it also asks for the next one, without waiting.
func (lf *life) trusted(db *DB, now time.Duration) bool {
	holds, renew := lf.trust.holds(now)
	if holds && renew && lf.trust.asking.Load() == nil && int64(now) >= lf.trust.rest.Load() {
		lf.ask(db, lf.trust.wanes)
	}
	return holds
}

// leases asks servers for their leases and their clocks, for a session.
type leases struct {
	db        *DB
	net       *network
	asksClock bool // a server has refused proofs as too old
}

// awaitTrust ends the validation of a read-only attempt: each server at which it has
// read must be trusted after the last READ of the validation.
func (v *validator) awaitTrust(t *Txn) error {
	now := t.proved
	for i := range v.controlled {
		part := v.controlled[i].part
		lf := v.net.life(part)
		if !lf.trust.leased {
			continue
		}
		if now == 0 {
			now = clock.Fast()
		}
		if lf.trusted(v.db, now) {
			continue
		}
		if err := v.leases.challenge(t.ctx, lf); err != nil {
			if lf.ended(v.db) {
				return t.abandon(CauseFence) // another process serves the partition
			}
			if t.err != nil {
				return t.err
			}
			return t.fail(v.leases.distrusted(part, err))
		}
	}
	return nil
}

// ended reports whether the server has begun another life.
func (lf *life) ended(db *DB) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.lives[lf.server] != lf
}

// distrusted returns the error of an attempt that has read at a server which is not
// trusted.
func (ls *leases) distrusted(part placement.Partition, cause error) error {
	var e *tables.Error
	if errors.As(cause, &e) && e.Err == ErrUnavailable && e.Cause != nil {
		cause = e.Cause
	}
	return &tables.Error{Err: ErrUnavailable, Partition: int(part), Server: ls.db.servers[ls.db.placement.At(part)], Cause: cause}
}

// challenge asks a server how much of its lease is left, and returns nil if it is
// trusted now. It may share the question of another session.
func (ls *leases) challenge(ctx context.Context, lf *life) error {
	err := ls.answered(ctx, lf.server, lf.ask(ls.db, lf.trust.wanes))
	if ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return err
	}
	if holds, _ := lf.trust.holds(clock.Fast()); holds {
		return nil
	}
	if err == nil {
		err = errNoLease
	}
	return err
}

// answered waits for the answer to a question about a server's lease and clock.
func (ls *leases) answered(ctx context.Context, server placement.Server, q *question) error {
	select {
	case <-q.done:
	case <-ctx.Done():
		return ctx.Err()
	}
	if lacksRoom(q.err) {
		return ls.askLease(ctx, server) // over its own connection
	}
	return q.err
}

// trustTimes does the same as awaitTrust for the servers whose clocks determine a
// snapshot's time. It does not wait for a server that has not answered for askingMax.
func (ls *leases) trustTimes(ctx context.Context) error {
	now := time.Duration(0)
	for server := range placement.Server(len(ls.net.lives)) {
		lf := ls.net.lives[server]
		if lf == nil || !lf.trust.leased { // a server without partitions has no clock that counts
			continue
		}
		if now == 0 {
			now = clock.Fast()
		}
		if lf.trusted(ls.db, now) {
			continue
		}
		if q := lf.trust.asking.Load(); q != nil && now-q.since > askingMax {
			return ls.db.Unavailable(server, errNoLease)
		}
		if err := ls.challenge(ctx, lf); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return ls.db.Unavailable(server, err)
		}
	}
	return nil
}

// ask asks the server in the background how much of its lease is left, or returns the
// question that is under way. The answer is stored in the life. Another session's
// question may have been answered since the caller decided to ask: open, if
// it is not nil, reports whether a question is still needed.
func (lf *life) ask(db *DB, open func(now time.Duration) bool) *question {
	db.mu.Lock()
	defer db.mu.Unlock()
	if on := lf.trust.asking.Load(); on != nil {
		return on
	}
	q := &question{since: clock.Fast(), done: make(chan struct{})}
	switch {
	case db.mu.closed:
		q.err = ErrClosed
		close(q.done)
	case open != nil && !open(q.since):
		close(q.done)
	default:
		lf.trust.asking.Store(q)
		db.asks.Go(func() {
			if q.err = lf.inPool(db, func(ctx context.Context, s *Session) error { return s.leases.askLease(ctx, lf.server) }); q.err != nil {
				lf.trust.rest.Store(int64(clock.Fast() + askRest))
			}
			lf.trust.asking.Store(nil)
			close(q.done)
		})
	}
	return q
}

// inPool asks a question on a session of the pool, of this life of the server.
func (lf *life) inPool(db *DB, ask func(ctx context.Context, s *Session) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	s, err := db.acquire(ctx)
	if err != nil {
		return err
	}
	defer db.release(s)
	defer s.net.yield()
	if l := s.net.links[lf.server]; l != nil && s.net.lives[lf.server] != lf && !lf.ended(db) {
		s.net.drop(l) // it leads to an earlier life
	}
	return ask(ctx, s)
}

// askLease asks a server how much of its lease is left, over the session's own
// connection.
func (ls *leases) askLease(ctx context.Context, server placement.Server) error {
	l, err := ls.net.link(ctx, server)
	if err != nil {
		return err
	}
	lf := ls.net.lives[server]
	asked := clock.Now()
	resp, err := ls.net.call(ctx, l, []byte{byte(wire.OpLease)})
	if err != nil {
		return err
	}
	if c := wire.Code(resp[0]); c != wire.OK {
		return codeError(c, resp[1:])
	}
	a, err := wire.DecodeLease(resp[1:])
	switch {
	case err != nil:
		return &tables.Error{Err: ErrProtocol, Partition: -1, Server: ls.db.servers[server], Cause: err}
	case a.Epoch != lf.epoch || a.Incarnation != lf.incarnation:
		ls.net.drop(l) // the next one leads to the life that has answered
		return ls.db.Unavailable(server, fmt.Errorf("it answers in epoch %d, and has said epoch %d", a.Epoch, lf.epoch))
	}
	lf.readClock(a.Now)
	if a.Left <= 0 {
		return errNoLease
	}
	lf.trust.take(asked, a.Left)
	return nil
}
