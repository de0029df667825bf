// Package tree is the server half's storage of a learned ordered index: a B-link tree
// (Lehman and Yao, 1981). Its leaves are in a registered region, where clients read
// them; its inner nodes are in the server's private memory. Keys are numbers or byte
// strings. Package leaf defines the format that clients read and the guarantees that
// they get; docs/layouts.md has the tables.
//
// The interface keys hides the kind of keys: fences, words in the leaf, order of
// ties. The interface rows hides where rows are: in the leaf, in blocks of one size,
// or in blocks of size classes. New chooses both implementations.
//
// # Changes of leaves
//
// Every change of a leaf is one block.Edit, which also keeps the order of the slots.
// An insert takes the next unused slot, then one that a delete has freed. A split
// first publishes the complete right leaf. Then one edit shrinks the left leaf, links
// it to the right one and frees the slots that moved, which the next inserts take. An
// empty leaf is killed: its header stays locked until the leaf is reused, and its left
// sibling takes over its range. Rows of sparse neighbours move to new leaves: see
// repack.
//
// A row of variable size that leaves its size class moves to a new block, which
// is complete before the slot points to it. The old block stays locked until
// another row reuses it.
//
// # Addresses and proofs
//
// No row has CSN 0, because the slots of an unfinished leaf hold it for a moment.
//
// All rows of a commit have one CSN, and so have all rows of a part of a load. The pair of
// slot address and header of an inline row is therefore unique only while no row comes to a
// slot that a row of another key with the same CSN has used. A commit has all its slots,
// and their splits behind it, before its first row has the CSN. The keys of a part of a load
// ascend: none goes to a slot that a split has freed of a row with a lower key. Moved rows
// come only to new leaves, and a freed leaf of inline rows takes moved rows only
// after [Options.Quarantine]. Clients must not validate a proof older than
// index.MaxProofAge, which is shorter. The tree reads the clock when it frees the
// leaf, and again before it reuses it. During the quarantine the leaf may serve as
// the empty right leaf of an append. Gap words and headers of leaves need no
// quarantine: their versions are never reused.
//
// # The past
//
// While the partition keeps versions, an update at a later tick than the row's leaves
// a version, to which the row points, and a deletion leaves a grave, to which the
// leaf points: see docs/versions.md and package leaf. Slots hold only present rows.
//
// # Concurrency
//
// The caller serialises mutators. Lookups and scans on the server may run
// concurrently with one mutator, without a lock: they read inner nodes word by
// word, possibly torn, as a hint that the fences of the leaf confirm. With
// string keys the fences are private copies, and the leaf's fence version shows
// whether they are still current.
//
// An operation on a large tree spends most of its time on cache misses. So a search
// of an inner node touches two cache lines of words, while the line of the leaf's
// address is prefetched; then all lines of the leaf are prefetched together. Prefetch
// does both before the operation, while the caller does not yet hold its lock.
package tree
