package stree

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// locate returns the leaf that holds key, trying first the hint, which may be
// anything, and the leaf of the latest change.
func (t *Tree) locate(key string, hint uint64) *ref {
	if r := t.refOf(hint); r != nil && hint != 0 && r.covers(key) {
		return r
	}
	if t.finger != nil && t.finger.covers(key) {
		return t.finger
	}
	return t.root.Load().descend(key)
}

func (t *Tree) pointer(s mem.Span, i int) Pointer { return Pointer(s.Load(t.lay.pointersAt + i)) }

// slotOf returns the slot that has key, or -1.
func (t *Tree) slotOf(r *ref, key string) int {
	s, d, tag := t.span(r.addr), DigestAt(key, r.prefix), Tag(key)
	for i := range int(s.Load(metaWord) & 0xff) {
		if s.Load(digestWord+i) != d {
			continue
		}
		p := t.pointer(s, i)
		if p != 0 && t.faults.firstTie || p != 0 && p.Tag() == tag && isRow(t.a.Span(p.Addr(), p.Words()), key) {
			return i
		}
	}
	return -1
}

// isRow reports whether a row block is key's.
func isRow(s mem.Span, key string) bool {
	if s.Load(rowSizeWord)>>32 != uint64(len(key)) {
		return false
	}
	for i := range keyWords(key) {
		if s.Load(rowKeyWord+i) != wordAt(key, i) {
			return false
		}
	}
	return true
}

// LockWrite is index.Server's, for a string key, which is cloned if it is kept.
func (t *Tree) LockWrite(o index.Owner, key string, hint uint64) (*index.Held, error) {
	if len(key) > index.MaxKeyBytes {
		return nil, fmt.Errorf("%w: %d bytes, at most %d", index.ErrKey, len(key), index.MaxKeyBytes)
	}
	if h := t.held[key]; h != nil {
		if h.Owner == o {
			return h, nil
		}
		return nil, index.ErrLocked
	}
	r := t.locate(key, hint)
	slot := t.slotOf(r, key)
	if slot < 0 {
		return t.lockAbsent(o, key, r)
	}
	p := t.pointer(t.span(r.addr), slot)
	if !t.locks.Empty() && t.locks.SharedByOther(p.Addr(), o) {
		return nil, index.ErrLocked
	}
	h := &index.Held{Key: index.Str(key).Clone(), Owner: o, Existed: true, Home: r.addr, Slot: slot, Addr: p.Addr()}
	// The new version alone: a scan's quick proof is the leaf's header, and covers its rows.
	e := t.a.Begin(r.addr, t.lay.LeafWords)
	row := t.a.Span(h.Addr, 1)
	h.Prev = block.Header(row.Load(block.HeaderWord))
	row.Store(block.HeaderWord, uint64(h.Prev.Lock()))
	t.commitLeaf(&e)
	t.held[h.Key.Str] = h
	t.finger = r
	return h, nil
}

// lockAbsent puts a locked placeholder where key's row will be.
func (t *Tree) lockAbsent(o index.Owner, key string, r *ref) (*index.Held, error) {
	if !t.locks.Empty() && t.locks.SharedByOther(GapAddr(r.addr), o) {
		return nil, index.ErrLocked
	}
	h := &index.Held{Key: index.Str(key).Clone(), Owner: o}
	head := block.Absent(block.CSN(t.a.NextVersion())).Lock()
	if err := t.place(h, r, t.guess, head, nil); err != nil {
		if err = t.place(h, r, 0, head, nil); err != nil {
			return nil, err
		}
	}
	t.held[h.Key.Str] = h
	return h, nil
}

