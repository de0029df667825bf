package tree

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// rising remembers the key restored last and its leaf, while that key is the highest
// of the tree. Then higher keys go to that leaf without a search.
type rising struct {
	leaf uint64
	num  uint64
	str  []byte
}

// below reports whether the key is known to be above all keys of the tree.
func (r *rising) below(key index.Key) bool {
	return r.leaf != 0 && (key.Num > r.num || key.Str > mem.String(r.str))
}

// Expect implements index.Server. It does nothing: leaves are made as others fill up.
func (t *Tree) Expect(uint64) {}

// Restore implements index.Server.
func (t *Tree) Restore(key index.Key, row []uint64, head block.Header) error {
	if err := t.checkKey(key); err != nil {
		return err
	}
	if !head.IsAbsent() {
		if err := t.rows.size(len(row)); err != nil {
			return err
		}
	}
	if t.rising.below(key) {
		return t.restoreNew(key, t.rising.leaf, row, head)
	}
	addr := t.locate(key, 0)
	slot := t.keys.slot(addr, key)
	if slot < 0 {
		return t.restoreNew(key, addr, row, head)
	}
	now := block.Header(t.a.Span(t.rows.header(addr, t.span(addr), slot), 1).Load(0))
	switch {
	case now.Locked():
		return index.ErrLocked
	case now.CSN() >= head.CSN():
		return nil
	}
	h, err := t.LockWrite(0, key, addr)
	if err != nil {
		return err
	}
	if head.IsAbsent() {
		t.PublishDelete(h, head)
		return nil
	}
	if err := t.Reserve(h, len(row)); err != nil {
		t.Release(h)
		return err
	}
	t.Publish(h, row, head)
	return nil
}

// restoreNew adds a row to the leaf that covers its key. A deletion needs nothing.
func (t *Tree) restoreNew(key index.Key, addr uint64, row []uint64, head block.Header) error {
	if head.IsAbsent() {
		return nil
	}
	rises := t.live.Load() == 0 || t.rising.below(key)
	h := index.Held{Key: key}
	if err := t.loadNew(&h, addr, row, head); err != nil {
		return err
	}
	t.live.Add(1)
	if rises && leaf.IsLast(t.span(h.Home).Load(leaf.MetaWord)) {
		t.rising.leaf, t.rising.num = h.Home, key.Num
		t.rising.str = append(t.rising.str[:0], key.Str...)
	}
	return nil
}
