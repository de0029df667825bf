package server

import (
	"context"
	"errors"

	"drtmx/internal/exec"
	"drtmx/internal/wire"
)

// runElsewhere runs a procedure that leaves its home partition. A lock that it
// meets at home is mostly held by another such transaction, so it waits for the
// decision of that one before it retries.
func (s *Server) runElsewhere(ctx context.Context, home *partition, proc *exec.Procedure, args []byte, id wire.ID) (result []byte, v verdict) {
	db, err := s.clientDB(ctx)
	if err != nil {
		return nil, unreachable(err)
	}
	result, err = db.RunProcedure(ctx, proc, exec.Home(home.id), args, func(_ *exec.Session, c *wire.Commit, result []byte) error {
		v, asked := s.commit(ctx, c, origin{id: id, result: result})
		switch {
		case v.ok():
			return nil
		case v.code == wire.Conflict:
			return exec.ErrAbandoned{Cause: v.cause, Elsewhere: asked}
		}
		return v
	}, func() bool { return home.awaitDecision(ctx) }, turns{s})
	if v = verdictOf(err); v.code == wire.RolledBack && ctx.Err() != nil && errors.Is(err, ctx.Err()) {
		return nil, verdict{code: wire.Unavailable, text: "the server stops"} // the procedure did not choose to fail
	}
	return result, v
}

// verdictOf returns the answer to a call for the error of its body or its
// commit.
func verdictOf(err error) verdict {
	var v verdict
	switch {
	case err == nil:
		return verdict{}
	case errors.As(err, &v):
		return v
	case errors.Is(err, exec.ErrConflict):
		return conflict(exec.CauseRemote)
	case errors.Is(err, exec.ErrUnavailable):
		return verdict{code: wire.Unavailable, text: exec.Fault(err)}
	case errors.Is(err, exec.ErrTooLarge):
		return verdict{code: wire.TooLarge, text: exec.Fault(err)}
	}
	return verdict{code: wire.RolledBack, text: exec.Failure(err)}
}

// Error makes a verdict an error, for use within the server.
func (v verdict) Error() string { return "server: " + v.text }

// turns gives the procedures that this server runs their turns in its
// partitions.
type turns struct{ s *Server }

// Reserve implements exec.Turns.
func (t turns) Reserve(ctx context.Context, part int, session uint64, turn *wire.Turn) (granted, here bool) {
	p := t.s.hosted(part)
	if p == nil {
		return false, false
	}
	if turn.Wait == 0 {
		p.release(session, turn.Again)
		return false, true
	}
	return p.reserveFor(ctx, session, turn), true
}
