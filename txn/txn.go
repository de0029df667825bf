package txn

import (
	"errors"
	"iter"
	"time"

	"drtmx/internal/exec"
	"drtmx/tables"
)

// Bounds of one transaction. A transaction above one fails with ErrTooLarge.
const (
	// MaxReads bounds the lookups and scans that a transaction makes. An iterator
	// counts once, however many rows it returns; Lookups has no bound.
	MaxReads = 1 << 16
	// MaxWrites bounds the changes of rows, and of entries of secondary indexes and twins, in a
	// transaction.
	MaxWrites = 1 << 14
	// MaxScanRows bounds the rows that one QueueScan returns, over all
	// partitions. Iterators have no bound.
	MaxScanRows = 1 << 15
	// MaxProofs bounds, for a transaction that writes, the rows and the gaps
	// between rows that it reads in one partition.
	MaxProofs = 1 << 16
	// MaxCommitBytes bounds the writes and the proofs of reads that a
	// transaction sends when it commits: to its home server, and for a
	// procedure to any other server.
	MaxCommitBytes = 1<<20 - 32<<10
	// MaxResultBytes bounds the result of a procedure.
	MaxResultBytes = 1<<20 - 9
	// MaxBodyAge bounds the time from a body's first read to its validation or
	// commit: servers may reuse memory that was freed longer ago. Time in which the
	// machine sleeps does not count. See Config.BodyAge.
	MaxBodyAge = 15 * time.Second
)

// The bounds are those of the engine: an index out of range does not compile.
var (
	_ = [1]int{}[MaxReads-exec.MaxReads]
	_ = [1]int{}[MaxWrites-exec.MaxWrites]
	_ = [1]int{}[MaxScanRows-exec.MaxScanRows]
	_ = [1]int{}[MaxProofs-exec.MaxProofs]
	_ = [1]int{}[MaxCommitBytes-exec.MaxCommitBytes]
	_ = [1]int{}[MaxResultBytes-exec.MaxResultBytes]
	_ = [1]int{}[MaxBodyAge-exec.MaxBodyAge]
	_ = [1]int{}[CauseCount-Cause(exec.CauseCount)]
)

// Txn is a transaction in progress, for the goroutine its body runs in. Rows and keys
// that it returns are valid until the body returns. The caller may reuse keys and
// rows that it passes when the method returns. Methods return tables.ErrKey for a key
// that does not fit its table.
type Txn exec.Txn

func (t *Txn) exec() *exec.Txn { return (*exec.Txn)(t) }

var _ tables.Tx = (*Txn)(nil)

// body lets package exec run a function of this package's Txn.
type body func(*Txn) error

// Run implements exec.Body.
func (fn body) Run(t *exec.Txn) error { return fn((*Txn)(t)) }

// Entry is one row of a scan.
type Entry = tables.Entry

// QueuedGet is a point read that Txn.QueueGet has queued.
type QueuedGet exec.Get

// Row waits for the result. It returns ErrNotFound if there is no row.
func (g *QueuedGet) Row() (tables.Row, error) { return (*exec.Get)(g).Row() }

// QueuedScan is a range read that Txn.QueueScan has queued.
type QueuedScan exec.Scan

// Entries waits for the result, in key order.
func (sc *QueuedScan) Entries() ([]Entry, error) { return (*exec.Scan)(sc).Entries() }

// Get reads a row by primary key. It returns ErrNotFound if there is none.
func (t *Txn) Get(tab *tables.Table, key tables.Key) (tables.Row, error) {
	return t.exec().Get(tab, key)
}

// QueueGet queues a Get and returns at once. When the body asks for the first
// result, all queued reads run together, in the same network rounds.
func (t *Txn) QueueGet(tab *tables.Table, key tables.Key) *QueuedGet {
	return (*QueuedGet)(t.exec().QueueGet(tab, key))
}

// GetMany reads rows by their primary keys, all in the same network rounds. The
// result for a key without a row is nil.
func (t *Txn) GetMany(tab *tables.Table, keys []tables.Key) ([]tables.Row, error) {
	gets, rows := make([]*QueuedGet, len(keys)), make([]tables.Row, len(keys))
	for i, key := range keys {
		gets[i] = t.QueueGet(tab, key)
	}
	for i, g := range gets {
		var err error
		if rows[i], err = g.Row(); err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
	}
	return rows, nil
}

// Lookups returns a function that reads rows as GetMany does, but as many as one likes
// over all its calls, in the memory of one: the rows that it returns are valid until its
// next call. A View or an Update keeps 16 bytes for each row.
func (t *Txn) Lookups(tab *tables.Table) func(keys []tables.Key) ([]tables.Row, error) {
	return t.exec().Lookups(tab).Rows
}

// Scan returns an iterator over the rows with lo ≤ key ≤ hi of an ordered index
// (a table's primary or a secondary), in key order:
//
//	for e, err := range t.Scan(account.Primary(), tables.Num(1), tables.Last) {
//		if err != nil {
//			return err
//		}
//		sum += e.Row.Int(balance)
//	}
//
// [tables.First] and [tables.Last] reach to the ends of the index,
// [tables.Prefix] returns the bounds of the string keys with a prefix, and
// [tables.After] and [tables.Before] leave out the key of a bound. Entries
// of a secondary index hold PrimaryKey and the included columns.
//
// The iterator reads pages of growing size, up to some hundred rows, so a loop that
// breaks early has read little more than it used, and a range may have any number of
// rows. A row and its key are valid until the loop's next step. An error ends the
// loop. If the loop itself inserts, changes or deletes rows after its position, it
// may or may not see these changes.
//
// A View or an Update proves its reads when it ends. For that it keeps 16 bytes for
// each row. An Update may read at most MaxProofs rows in a partition.
func (t *Txn) Scan(ix *tables.Index, lo, hi tables.Key) iter.Seq2[Entry, error] {
	return t.exec().Rows(ix, lo, hi, false)
}

// ScanReverse returns an iterator over the same rows as Scan, from hi down to lo.
//
// It guesses from the models of the index where to begin each page. A DB that reads
// OrderedByRPC has no models, and so reads the range forward first.
func (t *Txn) ScanReverse(ix *tables.Index, lo, hi tables.Key) iter.Seq2[Entry, error] {
	return t.exec().Rows(ix, lo, hi, true)
}

// QueueScan queues a scan of at most limit rows, as QueueGet queues a Get;
// limit ≤ 0 asks for all, up to MaxScanRows. Unlike with Scan, the rows are valid
// until the body returns.
func (t *Txn) QueueScan(ix *tables.Index, lo, hi tables.Key, limit int) *QueuedScan {
	return (*QueuedScan)(t.exec().QueueScan(ix, lo, hi, limit))
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
