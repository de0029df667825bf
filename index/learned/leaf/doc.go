// Package leaf defines the layout of the leaves, rows and long fences of a learned
// ordered index. The server half (package tree) writes them and the client half
// (package read) READs them. Both use only the layout of this package.
// docs/layouts.md has the tables.
//
// Slots are unsorted and do not move. The order of the slots has a byte for each: first
// those in use, in the order of their keys, then the free ones, in the order in which
// inserts take them. A free slot of an inline row has the header [Free], which is
// locked and so proves nothing; any other free slot has an address or a pointer of 0.
// A row's header is its lock and CSN.
//
// With string keys, the prefix is the common prefix of the low and the high fence,
// and so of all keys of the leaf. A digest is the eight bytes after the prefix, first
// byte highest, padded with zeros: digests have the order of the keys, except for
// ties. A pointer refers to a row block.
//
// # What readers may rely on
//
// Fences and rows are proofs. Prefix lengths, digests and tags are hints, and
// [Leaf.Order] compares the order with the slots. A leaf that block.Accept accepts, and that has the id of the index, is correct about every key
// within its fences: the key is present with this header, or absent while the gap
// word keeps its value. It does not matter how the reader found the leaf, or how old
// the reader's hints were.
//
// An accepted row with the whole key is that key's row. A string key is absent if the
// fences cover it and no slot with its digest and tag points to its row. That the
// block of a slot has another key is certain only if the leaf was the same before and
// after the READ of the block: the block may have been reused for another row in
// between.
package leaf
