package txn

import (
	"drtmx/internal/exec"
	"drtmx/tables"
)

// Bounds of one transaction. A transaction above one fails with ErrTooLarge.
const (
	// MaxReads bounds the lookups and scans that a transaction makes.
	MaxReads = exec.MaxReads
	// MaxWrites bounds the changes of rows and of secondary entries in a transaction.
	MaxWrites = exec.MaxWrites
	// MaxScanRows bounds the rows that one scan returns, over all partitions.
	MaxScanRows = exec.MaxScanRows
	// MaxProofs bounds, for a transaction that writes, the rows and the gaps
	// between rows that it reads in one partition.
	MaxProofs = exec.MaxProofs
	// MaxCommitBytes bounds the writes and the proofs of reads that a
	// transaction sends when it commits: to its home server, and for a
	// procedure to any other server.
	MaxCommitBytes = exec.MaxCommitBytes
	// MaxResultBytes bounds the result of a procedure.
	MaxResultBytes = exec.MaxResultBytes
)

// Txn is a transaction in progress, for the goroutine its body runs in. Rows
// and keys that it returns are valid until the body returns. Keys and rows that
// are passed to it may be reused on return. A key that does not fit its table
// is refused with tables.ErrKey.
type Txn exec.Txn

func (t *Txn) exec() *exec.Txn { return (*exec.Txn)(t) }

// body lets package exec run a function of this package's Txn.
type body func(*Txn) error

// Run implements exec.Body.
func (fn body) Run(t *exec.Txn) error { return fn((*Txn)(t)) }

// Entry is one row of a scan. Its key and row are valid until the body returns.
type Entry = tables.Entry

// Get is an announced point read; see Txn.GetLater.
type Get exec.Get

// Row waits for the result. It returns ErrNotFound if there is no row.
func (g *Get) Row() (tables.Row, error) { return (*exec.Get)(g).Row() }

// Scan is an announced range read; see Txn.ScanLater.
type Scan exec.Scan

// Entries waits for the result, in key order.
func (sc *Scan) Entries() ([]Entry, error) { return (*exec.Scan)(sc).Entries() }

// Get reads a row by primary key. It returns ErrNotFound if there is none.
func (t *Txn) Get(tab *tables.Table, key tables.Key) (tables.Row, error) {
	return t.exec().Get(tab, key)
}

// GetLater announces a Get. When the body waits for the first result, all
// announced reads run together, in the same network rounds.
func (t *Txn) GetLater(tab *tables.Table, key tables.Key) *Get {
	return (*Get)(t.exec().GetLater(tab, key))
}

// Scan reads the rows with lo ≤ key ≤ hi of an ordered index (a table's
// primary or a secondary) in key order, at most limit; limit ≤ 0 asks for all,
// up to MaxScanRows. [tables.First] and [tables.Last] reach to the ends of the
// index. Entries of a secondary index hold PrimaryKey and the included columns.
func (t *Txn) Scan(ix *tables.Index, lo, hi tables.Key, limit int) ([]Entry, error) {
	return t.exec().Scan(ix, lo, hi, limit)
}

// ScanLater announces a Scan, as GetLater does a Get.
func (t *Txn) ScanLater(ix *tables.Index, lo, hi tables.Key, limit int) *Scan {
	return (*Scan)(t.exec().ScanLater(ix, lo, hi, limit))
}

// Insert adds a row. If the key exists, Insert or the commit returns ErrExists.
func (t *Txn) Insert(tab *tables.Table, key tables.Key, row tables.Row) error {
	return t.exec().Insert(tab, key, row)
}

// Put inserts a row or overwrites the existing one.
func (t *Txn) Put(tab *tables.Table, key tables.Key, row tables.Row) error {
	return t.exec().Put(tab, key, row)
}

// Update overwrites an existing row. If there is none, Update or the commit
// returns ErrNotFound.
func (t *Txn) Update(tab *tables.Table, key tables.Key, row tables.Row) error {
	return t.exec().Update(tab, key, row)
}

// Delete removes a row. If there is none, Delete or the commit returns
// ErrNotFound.
func (t *Txn) Delete(tab *tables.Table, key tables.Key) error { return t.exec().Delete(tab, key) }