// place puts a new key into its leaf, splitting it if need be, with a row block
// that has room for words of payload. It fills in Addr, Home and Slot.
func (t *Tree) place(h *index.Held, r *ref, words int, head block.Header, row []uint64) error {
	p, err := t.newRow(h.Key.Str, words, head, row)
	if err != nil {
		return err
	}
	if m := unpackMeta(t.span(r.addr).Load(metaWord)); m.live == t.lay.Slots {
		if r, err = t.split(r, h.Key.Str); err != nil {
			t.freeRow(p)
			return err
		}
	}
	t.enter(h, r, p)
	t.finger = r
	return nil
}

// enter takes a slot of a leaf with room for a new key.
func (t *Tree) enter(h *index.Held, r *ref, p Pointer) {
	s := t.span(r.addr)
	m := unpackMeta(s.Load(metaWord))
	slot := m.count
	if slot < t.lay.Slots {
		m.count++
	} else {
		for slot = 0; t.pointer(s, slot) != 0; slot++ {
		}
	}
	m.live++
	m.newest = slot
	e := t.a.Begin(r.addr, t.lay.LeafWords)
	version := t.a.NextVersion() // one does for header and gap
	if !t.faults.keepGapWord {
		e.Set(GapWord, version)
	}
	e.Set(digestWord+slot, DigestAt(h.Key.Str, r.prefix))
	e.Set(t.lay.pointersAt+slot, uint64(p))
	e.Set(metaWord, t.lay.packMeta(m))
	e.Commit(block.Header(version))
	h.Home, h.Slot, h.Addr = r.addr, slot, p.Addr()
}

// Reserve is index.Server's. A row stays in its block if it fits and does not
// waste more than half of it.
func (t *Tree) Reserve(h *index.Held, words int) error {
	if words < 0 || words > t.lay.MaxRowWords {
		return fmt.Errorf("%w: %d words, at most %d", index.ErrRowSize, words, t.lay.MaxRowWords)
	}
	need := rowBlockWords(h.Key.Str, words)
	c := block.ClassFor(need)
	cur := t.pointer(t.span(h.Home), h.Slot).Words()
	if need <= cur && 2*c.Words() > cur {
		t.dropRoom(h)
		return nil
	}
	if h.Room.Addr != 0 && h.Room.Words == c.Words() {
		return nil
	}
	addr, err := t.rows.Alloc(c)
	switch {
	case err == nil:
		t.dropRoom(h)
		h.Room = index.Room{Addr: addr, Words: c.Words()}
	case need > cur:
		return fmt.Errorf("%w: %v", index.ErrFull, err)
	}
	return nil
}

// dropRoom gives back what was reserved.
func (t *Tree) dropRoom(h *index.Held) {
	if h.Room.Addr != 0 {
		t.rows.Free(h.Room.Addr, block.ClassFor(h.Room.Words))
		h.Room = index.Room{}
	}
}

// Publish is index.Server's.
func (t *Tree) Publish(h *index.Held, row []uint64, head block.Header) {
	t.end(h)
	need := rowBlockWords(h.Key.Str, len(row))
	p := t.pointer(t.span(h.Home), h.Slot)
	switch {
	case h.Room.Addr != 0 && need <= h.Room.Words:
		t.move(h, p, row, head)
	case need <= p.Words():
		t.dropRoom(h)
		e := t.a.Begin(h.Addr, p.Words())
		e.Set(rowSizeWord, uint64(len(h.Key.Str))<<32|uint64(len(row)))
		e.Write(need-len(row), row)
		e.Commit(head)
	default:
		panic(fmt.Sprintf("stree: publish a row of %d words, for which no room was reserved", len(row)))
	}
	t.guess = len(row)
	if !h.Existed {
		t.live.Add(1)
	}
}

