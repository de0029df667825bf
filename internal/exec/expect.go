package exec

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"drtmx/internal/clock"
	"drtmx/internal/placement"
)

// Partitions keep versions only while they expect snapshots (see docs/versions.md), so
// a snapshot that finds that a partition keeps none, or soon will not, asks its server.
// A question serves all partitions of the server and all sessions of the process. It is
// asked over another connection than the session's: a server that does not answer must
// not hold up snapshots that read elsewhere.

// expect asks the server in the background to keep versions in its partitions, or
// returns the question that is under way.
func (lf *life) expect(db *DB) *question {
	db.mu.Lock()
	defer db.mu.Unlock()
	if q := lf.expecting; q != nil {
		return q
	}
	q := &question{since: clock.Fast(), done: make(chan struct{})}
	if lf.silent {
		q.since -= 2 * askingMax // nobody waits for a server that has not answered before
	}
	if db.mu.closed {
		q.err = ErrClosed
		close(q.done)
		return q
	}
	lf.expecting = q
	db.asks.Go(func() {
		q.err = lf.inPool(db, func(ctx context.Context, s *Session) error { return s.snap.adoptAll(ctx, lf.server) })
		db.mu.Lock()
		lf.expecting, lf.silent = nil, q.err != nil && !lacksRoom(q.err)
		db.mu.Unlock()
		close(q.done)
	})
	return q
}

// errOverdue reports a question for whose answer another session has waited in vain.
var errOverdue = errors.New("the server does not answer")

// answered waits for the answer until ctx ends, if the question is not yet older than
// askingMax.
func (q *question) answered(ctx context.Context) error {
	select {
	case <-q.done:
		return q.err
	default:
	}
	if clock.Fast()-q.since > askingMax {
		return errOverdue
	}
	select {
	case <-q.done:
		return q.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// adoptAll is adopt for all partitions of a server.
func (sn *snapshotTime) adoptAll(ctx context.Context, server placement.Server) error {
	for p := range sn.db.placement.Of(server) {
		if err := sn.adopt(ctx, p, sn.db.seen.Tick()); err != nil {
			return err
		}
	}
	return nil
}

// expectAll makes the partitions of list, whose lines were just read, keep versions for
// a snapshot. It reports whether it has asked any: then the lines are to be read again.
// Partitions that may keep none, because their server has not answered before ctx ends,
// are left in unkept.
func (sn *snapshotTime) expectAll(ctx context.Context, t *Txn) (asked bool, err error) {
	sn.unkept = sn.unkept[:0]
	for _, p := range sn.list {
		if !sn.lines.of[p].keeps() {
			sn.unkept = append(sn.unkept, p)
		}
	}
	if len(sn.unkept) == 0 {
		return false, nil
	}
	type ask struct {
		server placement.Server
		q      *question
	}
	var asks []ask // all at once
	for _, p := range sn.unkept {
		server := sn.db.placement.At(p)
		if !slices.ContainsFunc(asks, func(a ask) bool { return a.server == server }) {
			asks = append(asks, ask{server, sn.net.life(p).expect(sn.db)})
		}
	}
	for _, a := range asks {
		err := a.q.answered(ctx)
		if lacksRoom(err) { // over its own connection
			err = sn.adoptAll(ctx, a.server)
		}
		switch {
		case err == nil:
			asked = true
			sn.unkept = slices.DeleteFunc(sn.unkept, func(p placement.Partition) bool { return sn.db.placement.At(p) == a.server })
		case t.ctx.Err() != nil:
			return false, t.ctx.Err()
		}
	}
	return asked, nil
}

// expectTouched asks partitions that the snapshot touches and that may keep no versions
// for it. If there are any, the attempt begins again, with a time from which on they do.
func (sn *snapshotTime) expectTouched(t *Txn) error {
	for _, p := range sn.touched {
		if !slices.Contains(sn.unkept, p) {
			continue
		}
		if err := sn.adopt(t.ctx, p, sn.db.seen.Tick()); err != nil {
			return fmt.Errorf("snapshot: partition %d was asked to keep versions: %w", p, err)
		}
		sn.wider = true
	}
	if sn.wider {
		return t.abandon(CauseRemote)
	}
	return nil
}
