// Package tree is the server half's storage of a learned ordered index: a
// B-link tree (Lehman and Yao, 1981) whose leaves live in a registered region,
// where clients read them, and whose inner nodes are the server's private
// memory. Keys are numbers or byte strings. Package leaf has the layout of what
// clients read, and says what they may rely on.
//
// What depends on the kind of keys (fences, words in the leaf, order of ties) is
// behind one interface, what depends on where rows are (in the leaf, in blocks
// of one size, in blocks of size classes) behind another. New chooses both.
//
// # Changes of leaves
//
// Every change of a leaf is one block.Edit. An insert takes the next slot, then
// one that a delete has left. A split publishes the complete right leaf first,
// and in one edit shrinks the left one, links it, and frees the slots it gave
// away. A leaf that runs empty is killed (its header is locked for good) and its
// left sibling takes over its range. Sparse neighbours move to new leaves: see
// repack.
//
// A row that varies in size and leaves its size class, upward or downward, moves
// to a new block, which is complete before the slot points to it. The old block
// stays locked until it is another row.
//
// # Addresses and proofs
//
// CSN 0 is not used: a slot of a leaf in the making holds it for a moment.
//
// A CSN is shared by all rows of a commit, so the pair (slot address, header) of
// an inline row is unique only as long as no row is moved to a slot that an
// equally old row of another key has used. Hence a leaf of inline rows that was
// freed takes moved rows only after [Options.Quarantine]: proofs must not be
// validated when they are older than index.MaxProofAge, which is less. The clock
// is read when the leaf is freed and when it is to be used again. Until then the
// leaf serves as the empty right leaf of an append. Gap words and headers of
// leaves need no quarantine: their versions are never used twice.
//
// # Concurrency
//
// Mutators are serialised by the caller. Lookups and scans on the server may
// run beside one mutator without any lock: inner nodes are read racily, word by
// word, and give a hint, which the fences of the leaf confirm. With string keys
// these are private copies, and the leaf's fence version tells whether they are
// still the leaf's.
package tree
