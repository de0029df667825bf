package exec

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/btree"

	"drtmx/index"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// writeSet is the buffered writes of a transaction, ordered by index and key
// so that scans can be overlaid with them.
type writeSet struct {
	tree *btree.BTreeG[*write]
	list []*write // in order of first write; the first determines the home
	n    int

	probe   write // for look-ups without allocation
	probeIx tables.Index
}

type write struct {
	ix      *tables.Index
	key     index.Key
	op      wire.WriteOp
	hint    uint64
	row     tables.Row
	dropped bool // an insert that the transaction undid: nothing to send
}

// gone reports whether the transaction sees no row.
func (w *write) gone() bool { return w.dropped || w.op == wire.Delete }

func (ws *writeSet) init() {
	ws.tree = btree.NewG(16, func(a, b *write) bool {
		if a.ix.ID != b.ix.ID {
			return a.ix.ID < b.ix.ID
		}
		return a.key.Compare(b.key) < 0
	})
}

// at returns a search key.
func (ws *writeSet) at(ix int, key index.Key) *write {
	ws.probeIx.ID = ix
	ws.probe.ix, ws.probe.key = &ws.probeIx, key
	return &ws.probe
}

func (ws *writeSet) reset() {
	if ws.n > 0 {
		ws.n = 0
		ws.tree.Clear(true)
	}
}

func (ws *writeSet) empty() bool { return ws.n == 0 }

func (ws *writeSet) find(ix int, key index.Key) *write {
	if ws.n == 0 {
		return nil
	}
	w, _ := ws.tree.Get(ws.at(ix, key))
	return w
}

// add adds a write for a key that has none yet.
func (ws *writeSet) add(ix *tables.Index, key index.Key) *write {
	if ws.n == len(ws.list) {
		ws.list = append(ws.list, &write{})
	}
	w := ws.list[ws.n]
	ws.n++
	*w = write{ix: ix, key: key, row: w.row[:0]}
	ws.tree.ReplaceOrInsert(w)
	return w
}

// ascend calls fn for the writes of [lo, hi] until it returns false.
func (ws *writeSet) ascend(ix int, lo, hi index.Key, fn func(*write) bool) {
	ws.tree.AscendGreaterOrEqual(ws.at(ix, lo), func(w *write) bool {
		return w.ix.ID == ix && w.key.Compare(hi) <= 0 && fn(w)
	})
}

func (ws *writeSet) deletes(ix int, lo, hi index.Key) (n int) {
	ws.ascend(ix, lo, hi, func(w *write) bool {
		if w.gone() {
			n++
		}
		return true
	})
	return n
}

// overlay merges the transaction's own writes of [lo, hi] into the rows read.
// If a limit cut the rows, it does not merge own rows past the last of them,
// because other rows may lie between.
func (ws *writeSet) overlay(ix *tables.Index, lo, hi index.Key, rows []tables.Entry, more bool) []tables.Entry {
	end := tables.Last
	if more && len(rows) > 0 {
		end = rows[len(rows)-1].Key
	}
	ws.ascend(ix.ID, lo, hi, func(w *write) bool {
		key := userKey(ix, w.key)
		if key.Compare(end) > 0 {
			return false
		}
		i, found := slices.BinarySearchFunc(rows, key, func(e tables.Entry, k tables.Key) int { return e.Key.Compare(k) })
		switch {
		case found && w.gone():
			rows = slices.Delete(rows, i, i+1)
		case found:
			rows[i].Row = w.row
		case !w.gone():
			rows = slices.Insert(rows, i, tables.Entry{Key: key, Row: w.row})
		}
		return true
	})
	return rows
}

// writable makes the checks common to all writes.
func (t *Txn) writable(tab *tables.Table) error {
	if err := t.usable(); err != nil {
		return err
	}
	if t.mode == view {
		return fmt.Errorf("%w transaction: write to %s", ErrReadOnly, tab.Name())
	}
	if tab.Replicated() {
		return fmt.Errorf("%w table %s: replicated tables are written by loading", ErrReadOnly, tab.Name())
	}
	if t.writes.n >= MaxWrites {
		return t.fail(fmt.Errorf("%w: more than %d writes in one transaction", ErrTooLarge, MaxWrites))
	}
	if t.only >= 0 && tab.Primary().Partition.Kind == tables.Replicated {
		return t.fail(errRemote)
	}
	return nil
}

