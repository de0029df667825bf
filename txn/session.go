package txn

import (
	"context"

	"drtmx/internal/exec"
	"drtmx/internal/placement"
)

// Session is one goroutine's access to a cluster: connections, buffers and the
// state of the exactly-once protocol. It runs one transaction at a time. DB's
// methods use sessions from a pool. A worker that needs exact counters, or must
// not wait for the pool, holds its own session. While more than 512 Updates of such
// sessions are in progress, further ones wait for a session of the pool and run on
// it; the counters stay exact.
type Session exec.Session

func (s *Session) exec() *exec.Session { return (*exec.Session)(s) }

// View runs a read-only transaction by one-sided reads. It is strictly serializable:
// when fn has returned, View validates in one round that no row or range that it has
// read has changed. If one has, fn runs again. If writers have invalidated many
// attempts, or a long one, the next attempt reads a Snapshot, which writers cannot
// invalidate. View returns an error of fn unchanged, after the same validation.
func (s *Session) View(ctx context.Context, fn func(*Txn) error) error {
	return s.exec().View(ctx, body(fn))
}

// TryView is View with a bound, at least one, on the attempts that writers
// invalidate: those whose rows or ranges had changed when they were validated. At the
// bound it returns ErrConflict. It does not go on as a Snapshot, so that the caller
// can choose an alternative, such as a read-only procedure at the home server.
//
// Attempts that met a lock do not count. TryView waits for a lock as View does. A
// lock is held for the duration of a two-phase commit.
func (s *Session) TryView(ctx context.Context, invalidated int, fn func(*Txn) error) error {
	return s.exec().TryView(ctx, invalidated, body(fn))
}

// Update runs a transaction that may write. Reads are one-sided and writes are
// buffered. Commit is one RPC to the home server, the primary of the first row
// written. If fn returns an error nothing is written.
//
// If the connection to the home server is lost between the commit request and
// its answer, and the server cannot be asked for the outcome, the error is an
// *UnknownOutcome.
func (s *Session) Update(ctx context.Context, fn func(*Txn) error) error {
	return userError(s.exec().Update(ctx, body(fn)))
}

// Call runs a procedure at the primary of h and returns its result, valid until the
// session is used again. An error of the procedure is returned as a *ProcedureError;
// then nothing has been written. An attempt that meets a concurrent writer is retried
// as in Update, with the same exactly-once guarantee.
//
// The deadline of ctx also applies at the home. A procedure that has not begun to
// commit by then commits nothing, and the error is context.DeadlineExceeded; it may
// be returned up to 10 ms early. If no answer has arrived by the deadline, the error
// is an *UnknownOutcome. A cancellation of ctx is not sent to the home.
func (s *Session) Call(ctx context.Context, h Home, proc string, args []byte) ([]byte, error) {
	res, err := s.exec().Call(ctx, placement.Partition(h), proc, args)
	return res, userError(err)
}

// Stats returns a snapshot of the session's counters. Only the session's
// goroutine may call it.
func (s *Session) Stats() SessionStats { return SessionStats(s.exec().Stats()) }

// Close releases the session's connections.
func (s *Session) Close() error { return s.exec().Close() }
