package leaf

import (
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Leaf is a private copy of a leaf, accepted by block.Accept: of the whole leaf, or
// of the part that scans or lookups of the present need. Such a part has neither
// Graves nor Older, and that for lookups has no Order.
type Leaf struct {
	words []uint64
	l     *Layout
}

// View checks that a copy is a leaf of this index, with fences in order. It does not
// check whether the copy is torn: see block.Accept. The Leaf shares buf.
func (l *Layout) View(buf []uint64) (Leaf, bool) {
	if len(buf) != l.LeafWords && len(buf) != l.PresentWords && len(buf) != l.LookupWords {
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
	if l.Kind == Bin {
		return v, last || buf[HighWord] > buf[LowWord]
	}
	return v, (last || buf[HighWord] > buf[LowWord]) && v.Right()%l.LeafBytes() == 0 && last == (v.Right() == 0)
}

// Forward returns the leaf that has the keys of a dead leaf, 0 if the copy does not
// name one. It is a hint: a copy whose header is Free proves nothing. The fences of
// the other leaf show whether it covers the key.
func (l *Layout) Forward(buf []uint64) uint64 {
	if to := buf[RightWord]; to%l.LeafBytes() == 0 && to < addrMax {
		return to
	}
	return 0
}

// Words returns the copy, which the Leaf shares.
func (v *Leaf) Words() []uint64 { return v.words }

// Whole is the layout's.
func (v *Leaf) Whole() bool { return v.l.Whole() }

// Header returns the leaf's header, which has its version.
func (v *Leaf) Header() uint64 { return v.words[block.HeaderWord] }

// Gap is the leaf's gap version, which proves absence.
func (v *Leaf) Gap() uint64 { return v.words[GapWord] }

// LastDelete returns the CSN of the newest deletion within the leaf's fences, 0 if
// there was none. Absences and ranges within the fences depend on no newer commits
// than this one and those of the rows.
func (v *Leaf) LastDelete() block.CSN { return block.CSN(v.words[v.l.DeleteAt]) }

// Graves refers to the deletions that readers of the past need: see
// [Layout.GravesOf]. Only readers of a tick below that of LastDelete may follow it.
func (v *Leaf) Graves() block.Older { return block.Older(v.words[v.l.GravesAt]) }

// Right is the address of the right sibling, 0 at the end.
func (v *Leaf) Right() uint64 { return v.words[RightWord] }

// Last reports whether the leaf has no high fence.
func (v *Leaf) Last() bool { return IsLast(v.words[MetaWord]) }

// Count returns the number of slots to examine: all others are free.
func (v *Leaf) Count() int { return CountOf(v.words[MetaWord]) }

// Live returns the number of slots in use, placeholders included.
func (v *Leaf) Live() int { return min(Unpack(v.words[MetaWord]).Live, v.Count()) }

// Order returns the slots in use in the order of their keys. With string keys, slots
// of equal digests may be in any order. ok is false if the copy does not have the order,
// or if the order is wrong: if it does not name each slot in use once, or if keys fall.
// So nothing depends on the order being right. The result shares the copy.
func (v *Leaf) Order() (order []byte, ok bool) {
	l, live := v.l, Unpack(v.words[MetaWord]).Live
	if !v.HasOrder() || live > v.Count() {
		return nil, false
	}
	order = mem.Bytes(v.words[l.OrderAt : l.OrderAt+l.OrderWords])[:live]
	keys, heads := v.Keys(), v.Heads()
	for _, h := range heads {
		if h != l.FreeHead {
			live--
		}
	}
	if live != 0 {
		return nil, false
	}
	if l.Kind == Strings {
		return order, digestsRise(order, keys, heads, l.FreeHead)
	}
	return order, keysRise(order, keys, heads, l.FreeHead)
}

// HasOrder reports whether the copy has the order.
func (v *Leaf) HasOrder() bool { return len(v.words) >= v.l.OrderAt+v.l.OrderWords }

// Sorted is the order of the slots in use whose keys or digests are within a range, for a
// copy that does not have the order. It appends them to dst.
func (v *Leaf) Sorted(dst []byte, from, to uint64) []byte {
	keys, heads, free := v.Keys(), v.Heads(), v.l.FreeHead
	first := len(dst)
	for i, k := range keys {
		if k < from || k > to || heads[i] == free {
			continue
		}
		dst = append(dst, 0)
		j := len(dst) - 1
		for ; j > first && keys[dst[j-1]] > k; j-- { // mostly they rise
			dst[j] = dst[j-1]
		}
		dst[j] = byte(i)
	}
	return dst
}

// keysRise reports whether order names slots that are in use and whose keys rise. Then
// they are different.
func keysRise(order []byte, keys, heads []uint64, free uint64) bool {
	last := uint64(0)
	for i, b := range order {
		at := int(b)
		if at >= len(keys) || at >= len(heads) || heads[at] == free {
			return false
		}
		k := keys[at]
		if k <= last && i > 0 {
			return false
		}
		last = k
	}
	return true
}

// digestsRise reports whether order names different slots that are in use and whose
// digests do not fall.
func digestsRise(order []byte, digests, heads []uint64, free uint64) bool {
	var seen [MaxSlots]bool
	last := uint64(0)
	for _, b := range order {
		at := int(b)
		if at >= len(digests) || at >= len(heads) || heads[at] == free || seen[at] || digests[at] < last {
			return false
		}
		seen[at], last = true, digests[at]
	}
	return true
}

// Keys returns the keys, or the digests of string keys, of the first Count slots.
func (v *Leaf) Keys() []uint64 { return v.words[v.l.KeysAt : v.l.KeysAt+v.Count()] }

// Heads returns the heads of the first Count slots: see Head.
func (v *Leaf) Heads() []uint64 { return v.words[v.l.HeadsAt : v.l.HeadsAt+v.Count()] }

// Key returns slot i's key or digest. It is meaningless if the slot is free.
func (v *Leaf) Key(i int) uint64 { return v.words[v.l.KeysAt+i] }

// Head returns slot i's header word if rows are inline, the row's address if rows are
// apart, or the row's pointer if keys are strings.
func (v *Leaf) Head(i int) uint64 { return v.words[v.l.HeadsAt+i] }

// InUse reports whether slot i holds a row or a placeholder.
func (v *Leaf) InUse(i int) bool { return v.Head(i) != v.l.FreeHead }

// Low is the low fence of a leaf of native keys.
func (v *Leaf) Low() uint64 { return v.words[LowWord] }

// High returns the first native key above the leaf's range, and false if there is no
// high fence.
func (v *Leaf) High() (uint64, bool) { return v.words[HighWord], !v.Last() }

// Above reports whether a native key is above the leaf's range.
func (v *Leaf) Above(key uint64) bool { return !v.Last() && key >= v.words[HighWord] }

// Older is the next older version of slot i's row, if rows are inline.
func (v *Leaf) Older(i int) block.Older { return block.Older(v.words[v.l.OldersAt+i]) }

// Row is slot i's payload, if rows are inline.
func (v *Leaf) Row(i int) []uint64 {
	at := v.l.RowsAt + i*v.l.RowWords
	return v.words[at : at+v.l.RowWords : at+v.l.RowWords]
}

// Find returns the slot in use that holds a native key, or -1.
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

// Pointer returns the pointer to the row of slot i, if keys are strings; 0 if the
// slot is free.
func (v *Leaf) Pointer(i int) Pointer { return Pointer(v.Head(i)) }

// Prefix returns the length in bytes of the common prefix of the leaf's string keys.
func (v *Leaf) Prefix() int { return int(v.shape().Prefix) }

func (v *Leaf) shape() Shape { return shapeIn(v.words[ShapeWord]) }

// Fences returns views into the copy, or false if the leaf of string keys does not
// hold its fences.
func (v *Leaf) Fences() (Fences, bool) {
	s := v.shape()
	if s.Apart {
		return Fences{}, false
	}
	return s.split(mem.WordString(v.words[FenceWord:stringsDeleteWord], s.Bytes()), v.Last()), true
}

// FenceBlock returns the place of the leaf's fence block; ok is false if that is not
// valid.
func (v *Leaf) FenceBlock() (addr uint64, words int, ok bool) {
	addr, words = FenceBlockAt(v.words[FenceWord])
	s := v.shape()
	ok = s.Apart && addr != 0 && addr < addrMax && words == s.BlockWords()
	return addr, words, ok
}

// FencesApart decodes an accepted copy of the leaf's fence block, and returns false
// if the block is not the one to which the leaf points. leaf is the leaf's address.
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

// StrRow decodes an accepted copy of a row block of this index. key and row share
// buf. ok is false if the copy is no row block.
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
