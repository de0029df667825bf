package tables

import (
	"bytes"
	"fmt"
	"slices"
	"sort"

	"github.com/zeebo/xxh3"

	"drtmx/index"
)

// PartitionKind says how keys map to partitions.
type PartitionKind uint8

// Kinds of partitioning.
const (
	// ByHash spreads keys by a fixed hash; range scans visit every partition.
	ByHash PartitionKind = 1 + iota
	// ByBits takes (key >> Shift) − Base modulo the number of partitions:
	// all keys that share their high bits are together.
	ByBits
	// ByRange cuts the key space at Bounds (StringBounds, if keys are
	// strings): partition i holds keys below Bounds[i] and not below
	// Bounds[i-1]. Partitions beyond the last stay empty.
	ByRange
	// Replicated keeps a copy in every partition. The table is read-only after
	// the load.
	Replicated
	// ByPrefix spreads string keys by a fixed hash of their first Prefix
	// bytes: keys that share them are together.
	ByPrefix
)

// Partitioning maps keys to partitions.
type Partitioning struct {
	Kind   PartitionKind `json:"kind"`
	Shift  uint          `json:"shift,omitempty"`
	Base   uint64        `json:"base,omitempty"`
	Bounds []uint64      `json:"bounds,omitempty"`

	StringBounds [][]byte `json:"string_bounds,omitempty"`
	Prefix       uint     `json:"prefix,omitempty"`
}

// Of returns the partition of a number key among n partitions. Every partition
// has the rows of a replicated table; Of spreads its keys over them.
func (p *Partitioning) Of(key uint64, n int) int {
	switch p.Kind {
	case ByBits:
		return int(((key >> p.Shift) - p.Base) % uint64(n))
	case ByRange:
		i := sort.Search(len(p.Bounds), func(i int) bool { return key < p.Bounds[i] })
		return min(i, n-1)
	}
	return int(Mix(key) % uint64(n))
}

// Span reports which partitions hold keys of [lo, hi]. They are one partition
// if the range certainly lies in it. Otherwise they are a range of partitions,
// either in ascending key order (ordered is true) or with interleaved keys
// (ordered is false).
func (p *Partitioning) Span(lo, hi uint64, n int) (first, last int, ordered bool) {
	switch p.Kind {
	case ByBits:
		if lo>>p.Shift == hi>>p.Shift || n == 1 {
			part := p.Of(lo, n)
			return part, part, true
		}
	case ByRange:
		return p.Of(lo, n), p.Of(hi, n), true
	case Replicated:
		part := p.Of(lo, n)
		return part, part, true
	}
	return 0, n - 1, n == 1
}

func (p *Partitioning) check(what string, key KeyKind) error {
	switch {
	case key == StringKey && (p.Kind == ByBits || len(p.Bounds) > 0),
		key != StringKey && (p.Kind == ByPrefix || len(p.StringBounds) > 0):
		return fmt.Errorf("%w: %s: partition kind or bounds are not for its kind of key", ErrSchema, what)
	}
	switch p.Kind {
	case ByHash, Replicated:
		return nil
	case ByPrefix:
		if p.Prefix < 1 || p.Prefix > index.MaxKeyBytes {
			return fmt.Errorf("%w: %s: partition prefix %d, want 1 to %d", ErrSchema, what, p.Prefix, index.MaxKeyBytes)
		}
		return nil
	case ByBits:
		if p.Shift > 63 {
			return fmt.Errorf("%w: %s: partition shift %d, want 0 to 63", ErrSchema, what, p.Shift)
		}
		return nil
	case ByRange:
		if !slices.IsSorted(p.Bounds) || len(slices.Compact(slices.Clone(p.Bounds))) != len(p.Bounds) {
			return fmt.Errorf("%w: %s: partition bounds must ascend", ErrSchema, what)
		}
		for i := 1; i < len(p.StringBounds); i++ {
			if bytes.Compare(p.StringBounds[i-1], p.StringBounds[i]) >= 0 {
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
