package exec

import (
	"errors"

	"drtmx/index"
	"drtmx/internal/invariants"
	"drtmx/tables"
)

// Lookups reads any number of rows of a table by their keys, group by group, in the
// memory of one group.
type Lookups struct {
	t       *Txn
	attempt uint64
	tab     *tables.Table
	keys    keyArena // of the last group
	gets    []*Get   // the first n are the last group
	n       int
	next    int          // where lookBack begins
	kept    proofsByPart // of earlier groups
	places  []uint64     // of the rows of the next group, as a twin says; empty: not known
	queued  []*Get       // of a group that is read by plain reads
	rows    []tables.Row
}

// plainReads is how many reads a transaction makes before Lookups recycles them. The rows
// of plain reads may be reserved for a transaction that has lost, and it finds each again
// when it writes the row.
const plainReads = MaxReads / 16

// Lookups returns a reader of rows of a table.
func (t *Txn) Lookups(tab *tables.Table) *Lookups {
	if t.reads.nGroups == len(t.reads.groups) {
		t.reads.groups = append(t.reads.groups, &Lookups{})
	}
	l := t.reads.groups[t.reads.nGroups]
	t.reads.nGroups++
	l.t, l.attempt, l.tab, l.n, l.places = t, t.attempt, tab, 0, l.places[:0]
	l.kept.forget()
	return l
}

// Rows reads rows by their primary keys, all in the same network rounds. The result for
// a key without a row is nil. The rows are valid until the next call.
func (l *Lookups) Rows(keys []tables.Key) ([]tables.Row, error) {
	t := l.t
	if t.attempt != l.attempt || t.mode == closed {
		return nil, ErrClosed
	}
	if err := t.usable(); err != nil {
		return nil, err
	}
	l.recycle()
	var gets []*Get
	if t.reads.nGet+len(keys) <= plainReads {
		l.queued = l.queued[:0]
		for i, key := range keys {
			g := t.QueueGet(l.tab, key)
			if i < len(l.places) {
				g.at = l.places[i]
			}
			l.queued = append(l.queued, g)
		}
		gets = l.queued
	} else {
		if err := l.start(keys); err != nil {
			return nil, err
		}
		gets = l.gets[:l.n]
	}
	l.rows = l.rows[:0]
	for _, g := range gets {
		row, err := g.Row()
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		l.rows = append(l.rows, row)
	}
	return l.rows, nil
}

// start reads a group with the reads of the one before.
func (l *Lookups) start(keys []tables.Key) error {
	t := l.t
	tab, err := t.catalog.Resolve(l.tab)
	if err != nil {
		return err
	}
	ix := tab.Primary()
	for i, key := range keys {
		if err := ix.CheckKey(key); err != nil {
			return err
		}
		if l.n == len(l.gets) {
			l.gets = append(l.gets, &Get{})
			t.volume += bytesPerOperation
		}
		g := l.gets[l.n]
		l.n++
		if !g.open(t, ix, l.keys.keep(ix, key)) {
			return g.err
		}
		if i < len(l.places) {
			g.at = l.places[i]
		}
		if tab.EarlierFormat(l.tab) {
			g.as = l.tab
		}
		t.startGet(g)
	}
	t.reads.group = l.gets[:l.n]
	t.flush()
	t.reads.group = nil
	return nil
}

// recycle keeps the proofs of the last group, whose reads the next one uses again.
func (l *Lookups) recycle() {
	l.spoil()
	for _, g := range l.gets[:l.n] {
		if g.op != nil {
			g.pool.spare = append(g.pool.spare, g.op)
		}
		if g.res == nil || len(g.res.Proofs) == 0 || l.t.needsNoProofs(g.ix) {
			continue
		}
		k := l.kept.of(g.part)
		k.points, k.rests = true, max(k.rests, g.res.Rests)
		if g.res.Status == index.Found {
			k.rows = append(k.rows, g.res.Proofs...)
		} else {
			k.gaps = append(k.gaps, g.res.Proofs...)
		}
	}
	l.n, l.next = 0, 0
	l.keys.reset()
}

// lookBack returns the read of a key in the last group, or nil if there is none.
func (l *Lookups) lookBack(ix *tables.Index, key index.Key) *Get {
	for n := range l.n {
		i := (l.next + n) % l.n
		if g := l.gets[i]; g.ix == ix && g.key == key && g.done && g.res != nil {
			l.next = i + 1
			return g
		}
	}
	return nil
}

// spoil overwrites the rows of the last group, under the race detector.
func (l *Lookups) spoil() {
	if !invariants.Spoils {
		return
	}
	for _, g := range l.gets[:l.n] {
		if g.res != nil { // else the row is one that the transaction writes
			spoil(g.row)
		}
	}
}
