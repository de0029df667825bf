package exec

import (
	"errors"
	"fmt"
)

// Errors of transactions; callers match them with errors.Is.
var (
	// ErrNotFound reports a key without a row.
	ErrNotFound = errors.New("txn: no such row")
	// ErrExists reports an insert, or a secondary index entry, whose key is taken.
	ErrExists = errors.New("txn: row exists")
	// ErrConflict reports that every attempt the retry policy allows met a concurrent writer.
	ErrConflict = errors.New("txn: conflict")
	// ErrReadOnly reports a write in a View, or to a replicated table.
	ErrReadOnly = errors.New("txn: read-only")
	// ErrTooLarge reports a transaction above a named bound.
	ErrTooLarge = errors.New("txn: too large")
	// ErrClosed reports use of a DB after Close, or of a Txn after its body returned.
	ErrClosed = errors.New("txn: closed")
	// ErrUnavailable reports that a data server needed by the transaction does not
	// answer, that a partition is fenced: it is no longer served, or that another
	// process may have the server's place. Nothing was committed. The error names
	// what is known of the server and the partition. A durable server may come back,
	// so transactions wait for it: until the caller's deadline, or Retry.Patience
	// without one.
	ErrUnavailable = errors.New("txn: data server unavailable")
	// ErrRestarted reports, together with ErrUnavailable, a data server that
	// was restarted without its memory: open the database again.
	ErrRestarted = errors.New("txn: data server was restarted and its memory is gone; open the database again")
	// ErrResultLost reports a Call that committed but whose answer was lost
	// with the connection. The server no longer keeps its result.
	ErrResultLost = errors.New("txn: committed, but the procedure's result is lost")
	// ErrOutcomeUnknown reports that the connection to the home server was lost
	// between a commit request and its answer, and that the server could not be
	// asked, or does not know it because another data server that may have decided
	// does not tell. A durable server is asked until the caller's deadline, or for
	// Retry.Patience without one; it knows the outcome when the servers have
	// recovered. The error is an *UnknownOutcome.
	ErrOutcomeUnknown = errors.New("txn: outcome unknown")
	// ErrNoProcedure reports a Call of a procedure the servers do not have.
	ErrNoProcedure = errors.New("txn: no such procedure")
	// ErrProtocol reports a message that cannot be decoded, or a server of another version or catalogue.
	ErrProtocol = errors.New("txn: protocol error")
	// ErrForbidden reports a request that the client's role, or its tables, do
	// not allow.
	ErrForbidden = errors.New("txn: forbidden to this client")
	// ErrOutOfMemory reports that a data server's region is full; the transaction was aborted.
	ErrOutOfMemory = errors.New("txn: data server out of memory")
	// ErrFewCopies reports that fewer copies of a data server's data are in sync than
	// its writes require. It is an ErrUnavailable: writes are tried again within the
	// caller's deadline, and reads go on.
	ErrFewCopies = fmt.Errorf("%w: too few copies of its data are in sync", ErrUnavailable)
	// ErrNoSpace reports that the disk of a data server has no room for the log.
	// The transaction was aborted. Reads go on, and so do writes once there is room.
	ErrNoSpace = errors.New("txn: no space on the disk of a data server")
)

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
