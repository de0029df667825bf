package tree

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/clock"
)

// Versions of rows, for readers of the past: see docs/versions.md. They are
// written only while the partition's history keeps them.

// overwrites reports whether a commit under head leaves a version of a row behind
// that is locked now. Of the writes of one tick, readers see the last.
func (t *Tree) overwrites(h *index.Held, head block.Header) bool {
	return h.Existed && t.a.History().Keeps() && head.CSN().Tick() > h.Prev.CSN().Tick()
}

// change says what of a row's payload, of so many words, a commit changes: words lo
// up to hi, or also its length.
type change struct {
	lo, hi, words int
	resized       bool
}

// keeps reports whether a commit under head that makes this change leaves a version
// of a row, which is locked now and leads to older; whole says that it must be whole.
//
// A version that is a patch relies on the row: its words must be all in which the
// row has differed from it when it is next replaced. Later writes of the same tick
// leave no version, but for the first one that changes other words: it leaves a
// whole one. After that they may change any.
func (t *Tree) keeps(h *index.Held, head block.Header, older block.Older, c change) (keeps, whole bool) {
	if t.overwrites(h, head) {
		return true, c.resized
	}
	whole = older.IsPatch() && (c.resized || !older.Spans(leaf.PatchWord, c.lo, c.hi))
	return whole, whole
}

// room takes memory for a version of a row of which a whole one has so many words.
// The version is a patch if the change permits it. It returns 0 if there is no
// memory.
func (t *Tree) room(words int, c change, whole bool, tick clock.Tick) block.Older {
	first, class, patch := 0, block.Class(0), false
	if !whole {
		first, class, patch = block.PatchFor(leaf.PatchWord, c.lo, c.hi, c.words, words)
	}
	if patch {
		words = class.Words()
	}
	o, ok := t.a.History().Reserve(words)
	if !ok {
		t.a.History().Lose(tick)
		return 0
	}
	if patch {
		o = o.Patching(first)
	}
	return o
}

// keepVersion copies a row's block, or a patch of it, into a version, before an edit
// of the block makes a change of the row. The row leads to the version before its
// header is that of the new row, and has that before its body changes. Its payload
// begins at word at.
func (t *Tree) keepVersion(e *block.Edit, h *index.Held, words, at int, c change, head block.Header) {
	olderAt := t.olderAt()
	keeps, whole := t.keeps(h, head, block.Older(e.Load(olderAt)), c)
	if !keeps {
		return
	}
	tick := head.CSN().Tick()
	o := t.room(words, c, whole, tick)
	if o == 0 {
		return
	}
	if o.IsPatch() {
		first, _ := o.Extent(leaf.PatchWord)
		e.PatchTo(t.a.Span(o.Addr(), o.Words()), o.Addr(), leaf.PatchWord, at+first, h.Prev)
	} else {
		e.CopyTo(t.a.Span(o.Addr(), words), o.Addr(), h.Prev)
	}
	t.step("copied")
	e.Set(olderAt, uint64(o))
	e.Announce(head)
	t.step("announced")
	t.a.History().Retain(o, tick)
}

// olderOf is the word older of the row in a block.
func (t *Tree) olderOf(addr uint64) block.Older {
	return block.Older(t.a.Span(addr, t.olderAt()+1).Load(t.olderAt()))
}
