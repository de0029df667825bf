package stree

import (
	"slices"
	"strings"

	"drtmx/index"
	"drtmx/internal/mem"
)

// emptyMax is how many empty leaves may wait to be unlinked.
const emptyMax = 64

// slotKey is a slot in use.
type slotKey struct {
	digest uint64
	slot   int
	p      Pointer
}

// liveSlots lists the slots in use, in key order.
func (t *Tree) liveSlots(s mem.Span) []slotKey {
	live := t.sorted[:0]
	for i := range int(s.Load(metaWord) & 0xff) {
		if p := t.pointer(s, i); p != 0 {
			live = append(live, slotKey{s.Load(digestWord + i), i, p})
		}
	}
	t.sorted = live
	slices.SortFunc(live, func(a, b slotKey) int {
		switch {
		case a.digest < b.digest:
			return -1
		case a.digest > b.digest:
			return 1
		}
		return strings.Compare(t.keyOf(a.p), t.keyOf(b.p))
	})
	return live
}

// keyOf is the key of a row.
func (t *Tree) keyOf(p Pointer) string { return mem.String(t.rowKey(p, nil)) }

// cut chooses where to split the leaf: the fence, and how many of the sorted
// slots stay. A key that comes right after the newest one, as when keys rise,
// leaves a full leaf behind; otherwise both get half.
func (t *Tree) cut(s mem.Span, live []slotKey, r *ref, key string) (fence string, stay int) {
	m, d := unpackMeta(s.Load(metaWord)), DigestAt(key, r.prefix)
	at, _ := slices.BinarySearchFunc(live, key, func(a slotKey, k string) int {
		if a.digest < d || a.digest == d && t.keyOf(a.p) < k {
			return -1
		}
		return 1
	})
	half := len(live) / 2
	if at > 0 && m.newest == live[at-1].slot {
		if at == len(live) {
			return strings.Clone(separator(t.keyOf(live[at-1].p), key)), at
		}
		half = at
	}
	return separator(t.keyOf(live[half-1].p), t.keyOf(live[half].p)), half
}

// split makes room for key in a full leaf and returns the leaf that holds key
// now. If memory is out nothing is changed.
func (t *Tree) split(r *ref, key string) (*ref, error) {
	s := t.span(r.addr)
	live := t.liveSlots(s)
	fence, stay := t.cut(s, live, r, key)
	moved := live[stay:]
	right, left := newRef(0, fence, r.high, r.last), newRef(r.addr, r.low, fence, false)
	var err error
	if left.fence, err = t.newFences(left); err != nil {
		return nil, err
	}
	if err = t.newLeaf(right); err != nil {
		t.freeFences(left.fence)
		return nil, err
	}
	if t.faults.shrinkBeforeLink {
		e := t.a.Begin(r.addr, t.lay.LeafWords)
		for _, sk := range moved {
			e.Set(t.lay.pointersAt+sk.slot, 0)
		}
		t.commitLeaf(&e)
		t.step("shrunk")
	}
	t.fillRight(right, r, moved)
	t.step("filled")
	t.shrink(r, left, right, live[:stay], moved)
	t.step("linked")
	t.freeFences(r.fence)
	t.tellMoves(left, right, moved)
	t.know(left)
	if t.finger == r {
		t.finger = left
	}
	t.root.Store(withRoot(t.root.Load().edit(r.low, left, right)))
	t.changed(right.low, right.high)
	if right.covers(key) {
		return right, nil
	}
	return left, nil
}

func (t *Tree) step(name string) {
	if t.atStep != nil {
		t.atStep(name)
	}
}

// digest is the digest of a row's key in the leaf to be, which it has in
// another leaf.
func (t *Tree) digest(sk slotKey, was, is *ref) uint64 {
	if was.prefix == is.prefix {
		return sk.digest
	}
	t.keys = t.rowKey(sk.p, t.keys[:0])
	return DigestAt(mem.String(t.keys), is.prefix)
}

// fillRight writes the right leaf completely. Nothing leads to it yet; a
// reader with an old address may accept it, and is told the truth.
func (t *Tree) fillRight(right, old *ref, moved []slotKey) {
	s := t.span(old.addr)
	was := unpackMeta(s.Load(metaWord))
	m := meta{last: old.last, newest: noNewest, live: len(moved), count: len(moved)}
	e := t.blank(right, s.Load(rightWord))
	e.Set(deleteWord, s.Load(deleteWord))
	for i, sk := range moved {
		e.Set(digestWord+i, t.digest(sk, old, right))
		e.Set(t.lay.pointersAt+i, uint64(sk.p))
		if sk.slot == was.newest {
			m.newest = i
		}
	}
	e.Set(metaWord, t.lay.packMeta(m))
	t.commitLeaf(&e)
}

