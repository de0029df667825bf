package exec

import (
	"drtmx/index"
	"drtmx/tables"
)

// lookBackMax bounds the reads that a transaction searches linearly for one of a key.
// With more reads it uses a map: otherwise a procedure that reads and writes many
// rows would block its executor for a time quadratic in their number.
const lookBackMax = 32

// readSet has the reads of an attempt, in the order in which the body has made them. It
// finds the answered reads of a key.
type readSet struct {
	gets    []*Get
	scans   []*Scan
	groups  []*Lookups
	group   []*Get // of the Lookups that is reading; nil: none
	nGet    int
	nScan   int
	nGroups int
	flushed int // the reads before this one are done

	at   map[readKey]int // place in gets of the first read of a key
	upTo int             // reads before it are in at
	next int             // where lookBack begins: after the last read that it found
	ixs  uint64          // bit set of the indexes that were read, by ID modulo 64
}

type readKey struct {
	ix  int
	key index.Key
}

func (rs *readSet) reset() {
	rs.nGet, rs.nScan, rs.nGroups, rs.flushed, rs.next, rs.ixs = 0, 0, 0, 0, 0, 0
	if rs.upTo > 0 {
		clear(rs.at)
		rs.upTo = 0
	}
}

// n returns the number of lookups and scans; a Lookups counts as one.
func (rs *readSet) n() int { return rs.nGet + rs.nScan + rs.nGroups }

// find returns a read of the key that has its result, or nil if there is none.
func (rs *readSet) find(ix *tables.Index, key index.Key) *Get {
	if rs.ixs&ixBit(ix) == 0 {
		return nil
	}
	if g := rs.findGet(ix, key); g != nil {
		return g
	}
	for _, l := range rs.groups[:rs.nGroups] {
		if g := l.lookBack(ix, key); g != nil {
			return g
		}
	}
	return nil
}

func (rs *readSet) findGet(ix *tables.Index, key index.Key) *Get {
	if rs.flushed <= lookBackMax {
		return rs.lookBack(ix, key)
	}
	if rs.at == nil {
		rs.at = make(map[readKey]int, 2*rs.flushed)
	}
	for ; rs.upTo < rs.flushed; rs.upTo++ {
		if g := rs.gets[rs.upTo]; g.res != nil {
			k := readKey{g.ix.ID, g.key}
			if _, ok := rs.at[k]; !ok {
				rs.at[k] = rs.upTo
			}
		}
	}
	if i, ok := rs.at[readKey{ix.ID, key}]; ok {
		return rs.gets[i]
	}
	return nil
}

func ixBit(ix *tables.Index) uint64 { return 1 << (ix.ID % 64) }

// lookBack searches all reads. It begins after the one that it found last, because
// most transactions write rows in the order in which they read them.
func (rs *readSet) lookBack(ix *tables.Index, key index.Key) *Get {
	gets := rs.gets[:rs.nGet]
	for n := range gets {
		i := rs.next + n
		if i >= len(gets) {
			i -= len(gets)
		}
		if g := gets[i]; g.ix == ix && g.key == key && g.done && g.res != nil {
			rs.next = i + 1
			return g
		}
	}
	return nil
}

// queued ranges over the reads that the next flush performs.
func (rs *readSet) queued(yield func(partRead) bool) {
	for _, g := range rs.gets[rs.flushed:rs.nGet] {
		if !g.done && !yield(partRead{get: g}) {
			return
		}
	}
	for _, g := range rs.group {
		if !g.done && !yield(partRead{get: g}) {
			return
		}
	}
	for _, sc := range rs.scans[:rs.nScan] {
		for i := range sc.nsubs {
			if !sc.done && !yield(partRead{scan: sc, sub: &sc.subs[i]}) {
				return
			}
		}
	}
}

// answered ranges over the reads that have an answer of an index. It does not cover
// earlier pages of iterators and earlier groups of lookups: see keptPages.
func (rs *readSet) answered(yield func(partRead) bool) {
	for _, g := range rs.gets[:rs.nGet] {
		if g.res != nil && !yield(partRead{get: g}) {
			return
		}
	}
	for _, l := range rs.groups[:rs.nGroups] {
		for _, g := range l.gets[:l.n] {
			if g.res != nil && !yield(partRead{get: g}) {
				return
			}
		}
	}
	for _, sc := range rs.scans[:rs.nScan] {
		for i := range sc.nsubs {
			if sub := &sc.subs[i]; sub.res != nil && !yield(partRead{scan: sc, sub: sub}) {
				return
			}
		}
	}
}

// keptPages ranges over the proofs that are kept of earlier pages of iterators and of
// earlier groups of lookups.
func (rs *readSet) keptPages(yield func(*keptProofs) bool) {
	for _, l := range rs.groups[:rs.nGroups] {
		for i := range l.kept {
			if k := &l.kept[i]; len(k.gaps)+len(k.rows) > 0 && !yield(k) {
				return
			}
		}
	}
	for _, sc := range rs.scans[:rs.nScan] {
		for i := range sc.kept {
			if k := &sc.kept[i]; len(k.quick)+len(k.gaps) > 0 && !yield(k) {
				return
			}
		}
	}
}

// hint returns the address at which an earlier read of this transaction found
// the key.
func (rs *readSet) hint(ix *tables.Index, key index.Key) uint64 {
	if g := rs.find(ix, key); g != nil {
		return g.res.Hint
	}
	return 0
}

// getLocal answers reads from this server's memory. It prefetches the rows together,
// because a transaction that reads many rows spends most of its time waiting for memory.
func getLocal(gets []*Get) {
	if len(gets) > 1 {
		for stage := range index.PrefetchStages {
			for _, g := range gets {
				if g.srv == nil || g.done {
					continue
				}
				if p, ok := g.srv.(index.Prefetcher); ok {
					p.Prefetch(g.key, stage)
				}
			}
		}
	}
	for _, g := range gets {
		if g.srv == nil || g.done {
			continue
		}
		g.srv.Lookup(g.key, &g.own)
		g.res, g.done = &g.own, true
		g.settle()
	}
}
