package model

import (
	"math/bits"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/mem"
)

// A tail list names the leaves that recent splits have made in a sub-model whose
// leaves split faster than it is trained. It is a ring of entries in the region. The
// server numbers entries in the order of the splits, and writes entry n over entry n
// - TailWords/entry size.
//
// An entry is a hint, like a prediction: the fences of the leaf to which it points
// prove an answer. Each entry has a check over its words, its number and its address.
// So a reader needs no header and may READ any part of the ring: it rejects entries
// that are torn, of another lap, or left from an earlier use of the memory.
const (
	// TailWords is the size of a tail list.
	TailWords = 2048

	// Words of an entry: what leads to the leaf, the keys, and the check at the end.
	tailLeaf       = 0
	tailLow        = 1
	tailHigh       = 2
	numEntryWords  = 4
	tailLengths    = 1
	tailText       = 2
	strEntryWords  = 16
	tailTextBytes  = (strEntryWords - tailText - 1) * mem.WordBytes
	tailNumberBits = 16 // of the number, in the upper bits of the first word
	tailBounded    = 1
	tailRising     = 2
	tailFlags      = mem.LineBytes - 1

	// tailWords is the size of the words of a sub-model's block that describe its
	// tail list.
	tailWords = 2
	// tailBit, in the length of the encoding, says that the block has these words.
	tailBit = 1 << 31
)

// Tail is the place of a sub-model's tail list. The zero Tail means that there is
// none.
type Tail struct {
	Addr uint64
	Next uint64 // the number of the first entry that is newer than the sub-model
}

// TailEntry is an entry of a tail list: a leaf with its fences.
type TailEntry struct {
	Low, High index.Key // fences at the split; High is valid if Bounded
	Bounded   bool
	Rising    bool // the leaf began empty, for ascending keys
	Leaf      uint64
}

// TailEntryWords is the size of an entry.
func (r *Root) TailEntryWords() int { return r.keys.tailEntryWords() }

// TailEntries is the number of entries of a tail list.
func (r *Root) TailEntries() uint64 { return uint64(TailWords / r.keys.tailEntryWords()) }

// TailSlot returns the address of an entry.
func (r *Root) TailSlot(list, number uint64) uint64 {
	return list + number%r.TailEntries()*uint64(r.keys.tailEntryWords())*mem.WordBytes
}

// AppendTailEntry appends the words of the entry with a number, of the tail list
// at an address. prefix is that of the sub-model. It returns false if the keys do
// not fit.
func (r *Root) AppendTailEntry(dst []uint64, list, number uint64, prefix string, e *TailEntry) ([]uint64, bool) {
	from := len(dst)
	head := number<<(64-tailNumberBits) | e.Leaf
	if e.Bounded {
		head |= tailBounded
	}
	if e.Rising {
		head |= tailRising
	}
	dst, ok := r.keys.appendTailKeys(append(dst, head), prefix, e)
	if !ok {
		return dst[:from], false
	}
	return append(dst, tailCheck(r.TailSlot(list, number), number, dst[from:], e)), true
}

// TailEntryOf decodes the entry in b, READ from the place of the entry with a number.
// It returns the number of the entry found: the given one, or a later one if the ring
// has wrapped since. ok is false if there is no valid entry. The keys do not share b.
func (r *Root) TailEntryOf(b []uint64, list, number uint64, prefix string) (e TailEntry, found uint64, ok bool) {
	head := b[tailLeaf]
	found = number + uint64(uint16(head>>(64-tailNumberBits))-uint16(number))
	if (found-number)%r.TailEntries() != 0 {
		return e, 0, false
	}
	e.Leaf = head << tailNumberBits >> tailNumberBits &^ tailFlags
	e.Bounded, e.Rising = head&tailBounded != 0, head&tailRising != 0
	n := r.keys.tailEntryWords()
	if !r.keys.tailKeys(b[:n], prefix, &e) || b[n-1] != tailCheck(r.TailSlot(list, number), found, b[:n-1], &e) {
		return TailEntry{}, 0, false
	}
	return e, found, true
}

// tailCheck hashes an entry with its place and number.
func tailCheck(at, number uint64, words []uint64, e *TailEntry) uint64 {
	h := tailMix(at, number)
	for _, w := range words {
		h = tailMix(h, w)
	}
	if e.Low.Str != "" {
		h = tailMix(tailMix(h, leaf.Hash(e.Low.Str)), leaf.Hash(e.High.Str))
	}
	return h
}

func tailMix(h, w uint64) uint64 {
	hi, lo := bits.Mul64(h^0x9e3779b97f4a7c15, w^0xd6e8feb86659fd93)
	return (hi ^ lo) + bits.RotateLeft64(h, 29) + w
}

func (nativeFormat) tailEntryWords() int { return numEntryWords }

func (nativeFormat) appendTailKeys(dst []uint64, _ string, e *TailEntry) ([]uint64, bool) {
	return append(dst, e.Low.Num, e.High.Num), true
}

func (nativeFormat) tailKeys(b []uint64, _ string, e *TailEntry) bool {
	e.Low, e.High = index.Num(b[tailLow]), index.Num(b[tailHigh])
	return !e.Bounded || e.Low.Num < e.High.Num
}

func (stringFormat) tailEntryWords() int { return strEntryWords }

// appendTailKeys leaves out the bytes that the low fence shares with the prefix, and
// those that the high fence shares with the low one.
func (stringFormat) appendTailKeys(dst []uint64, prefix string, e *TailEntry) ([]uint64, bool) {
	kept, shared := leaf.Common(prefix, e.Low.Str), leaf.Common(e.Low.Str, e.High.Str)
	low, high := e.Low.Str[kept:], e.High.Str[shared:]
	if e.Low.Str == "" || len(low)+len(high) > tailTextBytes {
		return dst, false
	}
	at := len(dst)
	dst = append(dst, uint64(kept)<<48|uint64(len(low))<<32|uint64(shared)<<16|uint64(len(high)))
	dst = mem.AppendString(dst, low+high)
	for len(dst) < at+strEntryWords-tailText {
		dst = append(dst, 0)
	}
	return dst, true
}

func (stringFormat) tailKeys(b []uint64, prefix string, e *TailEntry) bool {
	w := b[tailLengths]
	kept, low, shared, high := int(w>>48), int(w>>32&0xffff), int(w>>16&0xffff), int(w&0xffff)
	if kept > len(prefix) || low+high > tailTextBytes || shared > kept+low || shared+high > index.MaxKeyBytes {
		return false
	}
	text := mem.WordString(b[tailText:], low+high)
	both := prefix[:kept] + text[:low]
	both += both[:shared] + text[low:]
	e.Low, e.High = index.Str(both[:kept+low]), index.Str(both[kept+low:])
	return e.Low.Str != "" && (!e.Bounded || e.Low.Str < e.High.Str)
}
