// Package block defines remotely readable objects: blocks of whole 64-byte
// lines, whose header word identifies the state that a reader has seen; the
// rule by which a reader accepts a copy; and the slabs that allocate blocks.
// docs/layouts.md has the layout.
package block
