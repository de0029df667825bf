package txn

import (
	"context"

	"drtmx/internal/exec"
	"drtmx/tables"
)

// Loader fills tables outside transactions, before the database is used: rows
// are sent in bulk, and secondary entries with them. It serves one goroutine;
// several loaders may run side by side, best on different key ranges.
type Loader exec.Loader

// NewLoader opens a loader for one table.
func (db *DB) NewLoader(ctx context.Context, t *tables.Table) (*Loader, error) {
	l, err := db.exec().NewLoader(ctx, t)
	return (*Loader)(l), err
}

// Add queues one row and its secondary entries. Ascending keys load fastest.
// key and row may be reused on return. If a key is loaded twice the last row
// stays, with the secondary entries of both: give each key once.
func (l *Loader) Add(key tables.Key, row tables.Row) error { return (*exec.Loader)(l).Add(key, row) }

// Close sends what is still queued.
func (l *Loader) Close() error { return (*exec.Loader)(l).Close() }
