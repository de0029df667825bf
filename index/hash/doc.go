// Package hash is the point index: a chained hash table over 8-byte keys with
// rows of a fixed size, or over byte strings with rows that vary in size, written by its server only and read by clients with
// one-sided READs, in the manner of HStore's hash part (buckets of one line,
// fingerprint and 48-bit address a slot, overflow link; §4.1). Unlike HStore,
// which only over-allocates, it grows online, and an absent key has a proof.
//
// # Layout
//
//	root      header checksum magic kind|rowWords directory chunks|geometry buckets -
//	directory header checksum chunk0 chunk1 ...       write-once words
//	bucket    header checksum slot0 .. slot4 link      slot = fingerprint(16) address(48)
//	                                                   link = kind(8) level(8) address(48)
//	row       header checksum key payload ...          whole lines; never moves
//
// With string keys, which come with rows that vary in size:
//
//	slot      fingerprint(16) line(42) class(6)        class = size of the row's block
//	row       header checksum lengths key ... payload ...
//
// The row's header is its lock and CSN. The header of a chain's first bucket,
// its head, carries a version that only rises: it is the gap word of every key
// that hashes there and changes with every change of the chain's membership,
// at the time the writer locks; updates leave it alone, unless the row moves.
// Read as a CSN, it is not below that of any deletion in the chain: a deletion
// raises the version to its CSN, and any other change by one.
//
// # Reading a chain
//
// A change of a chain holds the head locked from before its first store until
// after its last, and publishes the buckets it touched, the head last, all
// under one new version. So a reader that saw the head at version v may use an
// overflow bucket if and only if that bucket's version is not above v: what
// it read then is the chain as it was at v, although it came in several READs,
// and although overflow buckets are freed and used again in other chains: one
// that is free holds the version under which it was freed, and the chain that
// takes it over gets a higher one.
//
// # Rows that move
//
// A row that varies in size stays in its block while it fills at least half of
// it, and moves otherwise. The new block is complete before its slot is swapped,
// under a new version of the chain, and the old one stays locked until it is
// another row. A reader that was under way finds the old block locked, or finds
// another key in it; before it takes its own key for absent it looks whether
// the head is still at the version with which it began. A row found needs no
// such look: it says itself which key it has.
//
// # Growth
//
// Linear hashing: with n buckets, of which L = ⌊log2 n⌋, bucket n-2^L is the
// next to split, into itself and bucket n. A head states its level l: it
// covers the hashes that equal its number in the low l bits. A client that
// believes in fewer buckets than there are finds a head that does not cover
// its hash, learns from the level how many there must be, and goes on from
// there; the belief is a hint, the level is the proof. Chunks of buckets are
// found through the directory, whose words are written once; a client that
// lacks one reads it.
package hash
