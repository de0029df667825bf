package exec

import (
	"encoding/binary"
	"errors"
	"fmt"

	"drtmx/index"
	"drtmx/internal/wire"
	"drtmx/tables"
)

// The twin of a table has its keys in order: see tables.Def.Twin. A transaction writes both, and reads
// ranges in two steps, the keys and then the rows.

// twinRow is an entry of a twin as a transaction writes it. It has the address of the row, which only a
// data server knows.
var twinRow = make(tables.Row, 8)

// placeIn returns the address of the row that an entry of a twin has, 0 if it has none.
func placeIn(entry tables.Row) uint64 {
	if len(entry) != len(twinRow) {
		return 0
	}
	return binary.LittleEndian.Uint64(entry)
}

// writeTwin writes the entry of a key that has just been written in the table's primary index.
func (t *Txn) writeTwin(tab *tables.Table, key index.Key) error {
	ix := tab.Twin()
	if ix == nil {
		return nil
	}
	own := t.keys.keep(ix, userKey(tab.Primary(), key))
	row, entry := t.writes.find(tab.Primary().ID, key), t.writes.find(ix.ID, own)
	building := ix.IsBuilding()
	if building && row.op == wire.Delete && !row.dropped {
		has, err := t.builtTwin(ix, own, entry)
		if !has || err != nil {
			return err
		}
	}
	if entry == nil {
		if row.op == wire.Update {
			return nil // the key was there before
		}
		if t.where.only >= 0 && partitionOf(ix, own, t.where.nparts) != t.where.only && !ix.ShipsTwin() {
			return t.fail(errRemote)
		}
		entry = t.writes.add(ix, own)
		entry.row = append(entry.row, twinRow...)
		t.volume += 2 * len(twinRow)
	}
	entry.op, entry.dropped = row.op, row.dropped
	if building && entry.op == wire.Update {
		entry.op = wire.Put
	}
	return nil
}

// builtTwin reports whether a twin that is being built has the entry of a key that is deleted. What it
// reads is proved like any other read. entry is the transaction's own, if it has one.
func (t *Txn) builtTwin(ix *tables.Index, key index.Key, entry *write) (has bool, err error) {
	if t.where.only >= 0 && partitionOf(ix, key, t.where.nparts) != t.where.only {
		return false, t.fail(errRemote)
	}
	if entry != nil {
		_, err = t.underlying(ix, key)
	} else {
		_, err = t.queueGet(ix, key).await()
	}
	if !errors.Is(err, ErrNotFound) {
		return err == nil, err
	}
	if entry != nil {
		entry.dropped = true
	}
	return false, nil
}

// byServer reports whether the data server sends the entries of a twin, if the transaction changes
// nothing else than its partition and has read nothing elsewhere.
func (t *Txn) byServer(w *write) bool {
	return w.ix.IsTwin() && w.ix.ShipsTwin() && t.where.nparts > 1
}

// findRows asks for the rows of all scans of twins that have found their keys.
func (t *Txn) findRows() {
	for _, sc := range t.reads.scans[:t.reads.nScan] {
		if sc.rows == nil || !sc.done || sc.err != nil || sc.paged || sc.asked {
			continue
		}
		sc.asked = true
		sc.gets = sc.gets[:0]
		for i := range sc.out {
			g := t.QueueGet(sc.rows, sc.out[i].Key)
			g.at = placeIn(sc.out[i].Row)
			sc.gets = append(sc.gets, g)
		}
	}
}

// takeRows puts the rows in the place of the entries of a twin.
func (sc *Scan) takeRows() error {
	sc.found = true
	for i, g := range sc.gets {
		row, err := g.Row()
		if err != nil {
			return sc.t.noRow(sc, sc.out[i].Key, err)
		}
		sc.out[i].Row = row
	}
	return nil
}

// takePage is takeRows for a page of an iterator.
func (sc *Scan) takePage() error {
	sc.pageKeys, sc.lookups.places = sc.pageKeys[:0], sc.lookups.places[:0]
	for i := range sc.out {
		sc.pageKeys = append(sc.pageKeys, sc.out[i].Key)
		sc.lookups.places = append(sc.lookups.places, placeIn(sc.out[i].Row))
	}
	rows, err := sc.lookups.Rows(sc.pageKeys)
	if err != nil {
		return err
	}
	for i, row := range rows {
		if row == nil {
			return sc.t.noRow(sc, sc.out[i].Key, ErrNotFound)
		}
		sc.out[i].Row = row
	}
	return nil
}

// noRow is the error of a key that has an entry in a twin and no row, if err is ErrNotFound. A
// transaction that reads both at one moment never sees that, and one that does not is made again.
func (t *Txn) noRow(sc *Scan, key tables.Key, err error) error {
	if t.err != nil || !errors.Is(err, ErrNotFound) {
		return err
	}
	if t.at == 0 && t.where.only < 0 {
		return t.abandon(CauseGap)
	}
	return t.fail(sc.ix.Concerns(fmt.Errorf("%w: a twin with a key that has no row", ErrProtocol), key))
}
