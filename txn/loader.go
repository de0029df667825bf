package txn

import (
	"context"

	"drtmx/internal/exec"
	"drtmx/tables"
)

// Loader fills a table outside transactions, before the database is used. It sends
// rows in bulk, with their secondary entries. A Loader is for one goroutine. Several
// may run concurrently, preferably on different key ranges.
type Loader exec.Loader

// NewLoader opens a loader for one table.
func (db *DB) NewLoader(ctx context.Context, t *tables.Table) (*Loader, error) {
	l, err := db.exec().NewLoader(ctx, t)
	return (*Loader)(l), err
}

// Add queues one row and its secondary entries. Ascending keys load fastest. The
// caller may reuse key and row on return. If a key is loaded twice the last row
// stays, with the secondary entries of both: load each key once.
func (l *Loader) Add(key tables.Key, row tables.Row) error { return (*exec.Loader)(l).Add(key, row) }

// Close sends the rows that are still queued.
func (l *Loader) Close() error { return (*exec.Loader)(l).Close() }
