package exec

import (
	"context"
	"slices"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
)

// An Update that loses against others waits for its turn at the servers instead of
// trying again and again. If it stays in one partition, the server queues the commit
// that lost for its rows, and answers when they are reserved for the next attempt.
// Otherwise the session asks for a turn in each partition, in ascending order, so
// that two sessions never wait for each other.
const (
	// claimAfter is the number of lost attempts after which an Update asks for turns
	// with requests of their own; claimHomeAfter is that number for a procedure at
	// its home server.
	claimAfter     = 2
	claimHomeAfter = 1
	// claimAllAfter is the number of lost attempts after which a procedure asks
	// for a turn in all partitions, and not only at its home server.
	claimAllAfter = 3
	// claimWholeAfter is the number of lost attempts after which a transaction
	// asks for whole partitions, because its attempts read other rows each time.
	claimWholeAfter = 6
	// keepTurns bounds the attempts within one turn that end at locks. With their
	// backoff they take about half of the shortest lease.
	keepTurns = 64
	// releaseTimeout bounds the request that ends a reservation. If it does not reach
	// the server, the reservation's lease ends it.
	releaseTimeout = 100 * time.Millisecond
)

// Turns gives a data server's own sessions turns in its partitions.
type Turns interface {
	// Reserve waits for a turn of a session, and reports whether it was granted. A
	// zero turn ends the session's reservation. here is false if the partition is at
	// another server.
	Reserve(ctx context.Context, part placement.Partition, session uint64, t *wire.Turn) (granted, here bool)
}

// patience returns how long the next request may wait at a server: until shortly
// before the caller gives up.
func (s *Session) patience(ctx context.Context, attempt int, end time.Duration) time.Duration {
	if most := s.db.cfg.Retry.Attempts; most > 0 && attempt+1 >= most {
		return 0 // nothing would follow the turn
	}
	wait := s.db.cfg.Retry.Patience
	if at, bounded := ctx.Deadline(); bounded {
		wait = time.Until(at)
	} else if end > 0 {
		wait = end - clock.Fast()
	}
	return wait - wait/8
}

// rows appends the names of the rows of a partition that the attempt has read or
// would write.
func (t *Txn) rows(part placement.Partition, names []wire.RowName) []wire.RowName {
	for _, g := range t.gets[:t.nGet] {
		if t.partition(g.ix, g.key) == part {
			names = append(names, wire.NameRow(uint16(g.ix.ID), g.key))
		}
	}
	for _, w := range t.writes.list[:t.writes.n] {
		if partitionOf(w.ix, w.key, t.nparts) == part {
			names = append(names, wire.NameRow(uint16(w.ix.ID), w.key))
		}
	}
	return names[:min(len(names), wire.MaxTurnRows)]
}

// partitions appends the partitions that the attempt has used, in ascending
// order.
func (t *Txn) partitions(parts []placement.Partition) []placement.Partition {
	for _, g := range t.gets[:t.nGet] {
		parts = append(parts, t.partition(g.ix, g.key))
	}
	for _, sc := range t.scans[:t.nScan] {
		for i := range sc.nsubs {
			parts = append(parts, sc.subs[i].part)
		}
	}
	for _, w := range t.writes.list[:t.writes.n] {
		parts = append(parts, partitionOf(w.ix, w.key, t.nparts))
	}
	slices.Sort(parts)
	return slices.Compact(parts)
}

// passGate passes the gate before a first attempt, if the session has lost often or
// all sessions must. It reports whether it has.
func (s *Session) passGate(ctx context.Context) bool {
	switch {
	case s.visit.inside: // DB.admit has passed it already
		return true
	case s.turns != nil || !s.past.passes && !s.db.gate.closed():
		return false
	}
	return s.db.gate.enter(ctx, &s.visit)
}

// firstEnded records a first attempt.
func (s *Session) firstEnded(t *Txn, gated bool) {
	lost := t.err == errAbandoned
	s.past.add(lost)
	s.loses(lost)
	if gated && (t.err != nil || !s.visit.pooled) { // release ends the visit of a session of the pool
		s.db.gate.leave(&s.visit, lost)
	}
}

// loses notes whether the session's transaction has lost an attempt and not ended:
// see gate.losing.
func (s *Session) loses(now bool) {
	if s.losing == now {
		return
	}
	n := int32(1)
	if s.losing = now; !now {
		n = -1
	}
	g := &s.db.gate
	if g.losing.Add(n); !now && !s.visit.pooled && g.on.Load() {
		g.mu.Lock()
		next := g.admit()
		g.mu.Unlock()
		next.wake()
	}
}

