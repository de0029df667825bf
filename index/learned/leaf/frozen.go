package leaf

import (
	"sort"

	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// An array is a leaf of kind Frozen: the keys on which models were trained, ascending,
// with the addresses of their rows. Keys that come later do not change it. They go to a
// bin, one for each interval between two keys, which the array names.

// Bounds of what is below an array.
const (
	// BinSlots is the most rows that a bin has: half as many as an array of few slots has keys.
	BinSlots = 16
	// RootChildren is the number of bins below a root.
	RootChildren = 8
)

// Words of a root: a block that divides an interval of an array among bins.
const (
	rootLowWord  = 4
	rootHighWord = 5
	rootFencesAt = 8
	rootChildsAt = rootFencesAt + RootChildren
	// RootBlockWords is the size of a root.
	RootBlockWords = rootChildsAt + RootChildren
)

const (
	frozenMagic = 0x46
	binMagic    = 0x62
	rootMagic   = 0x52
)

// Below refers to what is in an interval of an array: nothing, a bin, or a root.
type Below uint64

const (
	toBin  = 1
	toRoot = 2
)

// ToBin refers to the bin at an address, and ToRoot to the root there.
func ToBin(addr uint64) Below  { return Below(addr | toBin) }
func ToRoot(addr uint64) Below { return Below(addr | toRoot) }

// Addr is the address of the block.
func (b Below) Addr() uint64 { return uint64(b) &^ (mem.LineBytes - 1) }

// IsBin and IsRoot report what is there.
func (b Below) IsBin() bool  { return b&(mem.LineBytes-1) == toBin }
func (b Below) IsRoot() bool { return b&(mem.LineBytes-1) == toRoot }

// Valid reports whether the word of an array, which may be anything, can be followed.
func (b Below) Valid() bool { return (b.IsBin() || b.IsRoot()) && b.Addr() != 0 && b.Addr() < addrMax }

// Bins is the layout of the bins below the arrays of a layout.
func (l *Layout) Bins() Layout {
	b, err := NewLayout(l.ID, Bin, l.RowWords, min(BinSlots, max(MinSlots, l.Slots/2)))
	if err != nil {
		panic(err) // the array has rows of the same size
	}
	return b
}

// Below is what is in interval i of an array: the keys below its key i and above the one before.
func (v *Leaf) Below(i int) Below { return Below(v.words[v.l.BelowAt+i]) }

// Interval returns the number of the array's keys that are below a key, and whether the key is
// the next one.
func (v *Leaf) Interval(key uint64) (i int, found bool) {
	keys := v.Keys()
	i = sort.Search(len(keys), func(i int) bool { return keys[i] >= key })
	return i, i < len(keys) && keys[i] == key
}

// Ascending reports whether an array's keys ascend, within its fences: a reader of memory that may
// be anything must know before it searches.
func (v *Leaf) Ascending() bool {
	for i, k := range v.Keys() {
		if k < v.Low() || v.Above(k) || i > 0 && k <= v.Key(i-1) {
			return false
		}
	}
	return true
}

// Root is an accepted copy of a root.
type Root struct{ words []uint64 }

// ViewRoot checks that a copy of RootBlockWords is a root of the index, with children in order.
func (l *Layout) ViewRoot(buf []uint64) (Root, bool) {
	w := buf[MetaWord]
	r := Root{buf}
	n := CountOf(w)
	if uint32(w>>32) != l.ID || w>>24&0x7f != rootMagic || n < 1 || n > RootChildren || r.Fence(0) != buf[rootLowWord] {
		return r, false
	}
	for i := range n {
		if a := r.Child(i); a == 0 || a%mem.LineBytes != 0 || a >= addrMax || i > 0 && r.Fence(i) <= r.Fence(i-1) {
			return r, false
		}
	}
	return r, true
}

// PackRoot encodes the meta word of a root.
func (l *Layout) PackRoot(children int, last bool) uint64 {
	w := uint64(l.ID)<<32 | rootMagic<<24 | uint64(NoNewest)<<16 | uint64(children)
	if last {
		w |= lastFlag
	}
	return w
}

// Len is the number of children.
func (r Root) Len() int { return CountOf(r.words[MetaWord]) }

// Fence is the low fence of child i, and Child the address of its bin.
func (r Root) Fence(i int) uint64 { return r.words[rootFencesAt+i] }
func (r Root) Child(i int) uint64 { return r.words[rootChildsAt+i] }

// Covers reports whether a key is in the interval of the root.
func (r Root) Covers(key uint64) bool {
	return key >= r.words[rootLowWord] && (IsLast(r.words[MetaWord]) || key < r.words[rootHighWord])
}

// Is reports whether the root has exactly these bounds.
func (r Root) Is(low, high uint64, last bool) bool {
	return r.words[rootLowWord] == low && IsLast(r.words[MetaWord]) == last && (last || r.words[rootHighWord] == high)
}

// Find returns the child whose fences cover a key that the root covers.
func (r Root) Find(key uint64) int {
	i := r.Len() - 1
	for i > 0 && key < r.Fence(i) {
		i--
	}
	return i
}

// ChildOf finds the child of a root in memory that no mutator is changing.
func ChildOf(root mem.Span, key uint64) (i int, bin uint64) {
	i = CountOf(root.Load(MetaWord)) - 1
	for i > 0 && key < root.Load(rootFencesAt+i) {
		i--
	}
	return i, root.Load(rootChildsAt + i)
}

// SetRoot writes a root in an edit.
func (l *Layout) SetRoot(e *block.Edit, low, high uint64, last bool, fences, children []uint64) {
	e.Set(MetaWord, l.PackRoot(len(fences), last))
	e.Set(rootLowWord, low)
	e.Set(rootHighWord, high)
	for i := range fences {
		e.Set(rootFencesAt+i, fences[i])
		e.Set(rootChildsAt+i, children[i])
	}
}
