package tree

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
)

// Versions of rows, for readers of the past: see docs/versions.md. They are
// written only while the partition's history keeps them.

// versionsOf says where rows of a kind of key lead to their versions.
func versionsOf(k leaf.Kind) block.VersionWords {
	if k == leaf.Strings {
		return block.VersionWords{OlderWord: leaf.StrOlderWord, PatchWord: leaf.PatchWord}
	}
	return block.VersionWords{OlderWord: leaf.RowOlderWord, PatchWord: leaf.PatchWord}
}

// overwrites reports whether a commit under head leaves a version of a row behind
// that is locked now. Of the writes of one tick, readers see the last.
func (t *Tree) overwrites(h *index.Held, head block.Header) bool {
	return h.Existed && t.a.History().Keeps() && head.CSN().Tick() > h.Prev.CSN().Tick()
}

// keepVersion leaves a version of a row's block behind if a commit under head that makes
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

// olderOf is the word older of the row in a block.
func (t *Tree) olderOf(addr uint64) block.Older {
	return block.Older(t.a.Span(addr, t.versions.OlderWord+1).Load(t.versions.OlderWord))
}
