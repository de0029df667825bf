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

// Highest is a string key that no other is above: the end of a scan to the end.
var Highest = strings.Repeat("\xff", index.MaxKeyBytes)

// CheckKey reports whether a string may be a key of the index.
func (ix *Index) CheckKey(key []byte) error {
	switch {
	case ix.Key != StringKey:
		return fmt.Errorf("%w: %s has number keys, got a string of %d bytes", ErrKey, ix.Name, len(key))
	case len(key) > index.MaxKeyBytes:
		return fmt.Errorf("%w: %s: a key of %d bytes, want at most %d", ErrKey, ix.Name, len(key), index.MaxKeyBytes)
	}
	return nil
}

// CheckNumber reports whether the index has number keys.
func (ix *Index) CheckNumber(key uint64) error {
	if ix.Key != NumberKey {
		return fmt.Errorf("%w: %s has string keys, got the number %d", ErrKey, ix.Name, key)
	}
	return nil
}

// Number is the key of a row as the table's user knows it, given as the engine
// does; 0 if the index has string keys.
func (ix *Index) Number(key index.Key) uint64 {
	if ix.Key == NumberKey && ix.Strings {
		n, _ := index.NumOf(key.Str)
		return n
	}
	return key.Num
}

// PartitionOf is the partition of key, as the engine knows it, among n.
func (ix *Index) PartitionOf(key index.Key, n int) int {
	if ix.Key == NumberKey {
		return ix.Partition.Of(ix.Number(key), n)
	}
	return ix.Partition.OfString(key.Str, n)
}

// Span is Partitioning.Span for keys as the engine knows them.
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

// OfString is the partition of a string key among n.
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

// AppendText appends a Sorted text part to the key of a secondary index, for a
// scan of it. The order of what follows cannot change that of the texts: a zero
// byte becomes 00 ff, and 00 01 ends the text. To scan all texts of a prefix,
// append the prefix's bytes alone (zero bytes doubled in this way) as the lower
// end, and as the upper end the same and 0xff.
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
