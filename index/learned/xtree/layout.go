package xtree

import (
	"fmt"

	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Words of a leaf that both halves use.
const (
	GapWord    = 2
	metaWord   = 3
	rightWord  = 4
	lowWord    = 5
	highWord   = 6
	deleteWord = 7
	keysWord   = 8
)

// Words of a row block.
const (
	rowKeyWord = 2
	rowIDWord  = 3
	// RowWord is the first word of a row block's payload.
	RowWord = 4
)

// Free is the header of a slot that holds no row: locked, so that no proof
// ever equals it.
const Free = block.LockBit | block.AbsentBit

// Bounds of the layout.
const (
	MinSlots = 4
	MaxSlots = 128
	// MaxRowWords bounds the payload of a row.
	MaxRowWords = 8192
	// inlineRowWords is the widest row that is kept inline unless asked otherwise.
	inlineRowWords = 12
	// leafTargetBytes is about what a leaf is made to be if the slots are not given.
	leafTargetBytes = 1024
	rowsApartSlots  = 32
	maxLeafBytes    = 64 << 10
)

const (
	leafMagic = 0x5c
	rowMagic  = 0x58726f77
	lastFlag  = 1 << 31
	noNewest  = 0xff
)

// Layout is the geometry of one index's leaves and rows. It is immutable.
type Layout struct {
	ID       uint32 // of the index, unique in its region
	RowWords int
	Slots    int
	Inline   bool

	LeafWords     int
	RowBlockWords int // rows apart
	headAt, rowAt int
}

// AutoInline is the default choice between inline rows and rows apart.
func AutoInline(rowWords int) bool { return rowWords <= inlineRowWords }

// AutoSlots is the default number of slots.
func AutoSlots(rowWords int, inline bool) int {
	if !inline {
		return rowsApartSlots
	}
	perSlot := (2 + rowWords) * mem.WordBytes
	return min(max((leafTargetBytes-keysWord*mem.WordBytes)/perSlot, 8), MaxSlots)
}

func wholeLines(words int) int {
	const line = mem.LineBytes / mem.WordBytes
	return (words + line - 1) / line * line
}

// NewLayout checks and completes a geometry. It is the gate for geometry read
// from a region as well, so every field is bounded.
func NewLayout(id uint32, rowWords, slots int, inline bool) (Layout, error) {
	if rowWords < 0 || rowWords > MaxRowWords || slots < MinSlots || slots > MaxSlots {
		return Layout{}, fmt.Errorf("xtree: rows of %d words (at most %d), %d slots (%d to %d)",
			rowWords, MaxRowWords, slots, MinSlots, MaxSlots)
	}
	l := Layout{ID: id, RowWords: rowWords, Slots: slots, Inline: inline}
	l.headAt = keysWord + slots
	l.rowAt = l.headAt + slots
	l.LeafWords = l.rowAt
	if inline {
		l.LeafWords += slots * rowWords
	} else {
		l.RowBlockWords = wholeLines(RowWord + rowWords)
	}
	l.LeafWords = wholeLines(l.LeafWords)
	if l.LeafBytes() > maxLeafBytes {
		return Layout{}, fmt.Errorf("xtree: leaf of %d bytes (at most %d): fewer slots or rows apart", l.LeafBytes(), maxLeafBytes)
	}
	return l, nil
}

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
	return leaf + uint64(l.headAt+i)*mem.WordBytes
}

// A meta word, decoded.
type meta struct {
	last   bool
	newest int // slot of the latest insert, noNewest if unknown
	live   int // slots in use, placeholders included
	count  int // slots at and above it are free
}

func (l *Layout) packMeta(m meta) uint64 {
	w := uint64(l.ID)<<32 | leafMagic<<24 | uint64(m.newest)<<16 | uint64(m.live)<<8 | uint64(m.count)
	if m.last {
		w |= lastFlag
	}
	return w
}

func unpackMeta(w uint64) meta {
	return meta{last: w&lastFlag != 0, newest: int(w >> 16 & 0xff), live: int(w >> 8 & 0xff), count: int(w & 0xff)}
}

// ours reports whether a meta word belongs to a leaf of this index and its
// count is within the leaf.
func (l *Layout) ours(w uint64) bool {
	return uint32(w>>32) == l.ID && w>>24&0x7f == leafMagic && int(w&0xff) <= l.Slots
}

// Leaf is a private copy of a leaf, accepted by block.Accept.
type Leaf struct {
	words []uint64
	l     *Layout
	count int
	last  bool
}

// View checks that a copy is a leaf of this index, with fences in order. It
// says nothing about whether the copy is untorn: see block.Accept.
func (l *Layout) View(buf []uint64) (Leaf, bool) {
	if len(buf) != l.LeafWords || !l.ours(buf[metaWord]) {
		return Leaf{}, false
	}
	v := Leaf{words: buf, l: l, count: int(buf[metaWord] & 0xff), last: buf[metaWord]&lastFlag != 0}
	if !v.last && buf[highWord] <= buf[lowWord] || v.Right()%l.LeafBytes() != 0 || v.last != (v.Right() == 0) {
		return Leaf{}, false
	}
	return v, true
}

// Header is the leaf's version.
func (v *Leaf) Header() uint64 { return v.words[block.HeaderWord] }

// Gap is the leaf's gap version.
func (v *Leaf) Gap() uint64 { return v.words[GapWord] }

// LastDelete is the CSN of the newest deletion within the leaf's fences, 0 if
// there was none: absences and ranges within them rest on nothing newer but
// the rows that are there.
func (v *Leaf) LastDelete() block.CSN { return block.CSN(v.words[deleteWord]) }

// Right is the address of the right sibling, 0 at the end.
func (v *Leaf) Right() uint64 { return v.words[rightWord] }

// Low is the low fence.
func (v *Leaf) Low() uint64 { return v.words[lowWord] }

// High is the first key above the leaf's range; false if there is none.
func (v *Leaf) High() (uint64, bool) { return v.words[highWord], !v.last }

// Above reports whether key lies right of the leaf.
func (v *Leaf) Above(key uint64) bool { return !v.last && key >= v.words[highWord] }

// Count is the number of slots to look at.
func (v *Leaf) Count() int { return v.count }

// Key is slot i's key, meaningful unless the slot is free.
func (v *Leaf) Key(i int) uint64 { return v.words[keysWord+i] }

// Keys are the keys of all slots to look at.
func (v *Leaf) Keys() []uint64 { return v.words[keysWord : keysWord+v.count] }

// Head is slot i's header word if rows are inline, else the row's address.
func (v *Leaf) Head(i int) uint64 { return v.words[v.l.headAt+i] }

// InUse reports whether slot i holds a row or a placeholder.
func (v *Leaf) InUse(i int) bool {
	if v.l.Inline {
		return block.Header(v.Head(i)) != Free
	}
	return v.Head(i) != 0
}

// Row is slot i's payload, if rows are inline.
func (v *Leaf) Row(i int) []uint64 {
	at := v.l.rowAt + i*v.l.RowWords
	return v.words[at : at+v.l.RowWords : at+v.l.RowWords]
}

// Find returns the slot in use that has key, or -1.
func (v *Leaf) Find(key uint64) int {
	for i, k := range v.Keys() {
		if k == key && v.InUse(i) {
			return i
		}
	}
	return -1
}

// RowIs reports whether the copy of a row block is key's row of this index.
func (l *Layout) RowIs(buf []uint64, key uint64) bool {
	return buf[rowKeyWord] == key && buf[rowIDWord] == uint64(l.ID)<<32|rowMagic
}
