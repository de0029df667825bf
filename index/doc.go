// Package index is the contract of remotely readable indexes: what a
// transaction needs of one, whichever engine is behind it.
//
// Every index has two halves. The server half owns memory in a partition's
// region and applies changes; the client half finds rows in that memory
// through the fabric and nothing else. They share a layout and no state. Both
// answer with rows and with proofs.
//
// # Proofs
//
// A [Proof] is a word of the region and the value it had when the answer was
// read. While the word has that value the answer stands:
//
//   - A present row is proved by its header word. Its CSN is unique at that
//     address for ever, so equal means unchanged.
//   - Absence, and the completeness of a range, are proved by gap words: the
//     version of the hash bucket or leaf that would hold the key. Whatever can
//     turn an absent key into a present one changes the gap word first, at the
//     time the writer locks, and never gives it an old value again.
//
// A locked header is never part of a proof: it means that the answer is being
// changed. Blocks freed by an index are reused only by the same index, so that
// the word at an address keeps its role.
//
// # Locks
//
// A writer's exclusive lock is the lock bit in the row's header, where remote
// readers see it; a key that has no row gets a locked, absent placeholder.
// Shared locks, which a prepared distributed transaction holds on what it
// read, concern only other writers and so stay in the server's private memory
// ([SharedLocks]).
package index
