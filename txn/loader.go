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

// NewLoader opens a loader for one table. It returns ErrSealed if loading has ended.
func (db *DB) NewLoader(ctx context.Context, t *tables.Table) (*Loader, error) {
	l, err := db.exec().NewLoader(ctx, t)
	return (*Loader)(l), err
}

// Add queues one row and its secondary entries. Ascending keys load fastest. The
// caller may reuse key and row on return. If a key is loaded twice the last row
// stays, with the secondary entries of both: load each key once.
//
// A row or key that does not fit the table is refused, and the loader can go on. An
// error of a server ends the load, because rows that Add has accepted are lost with
// it: every later Add and Close return it too. What was sent before stays loaded, rows
// perhaps without their entries in other indexes: such a table is of no use.
func (l *Loader) Add(key tables.Key, row tables.Row) error { return (*exec.Loader)(l).Add(key, row) }

// Close sends the rows that are still queued. It returns nil if the servers have all
// rows that Add has accepted.
func (l *Loader) Close() error { return (*exec.Loader)(l).Close() }
