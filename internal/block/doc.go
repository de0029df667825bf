// Package block defines remotely readable objects: blocks of whole 64-byte
// lines with a header word that says which state of the block a reader saw,
// the rule by which a reader accepts a block, and the slabs blocks come from.
package block
