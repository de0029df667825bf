package txn

import (
	"context"
	"time"
)

// SnapshotOption is an option of Snapshot.
type SnapshotOption struct{ staleness time.Duration }

// Staleness allows a Snapshot to read data up to d old, so that it begins at once. It
// reads as of the latest moment within d whose data cannot change any more. Such a
// Snapshot may miss transactions that ended before it began.
func Staleness(d time.Duration) SnapshotOption { return SnapshotOption{staleness: d} }

func staleness(opts []SnapshotOption) (d time.Duration) {
	for _, o := range opts {
		d = o.staleness
	}
	return d
}

// Snapshot runs a read-only transaction on all data as of one moment. Writers never
// abort it, so it suits long reads. It first waits for about 10 ms. See
// Session.Snapshot.
func (db *DB) Snapshot(ctx context.Context, fn func(*Txn) error, opts ...SnapshotOption) error {
	return db.exec().Snapshot(ctx, staleness(opts), body(fn))
}

// Snapshot runs a read-only transaction on all data as of one moment. It reads
// one-sided, writers never abort it, and there is nothing to validate. The moment is
// after the call: a Snapshot shows every transaction that ended before. It first
// waits for about 10 ms, until no more commits can belong to the moment. With
// Staleness it does not wait, unless there was no Snapshot for some seconds.
//
// A Snapshot is strictly serializable if the clocks of the servers agree, as they do
// on one machine. Suppose that one clock is behind another by more than the time
// between two transactions, of which the earlier wrote at the server that is ahead
// and the later only at the one behind. A Snapshot that begins meanwhile may then
// show the later one without the earlier. It is serializable with any clocks.
//
// The first Snapshot for some seconds also asks the servers to keep versions of rows
// that are overwritten (server.Config.Retain).
//
// A Snapshot needs only the data servers of the rows that it reads. If others cannot
// be reached, fn may run again, with the same guarantees.
//
// Snapshot returns an error of fn unchanged. It fails with ErrSnapshotTooOld if
// it runs for longer than the servers keep versions (server.Config.Retain).
func (s *Session) Snapshot(ctx context.Context, fn func(*Txn) error, opts ...SnapshotOption) error {
	return s.exec().Snapshot(ctx, staleness(opts), body(fn))
}
