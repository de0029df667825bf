package tpcc

import (
	"context"

	"drtmx/tables"
	"drtmx/txn"
)

// operations is what bodies use of a transaction. It exists so that they can
// be tested on a model in memory; live is the real thing.
type operations interface {
	GetLater(tab *tables.Table, key uint64) pendingRow
	ScanLater(ix *tables.Index, lo, hi uint64, limit int) pendingRows
	Insert(tab *tables.Table, key uint64, row tables.Row) error
	Update(tab *tables.Table, key uint64, row tables.Row) error
}

// pendingRow is an announced point read, such as *txn.Get.
type pendingRow interface{ Row() (tables.Row, error) }

// pendingRows is an announced range read, such as *txn.Scan.
type pendingRows interface{ Entries() ([]txn.Entry, error) }

// live adapts *txn.Txn. It is one pointer, so that making an operations of it
// allocates nothing.
type live struct{ *txn.Txn }

func (l live) GetLater(tab *tables.Table, key uint64) pendingRow { return l.Txn.GetLater(tab, key) }
func (l live) ScanLater(ix *tables.Index, lo, hi uint64, limit int) pendingRows {
	return l.Txn.ScanLater(ix, lo, hi, limit)
}

// viewer runs read-only transactions: a database, or a model in tests.
// Implementations are safe for concurrent use.
type viewer interface {
	view(ctx context.Context, body func(operations) error) error
}

type dbViewer struct{ db *txn.DB }

func (d dbViewer) view(ctx context.Context, body func(operations) error) error {
	return d.db.View(ctx, func(t *txn.Txn) error { return body(live{t}) })
}
