package learned

import (
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Words of the published blocks; docs/layouts.md has their tables.
const (
	idWord = 2

	rootGeometry = 3
	rootFirst    = 4
	rootGen      = 5
	rootGenWords = 6
	rootNumber   = 7
	rootWords    = 8

	genNumber = 3
	genCounts = 4
	genChunks = 5

	chunkNumber = 3
	chunkCount  = 4
	chunkStarts = 5
	// chunkSubs is the number of sub-models in a full chunk: 8 KiB.
	chunkSubs = 509

	subVersion = 3
	subALNs    = 4
	subWords   = 5
)

const (
	magicRoot  = 0x584c5231
	magicGen   = 0x584c4731
	magicChunk = 0x584c4331
	magicSub   = 0x584c5331

	magicStrChunk = 0x584c4332
	magicStrSub   = 0x584c5332
)

const lineWords = mem.LineBytes / mem.WordBytes

// Bounds on what a client believes of published memory.
const (
	maxSubModels = model.MaxSubModels
	maxChunks    = (rdma.MaxReadBytes/mem.WordBytes - genChunks) / 2
	maxAddr      = 1 << 48
	pointerBits  = 22
)

var maxSubWords = lines(strSubWords+index.MaxKeyBytes/mem.WordBytes+model.MaxEncodedWords(model.MaxLeaves)) * lineWords

func lines(words int) int { return (words + lineWords - 1) / lineWords }

// A pointer to a sub-model block.
type pointer uint64

func newPointer(addr uint64, words int) pointer {
	return pointer(addr/mem.LineBytes<<pointerBits | uint64(lines(words)))
}

func (p pointer) addr() uint64 { return uint64(p) >> pointerBits * mem.LineBytes }
func (p pointer) words() int   { return int(p&(1<<pointerBits-1)) * lineWords }

// valid reports whether a pointer may be followed.
func (p pointer) valid() bool {
	return p.addr() >= mem.LineBytes && p.addr() < maxAddr && p.words() >= lineWords && p.words() <= maxSubWords
}

func tag(magic uint32, id uint32) uint64 { return uint64(magic)<<32 | uint64(id) }

// indexID is the id that the blocks of the index with this root carry.
func indexID(root uint64) uint32 { return uint32(root / mem.LineBytes) }

// rootBlock is a decoded root.
type rootBlock struct {
	lay      leaf.Layout
	first    uint64
	gen      uint64 // address, 0 before the first training
	genWords int
	number   uint64
}

// decodeRoot checks an accepted copy of the root block at addr.
func decodeRoot(addr uint64, b []uint64) (r rootBlock, err error) {
	if len(b) < rootWords || b[idWord] != tag(magicRoot, indexID(addr)) {
		return r, fmt.Errorf("%w: no index root at %#x", index.ErrCorrupt, addr)
	}
	g := b[rootGeometry]
	kind := leaf.Kind(g)
	if uint64(kind) != g&0xffff {
		return r, fmt.Errorf("%w: root geometry %#x", index.ErrCorrupt, g)
	}
	if r.lay, err = leaf.NewLayout(indexID(addr), kind, int(g>>32), int(g>>16&0xffff)); err != nil {
		return r, fmt.Errorf("%w: %v", index.ErrCorrupt, err)
	}
	return r, r.links(b)
}

func (r *rootBlock) strings() bool { return r.lay.Kind == leaf.Strings }

// links decodes what a root points to.
func (r *rootBlock) links(b []uint64) error {
	r.first, r.gen, r.number = b[rootFirst], b[rootGen], b[rootNumber]
	if w := b[rootGenWords]; r.gen != 0 && (w < genChunks || w > rdma.MaxReadBytes/mem.WordBytes) || b[rootGenWords] > maxAddr {
		return fmt.Errorf("%w: generation of %d words", index.ErrCorrupt, w)
	}
	r.genWords = int(b[rootGenWords])
	if bad(r.first) || bad(r.gen) {
		return fmt.Errorf("%w: root points to %#x and %#x", index.ErrCorrupt, r.first, r.gen)
	}
	return nil
}

func bad(addr uint64) bool { return addr%mem.LineBytes != 0 || addr >= maxAddr }

// genBlock is a decoded generation block.
type genBlock struct {
	subs   int
	chunks []chunkBlock
}

// decodeGen checks an accepted copy of the generation block that root names.
func decodeGen(root *rootBlock, b []uint64) (g genBlock, err error) {
	fail := func(what string, v uint64) (genBlock, error) {
		return genBlock{}, fmt.Errorf("%w: generation %s %#x", index.ErrCorrupt, what, v)
	}
	switch {
	case len(b) < genChunks || b[idWord] != tag(magicGen, root.lay.ID):
		return fail("at", root.gen)
	case b[genNumber] != root.number:
		return fail("number", b[genNumber])
	}
	subs, chunks := b[genCounts]>>32, b[genCounts]&0xffffffff
	if subs == 0 || subs > maxSubModels || chunks > maxChunks || chunks != (subs+chunkSubs-1)/chunkSubs || len(b) != lines(genChunks+int(chunks))*lineWords {
		return fail("counts", b[genCounts])
	}
	g.subs = int(subs)
	for i, w := range b[genChunks : genChunks+chunks] {
		c := chunkBlock{w, chunkWords(chunkLen(g.subs, i))}
		if root.strings() {
			c = chunkBlock{pointer(w).addr(), pointer(w).words()}
		}
		if c.addr == 0 || bad(c.addr) || c.words == 0 || c.words > rdma.MaxReadBytes/mem.WordBytes {
			return fail("chunk", w)
		}
		g.chunks = append(g.chunks, c)
	}
	return g, nil
}

// chunkLen is the number of sub-models in chunk i of a generation of subs.
func chunkLen(subs, i int) int { return min(chunkSubs, subs-i*chunkSubs) }

func chunkWords(n int) int { return lines(chunkStarts+2*n) * lineWords }

// decodeChunk checks an accepted copy of chunk i and returns its starts and pointers.
func decodeChunk(root *rootBlock, g *genBlock, i int, b []uint64) (starts, pointers []uint64, err error) {
	n := chunkLen(g.subs, i)
	if len(b) != chunkWords(n) || b[idWord] != tag(magicChunk, root.lay.ID) ||
		b[chunkNumber] != uint64(uint32(root.number))<<32|uint64(i) || b[chunkCount] != uint64(n) {
		return nil, nil, fmt.Errorf("%w: chunk %d of generation %d", index.ErrCorrupt, i, root.number)
	}
	return b[chunkStarts : chunkStarts+n], b[chunkStarts+n : chunkStarts+2*n], nil
}

// pointerAddr is the address of the pointer of sub-model i.
func (d *directory) pointerAddr(i int) uint64 {
	c, at := i/chunkSubs, chunkStarts+i%chunkSubs
	if d.router != nil {
		at += chunkLen(d.gen.subs, c)
	}
	return d.gen.chunks[c].addr + uint64(at)*mem.WordBytes
}

// subBlock is a decoded sub-model block's head.
type subBlock struct {
	version      uint32
	low, high    uint32 // ALNs
	encodedWords int
	at           int    // where the encoding begins, in words
	prefix       string // of string keys; a view into the block
}

// decodeSub checks an accepted copy of a sub-model block and decodes the model
// into s. start is the key it must begin at.
func decodeSub(id uint32, start uint64, b []uint64, s *model.SubModel) (h subBlock, err error) {
	if len(b) < subWords || b[idWord] != tag(magicSub, id) {
		return h, fmt.Errorf("%w: no sub-model block", index.ErrCorrupt)
	}
	h.version, h.encodedWords = uint32(b[subVersion]>>32), int(uint32(b[subVersion]))
	h.low, h.high = uint32(b[subALNs]>>32), uint32(b[subALNs])
	h.at = subWords
	if err := h.encoding(b, s); err != nil {
		return h, err
	}
	if s.Start() != start {
		return h, fmt.Errorf("%w: sub-model begins at %#x, want %#x", index.ErrCorrupt, s.Start(), start)
	}
	return h, nil
}

// encoding decodes the model of a sub-model block whose head is decoded.
func (h *subBlock) encoding(b []uint64, s *model.SubModel) error {
	if h.encodedWords > len(b)-h.at {
		return fmt.Errorf("%w: sub-model of %d words in a block of %d", index.ErrCorrupt, h.encodedWords, len(b))
	}
	if err := s.Decode(b[h.at : h.at+h.encodedWords]); err != nil {
		return fmt.Errorf("%w: %v", index.ErrCorrupt, err)
	}
	return nil
}

// accepted is block.Accept for a copy that a READ of a whole block brought.
func accepted(wr *rdma.WR, inOrder bool) block.Verdict {
	if wr.Status != rdma.StatusOK || len(wr.Buf) < lineWords {
		return block.Torn
	}
	return block.Accept(wr.Buf, wr.Tail, wr.Addr, inOrder)
}
