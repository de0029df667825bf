package xtree

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// locate returns the leaf that holds key, trying first the hint, which may be
// anything, and the leaf of the latest change.
func (t *Tree) locate(key, hint uint64) uint64 {
	if hint != 0 && t.alive(hint) && t.covers(t.span(hint), key) {
		return hint
	}
	if t.finger != 0 && t.covers(t.span(t.finger), key) {
		return t.finger
	}
	return t.descend(key)
}

func (t *Tree) covers(s mem.Span, key uint64) bool {
	return key >= s.Load(lowWord) && (key < s.Load(highWord) || s.Load(metaWord)&lastFlag != 0)
}

// slotOf returns the slot in use that has key, or -1.
func (t *Tree) slotOf(s mem.Span, key uint64) int {
	n := int(s.Load(metaWord) & 0xff)
	for i := range n {
		if s.Load(keysWord+i) == key && t.inUse(s, i) {
			return i
		}
	}
	return -1
}

func (t *Tree) inUse(s mem.Span, i int) bool {
	w := s.Load(t.lay.headAt + i)
	if t.lay.Inline {
		return block.Header(w) != Free
	}
	return w != 0
}

// LockWrite is index.Server's, for a native key.
func (t *Tree) LockWrite(o index.Owner, key, hint uint64) (*index.Held, error) {
	if len(t.held) > 0 {
		if h := t.held[key]; h != nil {
			if h.Owner == o {
				return h, nil
			}
			return nil, index.ErrLocked
		}
	}
	leaf := t.locate(key, hint)
	s := t.span(leaf)
	slot := t.slotOf(s, key)
	if slot < 0 {
		return t.lockAbsent(o, key, leaf)
	}
	h := &index.Held{Key: index.Num(key), Owner: o, Existed: true, Home: leaf, Slot: slot, Addr: t.headerAddr(s, leaf, slot)}
	if !t.locks.Empty() && t.locks.SharedByOther(h.Addr, o) {
		return nil, index.ErrLocked
	}
	e := t.a.Begin(leaf, t.lay.LeafWords)
	if t.lay.Inline {
		h.Prev = block.Header(e.Load(t.lay.headAt + slot))
		e.Set(t.lay.headAt+slot, uint64(h.Prev.Lock()))
	} else {
		row := t.a.Span(h.Addr, 1)
		h.Prev = block.Header(row.Load(block.HeaderWord))
		row.Store(block.HeaderWord, uint64(h.Prev.Lock()))
	}
	// The new version alone, if rows are apart: a scan's quick proof is the
	// leaf's header, and covers its rows.
	t.commitLeaf(&e)
	t.held[key] = h
	t.finger = leaf
	return h, nil
}

// headerAddr is the address of the header word of the row in a slot.
func (t *Tree) headerAddr(s mem.Span, leaf uint64, slot int) uint64 {
	if t.lay.Inline {
		return t.lay.HeadAddr(leaf, slot)
	}
	return s.Load(t.lay.headAt + slot)
}

// lockAbsent puts a locked placeholder where key's row will be.
func (t *Tree) lockAbsent(o index.Owner, key, leaf uint64) (*index.Held, error) {
	if !t.locks.Empty() && t.locks.SharedByOther(GapAddr(leaf), o) {
		return nil, index.ErrLocked
	}
	h := &index.Held{Key: index.Num(key), Owner: o}
	head := block.Absent(block.CSN(t.a.NextVersion())).Lock()
	if err := t.place(h, leaf, head, nil); err != nil {
		return nil, err
	}
	t.held[key] = h
	return h, nil
}

// place puts a new key into the leaf, splitting it if need be, under the given
// header; row may be nil. It fills in Addr, Home and Slot.
func (t *Tree) place(h *index.Held, leaf uint64, head block.Header, row []uint64) error {
	block := uint64(0)
	if !t.lay.Inline {
		var err error
		if block, err = t.newRow(h.Key.Num, head, row); err != nil {
			return err
		}
	}
	s := t.span(leaf)
	if m := unpackMeta(s.Load(metaWord)); m.live == t.lay.Slots {
		var err error
		if leaf, err = t.split(leaf, h.Key.Num); err != nil {
			if block != 0 {
				t.rows.Free(block)
			}
			return err
		}
		s = t.span(leaf)
	}
	t.enter(h, leaf, s, uint64(head), block, row)
	t.finger = leaf
	return nil
}

// enter takes a slot of a leaf with room for a new key.
func (t *Tree) enter(h *index.Held, leaf uint64, s mem.Span, head, rowBlock uint64, row []uint64) {
	m := unpackMeta(s.Load(metaWord))
	slot := m.count
	if slot < t.lay.Slots {
		m.count++
	} else {
		for slot = 0; t.inUse(s, slot); slot++ {
		}
	}
	m.live++
	m.newest = slot
	e := t.a.Begin(leaf, t.lay.LeafWords)
	version := t.a.NextVersion() // one does for header and gap
	if !(t.faults.gapNotBumpedReuse && slot < m.count-1) {
		e.Set(GapWord, t.narrowed(version))
	}
	e.Set(keysWord+slot, h.Key.Num)
	if t.lay.Inline {
		e.Set(t.lay.headAt+slot, head)
		if row != nil {
			e.Write(t.lay.rowAt+slot*t.lay.RowWords, row)
		}
		h.Addr = t.lay.HeadAddr(leaf, slot)
	} else {
		e.Set(t.lay.headAt+slot, rowBlock)
		h.Addr = rowBlock
	}
	e.Set(metaWord, t.lay.packMeta(m))
	e.Commit(block.Header(version))
	h.Home, h.Slot = leaf, slot
}

