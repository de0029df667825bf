package server

import (
	"context"
	"errors"
	"sync"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/exec"
	"drtmx/internal/placement"
	"drtmx/internal/wire"
	"drtmx/txn"
)

// MaxCallsElsewhere bounds the procedures that a server runs outside their partitions.
// Those whose commit has begun do not count: the commit protocol bounds them, for each
// other server.
const MaxCallsElsewhere = 1 << 12

// elsewhere runs the procedures that have left their partitions, and counts those that
// have not been answered.
type elsewhere struct {
	client *ownClient
	driver *driver
	max    int           // MaxCallsElsewhere
	time   time.Duration // MaxCallTime

	mu         sync.Mutex
	running    int
	committing int           // among those
	none       chan struct{} // not nil: to be closed when none is running
}

// begin counts one more procedure, and reports whether there was room for it.
func (e *elsewhere) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running-e.committing >= e.max {
		return false
	}
	e.running++
	return true
}

func (e *elsewhere) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.running--; e.running == 0 && e.none != nil {
		close(e.none)
		e.none = nil
	}
}

// commits adds n, which may be negative, to the procedures whose commit has begun.
func (e *elsewhere) commits(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.committing += n
}

// run runs a procedure that leaves its home partition. A lock that it meets at home is
// mostly held by another such transaction, so it waits for the decision of that one
// before it retries. It ends with ctx, and at deadline by clock.Fast; if that is 0,
// after MaxCallTime.
func (e *elsewhere) run(
	ctx context.Context, home *partition, proc *exec.Procedure, args []byte, id wire.ID, deadline time.Duration,
) (result []byte, v verdict) {
	call := &callTime{Context: ctx, ends: deadline, late: tooLate, of: e}
	if deadline == 0 {
		call.ends, call.late, call.own = clock.Fast()+e.time, tooLong, true
	}
	defer call.end()
	ctx = call
	db, err := e.client.get(ctx)
	if err != nil {
		if v := ended(ctx); !v.ok() {
			return nil, v
		}
		return nil, unreachable(err)
	}
	result, err = db.RunProcedure(ctx, proc, home.id, args, func(_ *exec.Session, c *wire.Commit, result []byte) error {
		v, asked := e.driver.commit(ctx, c, origin{id: id, result: result})
		switch {
		case v.ok():
			return nil
		case v.code == wire.Conflict:
			return exec.ErrAbandoned{Cause: v.cause, Elsewhere: asked}
		}
		return v
	}, func() bool { return home.requests.parking.awaitDecision(ctx) }, turns{e.driver.parts})
	if err != nil {
		return nil, failed(ctx, err)
	}
	return result, verdict{}
}

// stopGrace bounds how long a server that stops waits for the answers to procedures.
// What they wait for has ended with the server, unless a body waits for something else.
const stopGrace = time.Second

// await waits until all procedures are answered, for at most stopGrace. A caller that
// gets no answer does not know whether its procedure has committed.
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

// failed returns the answer for the error of a procedure that ran under ctx, here or
// elsewhere. Once ctx has ended, any error may be only a consequence of that, however
// the body has wrapped it, except those that a procedure makes for its caller. It is
// then not reported as the procedure's own failure, which callers would take for its
// decision.
func failed(ctx context.Context, err error) verdict {
	v := verdictOf(err)
	if v.code != wire.RolledBack || exec.IsForCaller(err) {
		return v
	}
	if w := ended(ctx); !w.ok() {
		return w
	}
	return v
}

// stops is the answer to requests that end because the server stops. They have
// committed nothing.
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
		return verdict{code: wire.Unavailable, text: exec.EncodeFault(err)}
	case errors.Is(err, exec.ErrTooLarge):
		return verdict{code: wire.TooLarge, text: exec.EncodeFault(err)}
	case exec.IsForCaller(err):
	case errors.Is(err, exec.ErrClosed): // of the server's own client, which ends with the server
		return stops
	case errors.Is(err, exec.ErrProtocol): // another server is at fault, and no row
		return verdict{code: wire.Bad, text: exec.EncodeFault(err)}
	}
	return verdict{code: wire.RolledBack, text: exec.EncodeFailure(err)}
}

// Error makes a verdict an error, for use within the server.
func (v verdict) Error() string { return "server: " + v.text }

// turns gives the procedures that this server runs their turns in its
// partitions.
type turns struct{ parts *partitions }

// Reserve implements exec.Turns.
func (t turns) Reserve(ctx context.Context, part placement.Partition, session uint64, turn *wire.Turn) (granted, here bool) {
	p := t.parts.get(part)
	if p == nil {
		return false, false
	}
	if turn.Wait == 0 {
		p.requests.lines.release(session, turn.Again)
		return false, true
	}
	return p.requests.lines.reserveFor(ctx, session, turn), true
}

// procedureOf returns a procedure as package exec runs it.
func procedureOf(p txn.Procedure) *exec.Procedure {
	return &exec.Procedure{Name: p.Name, ReadOnly: p.ReadOnly, Body: func(ctx context.Context, t *exec.Txn, args []byte) ([]byte, error) {
		res, err := p.Body(ctx, (*txn.Txn)(t), args)
		var typed *txn.ProcedureError
		if errors.As(err, &typed) {
			err = &typedError{err, (*exec.ProcedureError)(typed)}
		}
		return res, err
	}}
}

// typedError is a body's error, with the part of it that the caller receives.
type typedError struct {
	error
	typed *exec.ProcedureError
}

// Unwrap implements errors.Is and errors.As.
func (e *typedError) Unwrap() []error { return []error{e.error, e.typed} }