// set records one index write, combined with an earlier one of the same key.
func (t *Txn) set(ix *tables.Index, op wire.WriteOp, key index.Key, row tables.Row) error {
	if t.only >= 0 && partitionOf(ix, key, t.nparts) != t.only {
		return t.fail(errRemote)
	}
	w := t.writes.find(ix.ID, key)
	if w == nil {
		w = t.writes.add(ix, key)
		w.op, w.hint = op, t.hint(ix, key)
		w.row = append(w.row, row...)
		return nil
	}
	switch op {
	case wire.Insert:
		if !w.gone() {
			return fmt.Errorf("%w: %s key %s", ErrExists, ix.Name, keyText(ix, key))
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
			return fmt.Errorf("%w: %s key %s", ErrNotFound, ix.Name, keyText(ix, key))
		}
	case wire.Delete:
		if w.gone() {
			return fmt.Errorf("%w: %s key %s", ErrNotFound, ix.Name, keyText(ix, key))
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
	w.row = append(tables.Row(nil), row...) // the caller may still use the old one
	return nil
}

// takeBack drops an insert of the same transaction. The insert still implies
// that the key is absent, so takeBack reads the key to prove it.
func (t *Txn) takeBack(w *write) error {
	_, err := t.underlying(w.ix, w.key)
	switch {
	case errors.Is(err, ErrNotFound):
		w.dropped = true
		return nil
	case err == nil:
		return t.doom(fmt.Errorf("%w: %s key %s", ErrExists, w.ix.Name, keyText(w.ix, w.key)))
	}
	return err
}

// underlying reads a key without the transaction's own write of it.
func (t *Txn) underlying(ix *tables.Index, key index.Key) (tables.Row, error) {
	w := t.writes.find(ix.ID, key)
	t.writes.tree.Delete(w)
	defer t.writes.tree.ReplaceOrInsert(w)
	return t.getLater(ix, key).Row()
}

// hint returns the address at which an earlier read of this transaction found
// the key.
func (t *Txn) hint(ix *tables.Index, key index.Key) uint64 {
	if g := t.answered(ix, key); g != nil {
		return g.res.Hint
	}
	return 0
}

// Insert adds a row. If the key is taken the transaction fails with ErrExists,
// from Insert or from its commit. key and row may be reused on return.
func (t *Txn) Insert(tab *tables.Table, key tables.Key, row tables.Row) error {
	ix := tab.Primary()
	if err := cmp.Or(t.writable(tab), ix.CheckKey(key), tab.CheckRow(row)); err != nil {
		return err
	}
	return t.insert(tab, t.keys.keep(ix, key), row)
}

func (t *Txn) insert(tab *tables.Table, key index.Key, row tables.Row) error {
	if err := t.set(tab.Primary(), wire.Insert, key, row); err != nil {
		return err
	}
	return t.entries(tab, key, nil, row)
}

// Put inserts a row or overwrites the existing one.
func (t *Txn) Put(tab *tables.Table, key tables.Key, row tables.Row) error {
	ix := tab.Primary()
	if err := cmp.Or(t.writable(tab), ix.CheckKey(key), tab.CheckRow(row)); err != nil {
		return err
	}
	k := t.keys.keep(ix, key)
	if len(tab.Secondaries()) == 0 {
		return t.set(ix, wire.Put, k, row)
	}
	old, err := t.current(ix, k)
	if errors.Is(err, ErrNotFound) {
		return t.insert(tab, k, row)
	} else if err != nil {
		return err
	}
	return t.replace(tab, k, old, row)
}

// Update overwrites an existing row. If there is none, Update or the commit
// returns ErrNotFound.
func (t *Txn) Update(tab *tables.Table, key tables.Key, row tables.Row) error {
	ix := tab.Primary()
	if err := cmp.Or(t.writable(tab), ix.CheckKey(key), tab.CheckRow(row)); err != nil {
		return err
	}
	k := t.keys.keep(ix, key)
	if len(tab.Secondaries()) == 0 {
		return t.set(ix, wire.Update, k, row)
	}
	old, err := t.current(ix, k)
	if err != nil {
		return err
	}
	return t.replace(tab, k, old, row)
}

// current returns the row as the transaction sees it now. It does not read a
// row again that the transaction has read and not written since, because that
// would cost a round.
func (t *Txn) current(ix *tables.Index, key index.Key) (tables.Row, error) {
	if t.writes.find(ix.ID, key) == nil {
		if g := t.answered(ix, key); g != nil {
			return g.row, g.err
		}
	}
	return t.getLater(ix, key).Row()
}

func (t *Txn) replace(tab *tables.Table, key index.Key, old, row tables.Row) error {
	old = old.Clone() // set may overwrite it, if it is the transaction's own
	if err := t.set(tab.Primary(), wire.Update, key, row); err != nil {
		return err
	}
	return t.entries(tab, key, old, row)
}

// Delete removes a row. If there is none, Delete or the commit returns
// ErrNotFound.
func (t *Txn) Delete(tab *tables.Table, key tables.Key) error {
	ix := tab.Primary()
	if err := cmp.Or(t.writable(tab), ix.CheckKey(key)); err != nil {
		return err
	}
	k := t.keys.keep(ix, key)
	var old tables.Row
	if len(tab.Secondaries()) > 0 {
		row, err := t.current(ix, k)
		if err != nil {
			return err
		}
		old = row.Clone()
	}
	if err := t.set(ix, wire.Delete, k, nil); err != nil {
		return err
	}
	return t.entries(tab, k, old, nil)
}

// entries updates the secondary indexes for a row that changes from old to row;
// nil means that there is no row.
func (t *Txn) entries(tab *tables.Table, key index.Key, old, row tables.Row) error {
	primary := userKey(tab.Primary(), key)
	for _, ix := range tab.Secondaries() {
		was, entryWas, err := t.entry(ix, primary, old)
		if err != nil {
			return t.doom(err)
		}
		is, entryIs, err := t.entry(ix, primary, row)
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
	return nil
}

// entry returns the secondary entry of a row, or nothing if there is no row.
func (t *Txn) entry(ix *tables.Index, primary tables.Key, row tables.Row) (index.Key, tables.Row, error) {
	if row == nil {
		return index.Key{}, nil, nil
	}
	key, e, err := ix.Entry(primary, row, nil)
	if err != nil {
		return index.Key{}, nil, err
	}
	return t.keys.view(ix, key), e, nil
}
