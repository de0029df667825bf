package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"drtmx/internal/exec"
	"drtmx/internal/wire"
)

// elsewhere counts the procedures that have left their partitions and have not been
// answered.
type elsewhere struct {
	mu      sync.Mutex
	running int
	none    chan struct{} // not nil: to be closed when there is none left
}

func (e *elsewhere) begin() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.running++
}

func (e *elsewhere) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running--; e.running == 0 && e.none != nil {
		close(e.none)
		e.none = nil
	}
}

// stopGrace bounds the wait of a server that stops for the answers to procedures.
// What they wait for has ended with the server, unless a body waits for something else.
const stopGrace = time.Second

// await waits until all are answered, for at most stopGrace. A caller without its
// answer would not know whether its procedure has committed.
func (e *elsewhere) await() {
	e.mu.Lock()
	none := e.none
	if e.running > 0 {
		none = make(chan struct{})
		e.none = none
	}
	e.mu.Unlock()
	if none == nil {
		return
	}
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	select {
	case <-none:
	case <-t.C:
	}
}

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
	if err != nil {
		return nil, failed(ctx, err)
	}
	return result, verdict{}
}

// failed is the answer for the error of a procedure that ran under ctx, here or
// elsewhere. Once ctx has ended, any error may be only a consequence of that, however
// the body has wrapped it, but for those that a procedure makes for its caller. So it
// is no failure of the procedure's own: callers would take that for its decision.
func failed(ctx context.Context, err error) verdict {
	v := verdictOf(err)
	if v.code == wire.RolledBack && ctx.Err() != nil && !exec.MadeForCaller(err) {
		return stops
	}
	return v
}

// stops is the answer to what ends because the server does. It has committed nothing.
var stops = verdict{code: wire.Unavailable, text: "the server stops"}

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
	case exec.MadeForCaller(err):
	case errors.Is(err, exec.ErrClosed): // of the server's own client, which ends with the server
		return stops
	case errors.Is(err, exec.ErrProtocol): // another server is at fault, and no row
		return verdict{code: wire.Bad, text: exec.Fault(err)}
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
