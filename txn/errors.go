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

// ProcedureError is the error a procedure's body returned at its home server:
// the transaction was rolled back. Only the text crosses the network.
type ProcedureError struct {
	Procedure string
	Text      string
}

func (e *ProcedureError) Error() string { return "procedure " + e.Procedure + ": " + e.Text }

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
