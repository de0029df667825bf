package hash

import (
	"math/bits"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/internal/mem"
)

// locations is the location cache: a table of slot words, each read and
// replaced whole, so that it needs no lock. The words of one line are a set. An
// entry only says where to look first; the row found there proves itself.
//
// It can do so only while the memory still holds rows of this size. An entry refers
// to a block that was a row of the index in some turn of the partition from this turn
// on, which the client saw before it made the table. Memory changes its use only
// index.Quarantine after the turn has been raised again. So the table may serve an
// attempt that began at most index.MaxLocationAge after a moment at which the turn
// was still the same: the attempt is at most index.MaxProofAge old when it is
// validated. An operation uses one table from beginning to end, and so adds its row
// to a table that is older than its READ of the row.
type locations struct {
	words []atomic.Uint64
	turn  uint64
	seen  atomic.Int64 // a time at or after which the partition still had this turn
}

// renewAge is the age of seen from which the client renews it.
const renewAge = index.MaxLocationAge / 2

// sawTurn notes that the partition had a turn at some time after the given one. The
// caller holds c.maintain.
func (c *Client) sawTurn(turn uint64, after time.Duration) {
	if c.entries <= 0 {
		return
	}
	l := c.cache.Load()
	if l.words == nil || l.turn != turn {
		l = &locations{turn: turn}
		l.init(c.entries)
		l.seen.Store(int64(after))
		c.cache.Store(l)
		return
	}
	l.seen.Store(int64(after))
}

// trusted returns the location cache for an attempt that began at the given time. If
// ok is false the cache is too old, and the operation may only add to it.
func (c *Client) trusted(began time.Duration) (l *locations, ok bool) {
	l = c.cache.Load()
	age := began - time.Duration(l.seen.Load())
	if age > renewAge {
		c.stale.Store(true)
	}
	return l, age <= index.MaxLocationAge
}

// ways is the size of a set.
const ways = mem.LineBytes / mem.WordBytes

func (l *locations) init(entries int) {
	if entries > 0 {
		l.words = make([]atomic.Uint64, 1<<bits.Len(uint(max(entries, ways)-1)))
	}
}

// set returns the set of entries for keys with this hash.
func (l *locations) set(hash uint64) []atomic.Uint64 {
	if len(l.words) == 0 {
		return nil
	}
	i := hash & uint64(len(l.words)-1) &^ (ways - 1)
	return l.words[i : i+ways]
}

// get returns a reference to a row that may be that of a key with this hash, or 0.
func (l *locations) get(hash uint64) uint64 {
	set := l.set(hash)
	for i := range set {
		if w := set[i].Load(); slotMatches(w, hash) {
			return slotRef(w)
		}
	}
	return 0
}

// put adds a row, in an empty entry of its set or in one that depends on all entries
// of the set, so that no two rows evict each other for ever.
func (l *locations) put(hash, ref uint64) {
	set := l.set(hash)
	if set == nil {
		return
	}
	w, empty := makeSlot(hash, ref), -1
	sum := w
	for i := range set {
		old := set[i].Load()
		switch {
		case old == w:
			return
		case slotMatches(old, hash):
			set[i].Store(w)
			return
		case old == 0:
			empty = i
		}
		sum = bits.RotateLeft64(sum, 7) ^ old
	}
	if empty < 0 {
		empty = int(hashKey(sum) % ways)
	}
	set[empty].Store(w)
}

// drop removes the entry with this reference, unless the entry has changed.
func (l *locations) drop(hash, ref uint64) {
	set := l.set(hash)
	w := makeSlot(hash, ref)
	for i := range set {
		set[i].CompareAndSwap(w, 0)
	}
}
