package block

import "drtmx/internal/clock"

// Change is the part of a row's payload of Words words that a commit changes: words Lo
// up to Hi, or also the length.
type Change struct {
	Lo, Hi, Words int
	Resized       bool
}

// VersionWords are the places, in the blocks of rows and versions, of what versions
// need.
type VersionWords struct {
	OlderWord int // of a block: leads to the next older version
	PatchWord int // the first word of a patch that is payload
}

// Leaves reports whether a commit leaves a version behind of a row that leads to older,
// and whether that version must be whole. overwrites says that readers of the past may
// see the row: of the writes of one tick, they see the last.
//
// A version that is a patch relies on the row: its words must be all in which the row
// has differed from it when the row is next replaced. Later writes of the same tick
// leave no version, except the first one that changes other words: it leaves a whole
// one. After that they may change any words.
func (v VersionWords) Leaves(older Older, overwrites bool, c Change) (leaves, whole bool) {
	if overwrites {
		return true, c.Resized
	}
	whole = older.IsPatch() && (c.Resized || !older.Spans(v.PatchWord, c.Lo, c.Hi))
	return whole, whole
}

// ReserveVersion reserves a block for a version that a commit at a tick leaves behind:
// for a patch if the change permits that, or else for a whole version of so many words.
// It returns 0 if no reader is expected, or if there is no memory: then it has given up
// the version, and raised the floor, and the row may change.
func (h *History) ReserveVersion(v VersionWords, words int, c Change, whole bool, tick clock.Tick) Older {
	if tick > h.until {
		h.raise(tick)
		return 0
	}
	first, class, patch := 0, Class(0), false
	if !whole {
		first, class, patch = PatchFor(v.PatchWord, c.Lo, c.Hi, c.Words, words)
	}
	if patch {
		words = class.Words()
	}
	o, ok := h.Reserve(words)
	if !ok {
		h.Lose(tick)
		return 0
	}
	if patch {
		o = o.Patching(first)
	}
	return o
}

// SaveVersion retains a version of e's block as it is now, under prev, before a commit
// at a tick changes its payload, which begins at word at. It returns 0 if there is none:
// see ReserveVersion.
//
// The row must lead to the version before its header is that of the new row, and have
// that header before its body changes: Set, then Announce.
func (e *Edit) SaveVersion(h *History, v VersionWords, at int, c Change, whole bool, prev Header, tick clock.Tick) Older {
	words := e.s.Words()
	o := h.ReserveVersion(v, words, c, whole, tick)
	switch {
	case o == 0:
		return 0
	case o.IsPatch():
		first, _ := o.Extent(v.PatchWord)
		e.PatchTo(h.a.Span(o.Addr(), o.Words()), o.Addr(), v.PatchWord, at+first, prev)
	default:
		e.CopyTo(h.a.Span(o.Addr(), words), o.Addr(), prev)
	}
	h.Retain(o, tick)
	return o
}
