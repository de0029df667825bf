package exec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"drtmx/internal/clock"
)

// View runs a read-only transaction by one-sided reads. It is strictly serializable:
// when fn has returned, one round re-reads every header and leaf version that the
// attempt relied on, and the control word of each partition. If any changed, fn runs
// again. If writers have invalidated many attempts, or a long one, the next attempt
// reads a Snapshot. View returns an error of fn unchanged, after the same validation.
func (s *Session) View(ctx context.Context, fn Body) error {
	return s.run(ctx, view, math.MaxInt, fn, nil)
}

// TryView is View with a bound, at least one, on the attempts that writers
// invalidate: those whose rows or ranges had changed when they were validated. At the
// bound it returns ErrConflict. It does not go on as a Snapshot.
//
// Attempts that met a lock do not count. TryView waits for a lock as View does. A
// lock is held for the duration of a two-phase commit.
func (s *Session) TryView(ctx context.Context, invalidated int, fn Body) error {
	return s.run(ctx, view, invalidated, fn, nil)
}

// Update runs a transaction that may write. Reads are one-sided and writes are
// buffered. Commit is one RPC to the home server, the primary of the first row
// written. If fn returns an error nothing is written.
//
// If the connection to the home server is lost between the commit request and
// its answer, and the server cannot be asked for the outcome, the error is an
// *UnknownOutcome.
func (s *Session) Update(ctx context.Context, fn Body) error {
	return s.update(ctx, fn)
}

// ending ends an attempt whose body has returned bodyErr, nil to commit.
type ending func(t *Txn, bodyErr error) error

// run makes attempts until one is not aborted and needs no server that is absent and
// may come back. finish ends each attempt; nil means the validation or commit of m.
// invalidated bounds the attempts that are aborted, without those that met a lock.
func (s *Session) run(ctx context.Context, m mode, invalidated int, fn Body, finish ending) error {
	t := &s.txn
	if s.lent || t.mode != closed {
		return errNested
	}
	defer s.ended(ctx)
	var absent error
	var patience time.Duration
	for n := 0; ; n++ {
		err := s.attempts(ctx, m, invalidated, fn, finish)
		if err == nil {
			return nil
		}
		if t.mode != closed {
			err = s.inPartition(err, t.partitions(nil))
		}
		if finish == nil && s.lacks != nil && lacksRoom(err) { // else the error is the body's own
			if err = s.awaitRoom(ctx, err, &patience); err != nil {
				return err
			}
			continue
		}
		if finish != nil || !s.db.returns(err) {
			return stillAbsent(ctx, absent, err)
		}
		absent = err
		if err = s.awaitReturn(ctx, n, err, &patience); err != nil {
			return err
		}
	}
}

// attempts does the same as run, but ends with an error when a server is absent.
func (s *Session) attempts(ctx context.Context, m mode, invalidated int, fn Body, finish ending) error {
	t := &s.txn
	var patience time.Duration
	var last Cause // of the previous attempt
	outdated, overdue := 0, false
	s.snap.begin()
	esc := escalation{possible: m == view && finish == nil && invalidated == math.MaxInt}
	for n := 0; ; n++ {
		gated := n == 0 && m == update && s.passGate(ctx)
		if err := ctx.Err(); err != nil {
			return late(ctx, err, n, last)
		}
		if s.closed.Load() {
			return ErrClosed
		}
		s.kept.tooOld(s.db.cfg.BodyAge)
		t.begin(ctx, esc.next(s, m))
		t.losses, t.patience, t.gated, t.wasOverdue = n, patience, gated && s.db.gate.on.Load(), overdue
		if t.recheck = 0; esc.possible && t.mode == view {
			t.recheck = clock.TickLength
		}
		err := s.attempt(t, fn, finish)
		overdue = t.overdue
		esc.ended(t)
		if n == 0 && m == update {
			s.firstEnded(t, gated)
		}
		if esc.wider { // at most once per partition
			n--
			continue
		}
		if t.err != errAbandoned {
			if err == nil {
				s.stats.Commits++
				return nil
			}
			if s.mayRefresh(ctx, err) {
				continue
			}
			return late(ctx, err, n, last)
		}
		last = t.cause
		s.kept.lostWith(t)
		t.volume = t.footprint()
		s.stats.Aborts[t.cause]++
		switch t.cause {
		case CauseLocked:
		case CauseFence:
			s.renew(ctx, t)
			invalidated--
		case CauseCatalog:
			if outdated++; outdated&15 != 1 { // else the server has the older catalogue, not this DB
			} else if _, err := s.refresh(ctx); err != nil {
				return late(ctx, err, n, last)
			}
		case CauseLate:
			s.asksClock = true
			invalidated--
		default:
			invalidated--
		}
		if invalidated <= 0 {
			return gaveUp(n+1, t.cause)
		}
		wait, hadTurn := n, len(s.reserved) > 0
		switch { // if the rows are reserved, no one else can take them
		case t.reserved:
			wait = noWait
		case s.keepTurn(t):
			wait = s.keptTurns
		case s.takeTurn(t, n+1, patience):
			if !hadTurn || t.cause != CauseLocked { // else it waits for a lock that is older than the turn
				wait = noWait
			}
		case t.cause == CauseFence:
			wait = n + fenceBackoff
		}
		if t.cause == CauseLocked && wait != noWait && s.await != nil && n+1 < s.db.cfg.Retry.Attempts && s.await() {
			continue
		}
		if err := s.again(ctx, n, wait, t.cause, &patience); err != nil {
			return err
		}
	}
}

