package exec

import (
	"drtmx/index"
	"drtmx/tables"
)

// lookBackMax bounds the reads that a transaction looks through for one of a
// key. One that has read more finds them in a map, or else a procedure that
// reads and writes many rows would hold up its executor for their square.
const lookBackMax = 32

// readsByKey finds the answered reads of a transaction.
type readsByKey struct {
	at   map[readKey]int // place in Txn.gets of the first read of a key
	upTo int             // reads before it are in at
}

type readKey struct {
	ix  int
	key index.Key
}

func (r *readsByKey) reset() {
	clear(r.at)
	r.upTo = 0
}

// answered returns a read of the key that has its result, or nil if there is none.
func (t *Txn) answered(ix *tables.Index, key index.Key) *Get {
	if t.flushed <= lookBackMax {
		for _, g := range t.gets[:t.nGet] {
			if g.key == key && g.ix == ix && g.done && g.res != nil {
				return g
			}
		}
		return nil
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