// shrink ends the left leaf at its new high fence, links it to right and frees
// the slots whose rows have moved.
func (t *Tree) shrink(old, left, right *ref, stay, moved []slotKey) {
	e := t.a.Begin(left.addr, t.lay.LeafWords)
	m := unpackMeta(e.Load(metaWord))
	m.last = false
	m.live -= len(moved)
	for _, sk := range moved {
		e.Set(t.lay.pointersAt+sk.slot, 0)
		if sk.slot == m.newest {
			m.newest = noNewest
		}
	}
	for _, sk := range stay {
		e.Set(digestWord+sk.slot, t.digest(sk, old, left))
	}
	for s := t.span(left.addr); m.count > 0 && t.pointer(s, m.count-1) == 0; {
		m.count--
	}
	t.setFences(&e, left)
	e.Set(rightWord, right.addr)
	e.Set(metaWord, t.lay.packMeta(m))
	t.commitLeaf(&e)
}

// tellMoves keeps held and shared locks in step with a split. Rows stay where
// they are; their slots and the gap do not.
func (t *Tree) tellMoves(left, right *ref, moved []slotKey) {
	if !t.locks.Empty() {
		t.locks.Copy(GapAddr(left.addr), GapAddr(right.addr))
	}
	if len(t.held) == 0 {
		return
	}
	for i, sk := range moved {
		t.keys = t.rowKey(sk.p, t.keys[:0])
		if h := t.held[mem.String(t.keys)]; h != nil {
			h.Home, h.Slot = right.addr, i
		}
	}
}

// Tidy unlinks at most limit leaves that have run empty. It reports whether
// there was anything to do.
func (t *Tree) Tidy(limit int) (worked bool) {
	n := min(limit, len(t.empty))
	for _, r := range t.empty[:n] {
		worked = t.unlink(r) || worked
	}
	t.empty = append(t.empty[:0], t.empty[n:]...)
	return worked
}

// unlink removes a leaf from the tree if it is (still) empty, and gives its
// range to its left sibling.
func (t *Tree) unlink(r *ref) bool {
	if r = t.refOf(r.addr); r == nil || r.addr == t.first {
		return false
	}
	s := t.span(r.addr)
	if unpackMeta(s.Load(metaWord)).live > 0 {
		return false
	}
	// Owner 0 is nobody's.
	if !t.locks.Empty() && t.locks.SharedByOther(GapAddr(r.addr), index.Owner(0)) {
		t.empty = append(t.empty, r) // a prepared transaction relies on the gap
		return false
	}
	old := t.before(r)
	left := newRef(old.addr, old.low, r.high, r.last)
	var err error
	if left.fence, err = t.newFences(left); err != nil {
		t.empty = append(t.empty, r)
		return false
	}
	right, deleted := s.Load(rightWord), s.Load(deleteWord)
	t.kill(r)
	t.step("killed")
	live := t.liveSlots(t.span(old.addr))
	e := t.a.Begin(left.addr, t.lay.LeafWords)
	m := unpackMeta(e.Load(metaWord))
	m.last = r.last
	for _, sk := range live {
		e.Set(digestWord+sk.slot, t.digest(sk, old, left))
	}
	t.setFences(&e, left)
	e.Set(rightWord, right)
	e.Set(deleteWord, max(e.Load(deleteWord), deleted))
	e.Set(metaWord, t.lay.packMeta(m))
	t.commitLeaf(&e)
	t.freeFences(old.fence)
	t.know(left)
	if t.finger == old {
		t.finger = left
	}
	root := withRoot(t.root.Load().edit(r.low))
	t.root.Store(withRoot(root.edit(left.low, left)))
	t.changed(r.low, r.high)
	if m.live == 0 && left.addr != t.first {
		t.empty = append(t.empty, left)
	}
	return true
}

// before is the leaf left of one that is not the first: its low fence is the
// greatest below that of r.
func (t *Tree) before(r *ref) *ref {
	nd, left := t.root.Load(), (*node)(nil)
	for {
		at := nd.search(r.low)
		if nd.refs != nil {
			if at > 0 {
				return nd.refs[at-1]
			}
			break
		}
		if at > 0 {
			left = nd.kids[at-1]
		}
		nd = nd.kids[at]
	}
	for left.refs == nil {
		left = left.kids[len(left.kids)-1]
	}
	return left.refs[len(left.refs)-1]
}
