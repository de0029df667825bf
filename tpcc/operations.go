package tpcc

import (
	"context"

	"drtmx/tables"
	"drtmx/txn"
)

// operations has the methods of a transaction that bodies use. Tests run bodies
// on a model in memory; live runs them on a real transaction.
type operations interface {
	GetLater(tab *tables.Table, key tables.Key) pendingRow
	ScanLater(ix *tables.Index, lo, hi tables.Key, limit int) pendingRows
	Insert(tab *tables.Table, key tables.Key, row tables.Row) error
	Update(tab *tables.Table, key tables.Key, row tables.Row) error
	Delete(tab *tables.Table, key tables.Key) error
}

// pendingRow is an announced point read, such as *txn.Get.
type pendingRow interface{ Row() (tables.Row, error) }

// pendingRows is an announced range read, such as *txn.Scan.
type pendingRows interface{ Entries() ([]txn.Entry, error) }

// live adapts *txn.Txn. It is one pointer, so that converting it to operations
// allocates nothing.
type live struct{ *txn.Txn }

func (l live) GetLater(tab *tables.Table, key tables.Key) pendingRow { return l.Txn.GetLater(tab, key) }

func (l live) ScanLater(ix *tables.Index, lo, hi tables.Key, limit int) pendingRows {
	return l.Txn.ScanLater(ix, lo, hi, limit)
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

type dbViewers struct{ db *txn.DB }

func (d dbViewers) viewer(ctx context.Context) (viewer, error) {
	s, err := d.db.NewSession(ctx)
	if err != nil {
		return nil, err
	}
	return sessionViewer{s}, nil
}

// sessionViewer has its own session, so that the buffers of a check's large
// Views do not stay in the DB's pool.
type sessionViewer struct{ s *txn.Session }

func (v sessionViewer) view(ctx context.Context, body func(operations) error) error {
	return v.s.View(ctx, func(t *txn.Txn) error { return body(live{t}) })
}

func (v sessionViewer) close() error { return v.s.Close() }

// scanPages reads a range of any size, page by page, and passes each row to fn.
// It returns the first error of fn.
func scanPages(t operations, ix *tables.Index, lo, hi tables.Key, fn func(txn.Entry) error) error {
	const pageRows = 4096
	for {
		page, err := t.ScanLater(ix, lo, hi, pageRows).Entries()
		if err != nil {
			return err
		}
		for _, e := range page {
			if err := fn(e); err != nil {
				return err
			}
		}
		if len(page) < pageRows || page[len(page)-1].Key == hi {
			return nil
		}
		lo = nextKey(page[len(page)-1].Key)
	}
}
