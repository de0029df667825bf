package exec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"drtmx/index"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// writable makes the checks common to all writes.
func (t *Txn) writable(tab *tables.Table) error {
	if err := t.usable(); err != nil {
		return err
	}
	if t.mode != update {
		return tab.Primary().Concerns(fmt.Errorf("%w transaction", ErrReadOnly), tables.Key{})
	}
	if tab.Replicated() {
		return tab.Primary().Concerns(fmt.Errorf("%w table: replicated tables are written by loading", ErrReadOnly), tables.Key{})
	}
	if t.writes.n >= MaxWrites {
		return t.fail(tooLarge("writes of one transaction", t.writes.n+1, MaxWrites, "MaxWrites"))
	}
	if t.where.only >= 0 && tab.Primary().Partition.Kind == tables.Replicated {
		return t.fail(errRemote)
	}
	return nil
}

// set records one index write, combined with an earlier one of the same key.
func (t *Txn) set(ix *tables.Index, op wire.WriteOp, key index.Key, row tables.Row) error {
	if t.where.only >= 0 && partitionOf(ix, key, t.where.nparts) != t.where.only {
		return t.fail(errRemote)
	}
	w := t.writes.find(ix.ID, key)
	if w == nil {
		w = t.writes.add(ix, key)
		w.op, w.hint = op, t.reads.hint(ix, key)
		w.row = append(w.row, row...)
		t.volume += 2 * len(row) // in the write set and in the message
		return nil
	}
	switch op {
	case wire.Insert:
		if !w.gone() {
			return t.concerns(ErrExists, ix, key)
		}
		if w.dropped {
			w.op, w.dropped = wire.Insert, false
		} else {
			w.op = wire.Update // deleted before: the row exists
		}
	case wire.Put:
		if w.op == wire.Delete {
			w.op = wire.Update
		} else if w.dropped {
			w.op, w.dropped = wire.Insert, false
		}
	case wire.Update:
		if w.gone() {
			return t.concerns(ErrNotFound, ix, key)
		}
	case wire.Delete:
		if w.gone() {
			return t.concerns(ErrNotFound, ix, key)
		}
		if w.op == wire.Insert {
			return t.takeBack(w)
		}
		if w.op == wire.Put {
			if _, err := t.underlying(ix, key); errors.Is(err, ErrNotFound) {
				w.dropped = true
				return nil
			} else if err != nil {
				return err
			}
		}
		w.op = wire.Delete
	}
	t.volume += 2 * max(len(row)-len(w.row), 0)
	w.row = append(tables.Row(nil), row...) // the caller may still use the old one
	return nil
}

// takeBack drops an insert of the same transaction. The transaction still depends on
// the absence of the key, so takeBack reads the key to prove it.
func (t *Txn) takeBack(w *write) error {
	_, err := t.underlying(w.ix, w.key)
	switch {
	case errors.Is(err, ErrNotFound):
		w.dropped = true
		return nil
	case err == nil:
		return t.doom(t.concerns(ErrExists, w.ix, w.key))
	}
	return err
}

// underlying reads a key without the transaction's own write of it.
func (t *Txn) underlying(ix *tables.Index, key index.Key) (tables.Row, error) {
	w := t.writes.find(ix.ID, key)
	w.hidden = true
	defer func() { w.hidden = false }()
	return t.queueGet(ix, key).await()
}

// Insert adds a row. If the key is taken the transaction fails with ErrExists,
// from Insert or from its commit. key and row may be reused on return.
func (t *Txn) Insert(tab *tables.Table, key tables.Key, row tables.Row) error {
	as := tab
	tab, err := t.catalog.Resolve(tab)
	if err != nil {
		return err
	}
	ix := tab.Primary()
	if err := cmp.Or(t.writable(tab), ix.CheckKey(key), t.checkRow(as, row)); err != nil {
		return err
	}
	if tab.EarlierFormat(as) {
		row = tab.FromEarlier(as, row)
	}
	return t.insert(tab, t.keys.keep(ix, key), row)
}

func (t *Txn) insert(tab *tables.Table, key index.Key, row tables.Row) error {
	if err := t.set(tab.Primary(), wire.Insert, key, row); err != nil {
		return err
	}
	if err := t.writeTwin(tab, key); err != nil {
		return err
	}
	return t.entries(tab, key, nil, row)
}

// Put inserts a row or overwrites the existing one.
func (t *Txn) Put(tab *tables.Table, key tables.Key, row tables.Row) error {
	as := tab
	tab, err := t.catalog.Resolve(tab)
	if err != nil {
		return err
	}
	ix := tab.Primary()
	if err := cmp.Or(t.writable(tab), ix.CheckKey(key), t.checkRow(as, row)); err != nil {
		return err
	}
	k := t.keys.keep(ix, key)
	if !tab.Indexed() && !tab.EarlierFormat(as) {
		if err := t.set(ix, wire.Put, k, row); err != nil {
			return err
		}
		return t.writeTwin(tab, k)
	}
	old, err := t.current(ix, k)
	if errors.Is(err, ErrNotFound) {
		if tab.EarlierFormat(as) {
			row = tab.FromEarlier(as, row)
		}
		return t.insert(tab, k, row)
	} else if err != nil {
		return err
	}
	return t.replaceOf(as, tab, k, old, row)
}

