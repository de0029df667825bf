package model

import (
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Words of the published blocks; docs/layouts.md has their tables.
const (
	idWord = block.BodyWord

	rootGeometry = 3
	rootFirst    = 4
	rootGen      = 5
	rootNumber   = 6
	rootInner    = 7
	// RootWords is the size of a root block.
	RootWords = 8

	genNumber = 3
	genCounts = 4
	genChunks = 5

	chunkNumber   = 3
	chunkCount    = 4
	chunkPointers = 5
	// ChunkSubs is the number of sub-models in a full chunk: 8 KiB with native keys.
	ChunkSubs = 509

	subVersion = 3
	subALNs    = 4
	subHead    = 5
)

const (
	magicRoot  = 0x584c5232
	magicGen   = 0x584c4733
	magicChunk = 0x584c4333
	magicSub   = 0x584c5334
)

const lineWords = mem.LineBytes / mem.WordBytes

// Bounds that a reader enforces on published memory, which may be corrupt.
const (
	addrMax      = 1 << 48
	pointerBits  = 22
	readWordsMax = rdma.MaxReadBytes / mem.WordBytes
)

var subWordsMax = lines(stringHeadWords+index.MaxKeyBytes/mem.WordBytes+MaxEncodedWords(MaxLeaves)+tailWords) * lineWords

func lines(words int) int { return (words + lineWords - 1) / lineWords }

// Pointer refers to a published block: its address, and its length in lines. 0 is no
// block.
type Pointer uint64

// NewPointer points to a block of so many words.
func NewPointer(addr uint64, words int) Pointer {
	return Pointer(addr/mem.LineBytes<<pointerBits | uint64(lines(words)))
}

// Addr is the address of the block.
func (p Pointer) Addr() uint64 { return uint64(p) >> pointerBits * mem.LineBytes }

// Words is the length of the block.
func (p Pointer) Words() int { return int(p&(1<<pointerBits-1)) * lineWords }

// Valid reports whether a pointer to a sub-model may be followed.
func (p Pointer) Valid() bool { return p.within(subWordsMax) }

func (p Pointer) within(wordsMax int) bool {
	return p.Addr() >= mem.LineBytes && p.Addr() < addrMax && p.Words() >= lineWords && p.Words() <= wordsMax
}

// ValidAddr reports whether addr may be the address of a leaf or of a row's block.
func ValidAddr(addr uint64) bool { return addr%mem.LineBytes == 0 && addr < addrMax }

func tag(magic uint32, id uint32) uint64 { return uint64(magic)<<32 | uint64(id) }

// IndexID is the id that the blocks of the index with this root carry.
func IndexID(root uint64) uint32 { return uint32(root / mem.LineBytes) }

// Root is a decoded root block: the geometry of leaves, and the current generation of
// models.
type Root struct {
	Layout leaf.Layout
	First  uint64  // the leftmost leaf
	Gen    Pointer // the block of the generation, 0 before the first training
	Number uint64  // of the generation
	Inner  uint64  // the published root of the inner nodes, 0 if they are not published
	keys   keyFormat
}

// NewRoot returns the root of an index without models.
func NewRoot(lay leaf.Layout, first uint64) Root {
	return Root{Layout: lay, First: first, keys: formatOf(lay.Kind)}
}

// Body appends the words of the root block.
func (r *Root) Body(dst []uint64) []uint64 {
	l := &r.Layout
	geometry := uint64(l.RowWords)<<32 | uint64(l.Slots)<<16 | uint64(l.Kind)
	return append(dst, tag(magicRoot, l.ID), geometry, r.First, uint64(r.Gen), r.Number, r.Inner)
}

// RootOf checks and decodes an accepted copy of the root block at addr.
func RootOf(addr uint64, b []uint64) (r Root, err error) {
	if len(b) < RootWords || b[idWord] != tag(magicRoot, IndexID(addr)) {
		return r, fmt.Errorf("%w: no index root at %#x", index.ErrCorrupt, addr)
	}
	g := b[rootGeometry]
	kind := leaf.Kind(g)
	if uint64(kind) != g&0xffff || kind == leaf.Bin {
		return r, fmt.Errorf("%w: root geometry %#x", index.ErrCorrupt, g)
	}
	lay, err := leaf.NewLayout(IndexID(addr), kind, int(g>>32), int(g>>16&0xffff))
	if err != nil {
		return r, fmt.Errorf("%w: %v", index.ErrCorrupt, err)
	}
	r = NewRoot(lay, b[rootFirst])
	r.Gen, r.Number, r.Inner = Pointer(b[rootGen]), NumberOf(b), b[rootInner]
	if !ValidAddr(r.First) || !ValidAddr(r.Inner) || r.Gen != 0 && !r.Gen.within(readWordsMax) {
		return r, fmt.Errorf("%w: root points to %#x, %#x and %#x", index.ErrCorrupt, r.First, uint64(r.Gen), r.Inner)
	}
	return r, nil
}

// NumberOf returns the number of the generation that a copy of a root block names.
func NumberOf(root []uint64) uint64 { return root[rootNumber] }

// Generation is a decoded generation block: one partition of the keys into
// sub-models.
type Generation struct {
	Number uint64
	Subs   int
	Chunks []Pointer // of ChunkSubs sub-models each, except the last
}

// Body appends the words of the generation's block.
func (g *Generation) Body(dst []uint64, id uint32) []uint64 {
	dst = append(dst, tag(magicGen, id), g.Number, uint64(g.Subs)<<32|uint64(len(g.Chunks)))
	for _, c := range g.Chunks {
		dst = append(dst, uint64(c))
	}
	return dst
}

// GenerationOf checks and decodes an accepted copy of the generation block that root
// names.
func GenerationOf(root *Root, b []uint64) (g Generation, err error) {
	fail := func(what string, v uint64) (Generation, error) {
		return Generation{}, fmt.Errorf("%w: generation %s %#x", index.ErrCorrupt, what, v)
	}
	switch {
	case len(b) < genChunks || b[idWord] != tag(magicGen, root.Layout.ID):
		return fail("at", root.Gen.Addr())
	case b[genNumber] != root.Number:
		return fail("number", b[genNumber])
	}
	subs, chunks := b[genCounts]>>32, b[genCounts]&0xffffffff
	if subs == 0 || subs > MaxSubModels || chunks != (subs+ChunkSubs-1)/ChunkSubs || len(b) != lines(genChunks+int(chunks))*lineWords {
		return fail("counts", b[genCounts])
	}
	g.Number, g.Subs = root.Number, int(subs)
	for _, w := range b[genChunks : genChunks+chunks] {
		if !Pointer(w).within(readWordsMax) {
			return fail("chunk", w)
		}
		g.Chunks = append(g.Chunks, Pointer(w))
	}
	return g, nil
}

// ChunkLen is the number of sub-models in chunk i.
func (g *Generation) ChunkLen(i int) int { return min(ChunkSubs, g.Subs-i*ChunkSubs) }

// PointerAt returns the chunk that has the pointer of sub-model i, and the pointer's
// word in it.
func (g *Generation) PointerAt(i int) (chunk Pointer, word int) {
	return g.Chunks[i/ChunkSubs], chunkPointers + i%ChunkSubs
}

// ChunkBody appends the words of chunk i of a generation: pointers and starts
// of its sub-models.
func (r *Root) ChunkBody(dst []uint64, g *Generation, i int, pointers []Pointer, starts []index.Key) []uint64 {
	dst = append(dst, tag(magicChunk, r.Layout.ID), uint64(uint32(g.Number))<<32|uint64(i), uint64(len(starts)))
	count := len(dst) - 1
	for _, p := range pointers {
		dst = append(dst, uint64(p))
	}
	dst, size := r.keys.appendStarts(dst, starts)
	dst[count] |= size << 32
	return dst
}

// chunk checks an accepted copy of chunk i, appends its starts to starts, as views
// into the copy, and returns its pointers.
func (r *Root) chunk(g *Generation, i int, b []uint64, starts []index.Key) (s []index.Key, pointers []uint64, err error) {
	n := g.ChunkLen(i)
	ok := len(b) >= chunkPointers+n && b[idWord] == tag(magicChunk, r.Layout.ID) &&
		b[chunkNumber] == uint64(uint32(g.Number))<<32|uint64(i) && b[chunkCount]&0xffffffff == uint64(n)
	if ok {
		starts, ok = r.keys.starts(starts, n, b[chunkPointers+n:], b[chunkCount]>>32)
	}
	if !ok {
		return starts, nil, fmt.Errorf("%w: chunk %d of generation %d", index.ErrCorrupt, i, g.Number)
	}
	return starts, b[chunkPointers : chunkPointers+n], nil
}

// SubHead is the part of a sub-model's block before the encoding.
type SubHead struct {
	Version   uint32
	Low, High uint32 // ALNs
	Prefix    string // of string keys; a view into the block
	At        int    // where the encoding begins, in words
	Tail      Tail
}

// SubBody appends the words of a sub-model's block.
func (r *Root) SubBody(dst []uint64, h *SubHead, start index.Key, s *SubModel) []uint64 {
	words := uint64(s.EncodedWords())
	if h.Tail != (Tail{}) {
		words |= tailBit
	}
	dst = append(dst, tag(magicSub, r.Layout.ID), uint64(h.Version)<<32|words, uint64(h.Low)<<32|uint64(h.High))
	dst = s.AppendTo(r.keys.appendHead(dst, start, h.Prefix))
	if h.Tail != (Tail{}) {
		dst = append(dst, h.Tail.Addr, h.Tail.Next)
	}
	return dst
}

// WithTail appends the words of a sub-model's block to dst, as SubBody did, with the place
// of a tail list, which the block b does not have. ok is false if b is no such block, which
// begins at start.
func (r *Root) WithTail(dst, b []uint64, start index.Key, at Tail) (body []uint64, ok bool) {
	if len(b) < subHead || b[idWord] != tag(magicSub, r.Layout.ID) || b[subVersion]&tailBit != 0 {
		return dst, false
	}
	_, from, ok := r.keys.head(b, start)
	end := from + int(uint32(b[subVersion]))
	if !ok || end > len(b) {
		return dst, false
	}
	first := len(dst)
	dst = append(append(dst, b[block.BodyWord:end]...), at.Addr, at.Next)
	dst[first+subVersion-block.BodyWord] |= tailBit
	return dst, true
}

// sub checks an accepted copy of a sub-model's block and decodes the model into s.
// start is the key at which the sub-model must begin.
func (r *Root) sub(start index.Key, b []uint64, s *SubModel) (h SubHead, err error) {
	if len(b) < subHead || b[idWord] != tag(magicSub, r.Layout.ID) {
		return h, fmt.Errorf("%w: no sub-model block", index.ErrCorrupt)
	}
	words := int(uint32(b[subVersion]) &^ tailBit)
	h = SubHead{Version: uint32(b[subVersion] >> 32), Low: uint32(b[subALNs] >> 32), High: uint32(b[subALNs])}
	var ok bool
	if h.Prefix, h.At, ok = r.keys.head(b, start); !ok || words > len(b)-h.At {
		return h, fmt.Errorf("%w: sub-model of %d words in a block of %d, from %v on", index.ErrCorrupt, words, len(b), start.Clone())
	}
	if b[subVersion]&tailBit != 0 {
		at := h.At + words
		if at+tailWords > len(b) || !ValidAddr(b[at]) || b[at] == 0 {
			return h, fmt.Errorf("%w: tail list of a sub-model from %v on", index.ErrCorrupt, start.Clone())
		}
		h.Tail = Tail{Addr: b[at], Next: b[at+1]}
	}
	if err := s.Decode(b[h.At : h.At+words]); err != nil {
		return h, err
	}
	return h, nil
}
