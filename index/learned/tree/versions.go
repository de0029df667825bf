package tree

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
)

// Versions of rows, for readers of the past: see docs/versions.md. They are
// written only while the partition's history keeps them.

// versionsOf returns the places of the words in row blocks that point to versions.
func versionsOf(k leaf.Kind) block.VersionWords {
	if k == leaf.Strings {
		return block.VersionWords{OlderWord: leaf.StrOlderWord, PatchWord: leaf.PatchWord}
	}
	return block.VersionWords{OlderWord: leaf.RowOlderWord, PatchWord: leaf.PatchWord}
}

// overwrites reports whether a commit under head must keep a version of the locked
// row. It need not if the row has the same tick: of the writes of one tick, readers
// see the last.
func (t *Tree) overwrites(h *index.Held, head block.Header) bool {
	return h.Existed && t.a.History().Keeps() && head.CSN().Tick() > h.Prev.CSN().Tick()
}

// keepVersion copies a row's block to a version, if a commit under head that makes
// this change needs one. The payload of the block begins at word at.
func (t *Tree) keepVersion(e *block.Edit, h *index.Held, at int, c block.Change, head block.Header) {
	olderAt := t.versions.OlderWord
	keeps, whole := t.versions.Leaves(block.Older(e.Load(olderAt)), t.overwrites(h, head), c)
	if !keeps {
		return
	}
	o := e.SaveVersion(t.a.History(), t.versions, at, c, whole, h.Prev, head.CSN().Tick())
	if o == 0 {
		return
	}
	t.step("copied")
	e.Set(olderAt, uint64(o))
	e.Announce(head)
	t.step("announced")
}

// olderOf returns the word older of the row in a block.
func (t *Tree) olderOf(addr uint64) block.Older {
	return block.Older(t.a.Span(addr, t.versions.OlderWord+1).Load(t.versions.OlderWord))
}
