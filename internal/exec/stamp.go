package exec

import (
	"context"
	"errors"
	"time"

	"drtmx/index"
	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// A proof is valid for a limited time, because freed memory holds other rows later.
// Its server must therefore know how old it is, even if the commit was under way for
// minutes, or its sender was stopped. Clocks of two machines cannot be compared. So a
// client states in each part a time of the server's own clock that is not after the
// read of the first proof. It computes that from the latest answer that carried the
// server's clock.

// clockReading is what a server's clock showed at some moment, and a later moment of
// the client's clock (clock.Fast).
type clockReading struct{ now, at time.Duration }

const (
	// readingAge is the age from which a transaction that sends proofs asks for a new
	// reading, without waiting for it.
	readingAge = 5 * time.Second
	// proofAge is how old proofs may seem to be before a session asks for a new
	// reading and waits for it, since they may be younger.
	proofAge = 2 * index.MaxProofAge / 3
)

// readClock stores the server's clock from an answer. It is called after the answer
// has arrived.
func (lf *life) readClock(now time.Duration) {
	h := &clockReading{now, clock.Fast() + clock.Slip}
	for {
		was := lf.reading.Load()
		if was != nil && was.now >= now || lf.reading.CompareAndSwap(was, h) {
			return
		}
	}
}

// staleClock reports whether the latest reading is older than readingAge.
func (lf *life) staleClock(now time.Duration) bool { return now-lf.reading.Load().at > readingAge }

// before returns a time of the server's clock that is no later than a moment of the
// client's. The server's clock never runs faster than time, and may stand still while
// the server is stopped. So the result may assume that it ran before the reading, but
// not that it ran after it.
func (h *clockReading) before(t time.Duration) time.Duration {
	if t >= h.at {
		return h.now
	}
	since := h.at - t
	return max(h.now-since-since/clock.Drift-1, 0)
}

// age returns how old proofs that were first read at a moment t may seem to be at
// now.
func (h *clockReading) age(t, now time.Duration) time.Duration {
	return max(now-h.at, 0) + h.now - h.before(t)
}

// stamp sets in all parts of a commit when their first proofs were read.
func (ls *leases) stamp(t *Txn, c *wire.Commit) error {
	first := t.firstRead().Time()
	for i := range c.Parts {
		p := &c.Parts[i]
		if !p.Proves() {
			continue
		}
		if ls.db.local != nil {
			if now, here := ls.db.local.Clock(p.Partition); here {
				h := clockReading{now, clock.Fast() + clock.Slip}
				p.Read = h.before(first)
				continue
			}
		}
		server := ls.db.placement.At(p.Partition)
		h, err := ls.serverClock(t.ctx, server, first)
		if err != nil {
			return t.fail(err)
		}
		p.Read = h.before(first)
	}
	return nil
}

// sent says when a request that may commit is sent, by the clock of its home. The
// home executes the request at most once, and not at all if it seems to be old. So
// sent asks for a new reading if the latest one is old, or if a request was refused.
func (ls *leases) sent(ctx context.Context, server placement.Server) (wire.Sent, error) {
	if _, err := ls.net.link(ctx, server); err != nil {
		return wire.Sent{}, err
	}
	lf, now := ls.net.lives[server], clock.Fast()
	if ls.asksClock || now-lf.reading.Load().at > proofAge {
		if err := ls.askClock(ctx, lf); err != nil {
			return wire.Sent{}, err
		}
	}
	ls.askClockAhead(lf, now)
	ls.asksClock = false
	return wire.Sent{Incarnation: lf.incarnation, Epoch: lf.epoch, At: lf.reading.Load().before(clock.Fast())}, nil
}

// serverClock returns the latest reading of a server's clock, in the life in which
// the session has read. It asks for a new one if proofs that were first read at a
// moment seem older than proofAge, or if the server has refused the last ones as too
// old.
func (ls *leases) serverClock(ctx context.Context, server placement.Server, first time.Duration) (*clockReading, error) {
	lf, now := ls.net.lives[server], clock.Fast()
	h := lf.reading.Load()
	switch {
	case ls.asksClock || h.age(first, now) > proofAge:
		if err := ls.askClock(ctx, lf); err != nil {
			return nil, err
		}
		h = lf.reading.Load()
	default:
		ls.askClockAhead(lf, now)
	}
	return h, nil
}

// askClockAhead asks for a server's clock if the latest reading is stale. It does not
// wait for the answer.
func (ls *leases) askClockAhead(lf *life, now time.Duration) {
	if lf.staleClock(now) && lf.trust.asking.Load() == nil && int64(now) >= lf.trust.rest.Load() {
		lf.ask(ls.db, lf.staleClock)
	}
}

// askClock asks a server for its clock and waits for the answer. A question of
// another session suffices only if it was asked after the call.
func (ls *leases) askClock(ctx context.Context, lf *life) error {
	since := clock.Fast()
	for {
		q := lf.ask(ls.db, nil)
		switch err := ls.answered(ctx, lf.server, q); {
		case err == nil && q.since < since:
		case err == nil, err == errNoLease: // its answer has the clock nevertheless
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.As(err, new(*tables.Error)):
			return err
		default:
			return ls.db.Unavailable(lf.server, err) // it does not answer
		}
	}
}
