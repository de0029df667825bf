// Package tree is the server half's storage of a learned ordered index: a
// B-link tree (Lehman and Yao, 1981). Its leaves are in a registered region,
// where clients read them; its inner nodes are in the server's private memory.
// Keys are numbers or byte strings. Package leaf defines what clients read, and
// says what they may rely on; docs/layouts.md has the tables.
//
// One interface hides what depends on the kind of keys: fences, words in the
// leaf, order of ties. Another hides where rows are: in the leaf, in blocks of
// one size, or in blocks of size classes. New chooses both.
//
// # Changes of leaves
//
// Every change of a leaf is one block.Edit. An insert takes the next unused
// slot, then one that a delete has freed. A split first publishes the complete
// right leaf. Then one edit shrinks the left leaf, links it to the right one and
// frees the slots that moved. An empty leaf is killed: its header is locked for
// good, and its left sibling takes over its range. Rows of sparse neighbours
// move to new leaves: see repack.
//
// A row of variable size that leaves its size class moves to a new block, which
// is complete before the slot points to it. The old block stays locked until
// another row reuses it.
//
// # Addresses and proofs
//
// No row has CSN 0: the slots of an unfinished leaf hold it for a moment.
//
// All rows of a commit have one CSN. The pair of slot address and header of an
// inline row is therefore unique only while no row moves to a slot that a row of
// another key with the same CSN has used. So a freed leaf of inline rows takes
// moved rows only after [Options.Quarantine]. A proof older than
// index.MaxProofAge, which is less, must not be validated. The clock is read
// when the leaf is freed, and again before it is reused. During the quarantine
// the leaf may serve as the empty right leaf of an append. Gap words and headers
// of leaves need no quarantine: their versions are never reused.
//
// # The past
//
// While the partition keeps versions, an update of a later tick than the row's
// leaves a version, to which the row leads, and a deletion leaves a grave beside
// the leaf: see docs/versions.md and package leaf. Slots have rows of the present
// alone.
//
// # Concurrency
//
// The caller serialises mutators. Lookups and scans on the server may run
// concurrently with one mutator, without a lock: they read inner nodes word by
// word, possibly torn, as a hint that the fences of the leaf confirm. With
// string keys the fences are private copies, and the leaf's fence version shows
// whether they are still current.
//
// Most of the time of an operation on a large tree goes into cache misses. So a
// search of an inner node touches two lines of its words, and that of the leaf's
// address is on its way meanwhile; then all lines of the leaf are prefetched
// together. Prefetch does both ahead of an operation, and before the caller takes
// its lock.
package tree
