package exec

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
)

// crowdState has the fields of the caller's session that an Update uses while it runs
// on another one. They are in one struct, which the gate prefetches.
type crowdState struct {
	stats  SessionStats
	lent   bool // the session's transaction runs on a session of the pool
	closed atomic.Bool
}

// crowdMin is the number of Updates of callers' own sessions that may be in
// progress before further ones run on sessions of the pool. The state of more
// sessions does not fit the processor's caches.
const crowdMin = 512

// Update runs a transaction that may write: see txn.Session.Update. If many Updates of
// callers' own sessions are in progress, it waits at the gate and then runs on a
// session of the pool, as DB.Update does.
func (s *Session) Update(ctx context.Context, fn Body) error {
	g := &s.db.gate
	defer g.own.Add(-1)
	if g.own.Add(1) <= crowdMin || len(s.net.unsettled) > 0 {
		return s.run(ctx, update, math.MaxInt, fn, nil)
	}
	if ran, err := s.updateInPool(ctx, fn); ran {
		return err
	}
	return s.run(ctx, update, math.MaxInt, fn, nil)
}

// updateInPool runs an Update on a session of the pool. ran is false if that session
// could not get a connection and s has one: then nothing has been committed.
//
// Transactions are strictly serializable whatever session they run on, so the next
// transaction of s sees this one. Only a transaction whose outcome is unknown may
// still begin later: s takes it over, and settles it before it sends anything.
func (s *Session) updateInPool(ctx context.Context, fn Body) (ran bool, err error) {
	switch {
	case s.nested():
		return true, errNested
	case s.closed.Load():
		return true, ErrClosed
	}
	p, err := s.db.admit(ctx, &s.crowdState)
	if err != nil {
		return true, err
	}
	p.takeStats()
	s.lent, p.net.borrower = true, &s.net
	id := p.outcomes.id
	defer func() {
		s.lent, p.net.borrower = false, nil
		s.stats.add(p.takeStats())
		if p.outcomes.id != id {
			s.net.takeOver(p.net.unsettled)
		}
		s.db.release(p)
	}()
	err = p.run(ctx, update, math.MaxInt, fn, nil)
	return !lacksRoom(err) || !s.net.connected(), err
}

// errNested refuses a transaction, or a Call, inside another one of the same session.
var errNested = fmt.Errorf("%w: a transaction runs inside another of the same session", ErrClosed)

// nested reports whether a transaction of the session is in progress.
func (s *Session) nested() bool { return s.lent || s.txn.mode != closed }

// takeOver makes the session settle transactions that ran on another one, at the
// beginning of its next connection to their servers.
func (n *network) takeOver(unknown []unsettled) {
	n.unsettled = append(n.unsettled, unknown...)
	for _, u := range unknown {
		if l := n.links[u.server]; l != nil {
			n.drop(l)
		}
	}
}

// takeStats returns the session's counters and resets them.
func (s *Session) takeStats() SessionStats {
	st := s.Stats()
	s.stats = SessionStats{}
	return st
}

func (st *SessionStats) add(o SessionStats) {
	st.Fabric = st.Fabric.Add(o.Fabric)
	for i, n := range o.Aborts {
		if n > 0 { // rarely
			st.Aborts[i] += n
		}
	}
	st.Rounds, st.Proving, st.Commits = st.Rounds+o.Rounds, st.Proving+o.Proving, st.Commits+o.Commits
	st.Snapshots, st.Overtaken, st.Widened = st.Snapshots+o.Snapshots, st.Overtaken+o.Overtaken, st.Widened+o.Widened
}