// ended cleans up after a transaction, also after a panic of its body.
func (s *Session) ended(ctx context.Context) {
	s.txn.end()
	s.giveUpTurns(ctx, false)
	s.asked = s.asked[:0]
	if !s.visit.pooled {
		s.db.gate.leave(&s.visit, false) // after a panic
	}
	s.loses(false)
	s.giveBack()
	s.yield()
}

// again waits before attempt n+2, with the backoff of attempt wait+2. It returns an
// error to give up: after Retry.Attempts, if set, at the deadline of ctx, or without
// a deadline after Retry.Patience, counted from the first failure.
func (s *Session) again(ctx context.Context, n, wait int, cause Cause, patience *time.Duration) error {
	if s.db.cfg.Retry.Attempts > 0 && n+1 >= s.db.cfg.Retry.Attempts {
		return gaveUp(n+1, cause)
	}
	if _, bounded := ctx.Deadline(); !bounded {
		switch now := clock.Fast(); {
		case *patience == 0:
			*patience = now + s.db.cfg.Retry.Patience
		case now > *patience:
			return fmt.Errorf("%w, for %v (Retry.Patience)", gaveUp(n+1, cause), s.db.cfg.Retry.Patience)
		}
	}
	if wait == noWait {
		return nil
	}
	return late(ctx, s.backoff(ctx, wait), n+1, cause)
}

// noWait is the wait before an attempt whose rows are reserved: none.
const noWait = -1

// late adds to an error of an expired deadline of ctx why the previous attempts were
// aborted: the deadline may end a wait or the next attempt, and a caller cannot tell
// which. It leaves ErrOutcomeUnknown and other errors unchanged.
func late(ctx context.Context, err error, attempts int, cause Cause) error {
	if attempts == 0 || !errors.Is(err, context.DeadlineExceeded) || ctx.Err() == nil || errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", gaveUp(attempts, cause), err)
}

// gaveUp returns the error of a transaction that was aborted too often. A partition
// that stays fenced is no conflict: no server serves it.
func gaveUp(attempts int, cause Cause) error {
	kind := ErrConflict
	if cause == CauseFence {
		kind = ErrUnavailable
	}
	return fmt.Errorf("%w: gave up after %d attempts, the last one: %v", kind, attempts, cause)
}

// attempt runs the body once and ends the attempt. Once t.err is set the
// attempt is over, whatever the body returns.
func (s *Session) attempt(t *Txn, fn Body, finish ending) error {
	if t.mode == snapshot {
		s.stats.Snapshots++
		s.controlled = s.controlled[:0]
		if err := s.takeTime(t); err != nil {
			return t.fail(err)
		}
	}
	bodyErr := t.verdict(fn.Run(t))
	if t.err != nil {
		return t.err
	}
	if err := t.ctx.Err(); err != nil {
		return t.fail(err) // nothing is sent, and no read is proved
	}
	var err error
	switch {
	case finish != nil:
		bodyErr, err = nil, finish(t, bodyErr)
	case t.mode == snapshot:
		err = s.settleReads(t)
	case bodyErr != nil || t.mode == view || t.writes.empty():
		err = s.validate(t) // an error of the body, too, counts only if the rows that it read were consistent and are durable
	default:
		err = s.sendCommit(t)
	}
	return cmp.Or(t.err, bodyErr, err)
}