// newRow makes a row block.
func (t *Tree) newRow(key uint64, head block.Header, row []uint64) (uint64, error) {
	addr, err := t.rows.Alloc()
	if err != nil {
		return 0, fmt.Errorf("%w: %v", index.ErrFull, err)
	}
	e := t.a.Create(addr, t.lay.RowBlockWords)
	e.Set(rowKeyWord, key)
	e.Set(rowIDWord, uint64(t.lay.ID)<<32|rowMagic)
	if row != nil {
		e.Write(RowWord, row)
	}
	e.Commit(head)
	return addr, nil
}

// Publish is index.Server's.
func (t *Tree) Publish(h *index.Held, row []uint64, head block.Header) {
	if len(row) != t.lay.RowWords {
		panic(fmt.Sprintf("xtree: publish a row of %d words, want %d", len(row), t.lay.RowWords))
	}
	t.end(h)
	if t.lay.Inline {
		e := t.a.Begin(h.Home, t.lay.LeafWords)
		e.Write(t.lay.rowAt+h.Slot*t.lay.RowWords, row)
		e.Set(t.lay.headAt+h.Slot, uint64(head))
		t.commitLeaf(&e)
	} else {
		e := t.a.Begin(h.Addr, t.lay.RowBlockWords)
		e.Write(RowWord, row)
		e.Commit(head)
	}
	if !h.Existed {
		t.live.Add(1)
	}
}

// end takes a lock off the list; using it once more is a broken invariant.
func (t *Tree) end(h *index.Held) {
	if t.held[h.Key.Num] != h {
		panic(fmt.Sprintf("xtree: lock on key %#x is not held", h.Key.Num))
	}
	delete(t.held, h.Key.Num)
}

// PublishDelete is index.Server's. The slot keeps no header. The leaf keeps the
// deletion's CSN, because the absence of the key rests on it.
func (t *Tree) PublishDelete(h *index.Held, head block.Header) {
	t.end(h)
	t.vacate(h, head.CSN())
	if h.Existed {
		t.live.Add(^uint64(0))
	}
}

// Release is index.Server's.
func (t *Tree) Release(h *index.Held) {
	t.end(h)
	if !h.Existed {
		t.vacate(h, 0)
		return
	}
	if t.lay.Inline {
		e := t.a.Begin(h.Home, t.lay.LeafWords)
		e.Set(t.lay.headAt+h.Slot, uint64(h.Prev))
		t.commitLeaf(&e)
		return
	}
	t.a.Span(h.Addr, 1).Store(block.HeaderWord, uint64(h.Prev))
}

// vacate frees a slot, and notes a leaf that ran empty. deleted is the CSN of
// the deletion, 0 if a placeholder goes: what other answers rest on stays.
func (t *Tree) vacate(h *index.Held, deleted block.CSN) {
	e := t.a.Begin(h.Home, t.lay.LeafWords)
	e.Set(deleteWord, max(e.Load(deleteWord), uint64(deleted)))
	m := unpackMeta(e.Load(metaWord))
	if t.lay.Inline {
		e.Set(t.lay.headAt+h.Slot, uint64(Free))
	} else {
		e.Set(t.lay.headAt+h.Slot, 0)
	}
	m.live--
	if m.newest == h.Slot {
		m.newest = noNewest
	}
	if h.Slot == m.count-1 {
		m.count--
	}
	if m.live == 0 {
		m.count = 0
	}
	e.Set(metaWord, t.lay.packMeta(m))
	t.commitLeaf(&e)
	if !t.lay.Inline {
		t.rows.Free(h.Addr)
	}
	t.finger = h.Home
	if m.live == 0 && h.Home != t.first {
		t.empty = append(t.empty, h.Home)
		if len(t.empty) > emptyMax {
			t.tidy(emptyMax / 2)
		}
	}
}

// Load is index.Server's, for a native key. Keys in ascending order load fastest and fill leaves.
func (t *Tree) Load(key uint64, row []uint64, head block.Header) error {
	if len(row) != t.lay.RowWords {
		return fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, len(row), t.lay.RowWords)
	}
	leaf := t.locate(key, 0)
	s := t.span(leaf)
	slot := t.slotOf(s, key)
	h := index.Held{Key: index.Num(key)}
	if slot < 0 {
		if err := t.place(&h, leaf, head, row); err != nil {
			return err
		}
		t.live.Add(1)
		return nil
	}
	if t.held[key] != nil {
		return index.ErrLocked
	}
	if t.lay.Inline {
		e := t.a.Begin(leaf, t.lay.LeafWords)
		e.Write(t.lay.rowAt+slot*t.lay.RowWords, row)
		e.Set(t.lay.headAt+slot, uint64(head))
		t.commitLeaf(&e)
		return nil
	}
	e := t.a.Begin(s.Load(t.lay.headAt+slot), t.lay.RowBlockWords)
	e.Write(RowWord, row)
	e.Commit(head)
	le := t.a.Begin(leaf, t.lay.LeafWords)
	t.commitLeaf(&le)
	return nil
}
