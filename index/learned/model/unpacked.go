package model

import "math"

// A client with memory to spare holds a TT unpacked: a word for each leaf instead of a
// few bits, so that a lookup has neither to decode corrections nor to assemble ALNs,
// and finds both in one line of the cache most of the time. That takes less time while
// the TTs of an index fit the caches of the processor; packed, more of them do. The
// words are
//
//	cell(32) | ALN(32)
//
// and the one after the last leaf's has the highest cell there is. It is a form in
// memory only: servers publish the packed one.

// unpacked in place of the bits of an ALN says that the TT is unpacked.
const unpacked = 0xff

// lastCell is above all cells, which are below MaxLeaves<<fracBits plus a correction.
const lastCell = math.MaxUint32

func unpackedCell(w uint64) int64 { return int64(w >> 32) }

func unpackedALN(w uint64) uint32 { return uint32(w) }

// Unpack makes s hold its TT unpacked: Predict and ALN return the same as before, TTBytes
// returns the bytes now held. s must hold its TT, and can
// neither be encoded again nor complete predictions of others afterwards. It allocates
// the memory for the words.
func (s *SubModel) Unpack() {
	if !s.HasTT() || s.alnBits == unpacked {
		return
	}
	v, n := s.view(), s.Leaves()
	front := s.body[s.ttAt : int(s.ttAt)+s.front()]
	fixed := s.body[:int(s.ttAt)-s.exceptions()]
	body := make([]uint64, 0, len(fixed)+len(front)+n+1)
	body = append(append(body, fixed...), front...)
	for i := range n {
		body = append(body, uint64(s.cell(v, i))<<32|uint64(s.alnAt(v, i)))
	}
	body = append(body, lastCell<<32)

	s.ttAt, s.body = uint16(len(fixed)), body
	s.body[1] &^= 1<<listBits - 1 // counts: there are no exceptions any more
	s.flags &= 1<<extentShiftAt - 1
	s.alnBits, s.alnBase = unpacked, 0
}

// resolveUnpacked does the same as resolve.
func (s *SubModel) resolveUnpacked(words []uint64, pos int64, lo, hi int) (leaf, first, last int, aln uint32) {
	if s.corrShift == 0 {
		leaf = s.guess(pos, lo, hi)
		return leaf, lo, hi, unpackedALN(words[leaf])
	}
	shift := uint(s.corrShift) & 63
	rel := pos - int64(s.residualMin)
	at := rel >> shift
	low, high := at-int64(s.slackHi), at+int64(s.slackLo)

	// See correct, which guesses in the same way.
	mid := (int64(s.residualMin) + int64(s.residualMax)) >> 1
	g := min(max((pos-mid)>>fracBits, int64(lo)), int64(hi))
	ahead := unpackedCell(words[g])<<shift - g<<fracBits
	g = min(max((rel-ahead)>>fracBits, int64(lo))-1, int64(hi)-2)
	if g >= 0 {
		w := words[g : g+nearby : g+nearby]
		c1, c2 := unpackedCell(w[1]), unpackedCell(w[2])
		if unpackedCell(w[0]) <= low && unpackedCell(w[3]) > high {
			below := int(uint64(at-c1)>>63) + int(uint64(at-c2)>>63)
			top := int(g) + 2
			leaf = max(top-below, lo)
			first = max(top-int(uint64(low-c1)>>63)-int(uint64(low-c2)>>63), lo)
			last = max(top-int(uint64(high-c1)>>63)-int(uint64(high-c2)>>63), lo)
			return leaf, first, last, unpackedALN(words[leaf])
		}
	}
	leaf, first, last = s.correctFar(ttView{words: words}, [3]int64{at, low, high}, lo, hi)
	return leaf, first, last, unpackedALN(words[leaf])
}
