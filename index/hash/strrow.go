package hash

import (
	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"github.com/zeebo/xxh3"
)

// Words of a row block of an index with string keys. A row contains the lengths of
// its key and its payload, and the tag of its index.
const (
	lengthWord   = block.BodyWord   // key bytes(16) | payload words(16) | tag of the index(32)
	strOlderWord = lengthWord + 1   // the next older version of the row, a block.Older
	strWord      = strOlderWord + 1 // key, filled up with zeros to a word; the payload follows
)

// keyWordsMax is the room of the longest key.
const keyWordsMax = index.MaxKeyBytes / mem.WordBytes

// The lengths fit their fields, and the largest block has a class.
var (
	_ [1<<16 - 1 - MaxStringRowWords]struct{}
	_ [1<<16 - 1 - index.MaxKeyBytes]struct{}
)

// strTag returns the tag in the rows of the index whose root is at root.
func strTag(root uint64) uint32 { return 0x7274_7331 ^ uint32(root/mem.LineBytes) }

// hashStr returns the hash of a string key: a fixed function, the same in every
// process. XXH3 is mixed once more because tables choose partitions by XXH3 itself:
// otherwise the low bits of all keys of a partition would have few patterns.
func hashStr(key []byte) uint64 { return hashKey(xxh3.Hash(key)) }

// keyWords is the number of words that a key takes.
func keyWords(keyBytes int) int { return (keyBytes + mem.WordBytes - 1) / mem.WordBytes }

// strBlockWords is the size of a row with its key, without rounding.
func strBlockWords(keyBytes, rowWords int) int { return strWord + keyWords(keyBytes) + rowWords }

// largestStrBlock is the size of the largest block of an index whose rows have
// up to so many words.
func largestStrBlock(rowWords int) int {
	return block.ClassFor(strBlockWords(index.MaxKeyBytes, rowWords)).Words()
}

// lengths are the contents of a row's length word.
type lengths struct {
	key int // bytes
	row int // words
	tag uint32
}

func (l lengths) word() uint64 { return uint64(l.key)<<48 | uint64(l.row)<<32 | uint64(l.tag) }

func lengthsOf(w uint64) lengths {
	return lengths{key: int(w >> 48), row: int(w >> 32 & 0xffff), tag: uint32(w)}
}

// strRow is a decoded copy of a row: views into it.
type strRow struct {
	key []byte
	row []uint64
}

// decodeStrRow decodes the copy of a row block. It returns false if the block cannot
// be a row of the index with this tag, or if a length exceeds buf.
func decodeStrRow(buf []uint64, tag uint32) (strRow, bool) {
	if len(buf) <= lengthWord {
		return strRow{}, false
	}
	l := lengthsOf(buf[lengthWord])
	start := strWord + keyWords(l.key)
	if l.tag != tag || l.key > index.MaxKeyBytes || start+l.row > len(buf) {
		return strRow{}, false
	}
	return strRow{key: mem.Bytes(buf[strWord:start])[:l.key], row: buf[start : start+l.row]}, true
}

// hasStr reports whether the row block has the key. The answer counts only if the
// block is not being changed.
func hasStr(sp mem.Span, key string) bool {
	l := lengthsOf(sp.Load(lengthWord))
	if l.key != len(key) || strWord+keyWords(l.key) > sp.Words() {
		return false
	}
	var part [16]uint64
	for at := strWord; len(key) > 0; at += len(part) {
		n := min(len(key), len(part)*mem.WordBytes)
		words := part[:keyWords(n)]
		sp.Slice(at, len(words)).CopyOut(words)
		if string(mem.Bytes(words)[:n]) != key[:n] {
			return false
		}
		key = key[n:]
	}
	return true
}

// strRowHash returns the hash of the key in a row block that is not being changed.
func strRowHash(sp mem.Span) uint64 {
	var key [keyWordsMax]uint64
	l := lengthsOf(sp.Load(lengthWord))
	words := key[:keyWords(l.key)]
	sp.Slice(strWord, len(words)).CopyOut(words)
	return hashStr(mem.Bytes(words)[:l.key])
}

// zeros are the padding of blocks.
var zeros [keyWordsMax]uint64

// appendKey appends the key's words to the body of a block.
func appendKey(body []uint64, key string) []uint64 {
	at := len(body)
	body = append(body, zeros[:keyWords(len(key))]...)
	copy(mem.Bytes(body[at:]), key)
	return body
}
