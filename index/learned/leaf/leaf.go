package leaf

import (
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Leaf is a private copy of a leaf, accepted by block.Accept: of the whole leaf,
// or of what readers of the present need. The second has neither Graves nor Older.
type Leaf struct {
	words []uint64
	l     *Layout
}

// View checks that a copy is a leaf of this index, with fences in order. It
// says nothing about whether the copy is untorn: see block.Accept.
func (l *Layout) View(buf []uint64) (Leaf, bool) {
	if len(buf) != l.LeafWords && len(buf) != l.PresentWords {
		return Leaf{}, false
	}
	w := buf[MetaWord]
	if uint32(w>>32) != l.ID || w>>24&0x7f != l.magic || CountOf(w) > l.Slots {
		return Leaf{}, false
	}
	v, last := Leaf{buf, l}, IsLast(w)
	if l.Kind == Strings {
		s, ok := UnpackShape(buf[ShapeWord])
		return v, ok && (s.Apart || s.Bytes() <= InlineFenceBytes) && !(last && (s.High > 0 || s.Prefix > 0))
	}
	return v, (last || buf[HighWord] > buf[LowWord]) && v.Right()%l.LeafBytes() == 0 && last == (v.Right() == 0)
}

// Forward is where the keys of a dead leaf went: another leaf, 0 if the copy does
// not say. It is a hint. A copy whose header is Free is of no state that anybody
// vouches for, and the other leaf's fences tell whether it has the key.
func (l *Layout) Forward(buf []uint64) uint64 {
	if to := buf[RightWord]; to%l.LeafBytes() == 0 && to < addrMax {
		return to
	}
	return 0
}

// Header is the leaf's version.
func (v *Leaf) Header() uint64 { return v.words[block.HeaderWord] }

// Gap is the leaf's gap version, which proves absence.
func (v *Leaf) Gap() uint64 { return v.words[GapWord] }

// LastDelete is the CSN of the newest deletion within the leaf's fences, 0 if
// there was none: absences and ranges within them rest on nothing newer but
// the rows that are there.
func (v *Leaf) LastDelete() block.CSN { return block.CSN(v.words[v.l.DeleteAt]) }

// Graves is where the deletions are that readers of the past need: see
// [Layout.GravesOf]. It is to be followed only by a reader of a tick below that
// of LastDelete.
func (v *Leaf) Graves() block.Older { return block.Older(v.words[v.l.GravesAt]) }

// Right is the address of the right sibling, 0 at the end.
func (v *Leaf) Right() uint64 { return v.words[RightWord] }

// Last reports that the leaf has no high fence.
func (v *Leaf) Last() bool { return IsLast(v.words[MetaWord]) }

// Count is the number of slots to look at.
func (v *Leaf) Count() int { return CountOf(v.words[MetaWord]) }

// Keys are the keys of all slots to look at, or of string keys their digests.
func (v *Leaf) Keys() []uint64 { return v.words[v.l.KeysAt : v.l.KeysAt+v.Count()] }

// Heads are what Head returns, of all slots to look at.
func (v *Leaf) Heads() []uint64 { return v.words[v.l.HeadsAt : v.l.HeadsAt+v.Count()] }

// Key is slot i's key or digest, meaningful unless the slot is free.
func (v *Leaf) Key(i int) uint64 { return v.words[v.l.KeysAt+i] }

// Head is slot i's header word if the row is inline, the row's address if it
// is apart, or of a string key its pointer.
func (v *Leaf) Head(i int) uint64 { return v.words[v.l.HeadsAt+i] }

// InUse reports whether slot i holds a row or a placeholder.
func (v *Leaf) InUse(i int) bool { return v.Head(i) != v.l.FreeHead }

// Low is the low fence of a leaf of native keys.
func (v *Leaf) Low() uint64 { return v.words[LowWord] }

// High is the first native key above the leaf's range; false if there is none.
func (v *Leaf) High() (uint64, bool) { return v.words[HighWord], !v.Last() }

// Above reports whether a native key lies right of the leaf.
func (v *Leaf) Above(key uint64) bool { return !v.Last() && key >= v.words[HighWord] }

// Older is the next older version of slot i's row, if rows are inline.
func (v *Leaf) Older(i int) block.Older { return block.Older(v.words[v.l.OldersAt+i]) }

// Row is slot i's payload, if rows are inline.
func (v *Leaf) Row(i int) []uint64 {
	at := v.l.RowsAt + i*v.l.RowWords
	return v.words[at : at+v.l.RowWords : at+v.l.RowWords]
}

// Find returns the slot in use that has a native key, or -1.
func (v *Leaf) Find(key uint64) int {
	for i, k := range v.Keys() {
		if k == key && v.InUse(i) {
			return i
		}
	}
	return -1
}

// RowIs reports whether the copy of a row block is a native key's row of this index.
func (l *Layout) RowIs(buf []uint64, key uint64) bool {
	return buf[RowKeyWord] == key && buf[RowIDWord] == l.IDTag()
}

// Pointer is where the row of slot i with a string key is; 0 if the slot is free.
func (v *Leaf) Pointer(i int) Pointer { return Pointer(v.Head(i)) }

// Prefix is the length of what all string keys of the leaf begin with.
func (v *Leaf) Prefix() int { return int(v.shape().Prefix) }

func (v *Leaf) shape() Shape { return shapeIn(v.words[ShapeWord]) }

// Fences are views into the copy, if the leaf of string keys holds its fences.
func (v *Leaf) Fences() (Fences, bool) {
	s := v.shape()
	if s.Apart {
		return Fences{}, false
	}
	return s.split(mem.WordString(v.words[FenceWord:stringsDeleteWord], s.Bytes()), v.Last()), true
}

// FenceBlock is where the fences are that the leaf does not hold: false for a
// block that there cannot be.
func (v *Leaf) FenceBlock() (addr uint64, words int, ok bool) {
	addr, words = FenceBlockAt(v.words[FenceWord])
	s := v.shape()
	ok = s.Apart && addr != 0 && addr < addrMax && words == s.BlockWords()
	return addr, words, ok
}

// FencesApart decodes an accepted copy of the leaf's fence block: false if the
// block is not the one that the leaf named. leaf is the leaf's address.
func (v *Leaf) FencesApart(leaf uint64, buf []uint64) (Fences, bool) {
	s := v.shape()
	if len(buf) < FencesAtWord+(s.Bytes()+7)/8 {
		return Fences{}, false
	}
	if buf[block.HeaderWord] != v.words[VersionWord] || buf[IDWord] != v.l.FenceTag() || buf[OwnerWord] != leaf {
		return Fences{}, false
	}
	return s.split(mem.WordString(buf[FencesAtWord:], s.Bytes()), v.Last()), true
}

// StrRow decodes an accepted copy of a row block of this index into views of
// it; false if it is none.
func (l *Layout) StrRow(buf []uint64) (key string, row []uint64, ok bool) {
	if len(buf) < StrKeyWord || buf[IDWord] != l.StrTag() {
		return "", nil, false
	}
	n, words := buf[StrSizeWord]>>32, buf[StrSizeWord]&0xffffffff
	at := StrKeyWord + (n+mem.WordBytes-1)/mem.WordBytes
	if n > MaxKeyBytes || words > uint64(l.RowWords) || at+words > uint64(len(buf)) {
		return "", nil, false
	}
	end := at + words
	return mem.WordString(buf[StrKeyWord:], int(n)), buf[at:end:end], true
}
