// Package stree is the server-side half of a learned ordered index whose keys
// are byte strings of 0 to index.MaxKeyBytes bytes and whose rows have from 0
// to a maximum of words: a B-link tree whose leaves, rows and long fences live
// in a registered region, where clients read them. Package xtree is its
// brother for native keys and rows of one size.
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
//	5  fence version: new whenever the fences change
//	6  apart(1) | prefix bytes(12) | low bytes(12) | high bytes(12)
//	7  prefix | rest of low | rest of high, in 13 words; or, if they are apart,
//	   the pointer of the fence block
//	20 last delete: CSN of the newest deletion within the fences, 0 if none
//	21 digests  × slots
//	   pointers × slots
//
// The prefix is what the low and the high fence have in common, and so what all
// keys of the leaf begin with. A digest is the eight bytes after the prefix,
// first byte highest, padded with zeros: it orders as the keys do, but for
// ties. A pointer leads to a row: hash tag of the whole key (16) | size class
// (6) | address in lines (42); 0 is a free slot. A split's fence is the
// shortest string that tells its neighbours apart.
//
// # Rows and fence blocks
//
//	row     2 index id(32) | magic(32)   3 key bytes(32) | row words(32)   4… key, padded; row
//	fences  2 index id(32) | magic(32)   3 leaf   4… as in a leaf; header: the leaf's fence version
//
// A row's header is its lock and CSN word. Rows come in classes of sizes; a row
// that leaves its class moves to a new block, which is complete before the slot
// points to it, and the old one stays locked until it is another row. A fence
// block never changes while a leaf points to it.
//
// # What readers may rely on
//
// The truth is in fences and rows; prefix lengths, digests and tags only say
// where to look. A row that is accepted and has the whole key is that key's row.
// A key is absent, while the gap word keeps its value, if the leaf's fences
// cover it and no slot with its digest and tag leads to its row. A slot's block
// has another key for certain only if the leaf was the same before and after
// the block was read: the block may have been given to another row meanwhile.
//
// Every header, gap and fence version is new in the region, and the header of a
// row is never used twice at an address, for nothing moves but by a new block.
//
// # Concurrency
//
// Mutators are serialised by the caller. Lookups and scans on the server may
// run beside one mutator without any lock: inner nodes are copied, not changed,
// and the leaf's fence version tells whether what they say of a leaf still holds.
package stree
