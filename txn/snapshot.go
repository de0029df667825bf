package txn

import (
	"context"
	"time"
)

// SnapshotOption changes what a Snapshot reads.
type SnapshotOption struct{ staleness time.Duration }

// Staleness lets a Snapshot read data as old as d, so that it begins at once. It
// reads the latest moment of that time at which nothing can change any more.
// Such a Snapshot may miss transactions that ended before it began.
func Staleness(d time.Duration) SnapshotOption { return SnapshotOption{staleness: d} }

func staleness(opts []SnapshotOption) (d time.Duration) {
	for _, o := range opts {
		d = o.staleness
	}
	return d
}

// Snapshot runs a read-only transaction on all data as of one moment, which
// writers never abort: for long reads. It waits first, for about 10 ms. See
// Session.Snapshot.
func (db *DB) Snapshot(ctx context.Context, fn func(*Txn) error, opts ...SnapshotOption) error {
	return db.exec().Snapshot(ctx, staleness(opts), body(fn))
}

// Snapshot runs a read-only transaction on all data as of one moment. It reads
// one-sided, writers never abort it, and there is nothing to validate. The
// moment comes after the call: a Snapshot has every transaction that ended
// before. It waits first, for about 10 ms, until nothing can happen any more
// that would belong to the moment; with Staleness it does not.
//
// A Snapshot is strictly serializable if the clocks of the servers agree, as on
// one machine they do. If one is behind another by more than the time between
// two transactions, of which the earlier wrote at the server that is ahead and
// the later only at the one behind, a Snapshot that begins meanwhile may have
// the later one without the earlier. It is serializable with any clocks.
//
// A Snapshot needs the data servers of what it reads. If others cannot be reached,
// fn may run again, with the same promises.
//
// Snapshot returns an error of fn unchanged. It fails with ErrSnapshotTooOld if
// it runs for longer than the servers keep versions (server.Config.Retain).
func (s *Session) Snapshot(ctx context.Context, fn func(*Txn) error, opts ...SnapshotOption) error {
	return s.exec().Snapshot(ctx, staleness(opts), body(fn))
}
