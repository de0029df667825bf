package txn

import (
	"context"

	"drtmx/internal/exec"
	"drtmx/tables"
)

// DB is a client of a cluster: its catalogue, its partition map, and the
// client halves of all indexes, which its sessions share. Its methods are safe
// for concurrent use; each borrows a [Session] from a pool.
type DB exec.DB

// Open connects to a cluster and fetches its catalogue, its partition map and
// the caches of its indexes. It returns ErrUnavailable if no server answers,
// and ErrProtocol if one speaks another version.
func Open(ctx context.Context, c Config) (*DB, error) {
	db, err := exec.Open(ctx, c.exec())
	return (*DB)(db), err
}

func (db *DB) exec() *exec.DB { return (*exec.DB)(db) }

// Home is the partition whose primary coordinates a transaction.
type Home int

// Catalog returns the cluster's catalogue.
func (db *DB) Catalog() *tables.Catalog { return db.exec().Catalog() }

// Table returns the table of a name, or an error that wraps tables.ErrNoTable.
func (db *DB) Table(name string) (*tables.Table, error) { return db.exec().Table(name) }

// Partitions returns the number of partitions.
func (db *DB) Partitions() int { return db.exec().Partitions() }

// Servers returns the addresses of the data servers.
func (db *DB) Servers() []string { return db.exec().Servers() }

// Home returns the partition that holds a key of a table, or tables.ErrKey if
// the key does not fit the table.
func (db *DB) Home(t *tables.Table, key tables.Key) (Home, error) {
	h, err := db.exec().Home(t, key)
	return Home(h), err
}

// View runs a read-only transaction, strictly serializable. See Session.View.
func (db *DB) View(ctx context.Context, fn func(*Txn) error) error {
	return db.exec().View(ctx, body(fn))
}

// Update runs a transaction that may write. See Session.Update.
func (db *DB) Update(ctx context.Context, fn func(*Txn) error) error {
	return userError(db.exec().Update(ctx, body(fn)))
}

// Call runs a procedure at the primary of h. See Session.Call. The result
// belongs to the caller.
func (db *DB) Call(ctx context.Context, h Home, proc string, args []byte) ([]byte, error) {
	res, err := db.exec().Call(ctx, exec.Home(h), proc, args)
	return res, userError(err)
}

// Outcome asks for the outcome of a transaction whose outcome was unknown. Nil
// means that it committed, ErrConflict that it did not commit and never will,
// ErrOutcomeUnknown that no server knows the outcome, and ErrUnavailable that a
// server which may know it does not answer.
func (db *DB) Outcome(ctx context.Context, id ID) error {
	return db.exec().Outcome(ctx, exec.ID(id))
}

// NewSession opens a session for one goroutine, with a connection to each
// server that it uses. DB's own methods use sessions of a pool.
func (db *DB) NewSession(ctx context.Context) (*Session, error) {
	s, err := db.exec().NewSession(ctx)
	return (*Session)(s), err
}

// Seal ends loading: the servers train the models of all ordered indexes and
// refuse further loads.
func (db *DB) Seal(ctx context.Context) error { return db.exec().Seal(ctx) }

// IndexStats returns the counters of the client halves of all indexes.
func (db *DB) IndexStats() []IndexStats {
	var out []IndexStats
	for _, st := range db.exec().IndexStats() {
		out = append(out, IndexStats(st))
	}
	return out
}

// ServerStats asks every server for its statistics.
func (db *DB) ServerStats(ctx context.Context) ([]ServerStats, error) {
	return db.exec().ServerStats(ctx)
}

// Close closes all sessions. Transactions in progress fail with ErrClosed.
func (db *DB) Close() error { return db.exec().Close() }
