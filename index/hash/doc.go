// Package hash is the point index: a chained hash table whose keys are 8-byte
// words with rows of one size, or byte strings with rows of any size. Only its
// server writes it; clients read it with one-sided READs. It follows the hash
// part of HStore (§4.1): buckets of one line, slots of a fingerprint and a
// 48-bit address, overflow links. Unlike HStore, which only over-allocates, it
// grows online, and the absence of a key has a proof.
//
// docs/layouts.md has the layouts of the root, the directory, buckets and rows.
//
// A row's header is its lock and CSN. The first bucket of a chain is its head.
// The version in the head's header only rises. It is the gap word of every key
// that hashes there: it changes with every change of the chain's membership, at
// the moment the writer locks. An update does not change it, unless the row
// moves. A deletion raises the version to its CSN or above. Any other change
// raises it by one, or further if the chain takes over an overflow bucket that
// was freed under a higher version. Read as a CSN, the version is therefore not
// below that of any deletion in the chain.
//
// # Reading a chain
//
// A change of a chain holds the head locked from before its first store until
// after its last. It publishes the buckets that it has changed, the head last,
// all under one new version. A reader that has seen the head at version v may
// therefore use an overflow bucket if and only if the bucket's version is not
// above v. Its copy is then the chain as it was at v, although it came in
// several READs. This also holds when overflow buckets are freed and reused in
// other chains: a free bucket keeps the version under which it was freed, and
// the next chain that uses it gives it a higher one.
//
// # Rows that move
//
// A row of variable size stays in its block while it fits and fills at least
// half of it, and moves otherwise. The new block is complete before the slot is
// swapped, under a new version of the chain. The old block stays locked until
// another row reuses it. A concurrent reader finds the old block locked, or
// finds another key in it. Before it reports its own key absent, it therefore
// checks that the head still has the version with which the reader began. A row
// that is found needs no such check, because it contains its whole key.
//
// # The past
//
// If the partition's history keeps versions, an update in a later tick than the row's
// keeps a copy of the row, a move keeps the old block, and a deletion leaves a
// tombstone in the slot. A reader of the past starts at the slot, like any other, and
// follows the versions down to its tick. It ignores locks and needs no proof, because
// all further changes have later ticks. Tombstones are removed when no reader of the
// past needs them. Locking a tombstone changes the gap word, as linking a placeholder
// does.
//
// # Growth
//
// The table grows by linear hashing: with n buckets and L = ⌊log2 n⌋, bucket
// n-2^L is the next to split, into itself and bucket n. A head states its level
// l: it covers the hashes that equal its number in the low l bits. A client that
// assumes fewer buckets than there are finds a head that does not cover its
// hash, learns from the level how many there must be, and continues from there.
// The client's number is a hint, the level is the proof. The directory has the
// addresses of the chunks of buckets. Its words are written once; a client that
// lacks one reads it.
package hash
