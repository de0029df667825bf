package tree

import (
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/invariants"
	"drtmx/internal/mem"
)

// checkKey returns index.ErrKey for a key that the index cannot hold.
func (t *Tree) checkKey(key index.Key) error {
	strs := t.lay.Kind == leaf.Strings
	switch {
	case strs && key.Num != 0:
		return fmt.Errorf("%w: %v, want a string", index.ErrKey, key)
	case !strs && key.Str != "":
		return fmt.Errorf("%w: %v, want a number", index.ErrKey, key)
	case len(key.Str) > index.MaxKeyBytes:
		return fmt.Errorf("%w: %d bytes, at most %d", index.ErrKey, len(key.Str), index.MaxKeyBytes)
	}
	return nil
}

// locate returns the leaf that covers key. It first tries the hint, which may be any
// number, and the leaf of the latest change.
func (t *Tree) locate(key index.Key, hint uint64) uint64 {
	if hint != 0 && t.alive(hint) {
		t.prefetchAll(t.span(hint))
		if t.keys.covers(hint, key) {
			return hint
		}
	}
	if t.finger != 0 && t.keys.covers(t.finger, key) {
		return t.finger
	}
	addr := t.descend(key)
	t.prefetchAll(t.span(addr))
	return addr
}

func (t *Tree) inUse(s mem.Span, i int) bool { return s.Load(t.lay.HeadsAt+i) != t.lay.FreeHead }

// LockWrite implements index.Server. It clones the key if it keeps it.
func (t *Tree) LockWrite(o index.Owner, key index.Key, hint uint64) (*index.Held, error) {
	if err := t.checkKey(key); err != nil {
		return nil, err
	}
	if h := t.held.get(key); h != nil {
		if h.Owner == o {
			return h, nil
		}
		return nil, index.ErrLocked
	}
	addr := t.locate(key, hint)
	slot := t.keys.slot(addr, key)
	if slot < 0 {
		return t.lockAbsent(o, key, addr)
	}
	s := t.span(addr)
	h := t.helds.New(index.Held{Key: key, Owner: o, Existed: true, Home: addr, Slot: slot, Addr: t.rows.header(addr, s, slot)})
	if !t.locks.Empty() && t.locks.SharedByOther(h.Addr, o) {
		return nil, index.ErrLocked
	}
	h.Key = key.Clone()
	e := t.a.Begin(addr, t.lay.LeafWords)
	e, h.Prev = t.rows.lock(e, slot)
	// If rows are apart, this changes only the leaf's version: a scan's quick proof
	// is the leaf's header, and it covers the rows.
	t.commitLeaf(&e)
	t.held.put(h)
	t.finger = addr
	return h, nil
}

// lockAbsent inserts a locked placeholder for key's row.
func (t *Tree) lockAbsent(o index.Owner, key index.Key, addr uint64) (*index.Held, error) {
	if !t.locks.Empty() && t.locks.SharedByOther(leaf.GapAddr(addr), o) {
		return nil, index.ErrLocked
	}
	h := t.helds.New(index.Held{Key: key.Clone(), Owner: o})
	head := block.Absent(block.CSN(t.a.NextVersion())).Lock()
	if err := t.place(h, addr, t.rows.guess(), head, nil); err != nil {
		if err = t.place(h, addr, 0, head, nil); err != nil {
			return nil, err
		}
	}
	t.held.put(h)
	return h, nil
}

// place inserts a new key into the leaf, and splits the leaf if it is full. The row
// gets the given header and room for a payload of so many words; row may be nil.
// place sets h.Addr, h.Home and h.Slot. On an error nothing has changed.
func (t *Tree) place(h *index.Held, addr uint64, words int, head block.Header, row []uint64) error {
	own, err := t.rows.newRow(h.Key, words, head, row)
	if err != nil {
		return err
	}
	if leaf.Unpack(t.span(addr).Load(leaf.MetaWord)).Live == t.lay.Slots {
		if addr, err = t.split(addr, h.Key); err != nil {
			t.rows.drop(own)
			return err
		}
	}
	t.enter(h, addr, own, head, row)
	t.finger = addr
	return nil
}

// enter inserts a new key into a leaf that has a free slot.
func (t *Tree) enter(h *index.Held, addr, own uint64, head block.Header, row []uint64) {
	if invariants.Enabled && !t.keys.covers(addr, h.Key) {
		invariants.Failf("tree: key %v enters leaf %#x, whose fences do not cover it", h.Key, addr)
	}
	s := t.span(addr)
	m := leaf.Unpack(s.Load(leaf.MetaWord))
	slot := t.slotAt(s, m.Live)
	word := t.keys.word(addr, h.Key)
	e := t.a.Begin(addr, t.lay.LeafWords)
	version := t.a.NextVersion() // shared by header and gap word
	e.Set(leaf.GapWord, version)
	e.Set(t.lay.KeysAt+slot, word)
	e, h.Addr = t.rows.enter(e, addr, slot, own, head, row)
	t.enterOrder(&e, s, m.Live, slotKey{word, slot, own})
	m.Count = max(m.Count, slot+1)
	m.Live++
	m.Newest = slot
	e.Set(leaf.MetaWord, t.lay.Pack(m))
	e.Commit(block.Header(version))
	h.Home, h.Slot = addr, slot
	t.rising.leaf = 0 // unless restoreNew knows better
}

// Reserve implements index.Server.
func (t *Tree) Reserve(h *index.Held, words int) error { return t.rows.reserve(h, words) }

