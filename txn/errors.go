package txn

import (
	"fmt"
	"time"

	"drtmx/internal/exec"
	"drtmx/tables"
)

// Error is an error with the objects that it concerns: table, key, partition, server,
// limit and size, as far as they apply. It wraps one of the errors below, or one of
// package tables. Get it with errors.As; a procedure's caller receives it, too.
type Error = tables.Error

// RegisterError gives an error of a program a name, under which a procedure passes it
// to its caller. If a procedure's body returns an error that matches err, the
// caller's error matches it for errors.Is. Call it in the programs of both client and
// server, usually when the package that defines err is initialized. A later call with
// the same name replaces the error.
func RegisterError(name string, err error) { exec.RegisterError(name, err) }

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
	// ErrSealed reports a load after the end of loading: see DB.Seal.
	ErrSealed = exec.ErrSealed
	// ErrFewCopies reports that fewer copies of a data server's data are in sync than
	// its writes require. It matches ErrUnavailable: sessions repeat writes until the
	// caller's deadline, and reads go on.
	ErrFewCopies = exec.ErrFewCopies
	// ErrCache reports that Config.Cache asks for inner nodes that there are not: the data
	// servers do not publish them, or an ordered index has string keys.
	ErrCache = exec.ErrCache
	// ErrNoSpace reports that the disk of a data server has no room for the log.
	// Nothing was committed. Reads go on; writes succeed again once there is room.
	ErrNoSpace = exec.ErrNoSpace
	// ErrClosed reports use of a DB after Close, of a Txn after its body returned, or of
	// a Session for a transaction or a Call while its own transaction is in progress.
	ErrClosed = exec.ErrClosed
	// ErrUnavailable reports that a data server which the transaction needs does not
	// answer, or that another process may have its place. Nothing was committed. The
	// error names the server, and the partition if it is known. A durable server may
	// come back, so transactions wait for it: until the caller's deadline, or for
	// Retry.Patience without one.
	ErrUnavailable = exec.ErrUnavailable
	// ErrRestarted reports, together with ErrUnavailable, a data server that was
	// restarted without its memory. The program must open the database again.
	ErrRestarted = exec.ErrRestarted
	// ErrResultLost reports a Call that committed, but whose answer was lost with the
	// connection and is no longer kept by the server.
	ErrResultLost = exec.ErrResultLost
	// ErrOutcomeUnknown reports that the connection to the home server was lost
	// between a commit request and its answer, and that the outcome could not be
	// found out: the home does not answer, or it does not know the outcome because
	// another data server, which may have decided, does not answer. The session asks
	// a durable server until the caller's deadline, or for Retry.Patience without
	// one. The home knows the outcome when the servers have recovered. The error is
	// an *UnknownOutcome.
	ErrOutcomeUnknown = exec.ErrOutcomeUnknown
	// ErrNoProcedure reports a Call of a procedure that the servers do not have.
	ErrNoProcedure = exec.ErrNoProcedure
	// ErrProtocol reports a message that cannot be decoded, or a server of another version or catalogue.
	ErrProtocol = exec.ErrProtocol
	// ErrForbidden reports a request that the client's role, or its tables, do
	// not allow.
	ErrForbidden = exec.ErrForbidden
	// ErrSnapshotTooOld reports a snapshot that needed versions which a server no
	// longer keeps. The error is a *SnapshotTooOld.
	ErrSnapshotTooOld = exec.ErrSnapshotTooOld
	// ErrOutOfMemory reports that a data server's region is full; the transaction was aborted.
	ErrOutOfMemory = exec.ErrOutOfMemory
)

// SnapshotTooOld is the error behind ErrSnapshotTooOld. Its fields are the Partition,
// the Time as of which the snapshot reads, by the cluster's clock, its Age, and the
// partition's limits: it keeps versions for Retain, in at most RetainBytes. Table and
// Engine are set, and only the Partition besides, if the table's engine keeps no versions.
type SnapshotTooOld = exec.SnapshotTooOld

// ID identifies a transaction that writes. It includes where and when it was sent.
// DB.Outcome needs all fields.
type ID struct {
	Client, Seq uint64 // its session, and its number in the session
	Home        int    // the partition whose data server decides it
	// When it was sent, by the clock of that server in one of its lives, or later.
	Incarnation uint64
	Epoch       uint32
	Sent        time.Duration
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
// A body returns a *ProcedureError, or an error that wraps one, to give its caller a
// code and a payload. Any other error reaches the caller as text, and as the Cause if
// both ends know it. The payload may have 64 KiB.
//
// A *ProcedureError with a code is also the pattern for errors like it: for errors.Is
// it matches an error with the same code of the procedure that it names, or of any
// procedure if it names none. So a package that defines a procedure declares its
// errors once. The body returns them and callers match them:
//
//	var ErrSoldOut = &txn.ProcedureError{Procedure: "order", Code: 1, Text: "sold out"}
type ProcedureError struct {
	Procedure string // filled in by Call
	Code      uint32 // defined by the procedure; 0 means none
	Payload   []byte // in an encoding that the procedure defines
	Text      string
	// Cause has the errors that the body's error matched, nil if there were none: an
	// error of this package or of package tables such as ErrNotFound, with the object
	// that it concerns (see Error), and an error of the program (see RegisterError).
	// Only Call sets it.
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

// userError converts an error of package exec to the type that this package
// documents.
func userError(err error) error {
	switch e := err.(type) {
	case *exec.UnknownOutcome:
		return &UnknownOutcome{ID: ID(e.ID), Cause: e.Cause}
	case *exec.ProcedureError:
		return (*ProcedureError)(e)
	}
	return err
}
