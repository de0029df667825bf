package txn

import (
	"context"

	"drtmx/tables"
)

type DB struct{}

// Open connects to a cluster.
func Open(ctx context.Context, c Config) (*DB, error)                { return nil, ErrClosed }
func (db *DB) Close() error                                          { return nil }
func (db *DB) Catalog() *tables.Catalog                              { return nil }
func (db *DB) Table(name string) (*tables.Table, error)              { return nil, nil }
func (db *DB) Partitions() int                                       { return 0 }
func (db *DB) Home(t *tables.Table, key uint64) Home                 { return 0 }
func (db *DB) View(ctx context.Context, fn func(*Txn) error) error   { return nil }
func (db *DB) Update(ctx context.Context, fn func(*Txn) error) error { return nil }
func (db *DB) Call(ctx context.Context, h Home, proc string, args []byte) ([]byte, error) {
	return nil, nil
}

// NewSession makes a session of its own for a worker goroutine (DB's own methods draw from a pool of sessions).
func (db *DB) NewSession(ctx context.Context) (*Session, error) { return nil, nil }

// NewLoader bulk-loads a table outside transactions, before the database is used. One goroutine each.
func (db *DB) NewLoader(ctx context.Context, t *tables.Table) (*Loader, error) { return nil, nil }

// Seal ends loading: indexes are trained, and the servers refuse further loads.
func (db *DB) Seal(ctx context.Context) error { return nil }

type Loader struct{}

// Add queues one row (and its secondary entries); ascending keys load fastest. row may be reused on return.
func (l *Loader) Add(key uint64, row tables.Row) error { return nil }

// Close flushes what is queued.
func (l *Loader) Close() error { return nil }

type Session struct{}

func (s *Session) View(ctx context.Context, fn func(*Txn) error) error   { return nil }
func (s *Session) Update(ctx context.Context, fn func(*Txn) error) error { return nil }
func (s *Session) Call(ctx context.Context, h Home, proc string, args []byte) ([]byte, error) {
	return nil, nil
}
func (s *Session) Stats() SessionStats { return SessionStats{} }
func (s *Session) Close() error        { return nil }

// Txn is a transaction under way, for the goroutine its body runs in.
type Txn struct{}

// Get reads a row by primary key: ErrNotFound if there is none.
func (t *Txn) Get(tab *tables.Table, key uint64) (tables.Row, error) { return nil, nil }

// GetLater announces a Get. All announced reads are carried out together, in the same network rounds, when the first of them is asked for its result.
func (t *Txn) GetLater(tab *tables.Table, key uint64) *Get { return nil }

// Scan reads the rows with lo <= key <= hi of an ordered index (a table's primary, or a secondary) in key order, at most limit (0: all).
// The entries of a secondary index hold PrimaryKey and the included columns.
func (t *Txn) Scan(ix *tables.Index, lo, hi uint64, limit int) ([]Entry, error) { return nil, nil }

// ScanLater announces a Scan.
func (t *Txn) ScanLater(ix *tables.Index, lo, hi uint64, limit int) *Scan { return nil }

// Insert adds a row; the transaction fails with ErrExists (from Insert or from the commit) if the key is taken. row may be reused on return.
func (t *Txn) Insert(tab *tables.Table, key uint64, row tables.Row) error { return nil }

// Put writes a row, whether or not there is one.
func (t *Txn) Put(tab *tables.Table, key uint64, row tables.Row) error { return nil }

// Update overwrites a row that exists; ErrNotFound otherwise (from Update or from the commit).
func (t *Txn) Update(tab *tables.Table, key uint64, row tables.Row) error { return nil }

// Delete removes a row; ErrNotFound if there is none.
func (t *Txn) Delete(tab *tables.Table, key uint64) error { return nil }

type Get struct{}

// Row waits for the result: ErrNotFound if there is no row. The row is a view valid until the body returns.
func (g *Get) Row() (tables.Row, error) { return nil, nil }

type Scan struct{}

// Entries waits for the result, in key order; views valid until the body returns.
func (s *Scan) Entries() ([]Entry, error) { return nil, nil }
