package model

import (
	"fmt"
	"math"

	"drtmx/index"
)

// A sub-model's block, in 64-bit words:
//
//	0  format(8) | family(8) | leaves(16) | refinement words(7) | segments(12) | exceptions or list words(13)
//	1  start
//	2  version(32) | alnBase(32)
//	3  residualMin(32, signed) | residualMax(32, signed)
//	4  slackLo(16) | slackHi(16) | 0(4) | extents(4) | corrBits(8) | corrShift(8) | alnBits(8)
//	   segments × key
//	   segments × line
//	   exceptions × leaf(32) | ALN(32), or the list of extents
//	   TT words
//
// The head is everything but the TT words. A client that keeps only models holds the
// heads. There is no checksum, because the block that contains the encoding has one.
const (
	headerWords = 5
	startWord   = 1
	formatSub   = 0x54
)

// HeadWords returns the length of the encoded head.
func (s *SubModel) HeadWords() int {
	return headerWords + 2*s.Segments() + s.exceptions()
}

// EncodedWords returns the length of the encoded block, with the TT.
func (s *SubModel) EncodedWords() int { return s.HeadWords() + s.ttWords() }

// MaxEncodedWords bounds EncodedWords for a sub-model of so many leaves. It serves to
// size READs and buffers.
func MaxEncodedWords(leaves int) int {
	blocks := (leaves + blockLeaves - 1) / blockLeaves
	return headerWords + 3*leaves + 1<<refineBits + (blocks*64+leaves*(correctionBitsMax+32)+63)/64
}

// AppendTo appends the encoded block to dst, or only its head if s has no TT.
func (s *SubModel) AppendTo(dst []uint64) []uint64 {
	pair := func(a, b uint32) uint64 { return uint64(a)<<32 | uint64(b) }
	dst = append(dst,
		formatSub<<56|uint64(s.Family())<<48|uint64(s.Leaves())<<32|s.counts()&math.MaxUint32,
		s.Start(),
		pair(s.Version(), s.alnBase),
		s.lineResiduals(),
		uint64(s.slackLo)<<48|uint64(s.slackHi)<<32|uint64(s.extentShift())<<24|
			uint64(s.corrBits)<<16|uint64(s.corrShift)<<8|uint64(s.alnBits))
	if s.Segments() == 1 {
		dst = append(dst, s.anchor, uint64(s.line))
	}
	if len(s.body) == 0 {
		return dst // the zero sub-model
	}
	return append(dst, s.body[coldWords:]...)
}

// Decode replaces s by the sub-model that words encode, head and TT, reusing
// its memory. It keeps no reference to words. After an error s is unchanged.
func (s *SubModel) Decode(words []uint64) error {
	h, err := parseHeader(words)
	if err != nil {
		return err
	}
	if want := h.words() + h.ttWords(); len(words) != want {
		return fmt.Errorf("%w: block of %d words, want %d", index.ErrCorrupt, len(words), want)
	}
	if err := h.hot.adoptRefinements(words[h.words():]); err != nil {
		return err
	}
	s.adopt(h, words)
	s.flags |= flagTT
	return nil
}

// DecodeHead does the same as Decode for a block's head. It ignores words after the
// head.
func (s *SubModel) DecodeHead(words []uint64) error {
	h, err := parseHeader(words)
	if err != nil {
		return err
	}
	s.adopt(h, words[:h.words()])
	return nil
}

// A header is the decoded fixed part of a block.
type header struct {
	hot                          SubModel // without body
	counts                       uint64
	leaves, segments, exceptions int
	front                        int // words of refinements
}

func (h *header) words() int { return headerWords + 2*h.segments + h.exceptions }

func (h *header) ttWords() int {
	return h.front + int((h.hot.grid().end(h.leaves-1)+63)/64)
}

// adopt takes over a checked header and copies the body.
func (s *SubModel) adopt(h header, words []uint64) {
	from := headerWords
	if h.segments == 1 {
		from += 2
	}
	body := s.body[:0]
	if need := coldWords + len(words) - from; cap(body) < need {
		body = make([]uint64, 0, need)
	}
	body = append(body, words[startWord], h.counts, words[3])
	h.hot.body = append(body, words[from:]...)
	h.hot.ttAt = uint16(coldWords + h.words() - from)
	*s = h.hot
}

