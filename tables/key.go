package tables

import (
	"encoding/binary"
	"fmt"
	"sort"
	"strings"

	"github.com/zeebo/xxh3"

	"drtmx/index"
)

// KeyKind is the kind of a table's primary key.
type KeyKind uint8

// Kinds of primary key.
const (
	NumberKey KeyKind = iota // eight bytes, ordered as an unsigned number
	StringKey                // any bytes, up to index.MaxKeyBytes, ordered by them
)

// ErrKey reports a key of the wrong kind for its table, or one too long.
var ErrKey = index.ErrKey

// Highest is the highest string key. A scan up to it reaches the end of the
// index.
var Highest = strings.Repeat("\xff", index.MaxKeyBytes)

// CheckKey returns an error unless the string can be a key of the index.
func (ix *Index) CheckKey(key []byte) error {
	switch {
	case ix.Key != StringKey:
		return fmt.Errorf("%w: %s has number keys, got a string of %d bytes", ErrKey, ix.Name, len(key))
	case len(key) > index.MaxKeyBytes:
		return fmt.Errorf("%w: %s: a key of %d bytes, want at most %d", ErrKey, ix.Name, len(key), index.MaxKeyBytes)
	}
	return nil
}

// CheckNumber returns an error unless the index has number keys.
func (ix *Index) CheckNumber(key uint64) error {
	if ix.Key != NumberKey {
		return fmt.Errorf("%w: %s has string keys, got the number %d", ErrKey, ix.Name, key)
	}
	return nil
}

// Number converts the engine's key of a row to the number that the table's user
// knows; it is 0 if the index has string keys.
func (ix *Index) Number(key index.Key) uint64 {
	if ix.Key == NumberKey && ix.Strings {
		n, _ := index.NumOf(key.Str)
		return n
	}
	return key.Num
}

// PartitionOf returns the partition of an engine's key among n partitions.
func (ix *Index) PartitionOf(key index.Key, n int) int {
	if ix.Key == NumberKey {
		return ix.Partition.Of(ix.Number(key), n)
	}
	return ix.Partition.OfString(key.Str, n)
}

// Span is Partitioning.Span for the engine's keys.
func (ix *Index) Span(lo, hi index.Key, n int) (first, last int, ordered bool) {
	if ix.Key == NumberKey {
		return ix.Partition.Span(ix.Number(lo), ix.Number(hi), n)
	}
	p := &ix.Partition
	switch {
	case p.Kind == ByRange:
		return p.OfString(lo.Str, n), p.OfString(hi.Str, n), true
	case p.Kind == Replicated, lo == hi, p.Kind == ByPrefix && p.samePrefix(lo.Str, hi.Str):
		part := p.OfString(lo.Str, n)
		return part, part, true
	}
	return 0, n - 1, n == 1
}

// OfString returns the partition of a string key among n partitions.
func (p *Partitioning) OfString(key string, n int) int {
	switch p.Kind {
	case ByRange:
		i := sort.Search(len(p.StringBounds), func(i int) bool { return key < string(p.StringBounds[i]) })
		return min(i, n-1)
	case ByPrefix:
		key = key[:min(len(key), int(p.Prefix))]
	}
	return int(xxh3.HashString(key) % uint64(n))
}

func (p *Partitioning) samePrefix(a, b string) bool {
	n := int(p.Prefix)
	return len(a) >= n && len(b) >= n && a[:n] == b[:n]
}

// AppendText appends a Sorted text part to the key of a secondary index, to
// build the bounds of a scan. A zero byte becomes 00 ff, and 00 01 ends the
// text, so that the parts that follow cannot change the order of texts. To scan
// all texts with a prefix, use the prefix's bytes alone as the lower bound
// (with zero bytes escaped in this way), and the same bytes followed by 0xff as
// the upper bound.
func AppendText(b, v []byte) []byte {
	for _, c := range v {
		if b = append(b, c); c == 0 {
			b = append(b, 0xff)
		}
	}
	return append(b, 0, 1)
}

// AppendInt appends a Sorted integer part to the key of a secondary index.
func AppendInt(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(v)^1<<63)
}
