package tables

import (
	"fmt"
	"sort"

	"github.com/zeebo/xxh3"
)

// PartitionKind says how keys map to partitions.
type PartitionKind uint8

// Kinds of partitioning.
const (
	// ByHash distributes keys by a fixed hash; range scans visit every partition.
	ByHash PartitionKind = 1 + iota
	// ByBits takes (key >> Shift) − Base modulo the number of partitions:
	// all keys that share their high bits are together.
	ByBits
	// ByRange cuts the key space at Bounds: partition i holds keys below
	// Bounds[i] and not below Bounds[i-1]. Partitions beyond the last stay
	// empty.
	ByRange
	// Replicated keeps a copy in every partition. The table is read-only after
	// the load.
	Replicated
	// ByPrefix distributes string keys by a fixed hash of their first Prefix bytes:
	// keys that share them are together.
	ByPrefix
)

// Partitioning maps keys to partitions.
type Partitioning struct {
	Kind   PartitionKind `json:"kind"`
	Shift  uint          `json:"shift,omitempty"`
	Base   uint64        `json:"base,omitempty"`
	Bounds []Key         `json:"bounds,omitempty"` // of the kind of the keys, ascending
	Prefix uint          `json:"prefix,omitempty"`
	next   bool          // each key is in the partition after that
}

// Of returns the partition of a key among n partitions. Every partition has the rows
// of a replicated table; for it, Of distributes keys evenly.
func (p *Partitioning) Of(key Key, n int) int {
	part := p.of(key, n)
	if p.next {
		part = (part + 1) % n
	}
	return part
}

// of is Of without next.
func (p *Partitioning) of(key Key, n int) int {
	switch p.Kind {
	case ByBits:
		return int(((key.num >> p.Shift) - p.Base) % uint64(n))
	case ByRange:
		i := sort.Search(len(p.Bounds), func(i int) bool { return key.Compare(p.Bounds[i]) < 0 })
		return min(i, n-1)
	case ByPrefix:
		key.str = key.str[:min(len(key.str), int(p.Prefix))]
	}
	if key.kind == text {
		return int(xxh3.HashString(key.str) % uint64(n))
	}
	return int(Mix(key.num) % uint64(n))
}

// Span returns the first and the last of the partitions that may hold keys of
// [lo, hi].
func (p *Partitioning) Span(lo, hi Key, n int) (first, last int) {
	switch {
	case p.Kind == ByRange:
		if first, last = p.Of(lo, n), p.Of(hi, n); first > last {
			return 0, n - 1
		}
		return first, last
	case p.Kind == Replicated, lo == hi, p.together(lo, hi):
		part := p.Of(lo, n)
		return part, part
	}
	return 0, n - 1
}

// Bound returns the first key after those that are in the same range as key, which may lie in another
// partition. It reports false if there is none, or the keys are not partitioned by ranges.
func (p *Partitioning) Bound(key Key, n int) (Key, bool) {
	if p.Kind != ByRange {
		return Key{}, false
	}
	i := p.of(key, n)
	if i >= min(len(p.Bounds), n-1) {
		return Key{}, false
	}
	return p.Bounds[i], true
}

// together reports whether all keys of [lo, hi] certainly have the same partition.
func (p *Partitioning) together(lo, hi Key) bool {
	switch {
	case p.Kind == ByBits:
		return lo.kind == number && hi.kind == number && lo.num>>p.Shift == hi.num>>p.Shift
	case p.Kind == ByPrefix:
		n := int(p.Prefix)
		return len(lo.str) >= n && len(hi.str) >= n && lo.str[:n] == hi.str[:n]
	}
	return false
}

func (p *Partitioning) check(what string, key KeyKind) error {
	switch {
	case key == StringKey && p.Kind == ByBits, key == NumberKey && p.Kind == ByPrefix:
		return fmt.Errorf("%w: %s: the partition kind is not for %v keys", ErrSchema, what, key)
	}
	switch p.Kind {
	case ByHash, Replicated:
		return nil
	case ByPrefix:
		if p.Prefix < 1 || p.Prefix > MaxKeyBytes {
			return fmt.Errorf("%w: %s: partition prefix %d, want 1 to %d", ErrSchema, what, p.Prefix, MaxKeyBytes)
		}
		return nil
	case ByBits:
		if p.Shift > 63 {
			return fmt.Errorf("%w: %s: partition shift %d, want 0 to 63", ErrSchema, what, p.Shift)
		}
		return nil
	case ByRange:
		for i, bound := range p.Bounds {
			if !key.fits(bound) {
				return fmt.Errorf("%w: %s: partition bound %v is no %v key", ErrSchema, what, bound, key)
			}
			if i > 0 && p.Bounds[i-1].Compare(bound) >= 0 {
				return fmt.Errorf("%w: %s: partition bounds must ascend", ErrSchema, what)
			}
		}
		return nil
	}
	return fmt.Errorf("%w: %s: partition kind %d", ErrSchema, what, p.Kind)
}

// Mix is the fixed hash of integer keys (the finaliser of SplitMix64).
func Mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// DigestBytes is the fixed hash behind Digest key parts.
func DigestBytes(b []byte) uint64 { return xxh3.Hash(b) }
