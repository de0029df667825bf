package exec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"drtmx/internal/clock"
)

// View runs a read-only transaction by one-sided reads: see txn.Session.View. When fn has
// returned, one round re-reads every header and leaf version that the attempt relied
// on, and the control word of each partition. If any changed, fn runs again.
func (s *Session) View(ctx context.Context, fn Body) error {
	return s.run(ctx, view, math.MaxInt, fn, nil)
}

// TryView is View with a bound, at least one, on the attempts that writers
// invalidate: see txn.Session.TryView.
func (s *Session) TryView(ctx context.Context, invalidated int, fn Body) error {
	return s.run(ctx, view, invalidated, fn, nil)
}

// ending ends an attempt whose body has returned bodyErr, nil to commit.
type ending func(t *Txn, bodyErr error) error

// tries are the attempts of a transaction so far. They are counted on when the
// transaction has waited for a server or for a connection.
type tries struct {
	aborted     int           // attempts that others may have caused to be repeated
	invalidated int           // how many more may be aborted, without those that met a lock
	outdated    int           // attempts that met another version of the catalogue
	last        Cause         // of the previous attempt
	before      int           // those of aborted before the last wait
	overdue     bool          // the previous attempt was: see Txn.overdue
	patience    time.Duration // when the session gives up: see again
}

// late does the same as the function late. An attempt aborted before the last wait is
// no reason for an expired deadline: run adds what the wait was for.
func (tr *tries) late(ctx context.Context, err error) error {
	if tr.aborted == tr.before {
		return err
	}
	return late(ctx, err, tr.aborted, tr.last)
}

// run makes attempts until one is not aborted and needs no server that is absent and
// may come back. finish ends each attempt; nil means the validation or commit of m.
// invalidated bounds the attempts that are aborted, without those that met a lock.
func (s *Session) run(ctx context.Context, m mode, invalidated int, fn Body, finish ending) error {
	t := &s.txn
	if s.nested() {
		return errNested
	}
	defer s.ended(ctx)
	var absent error
	var patience time.Duration
	tr := tries{invalidated: invalidated}
	for absences := 0; ; {
		err := s.attempts(ctx, m, &tr, fn, finish)
		if err == nil {
			return nil
		}
		if t.mode != closed {
			err = s.net.inPartition(err, t.partitions(nil))
		}
		if finish == nil && s.net.lacks != nil && lacksRoom(err) { // else the error is the body's own
			if err = s.net.awaitRoom(ctx, err, &patience); err != nil {
				return err
			}
			continue
		}
		if finish != nil || !s.db.Returns(err) {
			return stillAbsent(ctx, absent, err)
		}
		absent = err
		if err = s.net.awaitReturn(ctx, tr.aborted+absences, err, &patience); err != nil {
			return err
		}
		absences++
	}
}

