package xtree

import (
	"slices"

	"drtmx/index"
	"drtmx/internal/mem"
)

// emptyMax is how many empty leaves may wait to be unlinked.
const emptyMax = 64

// slotKey is a slot in use.
type slotKey struct {
	key  uint64
	slot int
}

// liveSlots appends the slots in use, in key order.
func (t *Tree) liveSlots(s mem.Span, dst []slotKey) []slotKey {
	n := int(s.Load(metaWord) & 0xff)
	for i := range n {
		if t.inUse(s, i) {
			dst = append(dst, slotKey{s.Load(keysWord + i), i})
		}
	}
	slices.SortFunc(dst, func(a, b slotKey) int {
		if a.key < b.key {
			return -1
		}
		return 1
	})
	return dst
}

// cut chooses the low fence of the new right leaf, and how many rows stay.
//
// Where the new key follows the leaf's newest one, keys are probably arriving
// in order: the rows above it, if any, move out of the way, and the left leaf
// goes on to fill up; if there are none, nothing moves, and the right leaf is
// empty but for the new key. Otherwise the leaf is halved.
func (t *Tree) cut(s mem.Span, live []slotKey, key uint64) (fence uint64, stay int) {
	m := unpackMeta(s.Load(metaWord))
	at, _ := slices.BinarySearchFunc(live, key, func(a slotKey, k uint64) int {
		if a.key < k {
			return -1
		}
		return 1
	})
	if at > 0 && m.newest == live[at-1].slot {
		if at == len(live) {
			return key, at
		}
		return live[at].key, at
	}
	half := len(live) / 2
	return live[half].key, half
}

// split makes room for key in a full leaf and returns the leaf that holds key
// now. If memory is out nothing is changed.
func (t *Tree) split(leaf, key uint64) (uint64, error) {
	s := t.span(leaf)
	var space [MaxSlots]slotKey
	live := t.liveSlots(s, space[:0])
	fence, stay := t.cut(s, live, key)
	moved := live[stay:]
	where := forMoved
	if len(moved) == 0 {
		// Keys that rise at the end of the tree fill leaves that follow one another.
		if where = nearby; s.Load(metaWord)&lastFlag != 0 {
			where = apart
		}
	}
	right, err := t.newLeaf(where, s.Load(lowWord))
	if err != nil {
		return 0, err
	}
	if t.faults.shrinkBeforeLink {
		t.fillRight(right, leaf, fence, moved)
		t.forget(leaf, moved)
		t.step("shrunk")
		t.shrink(leaf, right, fence, nil)
	} else {
		t.fillRight(right, leaf, fence, moved)
		t.step("filled")
		t.shrink(leaf, right, fence, moved)
	}
	t.step("linked")
	t.tellMoves(leaf, right, moved)
	t.addLeaf(fence, right)
	t.splits.Add(1)
	t.changed(fence, t.lastKey(t.span(right)))
	if key >= fence {
		return right, nil
	}
	return leaf, nil
}

// lastKey is the highest key within a leaf's fences.
func (t *Tree) lastKey(s mem.Span) uint64 {
	return s.Load(highWord) - b2u(s.Load(metaWord)&lastFlag == 0)
}

