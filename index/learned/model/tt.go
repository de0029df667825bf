package model

import (
	"fmt"

	"drtmx/index"
)

// The TT is an array of fixed-width entries, lowest bits first and without
// padding:
//
//	correction (corrBits) | ALN residual (alnBits)
//
// The correction of leaf i is cell(i) - i leaves, both in units of 1<<corrShift
// positions above residualMin. cell(i) is the lowest position at which a key is taken
// to be in leaf i or above. The ALN is alnBase + i + residual, so a run of leaves
// allocated in key order costs no bits at all; if the sub-model has exceptions, a
// residual of all ones says that the leaf's ALN is among them. Exceptions (leaf(32) |
// ALN(32), ascending) keep a few leaves split off to distant places from widening
// every entry. Where many were, the TT is an array of blocks of blockLeaves leaves,
// of which the last may have fewer:
//
//	flags (a bit a leaf) | number of the first flagged leaf (numberBits)
//	entries of listed leaves (alnBits each), as many as any block has
//	corrections × leaves (corrBits each)
//
// See aln.go for their meaning.

// A ttView is a run of TT words, of which the first skip are absent.
type ttView struct {
	words []uint64
	skip  int
}

// bits returns the 64 bits of the TT from bit at on, zeros where the view has
// none.
func (v ttView) bits(at uint) uint64 {
	w, words := int(at>>6)-v.skip, v.words
	e := uint64(0)
	if uint(w) < uint(len(words)) {
		e = words[w] >> (at & 63)
	}
	if uint(w+1) < uint(len(words)) {
		e |= words[w+1] << 1 << (^at & 63)
	}
	return e
}

// entry returns the bits [at, at+width) of the TT. width is at most
// correctionBitsMax+32.
func (v ttView) entry(at, width uint) uint64 { return v.bits(at) & low(width) }

func low(width uint) uint64 { return 1<<(width&63) - 1 }

// A grid has the places of corrections in the TT.
type grid struct {
	stride uint // bits of a block
	head   uint // bits before its first correction
	width  uint // bits from one correction to the next
}

func (s *SubModel) grid() grid {
	if s.flags>>extentShiftAt == 0 {
		width := uint(s.corrBits) + uint(s.alnBits)
		return grid{width << blockShift, 0, width}
	}
	stride, width := uint(s.alnBase>>21), uint(s.corrBits)
	return grid{stride, stride - width<<blockShift, width}
}

// at returns the bit at which the correction of leaf i begins.
func (g grid) at(i int) uint {
	return uint(i)>>blockShift*g.stride + g.head + uint(i)&(blockLeaves-1)*g.width
}

// end returns the bit after the last one of leaf i.
func (g grid) end(i int) uint {
	return uint(i)>>blockShift*g.stride + g.head + (uint(i)&(blockLeaves-1)+1)*g.width
}

func (s *SubModel) ttWords() int {
	if s.alnBits == unpacked {
		return s.front() + s.Leaves() + 1
	}
	return s.front() + int((s.grid().end(s.Leaves()-1)+63)/64)
}

// cell returns the first cell of leaf i.
func (s *SubModel) cell(v ttView, i int) int64 {
	if s.alnBits == unpacked {
		return unpackedCell(v.words[i])
	}
	k := v.entry(s.grid().at(i), uint(s.corrBits))
	return int64(i)<<fracBits>>s.corrShift + int64(k)
}

// resolve chooses among the leaves lo … hi with the TT of v.
func (s *SubModel) resolve(v ttView, pos int64, lo, hi int) (leaf, first, last int, aln uint32) {
	if s.alnBits == unpacked {
		return s.resolveUnpacked(v.words, pos, lo, hi)
	}
	if s.corrShift == 0 {
		leaf, first, last = s.guess(pos, lo, hi), lo, hi
	} else {
		leaf, first, last = s.correct(v, pos, lo, hi)
	}
	if s.alnBits == 0 {
		return leaf, first, last, s.alnBase + uint32(leaf)
	}
	return leaf, first, last, s.alnAt(v, leaf)
}

