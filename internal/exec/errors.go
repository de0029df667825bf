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
	// ErrClosed reports use of a DB after Close, of a Txn after its body returned, or of
	// a Session for a transaction or a Call while its own transaction is in progress.
	ErrClosed = errors.New("txn: closed")
	// ErrUnavailable reports that a data server which the transaction needs does not
	// answer, that a partition is fenced and no longer served, or that another
	// process may have the server's place. Nothing was committed. The error names the
	// server and the partition as far as they are known. A durable server may come
	// back, so transactions wait for it: until the caller's deadline, or for
	// Retry.Patience without one.
	ErrUnavailable = errors.New("txn: data server unavailable")
	// ErrRestarted reports, together with ErrUnavailable, a data server that was
	// restarted without its memory. The program must open the database again.
	ErrRestarted = errors.New("txn: data server was restarted and its memory is gone; open the database again")
	// ErrResultLost reports a Call that committed, but whose answer was lost with the
	// connection and is no longer kept by the server.
	ErrResultLost = errors.New("txn: committed, but the procedure's result is lost")
	// ErrOutcomeUnknown reports that the connection to the home server was lost
	// between a commit request and its answer, and that the outcome could not be
	// found out: the home does not answer, or it does not know the outcome because
	// another data server, which may have decided, does not answer. The session asks
	// a durable server until the caller's deadline, or for Retry.Patience without
	// one. The home knows the outcome when the servers have recovered. The error is
	// an *UnknownOutcome.
	ErrOutcomeUnknown = errors.New("txn: outcome unknown")
	// ErrNoProcedure reports a Call of a procedure that the servers do not have.
	ErrNoProcedure = errors.New("txn: no such procedure")
	// ErrProtocol reports a message that cannot be decoded, or a server of another version or catalogue.
	ErrProtocol = errors.New("txn: protocol error")
	// ErrForbidden reports a request that the client's role, or its tables, do
	// not allow.
	ErrForbidden = errors.New("txn: forbidden to this client")
	// ErrOutOfMemory reports that a data server's region is full; the transaction was aborted.
	ErrOutOfMemory = errors.New("txn: data server out of memory")
	// ErrSealed reports a load after the end of loading: see DB.Seal.
	ErrSealed = errors.New("txn: loading has ended; insert rows in transactions")
	// ErrFewCopies reports that fewer copies of a data server's data are in sync than
	// its writes require. It matches ErrUnavailable: sessions repeat writes until the
	// caller's deadline, and reads go on.
	ErrFewCopies = fmt.Errorf("%w: too few copies of its data are in sync", ErrUnavailable)
	// ErrCache reports that Config.Cache asks for inner nodes that there are not: the data
	// servers do not publish them, or an ordered index has string keys.
	ErrCache = errors.New("txn: no inner nodes to cache")
	// ErrNoSpace reports that the disk of a data server has no room for the log. The
	// transaction was aborted. Reads go on; writes succeed again once there is room.
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
