package stree

import (
	"fmt"
	"math/bits"
	"strings"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Words of a leaf.
const (
	GapWord     = 2
	metaWord    = 3
	rightWord   = 4
	versionWord = 5
	shapeWord   = 6
	fenceWord   = 7
	deleteWord  = 20
	digestWord  = 21
	// InlineFenceBytes is the most that a leaf holds of fences: prefix and what follows it in both.
	InlineFenceBytes = (deleteWord - fenceWord) * mem.WordBytes
)

// Words of a row block and of a fence block.
const (
	idWord       = 2
	rowSizeWord  = 3
	rowKeyWord   = 4
	ownerWord    = 3
	fencesAtWord = 4
)

// Bounds of the layout.
const (
	MinSlots = 4
	MaxSlots = 128
	// DefaultSlots makes leaves of 704 bytes.
	DefaultSlots = 32
	// MaxRowWords bounds the payload of a row: 64 KiB.
	MaxRowWords = 8192
)

// Free is the header of a block that holds nothing: locked, so that no proof equals it.
const Free = block.LockBit | block.AbsentBit

const (
	leafMagic  = 0x53
	rowMagic   = 0x53726f77
	fenceMagic = 0x53666e63
	lastFlag   = 1 << 31
	apartFlag  = 1 << 63
	noNewest   = 0xff
	maxAddr    = 1 << 48
	lineWords  = mem.LineBytes / mem.WordBytes
)

// Layout is the geometry of one index. It is immutable.
type Layout struct {
	ID          uint32 // of the index, unique in its region
	MaxRowWords int
	Slots       int
	LeafWords   int
	pointersAt  int
}

func wholeLines(words int) int { return (words + lineWords - 1) / lineWords * lineWords }

// NewLayout checks and completes a geometry. It is the gate for geometry read
// from a region as well, so every field is bounded.
func NewLayout(id uint32, rowWords, slots int) (Layout, error) {
	if rowWords < 0 || rowWords > MaxRowWords || slots < MinSlots || slots > MaxSlots {
		return Layout{}, fmt.Errorf("stree: rows of %d words (at most %d), %d slots (%d to %d)",
			rowWords, MaxRowWords, slots, MinSlots, MaxSlots)
	}
	l := Layout{ID: id, MaxRowWords: rowWords, Slots: slots, pointersAt: digestWord + slots}
	l.LeafWords = wholeLines(l.pointersAt + slots)
	return l, nil
}

// LeafBytes is the size of a leaf; addresses of leaves are multiples of it.
func (l *Layout) LeafBytes() uint64 { return uint64(l.LeafWords) * mem.WordBytes }

// ALN is the actual leaf number of the leaf at addr.
func (l *Layout) ALN(addr uint64) uint32 { return uint32(addr / l.LeafBytes()) }

// GapAddr is the address of a leaf's gap word.
func GapAddr(leaf uint64) uint64 { return leaf + GapWord*mem.WordBytes }

func keyWords(key string) int { return (len(key) + mem.WordBytes - 1) / mem.WordBytes }

func rowBlockWords(key string, words int) int { return rowKeyWord + keyWords(key) + words }

// Pointer leads to a row: tag(16) | class(6) | address in lines(42).
type Pointer uint64

func newPointer(tag uint16, class block.Class, addr uint64) Pointer {
	return Pointer(tag)<<48 | Pointer(class)<<42 | Pointer(addr/mem.LineBytes)
}

// Addr is the address of the row block.
func (p Pointer) Addr() uint64 { return uint64(p) & (1<<42 - 1) * mem.LineBytes }

// Tag is the hash tag of the row's key.
func (p Pointer) Tag() uint16 { return uint16(p >> 48) }

func (p Pointer) class() block.Class { return block.Class(p >> 42 & 63) }

// Words is the size of the row block.
func (p Pointer) Words() int { return p.class().Words() }

// largest is the class of the largest row there can be.
var largest = block.ClassFor(rowKeyWord + index.MaxKeyBytes/mem.WordBytes + MaxRowWords)

// Valid reports whether a pointer may be followed.
func (p Pointer) Valid() bool { return p.Addr() != 0 && p.class() > 0 && p.class() <= largest }

// fence blocks are pointed to by address in lines(42) | lines(22).
func fencePointer(addr uint64, words int) uint64 {
	return addr/mem.LineBytes<<22 | uint64(wholeLines(words)/lineWords)
}

func fenceBlock(p uint64) (addr uint64, words int) {
	return p >> 22 * mem.LineBytes, int(p&(1<<22-1)) * lineWords
}

// Tag is the hash tag of a key.
func Tag(key string) uint16 { return uint16(Hash(key) >> 48) }

// Hash is a fixed 64-bit hash: it is part of what is published.
func Hash(s string) uint64 {
	h := uint64(len(s))*0x9e3779b97f4a7c15 + 0x2545f4914f6cdd1d
	for ; len(s) >= 8; s = s[8:] {
		h = fold(h^load8(s), 0xd6e8feb86659fd93)
	}
	return fold(h^Digest(s)^0x94d049bb133111eb, 0xff51afd7ed558ccd)
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo ^ a>>32
}

func load8(s string) uint64 {
	return uint64(s[0])<<56 | uint64(s[1])<<48 | uint64(s[2])<<40 | uint64(s[3])<<32 |
		uint64(s[4])<<24 | uint64(s[5])<<16 | uint64(s[6])<<8 | uint64(s[7])
}

// Digest is the first eight bytes of s, first byte highest, padded with zeros.
func Digest(s string) uint64 {
	if len(s) >= 8 {
		return load8(s)
	}
	var d uint64
	for i := range len(s) {
		d |= uint64(s[i]) << (56 - 8*i)
	}
	return d
}

// DigestAt is the digest of what follows the first n bytes of a key.
func DigestAt(key string, n int) uint64 {
	if n >= len(key) {
		return 0
	}
	return Digest(key[n:])
}

// DigestAfter is the digest of what follows a prefix. Keys below all that begin
// with it have the least digest, keys above the greatest: it never falls as
// keys rise.
func DigestAfter(prefix, key string) uint64 {
	if strings.HasPrefix(key, prefix) {
		return Digest(key[len(prefix):])
	}
	if key < prefix {
		return 0
	}
	return ^uint64(0)
}

// Common is the number of leading bytes that two strings share.
func Common(a, b string) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if x := load8(a[i:]) ^ load8(b[i:]); x != 0 {
			return i + bits.LeadingZeros64(x)/8
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}

// separator is the shortest string above a and not above b, which is above a.
func separator(a, b string) string { return b[:Common(a, b)+1] }

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

// shape is a decoded shape word: lengths in bytes.
type shape struct {
	apart             bool
	prefix, low, high int
}

func (s shape) pack() uint64 {
	w := uint64(s.prefix)<<24 | uint64(s.low)<<12 | uint64(s.high)
	if s.apart {
		w |= apartFlag
	}
	return w
}

// unpackShape reports false for lengths that no leaf has.
func unpackShape(w uint64) (shape, bool) {
	s := shape{w&apartFlag != 0, int(w >> 24 & 0xfff), int(w >> 12 & 0xfff), int(w & 0xfff)}
	ok := w&^(apartFlag|1<<36-1) == 0 && s.low <= index.MaxKeyBytes && s.high <= index.MaxKeyBytes && s.prefix <= min(s.low, s.high)
	return s, ok
}

// bytes is the length of prefix and the rests.
func (s shape) bytes() int { return s.low + s.high - s.prefix }

// Fences are the bounds of a leaf, in parts that share a prefix.
type Fences struct {
	Prefix    string
	low, high string // what follows the prefix
	last      bool
}

// Low is a copy of the low fence, inclusive.
func (f *Fences) Low() string { return strings.Clone(f.Prefix + f.low) } // + may not copy

// High is a copy of the high fence, exclusive, and false if there is none.
func (f *Fences) High() (string, bool) { return strings.Clone(f.Prefix + f.high), !f.last }

// compare orders a key and Prefix + rest.
func (f *Fences) compare(key, rest string) int {
	n := len(f.Prefix)
	if len(key) < n || key[:n] != f.Prefix {
		return strings.Compare(key, f.Prefix) // differs within it, or is a part of it
	}
	return strings.Compare(key[n:], rest)
}

// StartsAt reports whether the key is not above the low fence.
func (f *Fences) StartsAt(key string) bool { return f.compare(key, f.low) <= 0 }

// Below reports whether the key is below the low fence.
func (f *Fences) Below(key string) bool { return f.compare(key, f.low) < 0 }

// Above reports whether the key is at or above the high fence.
func (f *Fences) Above(key string) bool { return !f.last && f.compare(key, f.high) >= 0 }

// AppendHigh appends the high fence.
func (f *Fences) AppendHigh(b []byte) []byte { return append(append(b, f.Prefix...), f.high...) }

// split views the bytes of a leaf or fence block as fences.
func (s shape) split(b string, last bool) Fences {
	return Fences{b[:s.prefix], b[s.prefix:s.low], b[s.low:s.bytes()], last}
}

// Leaf is a private copy of a leaf, accepted by block.Accept.
type Leaf struct {
	words []uint64
	l     *Layout
	count int
	last  bool
	shape shape
}

// View checks that a copy is a leaf of this index. It says nothing about
// whether the copy is untorn: see block.Accept.
func (l *Layout) View(buf []uint64) (Leaf, bool) {
	if len(buf) != l.LeafWords {
		return Leaf{}, false
	}
	w := buf[metaWord]
	if uint32(w>>32) != l.ID || w>>24&0x7f != leafMagic || int(w&0xff) > l.Slots {
		return Leaf{}, false
	}
	s, ok := unpackShape(buf[shapeWord])
	v := Leaf{words: buf, l: l, count: int(w & 0xff), last: w&lastFlag != 0, shape: s}
	ok = ok && (s.apart || s.bytes() <= InlineFenceBytes) && !(v.last && (s.high > 0 || s.prefix > 0))
	return v, ok
}

// Header, Gap and Right are words of the leaf.
func (v *Leaf) Header() uint64 { return v.words[block.HeaderWord] }

// Gap is the word that proves absence.
func (v *Leaf) Gap() uint64 { return v.words[GapWord] }

// LastDelete is the CSN of the newest deletion within the leaf's fences, 0 if
// there was none: absences and ranges within them rest on nothing newer but
// the rows that are there.
func (v *Leaf) LastDelete() block.CSN { return block.CSN(v.words[deleteWord]) }

// Right is the address of the right sibling.
func (v *Leaf) Right() uint64 { return v.words[rightWord] }

// Prefix is the length of what all keys of the leaf begin with.
func (v *Leaf) Prefix() int { return v.shape.prefix }

// Last reports that the leaf has no high fence.
func (v *Leaf) Last() bool { return v.last }

// Fences are views into the copy, if the leaf holds its fences.
func (v *Leaf) Fences() (Fences, bool) {
	if v.shape.apart {
		return Fences{}, false
	}
	return v.shape.split(mem.WordString(v.words[fenceWord:deleteWord], v.shape.bytes()), v.last), true
}

// FenceBlock is where the fences are that the leaf does not hold: false for a
// block that there cannot be.
func (v *Leaf) FenceBlock() (addr uint64, words int, ok bool) {
	addr, words = fenceBlock(v.words[fenceWord])
	ok = v.shape.apart && addr != 0 && addr < maxAddr && words == wholeLines(fencesAtWord+(v.shape.bytes()+7)/8)
	return addr, words, ok
}

// FencesApart decodes an accepted copy of the leaf's fence block: false if the
// block is not the one that the leaf named. leaf is the leaf's address.
func (v *Leaf) FencesApart(leaf uint64, buf []uint64) (Fences, bool) {
	if len(buf) < fencesAtWord+(v.shape.bytes()+7)/8 {
		return Fences{}, false
	}
	if buf[block.HeaderWord] != v.words[versionWord] || buf[idWord] != tagWord(fenceMagic, v.l.ID) || buf[ownerWord] != leaf {
		return Fences{}, false
	}
	return v.shape.split(mem.WordString(buf[fencesAtWord:], v.shape.bytes()), v.last), true
}

// AnyFences is FencesApart without the check: a planted bug of readers.
func (v *Leaf) AnyFences(buf []uint64) Fences {
	return v.shape.split(mem.WordString(buf[fencesAtWord:], v.shape.bytes()), v.last)
}

// Slots is the number of slots that may be in use.
func (v *Leaf) Slots() int { return v.count }

// Digests are those of the first Slots slots.
func (v *Leaf) Digests() []uint64 { return v.words[digestWord : digestWord+v.count] }

// Pointer is where slot i's row is; 0 if the slot is free.
func (v *Leaf) Pointer(i int) Pointer { return Pointer(v.words[v.l.pointersAt+i]) }

func tagWord(magic, id uint32) uint64 { return uint64(magic)<<32 | uint64(id) }

// Row decodes an accepted copy of a row block of this index into views of it;
// false if it is none.
func (l *Layout) Row(buf []uint64) (key string, row []uint64, ok bool) {
	if len(buf) < rowKeyWord || buf[idWord] != tagWord(rowMagic, l.ID) {
		return "", nil, false
	}
	n, words := buf[rowSizeWord]>>32, buf[rowSizeWord]&0xffffffff
	at := rowKeyWord + (n+mem.WordBytes-1)/mem.WordBytes
	if n > index.MaxKeyBytes || words > uint64(l.MaxRowWords) || at+words > uint64(len(buf)) {
		return "", nil, false
	}
	end := at + words
	return mem.WordString(buf[rowKeyWord:], int(n)), buf[at:end:end], true
}

// wordAt is word i of the bytes of s in memory order, padded with zeros.
func wordAt(s string, i int) uint64 {
	if s = s[i*mem.WordBytes:]; len(s) >= 8 {
		return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	}
	var w uint64
	for j := range len(s) {
		w |= uint64(s[j]) << (8 * j)
	}
	return w
}