// askTurn adds to a commit in one partition the request for a turn in case the commit
// loses.
func (s *Session) askTurn(t *Txn) {
	turn := &s.commit.Turn
	turn.Wait, turn.Losses, turn.Whole, turn.Rows = 0, uint8(min(t.losses, 255)), t.losses >= claimWholeAfter, turn.Rows[:0]
	home := s.commit.Parts[0].Partition
	switch {
	case len(s.commit.Parts) > 1, t.gated: // other Updates wait for it to leave the gate
		return
	case slices.ContainsFunc(s.reserved, func(part placement.Partition) bool { return part != home }):
		return // it must not wait while it blocks others at other partitions
	}
	turn.Wait = s.patience(t.ctx, t.losses, t.patience)
	if t.losses > 0 {
		turn.Rows = t.rows(home, turn.Rows)
	}
}

// endTurns notes the reservations that a commit has ended, and the one that its
// answer grants. A refused commit ends none, because it may not have reached all
// servers.
func (s *Session) endTurns(t *Txn, committed, granted bool) {
	if committed && len(s.reserved) > 0 {
		s.reserved = slices.DeleteFunc(s.reserved, func(part placement.Partition) bool {
			return slices.ContainsFunc(s.commit.Parts, func(p wire.Part) bool { return p.Partition == part })
		})
	}
	if t.reserved = granted; !granted {
		return
	}
	s.keptTurns = 0
	if home := s.commit.Parts[0].Partition; !slices.Contains(s.reserved, home) {
		s.reserved = append(s.reserved, home)
	}
}

// keepTurn reports whether the session keeps its turn after an attempt that met a
// lock. No one else takes a new lock on its rows, so the lock is an older one.
func (s *Session) keepTurn(t *Txn) bool {
	if t.cause != CauseLocked || t.sent || len(s.reserved) == 0 || s.keptTurns == keepTurns {
		return false
	}
	s.keptTurns++
	return true
}

// takeTurn waits until the rows of the last attempt are reserved for the next one. It
// returns false if the transaction has not lost often enough, or if a server does not
// grant the turn.
func (s *Session) takeTurn(t *Txn, losses int, end time.Duration) bool {
	atHome := s.turns != nil
	if t.mode != update || atHome && losses < claimHomeAfter || !atHome && losses < claimAfter {
		return false
	}
	wait := s.patience(t.ctx, losses-1, end)
	s.giveUpTurns(t.ctx, true)
	s.keptTurns = 0
	end = clock.Fast() + wait
	for _, part := range t.partitions(nil) {
		if atHome && losses < claimAllAfter && part != s.home {
			continue
		}
		turn := wire.Turn{Wait: end - clock.Fast(), Losses: uint8(min(losses, 255)), Whole: losses >= claimWholeAfter}
		turn.Rows = t.rows(part, nil)
		s.reserved = append(s.reserved, part)
		if turn.Again = slices.Contains(s.asked, part); !turn.Again {
			s.asked = append(s.asked, part)
		}
		if turn.Wait <= 0 || !s.reserve(t.ctx, part, &turn) {
			s.giveUpTurns(t.ctx, true)
			return false
		}
	}
	return true
}

// reserve waits for a turn in one partition, and reports whether it was granted.
func (s *Session) reserve(ctx context.Context, part placement.Partition, turn *wire.Turn) bool {
	if s.turns != nil {
		if granted, here := s.turns.Reserve(ctx, part, s.id, turn); here {
			return granted
		}
	}
	l, err := s.link(ctx, s.db.placement.At(part))
	if err != nil {
		return false
	}
	s.req = wire.AppendReserve(s.req[:0], s.id, part, turn)
	resp, err := s.call(ctx, l, s.req)
	return err == nil && isReserved(resp)
}

// isReserved reports whether an answer grants a turn.
func isReserved(resp []byte) bool {
	return len(resp) == 3 && wire.Code(resp[0]) == wire.Conflict && resp[2] == wire.Reserved
}

// giveUpTurns ends the reservations of the session that no commit has ended. again
// says that the transaction goes on, and keeps its places in the queues.
func (s *Session) giveUpTurns(ctx context.Context, again bool) {
	if len(s.reserved) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	for _, part := range s.reserved {
		if !s.closed.Load() {
			s.reserve(ctx, part, &wire.Turn{Again: again})
		}
	}
	s.reserved = s.reserved[:0]
}
