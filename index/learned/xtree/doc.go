// Package xtree is the server-side half of a learned ordered index: a B-link
// tree (Lehman and Yao, 1981) whose leaves live in a registered region, where
// clients read them, and whose inner nodes are the server's private memory.
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
//	5  low fence, inclusive
//	6  high fence, exclusive; the last leaf has no bound, and says so by a flag
//	7  last delete: CSN of the newest deletion within the fences, 0 if none
//	8  keys      × slots
//	   headers   × slots  (rows inline)  or  row addresses × slots (rows apart)
//	   payloads  × slots × row words     (rows inline only)
//
// Slots are unsorted and do not move: an insert takes the next slot, then one
// that a delete has left; only a split moves rows, to its new right leaf. A
// slot without a row has the header [Free], which is locked and so proves
// nothing. An inline row's header is its lock and CSN word. A row apart is a
// block of its own, whose header is that word:
//
//	0  header  1  checksum  2  key  3  index id(32) | magic(32)  4  payload
//
// # What readers may rely on
//
// A leaf that is accepted by block.Accept and has the index's id tells the
// truth about every key within its fences: present with this header, or absent
// while the gap word keeps its value. So neither the way to a leaf nor the age
// of what pointed to it matters. Every change of a leaf is one block.Edit; a
// split publishes the complete right leaf first, and in one edit shrinks the
// left one, links it, and frees the slots it gave away. A leaf that runs empty
// is killed (its header locked) and its left sibling takes over its range.
//
// # Addresses and proofs
//
// CSN 0 is not used: a slot of a leaf in the making holds it for a moment.
//
// A CSN is shared by all rows of a commit, so the pair (slot address, header)
// is unique only as long as no row is moved to a slot that an equally old row
// of another key has used. Hence a leaf that was freed takes moved rows only
// after [Options.Quarantine]: proofs must not be validated when they are older
// than index.MaxProofAge, which is less. The clock is read when the leaf is
// freed and when it is to be used again. Until then the leaf serves as the
// empty right leaf of an append.
//
// # Concurrency
//
// Mutators are serialised by the caller. Lookups and scans on the server may
// run beside one mutator without any lock: inner nodes are read racily, word by
// word, and give a hint, which the fences of the leaf confirm.
package xtree
