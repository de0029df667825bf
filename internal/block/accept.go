package block

import (
	"math/bits"
)

// Words of every block.
const (
	HeaderWord   = 0
	ChecksumWord = 1
	BodyWord     = 2 // first word of the owner
)

// Verdict is the result of judging a reader's copy of a block.
type Verdict uint8

// Verdicts.
const (
	// OK: the copy is one state of the block, the one its header names.
	OK Verdict = iota
	// Busy: a writer held the block; read it again later.
	Busy
	// Torn: the copy mixes states; read it again now.
	Torn
)

func (v Verdict) String() string { return [...]string{"ok", "busy", "torn"}[v] }

// Accept judges the copy of a whole block at addr.
//
// Over a connection that reads in order, tail is the header loaded again after
// the last word: the writer locks the header before its first store and never
// repeats a header, so equal and unlocked at both ends means that no store
// fell between. Otherwise the checksum must fit address, header and body,
// which holds for words of one state only, whatever order they arrived in.
func Accept(buf []uint64, tail, addr uint64, inOrder bool) Verdict {
	h := buf[HeaderWord]
	if Header(h).Locked() {
		return Busy
	}
	if inOrder {
		if tail != h {
			return Torn
		}
		return OK
	}
	if buf[ChecksumWord] != Checksum(addr, buf) {
		return Torn
	}
	return OK
}

// AcceptVersion is Accept for a reader of the past, for whom locks have no meaning: the
// result is OK if the copy is that of the CSN in its header, or Torn. It relies on
// [Edit.Announce].
func AcceptVersion(buf []uint64, tail, addr uint64, inOrder bool) Verdict {
	h := Header(buf[HeaderWord]).Unlock()
	if inOrder && Header(tail).Unlock() != h || !inOrder && buf[ChecksumWord] != checksum(addr, uint64(h), buf) {
		return Torn
	}
	return OK
}

// Checksum is the 64-bit checksum of a block: a sum of one strongly mixed
// term for each word and its place, so that a writer can keep it in step with
// a change of a few words without reading the rest.
func Checksum(addr uint64, words []uint64) uint64 { return checksum(addr, words[HeaderWord], words) }

func checksum(addr, header uint64, words []uint64) uint64 {
	sum := frame(addr, header)
	for i := BodyWord; i < len(words); i++ {
		sum += mix(words[i], i)
	}
	return sum
}

// frame is the part of the checksum that the header and the address give.
func frame(addr, header uint64) uint64 { return mix(header, 0) + mix(addr, 1) }

// mix folds the 128-bit product of the word, displaced by its position, with
// an odd constant; a change of any bit changes about half of the result.
func mix(w uint64, i int) uint64 {
	hi, lo := bits.Mul64(w^(0x9e3779b97f4a7c15*uint64(i+1)), 0xd6e8feb86659fd93)
	return (hi ^ lo) * 0xff51afd7ed558ccd
}