// parseHeader checks everything up to the end of the head. Corrections and
// ALNs need no check: any bits are safe.
func parseHeader(words []uint64) (header, error) {
	fail := func(what string, got any) (header, error) {
		return header{}, fmt.Errorf("%w: %s %v", index.ErrCorrupt, what, got)
	}
	if len(words) < headerWords {
		return fail("block words", len(words))
	}
	w0, w2, w3, w4 := words[0], words[2], words[3], words[4]
	h := header{
		leaves: int(uint16(w0 >> 32)), segments: int(w0 >> listBits & (1<<segmentBits - 1)),
		exceptions: int(w0 & (1<<listBits - 1)), front: int(uint32(w0) >> (segmentBits + listBits)),
		counts: w2>>32<<32 | w0&math.MaxUint32,
		hot: SubModel{
			anchor: math.MaxUint64, alnBase: uint32(w2), leaves: uint16(w0 >> 32),
			residualMin: int32(w3 >> 32), residualMax: int32(w3),
			slackLo: uint16(w4 >> 48), slackHi: uint16(w4 >> 32),
			corrBits: uint8(w4 >> 16), corrShift: uint8(w4 >> 8), alnBits: uint8(w4),
		},
	}
	family, s := Family(w0>>48), &h.hot
	shift := uint8(w4 >> 24)
	s.flags = shift << extentShiftAt
	switch {
	case w0>>56 != formatSub:
		return fail("format", w0>>56)
	case family != RMI && family != PLR:
		return fail("family", uint8(family))
	case h.leaves == 0 || h.leaves > MaxLeaves:
		return fail("leaves", h.leaves)
	case h.segments >= h.leaves || h.segments == 0 && h.leaves > 1 || family == RMI && h.segments > 1:
		return fail("segments", h.segments)
	case h.exceptions > h.leaves+listHead || h.exceptions > 0 && s.alnBits == 0:
		return fail("exceptions", h.exceptions)
	case s.residualMin > s.residualMax:
		return fail("residuals", [2]int32{s.residualMin, s.residualMax})
	case shift != 0 && (shift < extentShiftMin || shift > min(extentShiftMax, s.alnBits) || h.exceptions < listHead):
		return fail("extents", shift)
	case shift != 0 && !s.blocksFit(h.exceptions):
		return fail("blocks", s.alnBase)
	case h.front == 1 || h.front > 0 && (h.leaves == 1 || family == RMI || s.corrShift == 0):
		return fail("refinements", h.front)
	case s.corrBits > correctionBitsMax || s.corrShift > shiftMax || s.alnBits > 32 ||
		s.corrBits > 0 && s.corrShift == 0:
		return fail("widths", w4&math.MaxUint32)
	case len(words) < h.words():
		return fail("block words", len(words))
	}
	if family == PLR {
		s.flags |= flagPLR
	}
	if h.front > 0 {
		s.flags |= flagRefined
	}
	return h, h.checkHead(words)
}

// blocksFit reports whether the shape of blocks is consistent with the other fields.
func (s *SubModel) blocksFit(list int) bool {
	least := blockLeaves + s.numberBits() + uint(s.corrBits)<<blockShift
	stride := uint(s.alnBase >> 21)
	return s.numberBits() <= 32 && s.alnBase>>11&15 == 0 && int(s.alnBase&listMax) == list &&
		stride >= least && stride <= least+blockLeaves*uint(s.alnBits)
}

// shiftMax bounds corrShift: no cell is wider than all positions.
const shiftMax = 31

// checkHead checks segments and exceptions, and sets the first segment.
func (h *header) checkHead(words []uint64) error {
	n := h.segments
	keys, lines := words[headerWords:headerWords+n], words[headerWords+n:headerWords+2*n]
	if n > 0 {
		h.hot.anchor, h.hot.line = keys[0], line(lines[0])
		if keys[0] <= words[startWord] {
			return fmt.Errorf("%w: first segment %d at or below start %d", index.ErrCorrupt, keys[0], words[startWord])
		}
	}
	if n > 1 {
		h.hot.flags |= flagSegments
	}
	for i := 1; i < n; i++ {
		if keys[i] <= keys[i-1] || line(lines[i]).base() < line(lines[i-1]).base() {
			return fmt.Errorf("%w: segment %d does not rise", index.ErrCorrupt, i)
		}
	}
	list := words[headerWords+2*n : h.words()]
	if shift := h.hot.extentShift(); shift != 0 {
		if list[0]>>32 > math.MaxUint32>>shift || list[1]&math.MaxUint32 > 63 {
			return fmt.Errorf("%w: list begins with %#x, %#x", index.ErrCorrupt, list[0], list[1])
		}
		return nil // any differences are safe
	}
	last := -1
	for i, e := range list {
		if int(e>>32) <= last || int(e>>32) >= h.leaves {
			return fmt.Errorf("%w: exception %d names leaf %d", index.ErrCorrupt, i, e>>32)
		}
		last = int(e >> 32)
	}
	return nil
}
