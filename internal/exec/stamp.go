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

// A proof is good for a while only, since memory that was freed holds other rows
// later. Its server must therefore know how old it is, also if the commit was on its
// way for minutes, or its sender was stopped. Two clocks on two machines cannot tell:
// so a client says in each part when the first proof was read by the server's own
// clock, or earlier. It has that from the latest answer that told of the clock.

// heard is what a server's clock showed at some moment, and a later moment of the
// client's clock (of clock.Fast).
type heard struct{ now, at time.Duration }

const (
	// hearEvery is after how long the clock is asked for ahead of time, by a
	// transaction that sends proofs.
	hearEvery = 5 * time.Second
	// hearFirst is how old proofs may seem to be before the clock is asked for first,
	// since they may be younger.
	hearFirst = 2 * index.MaxProofAge / 3
)

// hear takes what an answer tells of the clock. It is called after the answer.
func (lf *life) hear(now time.Duration) {
	h := &heard{now, clock.Fast() + clock.Slip}
	for {
		was := lf.heard.Load()
		if was != nil && was.now >= now || lf.heard.CompareAndSwap(was, h) {
			return
		}
	}
}

// staleClock reports whether what is known of the server's clock is so old that it is
// asked for ahead of time.
func (lf *life) staleClock(now time.Duration) bool { return now-lf.heard.Load().at > hearEvery }

// before is a time of the server's clock that is no later than a moment of the
// client's. The server's clock never runs faster than time, and may stand still while
// the server is stopped: so it may be taken to have run before the answer, and must
// not be taken to run after it.
func (h *heard) before(t time.Duration) time.Duration {
	if t >= h.at {
		return h.now
	}
	since := h.at - t
	return max(h.now-since-since/clock.Drift-1, 0)
}

// age is how old proofs that were first read at a moment may seem to be at another.
func (h *heard) age(t, now time.Duration) time.Duration {
	return max(now-h.at, 0) + h.now - h.before(t)
}

// stamp says in all parts of a commit when their first proofs were read.
func (s *Session) stamp(t *Txn, c *wire.Commit) error {
	first := t.firstRead().Time()
	for i := range c.Parts {
		p := &c.Parts[i]
		if !p.Proves() {
			continue
		}
		if s.db.local != nil {
			if now, here := s.db.local.Clock(p.Partition); here {
				h := heard{now, clock.Fast() + clock.Slip}
				p.Read = h.before(first)
				continue
			}
		}
		server := s.db.placement.At(p.Partition)
		h, err := s.hears(t.ctx, server, first)
		if err != nil {
			return t.fail(err)
		}
		p.Read = h.before(first)
	}
	return nil
}

// sent is when a request that may commit is sent to its home, which executes it at
// most once, and not at all if it seems to be old. So the clock is asked for if what is
// known of it is old, or one was refused.
func (s *Session) sent(ctx context.Context, server placement.Server) (wire.Sent, error) {
	if _, err := s.link(ctx, server); err != nil {
		return wire.Sent{}, err
	}
	lf, now := s.lives[server], clock.Fast()
	if s.asksClock || now-lf.heard.Load().at > hearFirst {
		if err := s.askClock(ctx, server, lf); err != nil {
			return wire.Sent{}, s.clockError(ctx, server, err)
		}
	}
	s.hearAhead(server, lf, now)
	s.asksClock = false
	return wire.Sent{Incarnation: lf.incarnation, Epoch: lf.epoch, At: lf.heard.Load().before(clock.Fast())}, nil
}

// clockError is the error of a transaction whose server does not tell its clock.
func (s *Session) clockError(ctx context.Context, server placement.Server, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	var e *tables.Error
	if !errors.As(err, &e) {
		err = s.db.unavailable(server, err) // it does not answer
	}
	return err
}

// hears returns what is known of a server's clock, in the life in which the session
// has read. It asks first if proofs read at a moment may be younger than they seem, or
// if the server has found the last ones too old.
func (s *Session) hears(ctx context.Context, server placement.Server, first time.Duration) (*heard, error) {
	lf, now := s.lives[server], clock.Fast()
	h := lf.heard.Load()
	switch {
	case s.asksClock || h.age(first, now) > hearFirst:
		if err := s.askClock(ctx, server, lf); err != nil {
			return nil, s.clockError(ctx, server, err)
		}
		h = lf.heard.Load()
	default:
		s.hearAhead(server, lf, now)
	}
	return h, nil
}

// hearAhead asks for a server's clock, without waiting for the answer, if what is known
// of it will soon be too old.
func (s *Session) hearAhead(server placement.Server, lf *life, now time.Duration) {
	if lf.staleClock(now) && lf.trust.asking.Load() == nil && int64(now) >= lf.trust.rest.Load() {
		s.db.ask(server, lf, lf.staleClock)
	}
}

// askClock asks a server for its clock and waits for the answer. The question that
// another session has asked will do only if it was asked after the call.
func (s *Session) askClock(ctx context.Context, server placement.Server, lf *life) error {
	since := clock.Fast()
	for {
		q := s.db.ask(server, lf, nil)
		switch err := s.answered(ctx, server, q); {
		case err == nil && q.since < since:
		case err == errNoLease: // it has told its clock all the same
			return nil
		default:
			return err
		}
	}
}
