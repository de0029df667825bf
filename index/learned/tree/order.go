package tree

import (
	"bytes"

	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/invariants"
	"drtmx/internal/mem"
)

// order is a copy of a leaf's order of slots; see package leaf. The caller passes the
// number of slots in use, which is in the meta word.
type order struct {
	words [leaf.MaxSlots / mem.WordBytes]uint64
}

// slots returns a byte for each of n slots.
func (o *order) slots(n int) []byte { return mem.Bytes(o.words[:])[:n] }

// copy copies the order of a leaf.
func (o *order) copy(l *leaf.Layout, s mem.Span) {
	s.Slice(l.OrderAt, l.OrderWords).CopyOut(o.words[:l.OrderWords])
}

// live copies the order of a leaf and returns its slots in use. If a mutator is changing
// the leaf, it may return any bytes, but no more than there are slots.
func (o *order) live(l *leaf.Layout, s mem.Span) []byte {
	o.copy(l, s)
	return o.slots(min(leaf.Unpack(s.Load(leaf.MetaWord)).Live, l.Slots))
}

// loadOrder copies the order of a leaf to t.order and returns its bytes.
func (t *Tree) loadOrder(s mem.Span) []byte {
	t.order.copy(&t.lay, s)
	return t.order.slots(t.lay.Slots)
}

// storeOrder enters t.order in an edit of its leaf, from slot number from on.
func (t *Tree) storeOrder(e *block.Edit, from int) {
	from /= mem.WordBytes
	e.Write(t.lay.OrderAt+from, t.order.words[from:t.lay.OrderWords])
}

// blankOrder enters the order of a leaf whose first slots are in use, in the order of
// their keys.
func (t *Tree) blankOrder(e *block.Edit) {
	const first, step = 0x0706050403020100, 0x0808080808080808 // bytes 0 to 7, and 8 more for each
	for i := range t.lay.OrderWords {
		e.Set(t.lay.OrderAt+i, first+uint64(i)*step)
	}
}

// slotAt returns slot number i of the order of a leaf.
func (t *Tree) slotAt(s mem.Span, i int) int {
	return int(s.Load(t.lay.OrderAt+i/mem.WordBytes) >> (i % mem.WordBytes * 8) & 0xff)
}

// enterOrder puts the first free slot, which is now in use, in its place among the live
// other slots in use. sk is that slot. Keys often ascend: then it is there already.
func (t *Tree) enterOrder(e *block.Edit, s mem.Span, live int, sk slotKey) {
	if live == 0 || t.below(s, t.slotAt(s, live-1), sk) {
		return
	}
	b := t.loadOrder(s)
	at := t.rank(s, b[:live], sk)
	copy(b[at+1:live+1], b[at:live])
	b[at] = byte(sk.slot)
	t.storeOrder(e, at)
}

// leaveOrder moves a slot that is free now, and was one of the first live ones, to the
// end. So inserts take slots that have never been used first.
func (t *Tree) leaveOrder(e *block.Edit, b []byte, live, slot int) {
	at := bytes.IndexByte(b[:live], byte(slot))
	if invariants.Enabled && at < 0 {
		invariants.Failf("tree: slot %d leaves the order of its leaf, and is not in it: %v of %v", slot, live, b)
	}
	copy(b[at:], b[at+1:])
	b[len(b)-1] = byte(slot)
	t.storeOrder(e, at)
}

// rank returns how many of the slots have keys below that of sk.
func (t *Tree) rank(s mem.Span, slots []byte, sk slotKey) int {
	lo, hi := 0, len(slots)
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); t.below(s, int(slots[mid]), sk) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

// below reports whether the key of a slot is below that of sk.
func (t *Tree) below(s mem.Span, slot int, sk slotKey) bool {
	w := s.Load(t.lay.KeysAt + slot)
	return w < sk.word || w == sk.word && t.keys.compare(slotKey{w, slot, s.Load(t.lay.HeadsAt + slot)}, sk) < 0
}
