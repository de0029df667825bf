package leaf

import (
	"fmt"

	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Kind is the kind of an index's keys and the place of its rows. The root block of
// the index stores it.
type Kind uint8

// Kinds.
const (
	Apart   Kind = iota // native keys, rows of one size in their own blocks
	Inline              // native keys, rows of one size in the leaves
	Strings             // string keys, rows of any size in their own blocks
	Written             // as Inline, in leaves that clients write: see Layout.Whole
	Frozen              // native keys, rows apart, and bins for keys that came later
	Bin                 // what is below an array of Frozen
	kinds
)

// binned reports whether leaves are arrays, or bins below them.
func (k Kind) binned() bool { return k == Frozen || k == Bin }

// Within reports whether rows are in the leaves.
func (k Kind) Within() bool { return k == Inline || k == Written }

// Words of every leaf after the header and checksum.
const (
	GapWord   = 2
	MetaWord  = 3
	RightWord = 4
)

// Words of a leaf of native keys.
const (
	LowWord          = 5
	HighWord         = 6
	nativeDeleteWord = 7
	apartGravesWord  = 8
	apartKeysWord    = 9
	inlineKeysWord   = 8
)

// Words of a leaf of string keys.
const (
	VersionWord       = 5
	ShapeWord         = 6
	FenceWord         = 7
	stringsDeleteWord = 20
	stringsGravesWord = 21
	stringsKeysWord   = 22
	// InlineFenceBytes bounds the fences within a leaf: the prefix and the rest
	// of both fences.
	InlineFenceBytes = (stringsDeleteWord - FenceWord) * mem.WordBytes
)

// Words of a row block of a native key, and of a version of such a row.
const (
	RowKeyWord   = 2
	RowIDWord    = 3
	RowOlderWord = 4 // the next older version of the row, see block.Older
	// RowWord is the first word of the payload.
	RowWord = 5
	// PatchWord is the first word of the payload in a version that is a patch, of
	// a row of either kind of key: see block.Older.
	PatchWord = RowWord
)

var _ [StrKeyWord - PatchWord]struct{}

// Words of a row block of a string key, and of a fence block.
const (
	IDWord       = 2
	StrSizeWord  = 3
	StrOlderWord = 4 // as RowOlderWord
	StrKeyWord   = 5
	OwnerWord    = 3
	FencesAtWord = 4
)

// Free is the header of a slot or block that holds no row: locked, so that no
// proof ever equals it.
const Free = block.LockBit | block.AbsentBit

// Bounds of the layout.
const (
	MinSlots = 4
	MaxSlots = 128
	// MaxRowWords bounds the payload of a row: 64 KiB.
	MaxRowWords = 8192
	// MaxKeyBytes bounds a string key. It is index.MaxKeyBytes.
	MaxKeyBytes = 1 << 10
	// inlineRowWordsMax is the widest row that AutoKind keeps inline.
	inlineRowWordsMax = 12
	// leafTargetBytes is the approximate size of a leaf if the number of slots is not
	// given. It does not include the order of the slots, nor the words that only
	// readers of the past need, because lookups of the present do not READ these.
	leafTargetBytes = 1024
	apartSlots      = 31 // fill nine lines
	stringsSlots    = 32
	frozenSlots     = 39 // fill a KiB
	leafBytesMax    = 64 << 10
	addrMax         = 1 << 48
)

const (
	nativeMagic  = 0x5c
	stringsMagic = 0x53
	rowMagic     = 0x58726f77
	strRowMagic  = 0x53726f77
	fenceMagic   = 0x53666e63
	lastFlag     = 1 << 31
	lineWords    = mem.LineBytes / mem.WordBytes
)

// NoNewest is the value of Meta.Newest if the slot of the latest insert is not known.
const NoNewest = 0xff

// Layout is the geometry of one index's leaves and rows. It is immutable.
type Layout struct {
	ID       uint32 // of the index, unique in its region
	Kind     Kind
	RowWords int // with string keys, the maximum
	Slots    int

	LeafWords     int
	PresentWords  int // the first of these, all that scans of the present need
	LookupWords   int // the first of these, all that lookups of the present need
	RowBlockWords int // of the rows of a native key, and of their versions

	// First words of the arrays over slots: keys or digests; headers, addresses
	// or pointers; the payloads and the next older versions of inline rows.
	KeysAt, HeadsAt, RowsAt, OldersAt int
	OrderAt, OrderWords               int // the order of the slots, see Order
	BelowAt                           int // what is in the intervals between keys, see Leaf.Below
	DeleteAt                          int // word of the last delete
	GravesAt                          int // word of the graves
	// FreeHead is the head of a free slot.
	FreeHead uint64
	magic    uint64
}

// AutoKind returns the default choice between inline rows and rows apart.
func AutoKind(rowWords int) Kind {
	if rowWords <= inlineRowWordsMax {
		return Inline
	}
	return Apart
}

// AutoSlots returns the default number of slots.
func AutoSlots(kind Kind, rowWords int) int {
	switch kind {
	case Apart:
		return apartSlots
	case Strings:
		return stringsSlots
	case Frozen:
		return frozenSlots
	case Bin:
		return BinSlots
	}
	perSlot := (2 + rowWords) * mem.WordBytes
	return min(max((leafTargetBytes-inlineKeysWord*mem.WordBytes)/perSlot, 8), MaxSlots)
}

// WholeLines rounds words up to whole lines.
func WholeLines(words int) int { return (words + lineWords - 1) / lineWords * lineWords }

// NewLayout checks and completes a geometry. It is also used for geometries read from
// a region, so it bounds every field.
func NewLayout(id uint32, kind Kind, rowWords, slots int) (Layout, error) {
	if kind >= kinds || rowWords < 0 || rowWords > MaxRowWords || slots < MinSlots || slots > MaxSlots {
		return Layout{}, fmt.Errorf("leaf: kind %d, rows of %d words (at most %d), %d slots (%d to %d)",
			kind, rowWords, MaxRowWords, slots, MinSlots, MaxSlots)
	}
	l := Layout{ID: id, Kind: kind, RowWords: rowWords, Slots: slots}
	l.magic, l.KeysAt, l.DeleteAt, l.GravesAt = nativeMagic, apartKeysWord, nativeDeleteWord, apartGravesWord
	switch kind {
	case Strings:
		l.magic, l.KeysAt, l.DeleteAt, l.GravesAt = stringsMagic, stringsKeysWord, stringsDeleteWord, stringsGravesWord
	case Inline, Written, Frozen, Bin:
		l.KeysAt = inlineKeysWord
	}
	switch kind {
	case Frozen:
		l.magic = frozenMagic
	case Bin:
		l.magic = binMagic
	}
	if kind != Strings {
		l.RowBlockWords = WholeLines(RowWord + rowWords)
	}
	l.HeadsAt = l.KeysAt + slots
	l.RowsAt = l.HeadsAt + slots
	l.OrderAt, l.OrderWords = l.RowsAt, (slots+mem.WordBytes-1)/mem.WordBytes
	if kind.Within() {
		l.OrderAt += slots * rowWords
		l.FreeHead = uint64(Free)
	}
	if kind.binned() { // arrays are in order, and bins are short
		l.OrderWords, l.BelowAt = 1, l.RowsAt
		end := l.RowsAt
		if kind == Frozen {
			end += slots + 1
		}
		l.LeafWords = WholeLines(end)
		l.LookupWords, l.PresentWords, l.OrderAt = l.LeafWords, l.LeafWords, l.LeafWords
		return l, l.sized()
	}
	end := l.OrderAt + l.OrderWords
	l.LookupWords, l.PresentWords, l.LeafWords = WholeLines(l.OrderAt), WholeLines(end), WholeLines(end)
	if kind == Written {
		l.LookupWords = l.LeafWords // who looks up a row may go on and change its leaf
	}
	if kind == Inline {
		l.GravesAt = end
		l.OldersAt = l.GravesAt + 1
		l.LeafWords = WholeLines(l.OldersAt + slots)
	}
	return l, l.sized()
}

// sized reports a leaf that is too large.
func (l *Layout) sized() error {
	if l.LeafBytes() > leafBytesMax {
		return fmt.Errorf("leaf: %d bytes (at most %d): fewer slots or rows apart", l.LeafBytes(), leafBytesMax)
	}
	return nil
}

// Whole reports whether the header of a leaf proves all that is in it and all that is not: its
// rows have no headers of their own, and it has no gap word. It keeps neither versions of rows
// nor traces of deletions, so that readers of the past learn nothing from it.
func (l *Layout) Whole() bool { return l.Kind == Written }

// OnlyPresent reports whether an index keeps nothing for readers of the past.
func (l *Layout) OnlyPresent() bool { return l.Kind == Written || l.Kind.binned() }

// LeafBytes is the size of a leaf; addresses of leaves are multiples of it.
func (l *Layout) LeafBytes() uint64 { return uint64(l.LeafWords) * mem.WordBytes }

// ALN is the actual leaf number of the leaf at addr.
func (l *Layout) ALN(addr uint64) uint32 { return uint32(addr / l.LeafBytes()) }

// LeafAddr is the address of a leaf.
func (l *Layout) LeafAddr(aln uint32) uint64 { return uint64(aln) * l.LeafBytes() }

// GapAddr is the address of a leaf's gap word.
func GapAddr(leaf uint64) uint64 { return leaf + GapWord*mem.WordBytes }

// HeadAddr is the address of slot i's header word, if rows are inline.
func (l *Layout) HeadAddr(leaf uint64, i int) uint64 {
	return leaf + uint64(l.HeadsAt+i)*mem.WordBytes
}

// Meta is a decoded meta word.
type Meta struct {
	Last   bool
	Newest int // slot of the latest insert, NoNewest if unknown
	Live   int // slots in use, placeholders included
	Count  int // slots at and above it are free
}

// Pack encodes a meta word.
func (l *Layout) Pack(m Meta) uint64 {
	w := uint64(l.ID)<<32 | l.magic<<24 | uint64(m.Newest)<<16 | uint64(m.Live)<<8 | uint64(m.Count)
	if m.Last {
		w |= lastFlag
	}
	return w
}

// Unpack decodes a meta word.
func Unpack(w uint64) Meta {
	return Meta{Last: IsLast(w), Newest: int(w >> 16 & 0xff), Live: int(w >> 8 & 0xff), Count: CountOf(w)}
}

// IsLast reports whether a meta word is of the last leaf.
func IsLast(w uint64) bool { return w&lastFlag != 0 }

// CountOf is the count in a meta word.
func CountOf(w uint64) int { return int(w & 0xff) }

// IDTag is word RowIDWord of a row block of the index.
func (l *Layout) IDTag() uint64 { return uint64(l.ID)<<32 | rowMagic }

// StrTag is word IDWord of a row block of the index, if its keys are strings.
func (l *Layout) StrTag() uint64 { return strRowMagic<<32 | uint64(l.ID) }

// FenceTag is word IDWord of a fence block of the index.
func (l *Layout) FenceTag() uint64 { return fenceMagic<<32 | uint64(l.ID) }
