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

// reservations are the turns of a session: the rows and partitions that servers keep for
// its next attempt. At the end of its transaction it has none.
type reservations struct {
	db       *DB
	net      *network
	outcomes *outcomes
	turns    Turns                 // of RunProcedure
	home     placement.Partition   // of RunProcedure: the home partition of the procedure
	held     []placement.Partition // partitions that may have a reservation for this session
	asked    []placement.Partition // partitions in which the transaction has asked for a turn
	kept     int                   // consecutive attempts that kept the reservations
}

// rows appends the names of the rows of a partition that the attempt has read or
// would write.
func (t *Txn) rows(part placement.Partition, names []wire.RowName) []wire.RowName {
	for _, g := range t.reads.gets[:t.reads.nGet] {
		if t.where.partition(g.ix, g.key) == part {
			names = append(names, wire.NameRow(uint16(g.ix.ID), g.key))
		}
	}
	for _, w := range t.writes.list[:t.writes.n] {
		if partitionOf(w.ix, w.key, t.where.nparts) == part {
			names = append(names, wire.NameRow(uint16(w.ix.ID), w.key))
		}
	}
	return names[:min(len(names), wire.MaxTurnRows)]
}

// partitions appends the partitions that the attempt has used, in ascending
// order.
func (t *Txn) partitions(parts []placement.Partition) []placement.Partition {
	for _, g := range t.reads.gets[:t.reads.nGet] {
		parts = append(parts, t.where.partition(g.ix, g.key))
	}
	for _, sc := range t.reads.scans[:t.reads.nScan] {
		for i := range sc.nsubs {
			parts = append(parts, sc.subs[i].part)
		}
	}
	for _, l := range t.reads.groups[:t.reads.nGroups] {
		for _, g := range l.gets[:l.n] {
			parts = append(parts, t.where.partition(g.ix, g.key))
		}
	}
	for k := range t.reads.keptPages {
		parts = append(parts, k.part)
	}
	for _, w := range t.writes.list[:t.writes.n] {
		parts = append(parts, partitionOf(w.ix, w.key, t.where.nparts))
	}
	slices.Sort(parts)
	return slices.Compact(parts)
}

// ask adds to a commit in one partition the request for a turn in case the commit
// loses.
func (rs *reservations) ask(t *Txn, c *wire.Commit) {
	turn := &c.Turn
	turn.Wait, turn.Losses, turn.Whole, turn.Rows = 0, uint8(min(t.losses, 255)), t.losses >= claimWholeAfter, turn.Rows[:0]
	home := c.Parts[0].Partition
	switch {
	case len(c.Parts) > 1, t.gated: // other Updates wait for it to leave the gate
		return
	case slices.ContainsFunc(rs.held, func(part placement.Partition) bool { return part != home }):
		return // it must not wait while it blocks others at other partitions
	}
	turn.Wait = rs.db.cfg.Retry.patience(t.ctx, t.losses, t.patience)
	if t.losses > 0 {
		turn.Rows = t.rows(home, turn.Rows)
	}
}

// ended notes the reservations that a commit has ended, and the one that its
// answer grants. A refused commit ends none, because it may not have reached all
// servers.
func (rs *reservations) ended(t *Txn, c *wire.Commit, committed, granted bool) {
	if committed && len(rs.held) > 0 {
		rs.held = slices.DeleteFunc(rs.held, func(part placement.Partition) bool {
			return slices.ContainsFunc(c.Parts, func(p wire.Part) bool { return p.Partition == part })
		})
	}
	if t.reserved = granted; !granted {
		return
	}
	rs.kept = 0
	if home := c.Parts[0].Partition; !slices.Contains(rs.held, home) {
		rs.held = append(rs.held, home)
	}
}

// keep reports whether the session keeps its turn after an attempt that met a
// lock. No one else takes a new lock on its rows, so the lock is an older one.
func (rs *reservations) keep(t *Txn) bool {
	if t.cause != CauseLocked || t.sent || len(rs.held) == 0 || rs.kept == keepTurns {
		return false
	}
	rs.kept++
	return true
}

// take waits until the rows of the last attempt are reserved for the next one. It
// returns false if the transaction has not lost often enough, or if a server does not
// grant the turn.
func (rs *reservations) take(t *Txn, losses int, end time.Duration) bool {
	atHome := rs.turns != nil
	if t.mode != update || atHome && losses < claimHomeAfter || !atHome && losses < claimAfter {
		return false
	}
	wait := rs.db.cfg.Retry.patience(t.ctx, losses-1, end)
	rs.giveUp(t.ctx, true)
	rs.kept = 0
	end = clock.Fast() + wait
	for _, part := range t.partitions(nil) {
		if atHome && losses < claimAllAfter && part != rs.home {
			continue
		}
		turn := wire.Turn{Wait: end - clock.Fast(), Losses: uint8(min(losses, 255)), Whole: losses >= claimWholeAfter}
		turn.Rows = t.rows(part, nil)
		rs.held = append(rs.held, part)
		if turn.Again = slices.Contains(rs.asked, part); !turn.Again {
			rs.asked = append(rs.asked, part)
		}
		if turn.Wait <= 0 || !rs.reserve(t.ctx, part, &turn) {
			rs.giveUp(t.ctx, true)
			return false
		}
	}
	return true
}

// reserve waits for a turn in one partition, and reports whether it was granted.
func (rs *reservations) reserve(ctx context.Context, part placement.Partition, turn *wire.Turn) bool {
	if rs.turns != nil {
		if granted, here := rs.turns.Reserve(ctx, part, rs.outcomes.id, turn); here {
			return granted
		}
	}
	l, err := rs.net.link(ctx, rs.db.placement.At(part))
	if err != nil {
		return false
	}
	rs.net.req = wire.AppendReserve(rs.net.req[:0], rs.outcomes.id, part, turn)
	resp, err := rs.net.call(ctx, l, rs.net.req)
	return err == nil && isReserved(resp)
}

// isReserved reports whether an answer grants a turn.
func isReserved(resp []byte) bool {
	return len(resp) == 3 && wire.Code(resp[0]) == wire.Conflict && resp[2] == wire.Reserved
}

// giveUp ends the reservations of the session that no commit has ended. again
// says that the transaction goes on, and keeps its places in the queues.
func (rs *reservations) giveUp(ctx context.Context, again bool) {
	if len(rs.held) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	for _, part := range rs.held {
		if !rs.net.closed.Load() {
			rs.reserve(ctx, part, &wire.Turn{Again: again})
		}
	}
	rs.held = rs.held[:0]
}