func b2u(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

func (t *Tree) step(name string) {
	if t.atStep != nil {
		t.atStep(name)
	}
}

// fillRight writes the right leaf completely. Nothing leads to it yet; a
// reader with an old address may accept it, and is told the truth.
func (t *Tree) fillRight(right, leaf, fence uint64, moved []slotKey) {
	s := t.span(leaf)
	old := unpackMeta(s.Load(metaWord))
	m := meta{last: old.last, newest: noNewest, live: len(moved), count: len(moved)}
	e := t.blank(right)
	for i, sk := range moved {
		e.Set(keysWord+i, sk.key)
		e.Set(t.lay.headAt+i, s.Load(t.lay.headAt+sk.slot))
		if t.lay.Inline {
			s.Slice(t.lay.rowAt+sk.slot*t.lay.RowWords, t.lay.RowWords).CopyOut(t.scratch)
			e.Write(t.lay.rowAt+i*t.lay.RowWords, t.scratch)
		}
		if sk.slot == old.newest {
			m.newest = i
		}
	}
	e.Set(metaWord, t.lay.packMeta(m))
	e.Set(rightWord, s.Load(rightWord))
	e.Set(lowWord, fence)
	e.Set(highWord, s.Load(highWord))
	e.Set(deleteWord, s.Load(deleteWord))
	t.commitLeaf(&e)
}

// shrink ends the left leaf at fence, links it to right and frees the slots
// whose rows have moved: their headers must not prove anything any more.
func (t *Tree) shrink(leaf, right, fence uint64, moved []slotKey) {
	e := t.a.Begin(leaf, t.lay.LeafWords)
	m := unpackMeta(e.Load(metaWord))
	m.last = false
	m.live -= len(moved)
	e.Set(GapWord, t.nextGap())
	for _, sk := range moved {
		switch {
		case !t.lay.Inline:
			e.Set(t.lay.headAt+sk.slot, 0)
		case t.faults.staleCopyValid:
		default:
			e.Set(t.lay.headAt+sk.slot, uint64(Free))
		}
		if sk.slot == m.newest {
			m.newest = noNewest
		}
	}
	s := t.span(leaf)
	for m.count > 0 && !t.inUse(s, m.count-1) {
		m.count--
	}
	e.Set(highWord, fence)
	e.Set(rightWord, right)
	e.Set(metaWord, t.lay.packMeta(m))
	t.commitLeaf(&e)
}

// forget is half of the planted bug of shrinking first: the rows are gone from
// a leaf that still claims their keys.
func (t *Tree) forget(leaf uint64, moved []slotKey) {
	e := t.a.Begin(leaf, t.lay.LeafWords)
	m := unpackMeta(e.Load(metaWord))
	m.live -= len(moved)
	for _, sk := range moved {
		if t.lay.Inline {
			e.Set(t.lay.headAt+sk.slot, uint64(Free))
		} else {
			e.Set(t.lay.headAt+sk.slot, 0)
		}
		if sk.slot == m.newest {
			m.newest = noNewest
		}
	}
	e.Set(metaWord, t.lay.packMeta(m))
	t.commitLeaf(&e)
}

// tellMoves keeps held and shared locks in step with a split.
func (t *Tree) tellMoves(leaf, right uint64, moved []slotKey) {
	shared := !t.locks.Empty()
	if shared {
		t.locks.Copy(GapAddr(leaf), GapAddr(right))
	}
	if len(t.held) == 0 && !shared {
		return
	}
	for i, sk := range moved {
		if t.lay.Inline && shared {
			t.locks.Move(t.lay.HeadAddr(leaf, sk.slot), t.lay.HeadAddr(right, i))
		}
		if h := t.held[sk.key]; h != nil {
			h.Home, h.Slot = right, i
			if t.lay.Inline {
				h.Addr = t.lay.HeadAddr(right, i)
			}
		}
	}
}

// Tidy unlinks at most limit leaves that have run empty. It reports whether
// there was anything to do.
func (t *Tree) Tidy(limit int) bool { return t.tidy(limit) }

// Untidy reports whether empty leaves wait to be unlinked.
func (t *Tree) Untidy() bool { return len(t.empty) > 0 }

func (t *Tree) tidy(limit int) bool {
	n, before := min(limit, len(t.empty)), t.unlinks.Load()
	for _, leaf := range t.empty[:n] {
		t.unlink(leaf)
	}
	t.empty = append(t.empty[:0], t.empty[n:]...)
	return t.unlinks.Load() > before
}

// unlink removes a leaf from the tree if it is (still) empty, and gives its
// range to its left sibling.
func (t *Tree) unlink(leaf uint64) {
	if !t.alive(leaf) || leaf == t.first {
		return
	}
	s := t.span(leaf)
	m := unpackMeta(s.Load(metaWord))
	if m.live > 0 {
		return
	}
	// Owner 0 is nobody's.
	if !t.locks.Empty() && t.locks.SharedByOther(GapAddr(leaf), index.Owner(0)) {
		t.empty = append(t.empty, leaf) // a prepared transaction relies on the gap
		return
	}
	low, high, right, deleted := s.Load(lowWord), s.Load(highWord), s.Load(rightWord), s.Load(deleteWord)
	left := t.descend(low - 1)
	t.kill(leaf)
	t.step("killed")
	e := t.a.Begin(left, t.lay.LeafWords)
	lm := unpackMeta(e.Load(metaWord))
	lm.last = m.last
	e.Set(GapWord, t.nextGap())
	e.Set(highWord, high)
	e.Set(rightWord, right)
	e.Set(deleteWord, max(e.Load(deleteWord), deleted))
	e.Set(metaWord, t.lay.packMeta(lm))
	t.commitLeaf(&e)
	t.removeLeaf(low)
	t.unlinks.Add(1)
	t.changed(low, high-b2u(!m.last))
	if lm.live == 0 && left != t.first {
		t.empty = append(t.empty, left)
	}
}
