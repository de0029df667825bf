package learned

import (
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/mem"
)

// Words of the blocks of string keys, which layout.go draws.
const (
	strSubStart  = 5
	strSubPrefix = 6
	strSubWords  = 7
)

// appendStrChunk appends the body of a chunk of string keys.
func appendStrChunk(dst []uint64, starts []string, pointers []uint64) []uint64 {
	var b []byte
	ends := make([]uint64, (len(starts)+1)/2)
	for i, s := range starts {
		b = append(b, s...)
		ends[i/2] |= uint64(len(b)) << (32 * (i % 2))
	}
	dst = append(dst, uint64(len(b))<<32|uint64(len(starts)))
	dst = append(dst, pointers...)
	dst = append(dst, ends...)
	return mem.AppendString(dst, mem.String(b))
}

// decodeStrChunk checks an accepted copy of chunk i, appends its starts to
// strs, as views into the copy, and returns its pointers.
func decodeStrChunk(root *rootBlock, g *genBlock, i int, b []uint64, strs []string) (starts []string, pointers []uint64, err error) {
	n := chunkLen(g.subs, i)
	fail := fmt.Errorf("%w: chunk %d of generation %d", index.ErrCorrupt, i, root.number)
	if len(b) < chunkStarts || b[idWord] != tag(magicStrChunk, root.lay.ID) ||
		b[chunkNumber] != uint64(uint32(root.number))<<32|uint64(i) || b[chunkCount]&0xffffffff != uint64(n) {
		return strs, nil, fail
	}
	at := chunkStarts + n + (n+1)/2
	size := b[chunkCount] >> 32
	if at > len(b) || size > uint64(len(b)-at)*mem.WordBytes {
		return strs, nil, fail
	}
	text, from := mem.WordString(b[at:], int(size)), uint64(0)
	for k := range n {
		end := b[chunkStarts+n+k/2] >> (32 * (k % 2)) & 0xffffffff
		if end < from || end > size {
			return strs, nil, fail
		}
		strs = append(strs, text[from:end])
		from = end
	}
	return strs, b[chunkStarts : chunkStarts+n], nil
}

// appendStrPrefix appends what a sub-model block of string keys says before
// the encoding.
func appendStrPrefix(dst []uint64, start, prefix string) []uint64 {
	return mem.AppendString(append(dst, leaf.Hash(start), uint64(len(prefix))), prefix)
}

// decodeStrSub checks an accepted copy of a sub-model block and decodes the
// model into s. start is the key it must begin at.
func decodeStrSub(id uint32, start string, b []uint64, s *model.SubModel) (h subBlock, err error) {
	if len(b) < strSubWords || b[idWord] != tag(magicStrSub, id) || b[strSubStart] != leaf.Hash(start) {
		return h, fmt.Errorf("%w: no sub-model block", index.ErrCorrupt)
	}
	h.version, h.encodedWords = uint32(b[subVersion]>>32), int(uint32(b[subVersion]))
	h.low, h.high = uint32(b[subALNs]>>32), uint32(b[subALNs])
	n := b[strSubPrefix]
	if n > index.MaxKeyBytes || n > uint64(len(b)-strSubWords)*mem.WordBytes {
		return h, fmt.Errorf("%w: sub-model with a prefix of %d bytes", index.ErrCorrupt, n)
	}
	h.prefix = mem.WordString(b[strSubWords:], int(n))
	h.at = strSubWords + (int(n)+mem.WordBytes-1)/mem.WordBytes
	return h, h.encoding(b, s)
}
