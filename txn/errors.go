package txn

import (
	"fmt"

	"drtmx/internal/exec"
)

// Errors of transactions; callers match them with errors.Is.
var (
	// ErrNotFound reports a key without a row.
	ErrNotFound = exec.ErrNotFound
	// ErrExists reports an insert, or a secondary index entry, whose key is taken.
	ErrExists = exec.ErrExists
	// ErrConflict reports that every attempt the retry policy allows met a concurrent writer.
	ErrConflict = exec.ErrConflict
	// ErrReadOnly reports a write in a View, or to a replicated table.
	ErrReadOnly = exec.ErrReadOnly
	// ErrTooLarge reports a transaction above a named bound.
	ErrTooLarge = exec.ErrTooLarge
	// ErrClosed reports use of a DB after Close, or of a Txn after its body returned.
	ErrClosed = exec.ErrClosed
	// ErrUnavailable reports that a data server needed by the transaction does not answer. Nothing was committed.
	ErrUnavailable = exec.ErrUnavailable
	// ErrRestarted reports, together with ErrUnavailable, a data server that
	// was restarted without its memory: open the database again.
	ErrRestarted = exec.ErrRestarted
	// ErrResultLost reports a Call that committed but whose answer was lost
	// with the connection. The server no longer keeps its result.
	ErrResultLost = exec.ErrResultLost
	// ErrOutcomeUnknown reports that the connection to the home server was lost
	// between a commit request and its answer.
	ErrOutcomeUnknown = exec.ErrOutcomeUnknown
	// ErrNoProcedure reports a Call of a procedure the servers do not have.
	ErrNoProcedure = exec.ErrNoProcedure
	// ErrProtocol reports a message that cannot be decoded, or a server of another version or catalogue.
	ErrProtocol = exec.ErrProtocol
	// ErrForbidden reports a request that the client's role, or its tables, do
	// not allow.
	ErrForbidden = exec.ErrForbidden
	// ErrOutOfMemory reports that a data server's region is full; the transaction was aborted.
	ErrOutOfMemory = exec.ErrOutOfMemory
)

// ID identifies a transaction that writes.
type ID struct {
	Client uint64
	Seq    uint64
}

// UnknownOutcome is the error behind ErrOutcomeUnknown; ask DB.Outcome with its ID.
type UnknownOutcome struct {
	ID    ID
	Cause error
}

func (e *UnknownOutcome) Error() string {
	return fmt.Sprintf("%v: transaction %x-%d: %v", ErrOutcomeUnknown, e.ID.Client, e.ID.Seq, e.Cause)
}

// Unwrap matches ErrOutcomeUnknown and the cause.
func (e *UnknownOutcome) Unwrap() []error { return []error{ErrOutcomeUnknown, e.Cause} }

// ProcedureError is the error that a procedure's body returned at its home
// server: the transaction was rolled back.
//
// A body returns a *ProcedureError, or an error that wraps one, to give its
// caller a code and a payload. Any other error reaches the caller as text, and
// as the Cause if it matched an error of this package. The payload may have
// 64 KiB.
//
// A *ProcedureError with a code is also the pattern for errors like it: for
// errors.Is it matches an error with the same code of the procedure that it
// names, or of any procedure if it names none. So a package that defines a
// procedure declares its errors once, for the body to return and for callers to
// match:
//
//	var ErrSoldOut = &txn.ProcedureError{Procedure: "order", Code: 1, Text: "sold out"}
type ProcedureError struct {
	Procedure string // filled in by Call
	Code      uint32 // the procedure's own choice; 0 means none
	Payload   []byte // the procedure's own encoding
	Text      string
	// Cause is the error of this package that the body's error matched, such as
	// ErrNotFound; nil if none. Only Call sets it.
	Cause error
}

func (e *ProcedureError) Error() string {
	if e.Procedure == "" {
		return e.Text
	}
	return "procedure " + e.Procedure + ": " + e.Text
}

// Is reports whether the target is a pattern that matches e.
func (e *ProcedureError) Is(target error) bool {
	p, ok := target.(*ProcedureError)
	return ok && p.Code != 0 && p.Code == e.Code && (p.Procedure == "" || p.Procedure == e.Procedure)
}

// Unwrap matches the Cause.
func (e *ProcedureError) Unwrap() error { return e.Cause }

// userError gives an error of package exec the type that this package documents.
func userError(err error) error {
	switch e := err.(type) {
	case *exec.UnknownOutcome:
		return &UnknownOutcome{ID: ID(e.ID), Cause: e.Cause}
	case *exec.ProcedureError:
		return (*ProcedureError)(e)
	}
	return err
}
