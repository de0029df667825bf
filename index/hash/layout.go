package hash

import (
	"fmt"
	"math/bits"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Words of a bucket.
const (
	bucketWords = mem.LineBytes / mem.WordBytes
	bucketBytes = mem.LineBytes
	slotWord    = block.BodyWord
	slots       = bucketWords - slotWord - 1
	linkWord    = slotWord + slots
	// freedWord holds, in an overflow bucket that is in no chain, the version
	// under which it left its last one; 0 if it has been in none.
	freedWord = slotWord
)

// Words of a row block.
const (
	olderWord = block.BodyWord // the next older version of the row, a block.Older
	keyWord   = olderWord + 1
	rowWord   = keyWord + 1 // first payload word
)

// Words of the root block.
const (
	rootMagicWord   = block.BodyWord + iota
	rootRowWord     // kind of keys(8) | payload words of a row, or their maximum(56)
	rootDirWord     // address of the directory
	rootChunksWord  // chunks(48) | log2 of the largest chunk(8) | log2 of the first chunk(8)
	rootBucketsWord // number of buckets
	rootWords       = bucketWords
)

const rootMagic = 0x3368_7368_6d74_7264 // identifies the layout, format 3

// Kinds of index, in the root.
const (
	kindNative  = 0 // native keys, rows of one size
	kindStrings = 1 // string keys, rows that vary in size
)

// Named bounds of the layout.
const (
	addrBits  = 48
	addrMask  = 1<<addrBits - 1
	classMask = 1<<block.ClassBits - 1
	levelMax  = 40
	chunksMax = 1 << 20
	// MaxRowWords bounds the payload: a row block is fetched by one READ.
	MaxRowWords = rdma.MaxReadBytes/mem.WordBytes - rowWord
	// MaxStringRowWords bounds the payload of a row of an index with string keys: 64 KiB.
	MaxStringRowWords = 64 << 10 / mem.WordBytes
)

// Kinds of bucket, in the top byte of the link word. Zero is none, so that
// memory never written is no bucket.
const (
	kindHead     = 0xb1
	kindOverflow = 0xb2
)

// The layout is read by other processes: a bucket is one line, as is the root.
var (
	_ [0]struct{} = [linkWord + 1 - bucketWords]struct{}{}
	_ [0]struct{} = [5 - slots]struct{}{}
	_ [0]struct{} = [mem.LineBytes - 1 - classMask]struct{}{}
)

// hashKey returns the hash of a key: a fixed bijection, the same in every process
// (Stafford's 13th variant of the 64-bit MurmurHash3 finaliser). The low bits choose
// the bucket, the top ones are the fingerprint.
func hashKey(k uint64) uint64 {
	k = (k ^ k>>30) * 0xbf58476d1ce4e5b9
	k = (k ^ k>>27) * 0x94d049bb133111eb
	return k ^ k>>31
}

// makeSlot joins the fingerprint of a hash with a row's address.
//
// In an index with string keys, the six bits of the address below a line hold the
// size class of the row's block, so that the slot determines how much to READ:
// fingerprint(16) | line(42) | class(6). Such an address is called a reference; where
// rows have one size, their class is 0 and it is the plain address.
func makeSlot(hash, ref uint64) uint64 { return hash&^addrMask | ref }

// slotMatches reports whether the slot may hold a key of this hash.
func slotMatches(slot, hash uint64) bool { return slot&addrMask != 0 && (slot^hash)>>addrBits == 0 }

// slotRef returns the reference to the row.
func slotRef(slot uint64) uint64 { return slot & addrMask }

// makeRef joins the address of a row's block with its size class.
func makeRef(addr uint64, c block.Class) uint64 { return addr | uint64(c) }

func refAddr(ref uint64) uint64       { return ref &^ classMask }
func refClass(ref uint64) block.Class { return block.Class(ref & classMask) }

func makeLink(kind, level uint8, next uint64) uint64 {
	return uint64(kind)<<56 | uint64(level)<<addrBits | next
}

func linkKind(w uint64) uint8  { return uint8(w >> 56) }
func linkLevel(w uint64) uint8 { return uint8(w >> addrBits) }
func linkNext(w uint64) uint64 { return w & addrMask }

// rowBlockWords returns the size of a row block in words, rounded up to whole lines.
func rowBlockWords(rowWords int) int { return (rowWord + rowWords + 7) &^ 7 }

// bucketOf returns the bucket of a hash when there are n buckets (Litwin 1980).
func bucketOf(hash, n uint64) uint64 {
	b := hash & (1<<bits.Len64(n-1) - 1)
	if b >= n {
		b = hash & (1<<(bits.Len64(n-1)-1) - 1)
	}
	return b
}

// levelOf returns the level of bucket b when there are n buckets.
func levelOf(b, n uint64) uint8 {
	top := uint8(bits.Len64(n) - 1)
	if split := n - 1<<top; b < split || b >= 1<<top {
		return top + 1
	}
	return top
}

// bucketsAtLeast returns the least number of buckets with which bucket b has the
// level.
func bucketsAtLeast(b uint64, level uint8) uint64 {
	if level == 0 {
		return 1
	}
	if half := uint64(1) << (level - 1); b < half {
		return half + b + 1
	}
	return b + 1
}

// covers reports whether a head with this number and level covers the hash.
func covers(b uint64, level uint8, hash uint64) bool { return hash&(1<<level-1) == b }

// geometry determines the chunk of each bucket. The first chunk has 1<<first
// buckets, and each further chunk as many as all before it together, up to
// 1<<max. So small tables are small, and the directory of a large table is
// short.
type geometry struct{ first, max uint8 }

func (g geometry) ok() bool { return g.first <= g.max && g.max <= 24 }

// locate returns the chunk of bucket b and its place there.
func (g geometry) locate(b uint64) (chunk, place uint64) {
	switch {
	case b < 1<<g.first:
		return 0, b
	case b < 1<<g.max:
		top := uint8(bits.Len64(b) - 1)
		return uint64(top-g.first) + 1, b - 1<<top
	}
	b -= 1 << g.max
	return uint64(g.max-g.first) + 1 + b>>g.max, b & (1<<g.max - 1)
}

// buckets returns the number of buckets in a chunk.
func (g geometry) buckets(chunk uint64) uint64 {
	switch doubling := uint64(g.max - g.first); {
	case chunk == 0:
		return 1 << g.first
	case chunk <= doubling:
		return 1 << (uint64(g.first) + chunk - 1)
	}
	return 1 << g.max
}

// capacity returns the number of buckets in the first n chunks.
func (g geometry) capacity(n uint64) uint64 {
	switch doubling := uint64(g.max - g.first); {
	case n == 0:
		return 0
	case n <= doubling+1:
		return 1 << (uint64(g.first) + n - 1)
	default:
		return (n - doubling) << g.max
	}
}

// rootInfo is a decoded root block.
type rootInfo struct {
	strings  bool
	rowWords int
	dir      uint64
	chunks   uint64
	geo      geometry
	buckets  uint64
}

func (r rootInfo) words() [3]uint64 {
	return [3]uint64{r.dir, r.chunks<<16 | uint64(r.geo.max)<<8 | uint64(r.geo.first), r.buckets}
}

// decodeRoot checks and decodes an accepted copy of a root block.
func decodeRoot(w []uint64) (rootInfo, error) {
	r := rootInfo{
		dir: w[rootDirWord], chunks: w[rootChunksWord] >> 16, buckets: w[rootBucketsWord],
		geo: geometry{first: uint8(w[rootChunksWord]), max: uint8(w[rootChunksWord] >> 8)},
	}
	switch {
	case w[rootMagicWord] != rootMagic:
		return r, fmt.Errorf("%w: not the root of a hash index (%#x)", index.ErrCorrupt, w[rootMagicWord])
	case !r.decodeRows(w[rootRowWord]):
		return r, fmt.Errorf("%w: rows of kind and words %#x", index.ErrCorrupt, w[rootRowWord])
	case !r.geo.ok() || r.chunks == 0 || r.chunks > chunksMax:
		return r, fmt.Errorf("%w: %d chunks of 2^%d to 2^%d buckets", index.ErrCorrupt, r.chunks, r.geo.first, r.geo.max)
	case r.buckets == 0 || r.buckets > r.geo.capacity(r.chunks):
		return r, fmt.Errorf("%w: %d buckets in %d chunks", index.ErrCorrupt, r.buckets, r.chunks)
	case !goodAddr(r.dir, mem.LineBytes):
		return r, fmt.Errorf("%w: directory at %#x", index.ErrCorrupt, r.dir)
	}
	return r, nil
}

// rowsWord returns the root word with the kind of the index and the size of its
// rows.
func (r rootInfo) rowsWord() uint64 {
	kind := uint64(kindNative)
	if r.strings {
		kind = kindStrings
	}
	return kind<<56 | uint64(r.rowWords)
}

func (r *rootInfo) decodeRows(w uint64) bool {
	words, most := w&(1<<56-1), uint64(MaxRowWords)
	switch w >> 56 {
	case kindNative:
	case kindStrings:
		r.strings, most = true, MaxStringRowWords
	default:
		return false
	}
	r.rowWords = int(min(words, most))
	return words <= most
}

// dirEntry returns the address of a chunk's word in the directory.
func (r rootInfo) dirEntry(chunk uint64) uint64 { return r.dir + (block.BodyWord+chunk)*mem.WordBytes }

// goodAddr reports whether a may be the address of a block of an aligned kind.
func goodAddr(a, align uint64) bool { return a != 0 && a <= addrMask && a%align == 0 }