// Publish implements index.Server.
func (t *Tree) Publish(h *index.Held, row []uint64, head block.Header) {
	if err := t.rows.size(len(row)); err != nil {
		panic(fmt.Sprintf("tree: publish: %v", err))
	}
	t.held.end(h)
	t.rows.publish(h, row, head)
	if !h.Existed {
		t.live.Add(1)
	}
}

// PublishDelete implements index.Server. The slot keeps no header. The leaf keeps the
// deletion's CSN, because answers that the key is absent depend on it. Readers of the
// past find the row through its grave.
func (t *Tree) PublishDelete(h *index.Held, head block.Header) {
	t.held.end(h)
	t.rows.unreserve(h)
	kept := h.Existed && t.a.History().Keeps()
	if kept {
		t.dig(h, head.CSN(), t.rows.last(h, head))
	}
	t.vacate(h, head.CSN(), kept)
	if h.Existed {
		t.live.Add(^uint64(0))
	}
}

// Release implements index.Server.
func (t *Tree) Release(h *index.Held) {
	t.held.end(h)
	t.rows.unreserve(h)
	if !h.Existed {
		t.vacate(h, 0, false)
		return
	}
	t.rows.unlock(h)
}

// vacate frees a slot and its row, and queues the leaf for Tidy if it has become
// sparse. deleted is the CSN of the deletion, 0 for a placeholder, which leaves the
// leaf's last delete as it is. kept says that the row's block goes to the history
// instead of being freed. Either it is a version now, or a late READ of it must not
// see a new row of the same key in its place.
func (t *Tree) vacate(h *index.Held, deleted block.CSN, kept bool) {
	e := t.a.Begin(h.Home, t.lay.LeafWords)
	m := leaf.Unpack(e.Load(leaf.MetaWord))
	own := e.Load(t.lay.HeadsAt + h.Slot)
	e.Set(t.lay.HeadsAt+h.Slot, t.lay.FreeHead)
	if deleted > block.CSN(e.Load(t.lay.DeleteAt)) {
		e.Set(t.lay.DeleteAt, uint64(deleted))
	}
	e.Set(t.lay.GravesAt, t.gravesWord(h.Home))
	t.leaveOrder(&e, t.loadOrder(t.span(h.Home)), m.Live, h.Slot)
	m.Live--
	if m.Newest == h.Slot {
		m.Newest = leaf.NoNewest
	}
	if h.Slot == m.Count-1 {
		m.Count--
	}
	if m.Live == 0 {
		m.Count = 0
		t.blankOrder(&e)
	}
	e.Set(leaf.MetaWord, t.lay.Pack(m))
	t.commitLeaf(&e)
	if at := t.rows.place(own); kept && at != 0 {
		t.a.History().RetainRow(at, deleted.Tick())
	} else {
		t.rows.drop(own)
	}
	t.finger = h.Home
	t.shrunk(h.Home, m.Live)
}

// loadNew adds a row that is loaded or restored to the leaf that covers its key, or to a new
// one if that leaf is filled.
func (t *Tree) loadNew(h *index.Held, addr uint64, row []uint64, head block.Header) error {
	if t.filled(addr, h.Key) {
		var err error
		if addr, err = t.split(addr, h.Key); err != nil {
			return err
		}
	}
	return t.place(h, addr, len(row), head, row)
}

// filled reports whether a leaf has as many rows as ascending keys fill it with, and
// key follows them.
func (t *Tree) filled(addr uint64, key index.Key) bool {
	s := t.span(addr)
	m := leaf.Unpack(s.Load(leaf.MetaWord))
	if m.Live < t.loadSlots || m.Live == t.lay.Slots || m.Newest == leaf.NoNewest {
		return false
	}
	last := int(t.loadOrder(s)[m.Live-1])
	if last != m.Newest {
		return false
	}
	top := slotKey{s.Load(t.lay.KeysAt + last), last, s.Load(t.lay.HeadsAt + last)}
	return t.keys.keyOf(top).Compare(key) < 0
}

// Load implements index.Server. Keys in ascending order load fastest, and fill leaves
// up to Options.LoadSlots.
func (t *Tree) Load(key index.Key, row []uint64, head block.Header) error {
	if err := t.checkKey(key); err != nil {
		return err
	}
	if err := t.rows.size(len(row)); err != nil {
		return err
	}
	addr := t.locate(key, 0)
	if t.keys.slot(addr, key) < 0 {
		if !t.locks.Empty() && t.locks.SharedByOther(leaf.GapAddr(addr), 0) {
			return index.ErrLocked
		}
		h := index.Held{Key: key}
		if err := t.loadNew(&h, addr, row, head); err != nil {
			return err
		}
		t.live.Add(1)
		return nil
	}
	if t.held.get(key) != nil {
		return index.ErrLocked
	}
	h, err := t.LockWrite(0, key, addr)
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

// SetHint implements index.Hinted, for rows of one word in the leaves: READs see either word whole. With
// checksums the leaf changes as a whole: quick proofs of it fail then, and the exact ones do not.
func (t *Tree) SetHint(key index.Key, was block.Header, hint uint64) bool {
	if t.lay.Kind != leaf.Inline || t.lay.RowWords != 1 {
		return false
	}
	addr := t.descend(key)
	slot := t.keys.slot(addr, key)
	if slot < 0 {
		return false
	}
	s := t.span(addr)
	if block.Header(s.Load(t.lay.HeadsAt+slot)) != was {
		return false
	}
	if !t.a.Checksums() {
		s.Store(t.lay.RowsAt+slot, hint)
		return true
	}
	e := t.a.Begin(addr, t.lay.LeafWords)
	e.Set(t.lay.RowsAt+slot, hint)
	t.commitLeaf(&e)
	return true
}