// nearby is how many leaves around the second guess are compared together.
const nearby = 4

// correct counts the cells at or below pos, and does so again at the two ends
// of the slack to see whether a neighbour is possible.
//
// Residuals change slowly from leaf to leaf, so the residual at a first guess makes a
// second guess that is nearly always right or next to it. The cells around that one
// are compared without branches, which random keys would mispredict. Only if they do
// not enclose the answer does correct search.
func (s *SubModel) correct(v ttView, pos int64, lo, hi int) (leaf, first, last int) {
	tt := s.grid()
	shift, mask := uint(s.corrShift)&63, low(uint(s.corrBits))
	rel := pos - int64(s.residualMin)
	at := rel >> shift
	low, high := at-int64(s.slackHi), at+int64(s.slackLo)

	mid := (int64(s.residualMin) + int64(s.residualMax)) >> 1
	g := min(max((pos-mid)>>fracBits, int64(lo)), int64(hi))
	ahead := (g<<fracBits>>shift+int64(v.bits(tt.at(int(g)))&mask))<<shift - g<<fracBits
	// g becomes the first of the four. The third must exist: there is nothing
	// above the highest leaf to compare with.
	g = min(max((rel-ahead)>>fracBits, int64(lo))-1, int64(hi)-2)
	if g < 0 {
		return s.correctFar(v, [3]int64{at, low, high}, lo, hi)
	}

	e0, width := v.bits(tt.at(int(g))), tt.width
	e1, e2, e3 := e0>>(width&63), e0>>(2*width&63), e0>>(3*width&63)
	if width > 64/nearby || tt.head > 0 && uint(g)&(blockLeaves-1) > blockLeaves-nearby {
		e1, e2, e3 = v.bits(tt.at(int(g+1))), v.bits(tt.at(int(g+2))), v.bits(tt.at(int(g+3)))
	}
	y := g << fracBits
	c0 := y>>shift + int64(e0&mask)
	c1 := (y+one)>>shift + int64(e1&mask)
	c2 := (y+2*one)>>shift + int64(e2&mask)
	c3 := (y+3*one)>>shift + int64(e3&mask)
	if c0 > low || c3 <= high {
		return s.correctFar(v, [3]int64{at, low, high}, lo, hi)
	}
	// c0 is at or below all three, c3 above: count the other two.
	top := int(g) + 2
	leaf = top - int(uint64(at-c1)>>63) - int(uint64(at-c2)>>63)
	first = top - int(uint64(low-c1)>>63) - int(uint64(low-c2)>>63)
	last = top - int(uint64(high-c1)>>63) - int(uint64(high-c2)>>63)
	// None is above g+2, which is at most hi.
	return max(leaf, lo), max(first, lo), max(last, lo)
}

// correctFar does the same as correct by binary search, for keys near the edges of
// the sub-model, and where the line fits so badly that the second guess is off.
func (s *SubModel) correctFar(v ttView, at [3]int64, lo, hi int) (leaf, first, last int) {
	leaf = s.search(v, at[0], lo, hi)
	first, last = leaf, leaf
	if first > lo && s.cell(v, first) > at[1] {
		first = s.search(v, at[1], lo, leaf-1)
	}
	if last < hi && s.cell(v, last+1) <= at[2] {
		last = s.search(v, at[2], leaf+1, hi)
	}
	return leaf, first, last
}

// search returns the highest leaf in [lo, hi] whose cell is at or below at, lo
// if there is none.
func (s *SubModel) search(v ttView, at int64, lo, hi int) int {
	for lo < hi {
		mid := int(uint(lo+hi+1) >> 1)
		if s.cell(v, mid) <= at {
			lo = mid
		} else {
			hi = mid - 1
		}
	}
	return lo
}

