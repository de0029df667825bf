package exec

import (
	"drtmx/index"
	"drtmx/tables"
)

// lookBackMax bounds the reads that a transaction searches linearly for one of a key.
// With more reads it uses a map: otherwise a procedure that reads and writes many
// rows would block its executor for a time quadratic in their number.
const lookBackMax = 32

// readsByKey finds the answered reads of a transaction.
type readsByKey struct {
	at   map[readKey]int // place in Txn.gets of the first read of a key
	upTo int             // reads before it are in at
	next int             // where lookBack begins: after the last read that it found
	ixs  uint64          // bit set of the indexes that were read, by ID modulo 64
}

type readKey struct {
	ix  int
	key index.Key
}

func (r *readsByKey) reset() {
	r.next, r.ixs = 0, 0
	if r.upTo > 0 {
		clear(r.at)
		r.upTo = 0
	}
}

// readOf returns a read of the key that has its result, or nil if there is none.
func (t *Txn) readOf(ix *tables.Index, key index.Key) *Get {
	if t.reads.ixs&ixBit(ix) == 0 {
		return nil
	}
	if t.flushed <= lookBackMax {
		return t.lookBack(ix, key)
	}
	r := &t.reads
	if r.at == nil {
		r.at = make(map[readKey]int, 2*t.flushed)
	}
	for ; r.upTo < t.flushed; r.upTo++ {
		if g := t.gets[r.upTo]; g.res != nil {
			k := readKey{g.ix.ID, g.key}
			if _, ok := r.at[k]; !ok {
				r.at[k] = r.upTo
			}
		}
	}
	if i, ok := r.at[readKey{ix.ID, key}]; ok {
		return t.gets[i]
	}
	return nil
}

func ixBit(ix *tables.Index) uint64 { return 1 << (ix.ID % 64) }

// lookBack searches all reads. It begins after the one that it found last, because
// most transactions write rows in the order in which they read them.
func (t *Txn) lookBack(ix *tables.Index, key index.Key) *Get {
	gets, r := t.gets[:t.nGet], &t.reads
	for n := range gets {
		i := r.next + n
		if i >= len(gets) {
			i -= len(gets)
		}
		if g := gets[i]; g.ix == ix && g.key == key && g.done && g.res != nil {
			r.next = i + 1
			return g
		}
	}
	return nil
}
