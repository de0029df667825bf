package exec

import (
	"bytes"
	"errors"
	"fmt"

	"drtmx/index"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// An index that is being built has the entries of some rows: of those written since
// the build began, and of those that the build has passed. All its entries are
// correct: the row exists and has the entry's key. A transaction that changes a row
// must know whether the row has an entry yet. So it reads the entry, and proves that
// read like any other.

// entryOfBuild updates an index that is being built, for a row that changes from
// old to row; nil means that there is no row.
func (t *Txn) entryOfBuild(ix *tables.Index, primary tables.Key, old, row tables.Row) error {
	was, _, misfit := t.keys.entry(ix, primary, old, &t.entryOf.was) // a row that does not fit has no entry
	is, entry, err := t.keys.entry(ix, primary, row, &t.entryOf.is)
	switch {
	case err != nil && misfit != nil:
		return nil // the build has yet to find the row, or has found it
	case err != nil:
		return err
	case old != nil && misfit == nil && row != nil && was == is:
		_, err := t.putEntry(ix, primary, is, entry)
		return err // the build has yet to find the other row with the key
	case old != nil && misfit == nil:
		if err := t.dropEntry(ix, primary, was); err != nil {
			return err
		}
	}
	if row == nil {
		return nil
	}
	return t.set(ix, wire.Insert, is, entry)
}

// putEntry makes sure that a row has its entry. It returns false if another row has
// the key.
func (t *Txn) putEntry(ix *tables.Index, primary tables.Key, key index.Key, entry tables.Row) (own bool, err error) {
	was, err := t.queueGet(ix, key).await()
	switch {
	case errors.Is(err, ErrNotFound):
		return true, t.set(ix, wire.Insert, key, entry)
	case err != nil:
		return false, err
	case ix.EntryOf(was).Compare(primary) != 0:
		return false, nil
	case bytes.Equal(was, entry):
		return true, nil
	}
	return true, t.set(ix, wire.Update, key, entry)
}

// dropEntry removes the entry of a row, if it has one.
func (t *Txn) dropEntry(ix *tables.Index, primary tables.Key, key index.Key) error {
	was, err := t.queueGet(ix, key).await()
	switch {
	case errors.Is(err, ErrNotFound):
		return nil
	case err != nil:
		return err
	case ix.EntryOf(was).Compare(primary) != 0:
		return nil
	}
	return t.set(ix, wire.Delete, key, nil)
}

// Build makes sure that a row has its entry in an index that is being built, if
// the row exists. It fails with ErrExists if another row has the key, and with
// tables.ErrRow if the row does not fit the index.
func (t *Txn) Build(ix *tables.Index, primary tables.Key) error {
	if ix.ID >= len(t.catalog.Indexes) {
		return fmt.Errorf("%w: index %s", tables.ErrCatalog, ix.Name)
	}
	ix = t.catalog.Indexes[ix.ID]
	if !ix.IsBuilding() {
		return ix.Readable()
	}
	rows := ix.Table.Primary()
	row, err := t.queueGet(rows, t.keys.keep(rows, primary)).await()
	if errors.Is(err, ErrNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	if ix.IsTwin() {
		key := t.keys.keep(ix, primary)
		if _, err = t.queueGet(ix, key).await(); errors.Is(err, ErrNotFound) {
			err = t.set(ix, wire.Insert, key, twinRow)
		}
		return err
	}
	key, entry, err := t.keys.entry(ix, primary, row, &t.entryOf.is)
	if err != nil {
		e := ix.Concerns(tables.ErrRow, primary)
		e.Detail = err.Error()
		return t.doom(e)
	}
	own, err := t.putEntry(ix, primary, key, entry)
	if err != nil || own {
		return err
	}
	e := t.concerns(ErrExists, ix, key)
	e.Detail = fmt.Sprintf("row %v has the key, and another row", primary)
	return t.doom(e)
}
