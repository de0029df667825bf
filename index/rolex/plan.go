package rolex

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
)

// Write is a row to be set, or removed if Row is nil.
type Write struct {
	Key uint64
	Row []uint64
	// Hint is a leaf at or before the one that covers the key; 0 means the first.
	Hint uint64
	// Leaf is the leaf at Hint, as the transaction has READ it; nil if it has not.
	Leaf []uint64
	// Must says what must be there for the write to be possible.
	Must Must
}

// Must is the condition of a write.
type Must uint8

// Conditions of a write.
const (
	MustNothing Must = iota
	MustExist
	MustNotExist
)

// ErrRefused reports a write whose condition was not met in the leaf that was READ. That leaf, and
// what else the transaction has read, may have changed since.
var ErrRefused = errors.New("rolex: a row is there, or is not, against what a write wants")

// change is a leaf that a transaction changes.
type change struct {
	addr  uint64
	was   image // as READ; of a new leaf only the header
	will  image
	fresh bool
	// lent says that was is memory of the transaction, whose body may have written to rows there.
	// The rows in slots are changed, whatever the two images say.
	lent  bool
	slots [leaf.MaxSlots/64 + 1]uint64
}

// put sets the row of a key, and reports false if there is no room.
func (c *change) put(key uint64, row []uint64) bool {
	if !c.will.put(key, row) {
		return false
	}
	if c.lent {
		i := c.will.find(key)
		c.slots[i/64] |= 1 << (i % 64)
	}
	return true
}

// changed reports whether word i changes.
func (c *change) changed(i int) bool {
	if c.will.w[i] != c.was.w[i] {
		return true
	}
	l := c.will.l
	if !c.lent || i < l.RowsAt || i >= l.RowsAt+l.Slots*l.RowWords {
		return false
	}
	slot := (i - l.RowsAt) / l.RowWords
	return c.slots[slot/64]>>(slot%64)&1 != 0
}

// from is the header of the leaf when the transaction has locked what it changes.
func (c *change) from(o Owner) Header {
	if c.fresh {
		return c.was.header()
	}
	return c.was.header().hold(o)
}

// lends reports whether word i is of a row in a copy that is lent, and the transaction does not write
// that row: nobody knows what the row is now.
func (c *change) lends(i int) bool {
	l := c.will.l
	return c.lent && i >= l.RowsAt && i < l.RowsAt+l.Slots*l.RowWords && !c.changed(i)
}

// runs calls f for the runs of words that a change changes. Runs that are near are one, if what is
// between them is known.
func (c *change) runs(f func(first, n int)) {
	const near = 4 // words; a WRITE has as many of its own
	first, end := -1, 0
	for i := block.ChecksumWord; i < len(c.will.w); i++ {
		changed := c.changed(i)
		if first >= 0 && (changed && i-end > near || c.lends(i)) {
			f(first, end-first)
			first = -1
		}
		if !changed {
			continue
		}
		if first < 0 {
			first = i
		}
		end = i + 1
	}
	if first >= 0 {
		f(first, end-first)
	}
}

// errLent reports that a leaf is split of which the transaction has only a copy that is lent.
var errLent = errors.New("rolex: the leaf must be READ by the writer")

// source is where a transaction finds leaves.
type source interface {
	// leaf returns a copy of the leaf that covers the key of a write. lent says that it is the one
	// in the write.
	leaf(x *Write) (addr uint64, m image, lent bool, err error)
	// spare returns a leaf for a split.
	spare() (Spare, error)
}

// plan finds the leaves that writes change, and makes copies of them what they shall be.
func (l *layout) plan(from source, writes []Write) ([]change, error) {
	var changes []change
	for n := range writes {
		x := &writes[n]
		if x.Row != nil && len(x.Row) != l.RowWords {
			return nil, fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, len(x.Row), l.RowWords)
		}
		i := slices.IndexFunc(changes, func(c change) bool { return c.will.covers(x.Key) })
		if i < 0 {
			addr, m, lent, err := from.leaf(x)
			if err != nil {
				return nil, err
			}
			i = len(changes)
			changes = append(changes, change{addr: addr, was: m, will: m.clone(), lent: lent})
		}
		if x.Must != MustNothing && (changes[i].will.find(x.Key) >= 0) != (x.Must == MustExist) {
			return nil, fmt.Errorf("%w: key %d", ErrRefused, x.Key)
		}
		if x.Row == nil {
			changes[i].will.remove(x.Key)
			continue
		}
		if changes[i].put(x.Key, x.Row) {
			continue
		}
		if changes[i].lent {
			return nil, errLent // the other half would get rows from it
		}
		s, err := from.spare()
		if err != nil {
			return nil, err
		}
		right := image{l, make([]uint64, l.LeafWords)}
		changes[i].will.split(right, s.Addr, x.Key)
		right.w[block.HeaderWord] = uint64(s.Header)
		fresh := change{addr: s.Addr, was: right.clone(), will: right, fresh: true}
		if right.covers(x.Key) {
			right.put(x.Key, x.Row)
		} else {
			changes[i].put(x.Key, x.Row)
		}
		changes = append(changes, fresh)
	}
	// All lock in one order, so that of two that want the same leaves one gets all.
	slices.SortFunc(changes, func(a, b change) int { return cmp.Compare(a.addr, b.addr) })
	for _, c := range changes {
		c.will.seal(c.addr, c.was.header().next())
	}
	return changes, nil
}
