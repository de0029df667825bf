package tpcc

import (
	"context"
	"iter"

	"drtmx/tables"
	"drtmx/txn"
)

// operations has the methods of a transaction that bodies use. Tests run bodies
// on a model in memory; live runs them on a real transaction.
type operations interface {
	QueueGet(tab *tables.Table, key tables.Key) pendingRow
	Scan(ix *tables.Index, lo, hi tables.Key) iter.Seq2[txn.Entry, error]
	QueueScan(ix *tables.Index, lo, hi tables.Key, limit int) pendingRows
	Insert(tab *tables.Table, key tables.Key, row tables.Row) error
	Update(tab *tables.Table, key tables.Key, row tables.Row) error
	Delete(tab *tables.Table, key tables.Key) error
}

// pendingRow is a queued point read, such as *txn.QueuedGet.
type pendingRow interface{ Row() (tables.Row, error) }

// pendingRows is a queued range read, such as *txn.QueuedScan.
type pendingRows interface{ Entries() ([]txn.Entry, error) }

// live adapts *txn.Txn. It is one pointer, so that converting it to operations does
// not allocate.
type live struct{ *txn.Txn }

func (l live) QueueGet(tab *tables.Table, key tables.Key) pendingRow { return l.Txn.QueueGet(tab, key) }

func (l live) QueueScan(ix *tables.Index, lo, hi tables.Key, limit int) pendingRows {
	return l.Txn.QueueScan(ix, lo, hi, limit)
}

// viewer runs read-only transactions, for one goroutine.
type viewer interface {
	view(ctx context.Context, body func(operations) error) error
	close() error
}

// database provides a viewer for each goroutine: a DB, or a model in tests.
type database interface {
	viewer(ctx context.Context) (viewer, error)
}

// dbViewers provides viewers of a DB. If writers may run concurrently, they use
// Snapshots. Otherwise they use Views, which do not wait and are never too old.
type dbViewers struct {
	db     *txn.DB
	beside bool
}

func (d dbViewers) viewer(ctx context.Context) (viewer, error) {
	s, err := d.db.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	return sessionViewer{s, d.beside}, nil
}

// sessionViewer has its own session, so that the buffers of a check's large
// Views do not stay in the DB's pool.
type sessionViewer struct {
	s      *txn.Session
	beside bool
}

func (v sessionViewer) view(ctx context.Context, body func(operations) error) error {
	fn := func(t *txn.Txn) error { return body(live{t}) }
	if v.beside {
		return v.s.Snapshot(ctx, fn)
	}
	return v.s.View(ctx, fn)
}

func (v sessionViewer) close() error { return v.s.Close() }

// scan passes each row of a range to fn. The row is valid until fn returns. An error
// of fn ends the scan and is returned.
func scan(t operations, ix *tables.Index, lo, hi tables.Key, fn func(txn.Entry) error) error {
	for e, err := range t.Scan(ix, lo, hi) {
		if err == nil {
			err = fn(e)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
