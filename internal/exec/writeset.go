package exec

import (
	"hash/maphash"
	"slices"

	"github.com/google/btree"
	"github.com/zeebo/xxh3"

	"drtmx/index"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// writeSet holds the buffered writes of a transaction. It finds a write by its key in
// a hash table. Once a transaction with writes scans, the set also orders the writes
// by index and key, so that it can overlay the scans with them.
type writeSet struct {
	list []*write // in order of first write; the first determines the home
	n    int

	// slots has, for each write, 1 + its place in list, at the first free slot
	// from its hash on. Its length is a power of two and more than twice n.
	slots []int32

	tree   *btree.BTreeG[*write] // of list[:inTree]
	inTree int

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
	hidden  bool // while the transaction reads the row below the write
}

const writeSlotsMin = 64

// writeSalt keeps a client from choosing keys that collide. No result depends on it,
// so runs stay repeatable.
var writeSalt = maphash.String(maphash.MakeSeed(), "")

// gone reports whether the transaction sees no row.
func (w *write) gone() bool { return w.dropped || w.op == wire.Delete }

func (ws *writeSet) init() {
	ws.tree = btree.NewG(16, func(a, b *write) bool {
		if a.ix.ID != b.ix.ID {
			return a.ix.ID < b.ix.ID
		}
		return a.key.Compare(b.key) < 0
	})
	ws.slots = make([]int32, writeSlotsMin)
}

func (ws *writeSet) reset() {
	if ws.n == 0 {
		return
	}
	if ws.inTree > 0 {
		ws.tree.Clear(true)
	}
	clear(ws.slots)
	ws.n, ws.inTree = 0, 0
}

func (ws *writeSet) empty() bool { return ws.n == 0 }

// slot returns the slot of a key, or the free one where it belongs.
func (ws *writeSet) slot(ix int, key index.Key) *int32 {
	h := key.Num
	if key.Str != "" {
		h = xxh3.HashStringSeed(key.Str, writeSalt)
	}
	mask := uint64(len(ws.slots) - 1)
	for i := tables.Mix(h^writeSalt) + uint64(ix); ; i++ {
		at := &ws.slots[i&mask]
		if *at == 0 {
			return at
		}
		if w := ws.list[*at-1]; w.key == key && w.ix.ID == ix {
			return at
		}
	}
}

func (ws *writeSet) find(ix int, key index.Key) *write {
	if ws.n == 0 {
		return nil
	}
	at := *ws.slot(ix, key)
	if at == 0 || ws.list[at-1].hidden {
		return nil
	}
	return ws.list[at-1]
}

// add adds a write for a key that has none yet.
func (ws *writeSet) add(ix *tables.Index, key index.Key) *write {
	if ws.n == len(ws.list) {
		ws.list = append(ws.list, &write{})
	}
	w := ws.list[ws.n]
	ws.n++
	*w = write{ix: ix, key: key, row: w.row[:0]}
	if 2*ws.n < len(ws.slots) {
		*ws.slot(ix.ID, key) = int32(ws.n)
		return w
	}
	ws.slots = make([]int32, 2*len(ws.slots))
	for i, w := range ws.list[:ws.n] {
		*ws.slot(w.ix.ID, w.key) = int32(i + 1)
	}
	return w
}

// ascend calls fn for the writes in [lo, hi], in ascending order, until fn returns
// false.
func (ws *writeSet) ascend(ix int, lo, hi index.Key, fn func(*write) bool) {
	for ; ws.inTree < ws.n; ws.inTree++ {
		ws.tree.ReplaceOrInsert(ws.list[ws.inTree])
	}
	ws.probeIx.ID = ix
	ws.probe.ix, ws.probe.key = &ws.probeIx, lo
	ws.tree.AscendGreaterOrEqual(&ws.probe, func(w *write) bool {
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
