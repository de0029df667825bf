package exec

import (
	"context"
	"errors"
	"fmt"
	"time"

	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// A durable server that ends comes back in another epoch. Sessions find their
// connections broken, or the server refuses their requests as of an earlier epoch.
// They repeat transactions that have certainly not committed, and ask for the
// outcomes of those that may have, until their callers' deadlines.

// Waits between two attempts to reach a server that recovers.
const (
	returnWaitMin = time.Millisecond
	returnWaitMax = 32 * time.Millisecond
	// fenceBackoff is the number of doublings of the backoff that an attempt which
	// met a fence skips: fences last long.
	fenceBackoff = 9
)

// Returns reports whether err concerns a server that may come back with everything
// that it has acknowledged, and nothing has been committed.
func (db *DB) Returns(err error) bool {
	return db.durable && errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrRestarted) && !errors.Is(err, ErrOutcomeUnknown) && !errors.Is(err, ErrClosed)
}

// stillAbsent adds to err, if the caller's time is over, the error of a server that
// was absent before, if there is one.
func stillAbsent(ctx context.Context, absent, err error) error {
	if absent == nil || ctx.Err() == nil || !errors.Is(err, ctx.Err()) || errors.Is(err, ErrConflict) || errors.Is(err, ErrOutcomeUnknown) {
		return err
	}
	return fmt.Errorf("%w: %w", absent, err)
}

// awaitReturn waits before another attempt at a server that may come back. It returns
// err, with the reason, if the caller's time is over or no attempt is left.
func (n *network) awaitReturn(ctx context.Context, attempt int, err error, patience *time.Duration) error {
	retry := &n.db.cfg.Retry
	if retry.Attempts > 0 && attempt+1 >= retry.Attempts || n.closed.Load() {
		return err
	}
	switch werr := retry.pause(ctx, min(returnWaitMin<<min(attempt, 10), returnWaitMax), patience); {
	case werr == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("%w: %w", err, werr)
	}
	return err
}

// inPartition adds to the error of a server that does not answer the partition that
// the transaction needs there, if err names none.
func (n *network) inPartition(err error, parts []placement.Partition) error {
	var e *tables.Error
	if !errors.As(err, &e) || e.Err != ErrUnavailable || e.Partition >= 0 || e.Server == "" {
		return err
	}
	for _, p := range parts {
		if n.db.servers[n.db.placement.At(p)] == e.Server {
			e.Partition = int(p)
			break
		}
	}
	return err
}

// renew asks the servers of an attempt that met a fence for another hello. It drops
// the connection to a server that does not answer as expected, so that the next
// attempt makes another one and thereby learns of a new epoch.
func (n *network) renew(ctx context.Context, t *Txn) {
	for _, part := range t.partitions(nil) {
		l := n.links[n.db.placement.At(part)]
		if l == nil || l.pending.until != 0 {
			continue
		}
		if err := n.helloAgain(ctx, l); err != nil && ctx.Err() == nil && n.links[l.server] == l {
			n.drop(l)
		}
	}
}

// unsettled is a transaction whose outcome is unknown to its session.
type unsettled struct {
	server placement.Server
	id     wire.ID
	sent   wire.Sent
}

// settleAt settles, over a new connection, the transactions of the session whose
// outcome at this server is unknown: the server refuses them from now on, unless it
// knows them or is running them. So no earlier request of the session begins after
// the next one. (An answer that comes late over the same connection settles them too:
// see settle.)
func (n *network) settleAt(ctx context.Context, l *link) error {
	for i := 0; i < len(n.unsettled); {
		u := n.unsettled[i]
		if u.server != l.server {
			i++
			continue
		}
		n.unsettled = append(n.unsettled[:i], n.unsettled[i+1:]...)
		if _, err := n.call(ctx, l, wire.AppendOutcome(nil, u.id, u.sent, wire.OutcomeSettle)); err != nil {
			n.unsettled = append(n.unsettled, u)
			if n.links[l.server] == l && l.pending.until == 0 {
				n.drop(l) // nothing was asked, and who finds the link later would believe that it was
			}
			return err
		}
	}
	return nil
}