// ALN returns the actual leaf number of a logical leaf, which is clamped to
// those that exist. The TT must be held; without it the result is 0.
func (s *SubModel) ALN(leaf int) uint32 {
	if !s.HasTT() {
		return 0
	}
	return s.alnAt(s.view(), min(max(leaf, 0), s.Leaves()-1))
}

func (s *SubModel) alnAt(v ttView, leaf int) uint32 {
	if s.alnBits == unpacked {
		return unpackedALN(v.words[leaf])
	}
	if s.flags>>extentShiftAt != 0 {
		return s.blockALN(v, leaf)
	}
	r := v.entry(s.grid().at(leaf)+uint(s.corrBits), uint(s.alnBits))
	if s.exceptions() > 0 && r == 1<<s.alnBits-1 {
		return s.exceptionALN(leaf)
	}
	return s.alnBase + uint32(leaf) + uint32(r)
}

func (s *SubModel) exceptionALN(leaf int) uint32 {
	list := s.body[int(s.ttAt)-s.exceptions() : s.ttAt]
	lo, hi := 0, len(list)
	for lo < hi {
		mid := int(uint(lo+hi) >> 1)
		if list[mid]>>32 < uint64(leaf) {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == len(list) {
		return s.alnBase // only in a corrupt model
	}
	return uint32(list[lo])
}

// TTWindow returns where in the encoded block the TT of leaves lo … hi is: a word
// offset from the block's first word and a number of words, 0 if entries take no
// bits. A client without the TT READs these words.
func (s *SubModel) TTWindow(lo, hi int) (offset, words int) {
	first, end := s.ttSpan(lo, hi)
	return s.HeadWords() + first, end - first
}

// ttSpan returns the TT words [first, end) that hold the entries of lo … hi. Where
// positions are refined these are all words, because the line alone is too rough.
func (s *SubModel) ttSpan(lo, hi int) (first, end int) {
	if s.flags&flagRefined != 0 {
		return 0, s.ttWords()
	}
	last := s.Leaves() - 1
	lo = min(max(lo, 0), last)
	hi = min(max(hi, lo), last)
	g := s.grid()
	from := g.at(lo)
	if g.head > 0 {
		from = uint(lo) >> blockShift * g.stride
	}
	return int(from >> 6), int((g.end(hi) + 63) >> 6)
}

// Resolve completes the prediction p of key, made without the TT, with the
// words that [SubModel.TTWindow] of (p.Lo, p.Hi) named. It works on any
// sub-model with the same encoding as the one that was READ.
func (s *SubModel) Resolve(key uint64, p Prediction, words []uint64) (Prediction, error) {
	first, end := s.ttSpan(p.Lo, p.Hi)
	if len(words) != end-first {
		return p, fmt.Errorf("%w: TT window of %d words, want %d", index.ErrCorrupt, len(words), end-first)
	}
	last := s.Leaves() - 1
	if p.Lo < 0 || p.Hi > last || p.Lo > p.Hi {
		return p, fmt.Errorf("%w: leaves %d to %d of %d", index.ErrCorrupt, p.Lo, p.Hi, last+1)
	}
	v := ttView{words: words, skip: first}
	p.Knows = KnowsALN
	if key < s.anchor || s.leaves <= 1 {
		v.words = words[s.front():]
		p.Leaf, p.Lo, p.Hi, p.ALN = 0, 0, 0, s.alnAt(v, 0)
		return p, nil
	}
	pos := s.position(key)
	if front := s.front(); front > 0 {
		c := *s
		if err := c.adoptRefinements(words); err != nil {
			return p, err
		}
		pos, v.words = refine(words[1:front], pos), words[front:]
		lo, hi := c.window(pos)
		p.Leaf, p.Lo, p.Hi, p.ALN = c.resolve(v, pos, lo, hi)
		return p, nil
	}
	p.Leaf, p.Lo, p.Hi, p.ALN = s.resolve(v, pos, p.Lo, p.Hi)
	return p, nil
}