// Update overwrites an existing row. If there is none, Update or the commit
// returns ErrNotFound.
func (t *Txn) Update(tab *tables.Table, key tables.Key, row tables.Row) error {
	as := tab
	tab, err := t.catalog.Resolve(tab)
	if err != nil {
		return err
	}
	ix := tab.Primary()
	if err := cmp.Or(t.writable(tab), ix.CheckKey(key), t.checkRow(as, row)); err != nil {
		return err
	}
	k := t.keys.keep(ix, key)
	if !tab.Indexed() && !tab.EarlierFormat(as) {
		return t.set(ix, wire.Update, k, row)
	}
	old, err := t.current(ix, k)
	if err != nil {
		return t.named(err, ix, k)
	}
	return t.replaceOf(as, tab, k, old, row)
}

// checkRow checks a row that the body has made for its definition of the table. The
// body may have read a row with columns that this DB does not know yet.
func (t *Txn) checkRow(as *tables.Table, row tables.Row) error {
	err := as.CheckRow(row)
	if err == nil || t.s == nil || !as.Grows() {
		return err
	}
	if newer, rerr := t.s.net.refresh(t.ctx); newer && rerr == nil {
		return t.abandon(CauseCatalog)
	}
	return err
}

// replaceOf does the same as replace for a row that the body has made for the
// definition as. It keeps the columns of old that as lacks.
func (t *Txn) replaceOf(as, tab *tables.Table, key index.Key, old, row tables.Row) error {
	if tab.EarlierFormat(as) {
		row = tab.MergeEarlier(as, row, old)
	}
	return t.replace(tab, key, old, row)
}

// current returns the row as the transaction sees it now. It does not read a
// row again that the transaction has read and not written since, because that
// would cost a round.
func (t *Txn) current(ix *tables.Index, key index.Key) (tables.Row, error) {
	if t.writes.find(ix.ID, key) == nil {
		if g := t.reads.find(ix, key); g != nil {
			return g.row, g.err
		}
	}
	return t.queueGet(ix, key).await()
}

func (t *Txn) replace(tab *tables.Table, key index.Key, old, row tables.Row) error {
	old = t.entryOf.keepOld(old) // set may overwrite it, if it is the transaction's own
	if err := t.set(tab.Primary(), wire.Update, key, row); err != nil {
		return err
	}
	return t.entries(tab, key, old, row)
}

// Delete removes a row. If there is none, Delete or the commit returns
// ErrNotFound.
func (t *Txn) Delete(tab *tables.Table, key tables.Key) error {
	tab, err := t.catalog.Resolve(tab)
	if err != nil {
		return err
	}
	ix := tab.Primary()
	if err := cmp.Or(t.writable(tab), ix.CheckKey(key)); err != nil {
		return err
	}
	k := t.keys.keep(ix, key)
	var old tables.Row
	if tab.Indexed() {
		row, err := t.current(ix, k)
		if err != nil {
			return t.named(err, ix, k)
		}
		old = t.entryOf.keepOld(row)
	}
	if err := t.set(ix, wire.Delete, k, nil); err != nil {
		return err
	}
	if err := t.writeTwin(tab, k); err != nil {
		return err
	}
	return t.entries(tab, k, old, nil)
}

// entries updates the secondary indexes for a row that changes from old to row;
// nil means that there is no row.
func (t *Txn) entries(tab *tables.Table, key index.Key, old, row tables.Row) error {
	primary := userKey(tab.Primary(), key)
	for _, ix := range tab.Secondaries() {
		was, entryWas, err := t.keys.entry(ix, primary, old, &t.entryOf.was)
		if err != nil {
			return t.doom(err)
		}
		is, entryIs, err := t.keys.entry(ix, primary, row, &t.entryOf.is)
		if err != nil {
			return t.doom(err)
		}
		switch {
		case old != nil && row != nil && was == is:
			if !slices.Equal(entryWas, entryIs) {
				err = t.set(ix, wire.Update, is, entryIs)
			}
		case old != nil && row != nil:
			if err = t.set(ix, wire.Delete, was, nil); err == nil {
				err = t.set(ix, wire.Insert, is, entryIs)
			}
		case row != nil:
			err = t.set(ix, wire.Insert, is, entryIs)
		case old != nil:
			err = t.set(ix, wire.Delete, was, nil)
		}
		if err != nil {
			return t.doom(err) // the row is already in the write set
		}
	}
	for _, ix := range tab.Building() {
		if ix.IsTwin() {
			continue // see writeTwin
		}
		if err := t.entryOfBuild(ix, primary, old, row); err != nil {
			return t.doom(err)
		}
	}
	return nil
}

// entryBuffers is memory for the secondary entries of one row at a time.
type entryBuffers struct {
	old     tables.Row // the row before a change
	was, is tables.EntryBuffer
}

// keepOld returns a copy of a row, which is valid until the next call. It is not nil,
// not even if the row has no columns.
func (b *entryBuffers) keepOld(row tables.Row) tables.Row {
	if b.old == nil {
		b.old = make(tables.Row, 0, len(row))
	}
	b.old = append(b.old[:0], row...)
	return b.old
}
