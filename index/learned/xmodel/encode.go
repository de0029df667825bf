package xmodel

import (
	"fmt"
	"slices"
)

// A sub-model's block, in 64-bit words:
//
//	0  format(8) | family(8) | leaves(16) | segments(16) | exceptions(16)
//	1  start
//	2  version(32) | alnBase(32)
//	3  residualMin(32, signed) | residualMax(32, signed)
//	4  slackLo(32) | slackHi(32)
//	5  zero(40) | corrBits(8) | corrShift(8) | alnBits(8)
//	   segments × key
//	   segments × line
//	   exceptions × leaf(32) | ALN(32)
//	   TT words
//
// The head is everything but the TT words: what a client holds that keeps
// models only. There is no checksum; the carrier has one.
const (
	headerWords = 6
	formatSub   = 0x51
	formatRoute = 0x52
)

// HeadWords returns the length of the encoded head.
func (s *SubModel) HeadWords() int {
	return headerWords + 2*int(s.segments) + int(s.exceptions)
}

// EncodedWords returns the length of the encoded block, with the TT.
func (s *SubModel) EncodedWords() int { return s.HeadWords() + s.ttWords() }

// MaxEncodedWords bounds EncodedWords for a sub-model of so many leaves, for
// sizing READs and buffers.
func MaxEncodedWords(leaves int) int {
	return headerWords + 3*leaves + (leaves*(maxCorrectionBits+32)+63)/64
}

// AppendTo appends the encoded block to dst; without the TT, its head.
func (s *SubModel) AppendTo(dst []uint64) []uint64 {
	pair := func(a, b uint32) uint64 { return uint64(a)<<32 | uint64(b) }
	dst = append(dst,
		formatSub<<56|uint64(s.family)<<48|uint64(s.Leaves())<<32|uint64(s.segments)<<16|uint64(s.exceptions),
		s.start,
		pair(s.version, s.alnBase),
		pair(uint32(s.residualMin), uint32(s.residualMax)),
		pair(uint32(s.slackLo), uint32(s.slackHi)),
		uint64(s.corrBits)<<16|uint64(s.corrShift)<<8|uint64(s.alnBits))
	if s.segments == 1 {
		dst = append(dst, s.anchor, uint64(s.line))
	}
	return append(dst, s.body...)
}

// Decode replaces s by the sub-model that words encode, head and TT, reusing
// its memory. It keeps no reference to words. After an error s is unchanged.
func (s *SubModel) Decode(words []uint64) error {
	h, err := decodeHeader(words)
	if err != nil {
		return err
	}
	if want := h.EncodedWords(); len(words) != want {
		return fmt.Errorf("%w: block of %d words, want %d", ErrCorrupt, len(words), want)
	}
	h.hasTT = true
	s.adopt(h, words)
	return nil
}

// DecodeHead is Decode for a block's head. words may be longer; what follows
// the head is ignored.
func (s *SubModel) DecodeHead(words []uint64) error {
	h, err := decodeHeader(words)
	if err != nil {
		return err
	}
	s.adopt(h, words[:h.HeadWords()])
	return nil
}

// adopt takes over a checked header and copies the body.
func (s *SubModel) adopt(h SubModel, words []uint64) {
	from := headerWords
	if h.segments == 1 {
		from += 2
	}
	h.ttAt = uint16(h.HeadWords() - from)
	body := words[from:]
	if cap(s.body) < len(body) {
		s.body = slices.Grow(s.body[:0], len(body))
	}
	h.body = append(s.body[:0], body...)
	*s = h
}

// decodeHeader checks everything up to the end of the head. Corrections and
// ALNs need no check: any bits are safe.
func decodeHeader(words []uint64) (SubModel, error) {
	fail := func(what string, got any) (SubModel, error) {
		return SubModel{}, fmt.Errorf("%w: %s %v", ErrCorrupt, what, got)
	}
	if len(words) < headerWords {
		return fail("block words", len(words))
	}
	w0, w5 := words[0], words[5]
	s := SubModel{
		family: Family(w0 >> 48), leaves: uint16(w0 >> 32), segments: uint16(w0 >> 16), exceptions: uint16(w0),
		start:   words[1],
		version: uint32(words[2] >> 32), alnBase: uint32(words[2]),
		residualMin: int32(words[3] >> 32), residualMax: int32(words[3]),
		slackLo: int32(words[4] >> 32), slackHi: int32(words[4]),
		corrBits: uint8(w5 >> 16), corrShift: uint8(w5 >> 8), alnBits: uint8(w5),
		anchor: ^uint64(0),
	}
	switch {
	case w0>>56 != formatSub:
		return fail("format", w0>>56)
	case s.family != RMI && s.family != PLR:
		return fail("family", w0>>48&0xff)
	case s.leaves == 0 || s.leaves > MaxLeaves:
		return fail("leaves", s.leaves)
	case s.segments >= s.leaves || s.segments == 0 && s.leaves > 1 || s.family == RMI && s.segments > 1:
		return fail("segments", s.segments)
	case s.exceptions > s.leaves || s.exceptions > 0 && s.alnBits == 0:
		return fail("exceptions", s.exceptions)
	case s.residualMin > s.residualMax:
		return fail("residuals", [2]int32{s.residualMin, s.residualMax})
	case s.slackLo < 0 || s.slackHi < 0:
		return fail("slack", [2]int32{s.slackLo, s.slackHi})
	case w5>>24 != 0 || s.corrBits > maxCorrectionBits || s.corrShift > 31 || s.alnBits > 32 ||
		s.corrBits > 0 && s.corrShift == 0:
		return fail("widths", w5)
	case len(words) < s.HeadWords():
		return fail("block words", len(words))
	}
	return s, s.checkHead(words)
}

// checkHead checks segments and exceptions, and sets the first segment.
func (s *SubModel) checkHead(words []uint64) error {
	n := int(s.segments)
	keys, lines := words[headerWords:headerWords+n], words[headerWords+n:headerWords+2*n]
	if n > 0 {
		s.anchor, s.line = keys[0], line(lines[0])
		if s.anchor <= s.start {
			return fmt.Errorf("%w: first segment %d at or below start %d", ErrCorrupt, s.anchor, s.start)
		}
	}
	for i := 1; i < n; i++ {
		if keys[i] <= keys[i-1] || line(lines[i]).base() < line(lines[i-1]).base() {
			return fmt.Errorf("%w: segment %d does not rise", ErrCorrupt, i)
		}
	}
	last := -1
	for i, e := range words[headerWords+2*n : s.HeadWords()] {
		if int(e>>32) <= last || int(e>>32) >= int(s.leaves) {
			return fmt.Errorf("%w: exception %d names leaf %d", ErrCorrupt, i, e>>32)
		}
		last = int(e >> 32)
	}
	return nil
}
