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
// # What an answer rests on
//
// An answer tells what commits did, so it may be given only once these are
// durable. GetResult.Rests and ScanResult.Rests name the newest of them:
//
//   - a row rests on the commit in its header;
//   - an absence rests on the key's deletion, which the index knows to be no
//     newer than the newest deletion in the same leaf or chain;
//   - a range rests on its rows, and on the deletions in the leaves it covers.
//
// Rests is never below the CSN of such a commit. It is above it by no more than
// the grain of a leaf or chain; in a hash index, where gap word and CSN are one
// word, a placeholder adds one when it comes and one when it goes. Rests is
// never above block.Arena.LastCSN, so a reader that waits for a horizon that
// reaches LastCSN never waits for ever.
//
// # What is never a proof
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
