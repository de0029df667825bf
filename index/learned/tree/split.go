package tree

import (
	"slices"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// appendLive appends the slots in use of a leaf, in key order.
func (t *Tree) appendLive(dst []slotKey, s mem.Span) []slotKey {
	for _, at := range t.loadOrder(s)[:leaf.Unpack(s.Load(leaf.MetaWord)).Live] {
		i := int(at)
		dst = append(dst, slotKey{s.Load(t.lay.KeysAt + i), i, s.Load(t.lay.HeadsAt + i)})
	}
	return dst
}

// cut chooses the low fence of the new right leaf, and how many rows stay in the left
// one.
//
// If the new key directly follows the leaf's newest one, keys are probably arriving
// in order. Then the rows above it, if any, move to the right leaf, and the left leaf
// fills up further; if there are none, the right leaf gets only the new key.
// Otherwise the leaf is halved.
func (t *Tree) cut(addr uint64, live []slotKey, key index.Key) (fence index.Key, stay int) {
	m, w := leaf.Unpack(t.span(addr).Load(leaf.MetaWord)), t.keys.word(addr, key)
	at, _ := slices.BinarySearchFunc(live, key, func(a slotKey, k index.Key) int {
		if a.word < w || a.word == w && t.keys.keyOf(a).Compare(k) < 0 {
			return -1
		}
		return 1
	})
	half := len(live) / 2
	if at > 0 && m.Newest == live[at-1].slot {
		if at == len(live) {
			return t.keys.separator(t.keys.keyOf(live[at-1]), key), at
		}
		half = at
	}
	return t.between(live, half), half
}

// between returns a low fence for a leaf of the rows from live[i] on.
func (t *Tree) between(live []slotKey, i int) index.Key {
	return t.keys.separator(t.keys.keyOf(live[i-1]), t.keys.keyOf(live[i]))
}

// split makes room for key in a full leaf and returns the leaf that covers key now.
// On an error nothing has changed.
func (t *Tree) split(addr uint64, key index.Key) (uint64, error) {
	s := t.span(addr)
	t.sorted = t.appendLive(t.sorted[:0], s)
	live, old := t.sorted, t.keys.of(addr)
	fence, stay := t.cut(addr, live, key)
	moved := live[stay:]
	left, right := t.newFences(addr, old.low, fence, false), t.newFences(0, fence, old.high, old.last)
	if err := t.keys.reserve(left); err != nil {
		return 0, err
	}
	where := forMoved
	if len(moved) == 0 {
		// Ascending keys at the end of the tree fill leaves at consecutive addresses.
		if where = nearby; old.last {
			where = apart
		}
	}
	if err := t.newLeaf(where, right); err != nil {
		t.keys.drop(left)
		return 0, err
	}
	t.divide(t.gather(old), left, right)
	t.fillRight(right, old, moved)
	t.step("filled")
	t.shrink(left, right, old, live[:stay], moved)
	t.step("linked")
	t.keys.replace(old, left)
	if !t.locks.Empty() {
		t.locks.Copy(leaf.GapAddr(addr), leaf.GapAddr(right.addr))
	}
	t.followLocks(addr, right.addr, moved, 0)
	t.addLeaf(right)
	t.mirror.flush()
	if right.last && t.lay.Kind != leaf.Strings {
		t.tail.Store(right.low.Num)
	}
	t.splits.Add(1)
	t.changed(right.low, right.high, !right.last, right.addr, len(moved) == 0)
	if key.Compare(fence) >= 0 {
		return right.addr, nil
	}
	return addr, nil
}

// fillRight writes the right leaf completely. No link points to it yet. A reader with
// an old address may accept it; its contents are correct already.
func (t *Tree) fillRight(right, old *fences, moved []slotKey) {
	s := t.span(old.addr)
	newest := leaf.Unpack(s.Load(leaf.MetaWord)).Newest
	m := leaf.Meta{Last: old.last, Newest: leaf.NoNewest, Live: len(moved), Count: len(moved)}
	e := t.blank(right)
	for i, sk := range moved {
		e.Set(t.lay.KeysAt+i, t.keys.carried(sk, old, right))
		e = t.rows.carry(e, i, s, sk.slot)
		if sk.slot == newest {
			m.Newest = i
		}
	}
	e.Set(leaf.MetaWord, t.lay.Pack(m))
	e.Set(leaf.RightWord, s.Load(leaf.RightWord))
	e.Set(t.lay.DeleteAt, s.Load(t.lay.DeleteAt))
	e.Set(t.lay.GravesAt, t.gravesWord(right.addr))
	t.commitLeaf(&e)
}

// shrink gives the left leaf its new high fence, links it to right and frees the
// slots whose rows have moved: their headers must not validate a proof any more. The
// order of the slots is right as it is: those that have moved follow those that stay.
func (t *Tree) shrink(left, right, old *fences, stay, moved []slotKey) {
	e := t.a.Begin(left.addr, t.lay.LeafWords)
	m := leaf.Unpack(e.Load(leaf.MetaWord))
	m.Last = false
	m.Live -= len(moved)
	for _, sk := range moved {
		e.Set(t.lay.HeadsAt+sk.slot, t.lay.FreeHead)
		if sk.slot == m.Newest {
			m.Newest = leaf.NoNewest
		}
	}
	t.recarry(&e, stay, old, left)
	for s := t.span(left.addr); m.Count > 0 && !t.inUse(s, m.Count-1); {
		m.Count--
	}
	t.setFences(&e, left)
	e.Set(leaf.RightWord, right.addr)
	e.Set(t.lay.GravesAt, t.gravesWord(left.addr))
	e.Set(leaf.MetaWord, t.lay.Pack(m))
	t.commitLeaf(&e)
}

// recarry sets the words of the slots that stay to those for the leaf's new fences.
func (t *Tree) recarry(e *block.Edit, stay []slotKey, old, f *fences) {
	if old.prefix == f.prefix {
		return
	}
	for _, sk := range stay {
		e.Set(t.lay.KeysAt+sk.slot, t.keys.carried(sk, old, f))
	}
}

// followLocks moves held and shared locks with their rows, which have moved from a
// leaf to the slots of another from first on.
func (t *Tree) followLocks(from, to uint64, moved []slotKey, first int) {
	shared := !t.locks.Empty() && t.lay.Kind == leaf.Inline
	if !shared && t.held.len() == 0 {
		return
	}
	s := t.span(to)
	for i, sk := range moved {
		i += first
		if shared {
			t.locks.Move(t.lay.HeadAddr(from, sk.slot), t.lay.HeadAddr(to, i))
		}
		if t.held.len() == 0 {
			continue
		}
		if h := t.held.get(t.keys.keyOf(sk)); h != nil {
			h.Home, h.Slot, h.Addr = to, i, t.rows.header(to, s, i)
		}
	}
}