// move publishes a row in the block reserved. The new block is complete before
// the slot points to it; the old one, which is locked, is freed after, and stays
// locked until it is another row.
func (t *Tree) move(h *index.Held, old Pointer, row []uint64, head block.Header) {
	p := newPointer(old.Tag(), block.ClassFor(h.Room.Words), h.Room.Addr)
	if t.faults.swapFirst {
		t.fillRow(p, h.Key.Str, head, nil)
	} else {
		t.fillRow(p, h.Key.Str, head, row)
	}
	t.step("filled")
	e := t.a.Begin(h.Home, t.lay.LeafWords)
	e.Set(t.lay.pointersAt+h.Slot, uint64(p))
	t.commitLeaf(&e)
	t.step("swapped")
	if t.faults.swapFirst {
		t.fillRow(p, h.Key.Str, head, row)
	}
	if !t.locks.Empty() {
		t.locks.Move(old.Addr(), p.Addr())
	}
	if t.faults.oldBlockValid {
		t.a.Span(old.Addr(), 1).Store(block.HeaderWord, uint64(h.Prev))
	} else {
		t.freeRow(old)
	}
	h.Addr, h.Room = p.Addr(), index.Room{}
	t.moves.Add(1)
}

// end takes a lock off the list; using it once more is a broken invariant.
func (t *Tree) end(h *index.Held) {
	if t.held[h.Key.Str] != h {
		panic(fmt.Sprintf("stree: lock on key %v is not held", h.Key))
	}
	delete(t.held, h.Key.Str)
}

// PublishDelete is index.Server's. The slot keeps no header. The leaf keeps the
// deletion's CSN, because the absence of the key rests on it.
func (t *Tree) PublishDelete(h *index.Held, head block.Header) {
	t.end(h)
	t.dropRoom(h)
	t.vacate(h, head.CSN())
	if h.Existed {
		t.live.Add(^uint64(0))
	}
}

// Release is index.Server's.
func (t *Tree) Release(h *index.Held) {
	t.end(h)
	t.dropRoom(h)
	if !h.Existed {
		t.vacate(h, 0)
		return
	}
	t.a.Span(h.Addr, 1).Store(block.HeaderWord, uint64(h.Prev))
}

// vacate frees a slot and its row, and notes a leaf that ran empty. deleted is
// the CSN of the deletion, 0 if a placeholder goes: what other answers rest on
// stays.
func (t *Tree) vacate(h *index.Held, deleted block.CSN) {
	e := t.a.Begin(h.Home, t.lay.LeafWords)
	e.Set(deleteWord, max(e.Load(deleteWord), uint64(deleted)))
	m := unpackMeta(e.Load(metaWord))
	p := Pointer(e.Load(t.lay.pointersAt + h.Slot))
	e.Set(t.lay.pointersAt+h.Slot, 0)
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
	t.freeRow(p)
	t.finger = t.refOf(h.Home)
	if m.live == 0 && h.Home != t.first {
		t.empty = append(t.empty, t.finger)
		if len(t.empty) > emptyMax {
			t.Tidy(emptyMax / 2)
		}
	}
}

// Load is index.Server's, for a string key. Keys in ascending order load
// fastest and fill leaves.
func (t *Tree) Load(key string, row []uint64, head block.Header) error {
	switch {
	case len(key) > index.MaxKeyBytes:
		return fmt.Errorf("%w: %d bytes, at most %d", index.ErrKey, len(key), index.MaxKeyBytes)
	case len(row) > t.lay.MaxRowWords:
		return fmt.Errorf("%w: %d words, at most %d", index.ErrRowSize, len(row), t.lay.MaxRowWords)
	}
	r := t.locate(key, 0)
	if t.slotOf(r, key) < 0 {
		h := index.Held{Key: index.Str(key)}
		if err := t.place(&h, r, len(row), head, row); err != nil {
			return err
		}
		t.live.Add(1)
		return nil
	}
	if t.held[key] != nil {
		return index.ErrLocked
	}
	h, err := t.LockWrite(0, key, r.addr)
	if err != nil {
		return err
	}
	if err := t.Reserve(h, len(row)); err != nil {
		t.Release(h)
		return err
	}
	t.Publish(h, row, head)
	return nil
}
