// Package leaf is the layout of the leaves, rows and long fences of a learned
// ordered index. The server half writes them (package tree), the client half
// reads them by READs (package read), and both take the layout from here and
// from nowhere else. docs/layouts.md draws it.
//
// # Leaf
//
// A leaf is a block (internal/block) of whole lines, in 64-bit words:
//
//	0  header: a version that is new after every change of the leaf
//	1  checksum
//	2  gap: a version that is new before an absent key may become present, and
//	   whenever the fences change
//	3  index id(32) | last(1) | magic(7) | newest slot(8) | live(8) | count(8)
//	4  right link: address of the right sibling, 0 at the end
//
// then, with native keys,
//
//	5  low fence, inclusive
//	6  high fence, exclusive; the last leaf has no bound, and says so by a flag
//	7  last delete: CSN of the newest deletion within the fences, 0 if none
//	8  keys      × slots
//	   headers   × slots  (rows inline)  or  row addresses × slots (rows apart)
//	   payloads  × slots × row words     (rows inline only)
//
// or, with string keys,
//
//	5  fence version: new whenever the fences change
//	6  apart(1) | prefix bytes(12) | low bytes(12) | high bytes(12)
//	7  prefix | rest of low | rest of high, in 13 words; or, if they are apart,
//	   the pointer of the fence block
//	20 last delete
//	21 digests  × slots
//	   pointers × slots
//
// Slots are unsorted and do not move. A slot of an inline row that is free has
// the header [Free], which is locked and so proves nothing; any other free slot
// has an address or a pointer of 0.
//
// The prefix is what the low and the high fence have in common, and so what all
// keys of the leaf begin with. A digest is the eight bytes after the prefix,
// first byte highest, padded with zeros: it orders as the keys do, but for
// ties. A pointer leads to a row: hash tag of the whole key (16) | size class
// (6) | address in lines (42).
//
// # Rows and fence blocks
//
//	row apart, native   2 key   3 index id(32) | magic(32)   4… payload
//	row, string key     2 index id(32) | magic(32)   3 key bytes(32) | row words(32)   4… key, padded; row
//	fences              2 index id(32) | magic(32)   3 leaf   4… as in a leaf; header: the leaf's fence version
//
// A row's header is its lock and CSN word.
//
// # What readers may rely on
//
// The truth is in fences and rows: prefix lengths, digests and tags only say
// where to look. A leaf that block.Accept accepts and that has the index's id
// tells the truth about every key within its fences: present with this header,
// or absent while the gap word keeps its value. The way that led to the leaf,
// and the age of that way, do not matter.
//
// A row that is accepted and has the whole key is that key's row. A string key
// is absent if the fences cover it and no slot with its digest and tag leads to
// its row. A slot's block has another key for certain only if the leaf was the
// same before and after the block was read: the block may have been given to
// another row meanwhile.
package leaf