// attempts does the same as run, but ends with an error when a server is absent, or
// takes no more connections.
func (s *Session) attempts(ctx context.Context, m mode, tr *tries, fn Body, finish ending) error {
	t := &s.txn
	s.snap.begin()
	tr.before = tr.aborted
	esc := escalation{possible: m == view && finish == nil && tr.invalidated > math.MaxInt/2} // no bound
	for ; ; tr.aborted++ {
		n := tr.aborted
		gated := n == 0 && m == update && s.admission.pass(ctx, s.reservations.turns != nil)
		if err := ctx.Err(); err != nil {
			return tr.late(ctx, err)
		}
		if s.closed.Load() {
			return ErrClosed
		}
		s.kept.tooOld(s.db.cfg.BodyAge)
		t.begin(ctx, esc.next(s, m))
		t.losses, t.patience, t.gated, t.wasOverdue = n, tr.patience, gated && s.db.gate.on.Load(), tr.overdue
		t.recheck = esc.recheck(t)
		err := s.attempt(t, fn, finish)
		tr.overdue = t.overdue
		esc.ended(t)
		if n == 0 && m == update {
			s.admission.firstEnded(t, gated)
		}
		if esc.wider { // at most once per partition
			s.stats.Widened++
			tr.aborted--
			continue
		}
		if t.err != errAbandoned {
			if err == nil {
				s.stats.Commits++
				return nil
			}
			again := false
			if again, err = s.mayRefresh(ctx, err); again {
				continue
			}
			return tr.late(ctx, err)
		}
		tr.last = t.cause
		s.kept.lostWith(t)
		t.volume = t.footprint()
		s.stats.Aborts[t.cause]++
		switch t.cause {
		case CauseLocked:
		case CauseFence:
			s.net.renew(ctx, t)
			tr.invalidated--
		case CauseCatalog:
			if tr.outdated++; tr.outdated&15 != 1 { // else the server has the older catalogue, not this DB
			} else if _, err := s.net.refresh(ctx); err != nil {
				return tr.late(ctx, err)
			}
		case CauseLate:
			s.leases.asksClock = true
			tr.invalidated--
		default:
			tr.invalidated--
		}
		if tr.invalidated <= 0 {
			return gaveUp(n+1, t.cause)
		}
		wait, hadTurn := n, len(s.reservations.held) > 0
		switch { // if the rows are reserved, no one else can take them
		case t.cause == CauseCatalog: // a data server may have to follow, also if the rows are reserved
		case t.reserved:
			wait = noWait
		case s.reservations.keep(t):
			wait = s.reservations.kept
		case s.reservations.take(t, n+1, tr.patience):
			if !hadTurn || t.cause != CauseLocked { // else it waits for a lock that is older than the turn
				wait = noWait
			}
		case t.cause == CauseFence:
			wait = n + fenceBackoff
		}
		if t.cause == CauseLocked && !t.metClient && wait != noWait && s.await != nil && n+1 < s.db.cfg.Retry.Attempts && s.await() {
			continue
		}
		if err := s.again(ctx, n, wait, t.cause, &tr.patience); err != nil {
			return err
		}
	}
}

// ended cleans up after a transaction, also after a panic of its body.
func (s *Session) ended(ctx context.Context) {
	s.txn.end()
	s.reservations.giveUp(ctx, false)
	s.reservations.asked = s.reservations.asked[:0]
	if !s.admission.visit.pooled {
		s.db.gate.leave(&s.admission.visit, false) // after a panic
	}
	s.admission.loses(false)
	s.giveBack()
	s.net.yield()
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

// patience returns how long the next request may wait at a server: until shortly
// before the caller gives up.
func (r *Retry) patience(ctx context.Context, attempt int, end time.Duration) time.Duration {
	if most := r.Attempts; most > 0 && attempt+1 >= most {
		return 0 // nothing would follow the turn
	}
	wait := r.Patience
	if at, bounded := ctx.Deadline(); bounded {
		wait = time.Until(at)
	} else if end > 0 {
		wait = end - clock.Fast()
	}
	return wait - wait/8
}

// pause waits for d. Without a deadline of ctx it ends with ErrUnavailable after
// Retry.Patience, counted from the first call.
func (r *Retry) pause(ctx context.Context, d time.Duration, patience *time.Duration) error {
	if _, bounded := ctx.Deadline(); !bounded {
		switch now := clock.Fast(); {
		case *patience == 0:
			*patience = now + r.Patience
		case now > *patience:
			return fmt.Errorf("%w for %v (Retry.Patience)", ErrUnavailable, r.Patience)
		}
	}
	return sleep(ctx, d)
}

// sleep waits for d, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
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
		s.validator.controlled = s.validator.controlled[:0]
		if err := s.snap.takeTime(t); err != nil {
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
		err = s.validator.settleReads(t)
	case bodyErr != nil || t.mode == view || t.writes.empty():
		err = s.validator.validate(t) // an error of the body, too, counts only if the rows that it read were consistent and are durable
	default:
		err = s.sendCommit(t)
	}
	return cmp.Or(t.err, bodyErr, err)
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
	return sleep(ctx, d)
}
