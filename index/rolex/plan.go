package rolex

import (
	"cmp"
	"fmt"
	"slices"

	"drtmx/index"
	"drtmx/internal/block"
)

// Write is a row to be set, or removed if Row is nil. Hint is a leaf at or before the one that
// covers the key; 0 means the first.
type Write struct {
	Key  uint64
	Row  []uint64
	Hint uint64
}

// change is a leaf that a transaction changes.
type change struct {
	addr  uint64
	was   image // as READ; of a new leaf only the header
	will  image
	fresh bool
}

// from is the header of the leaf when the transaction has locked what it changes.
func (c *change) from(o Owner) Header {
	if c.fresh {
		return c.was.header()
	}
	return c.was.header().hold(o)
}

// runs calls f for the runs of words that a change changes. Runs that are near are one.
func (c *change) runs(f func(first, n int)) {
	const near = 4 // words; a WRITE has as many of its own
	first, end := -1, 0
	for i := block.ChecksumWord; i < len(c.will.w); i++ {
		if c.will.w[i] == c.was.w[i] {
			continue
		}
		if first >= 0 && i-end > near {
			f(first, end-first)
			first = -1
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

// source is where a transaction finds leaves.
type source interface {
	// leaf returns a copy of the leaf that covers a key. hint is a leaf at or before it, 0 if
	// none is known.
	leaf(key, hint uint64) (addr uint64, m image, err error)
	// spare returns a leaf for a split.
	spare() (Spare, error)
}

// plan finds the leaves that writes change, and makes copies of them what they shall be.
func (l *layout) plan(from source, writes []Write) ([]change, error) {
	var changes []change
	for _, x := range writes {
		if x.Row != nil && len(x.Row) != l.RowWords {
			return nil, fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, len(x.Row), l.RowWords)
		}
		i := slices.IndexFunc(changes, func(c change) bool { return c.will.covers(x.Key) })
		if i < 0 {
			addr, m, err := from.leaf(x.Key, x.Hint)
			if err != nil {
				return nil, err
			}
			i = len(changes)
			changes = append(changes, change{addr: addr, was: m, will: m.clone()})
		}
		if x.Row == nil {
			changes[i].will.remove(x.Key)
			continue
		}
		if changes[i].will.put(x.Key, x.Row) {
			continue
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
			changes[i].will.put(x.Key, x.Row)
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
