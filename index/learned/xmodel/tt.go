package xmodel

import (
	"errors"
	"fmt"
)

// The TT is an array of fixed-width entries, lowest bits first:
//
//	correction (corrBits) | ALN residual (alnBits)
//
// The correction of leaf i is cell(i) - i leaves, both in units of
// 1<<corrShift positions above residualMin: the lowest position at which a key
// is taken to be in leaf i or above. The ALN is alnBase + i + residual, so a
// run of leaves allocated in key order costs no bits at all; if the sub-model
// has exceptions, a residual of all ones says that the leaf's ALN is among
// them. Exceptions (leaf(32) | ALN(32), ascending) keep a few leaves split off
// to distant places from widening every entry.

// A ttView is a run of TT words, of which the first skip are absent.
type ttView struct {
	words []uint64
	skip  int
}

// entry returns the bits [at, at+width) of the TT, zeros where the view has
// none. width is at most maxCorrectionBits+32.
func (v ttView) entry(at, width uint) uint64 {
	w := int(at>>6) - v.skip
	if uint(w) >= uint(len(v.words)) {
		return 0
	}
	e := v.words[w] >> (at & 63)
	if at&63+width > 64 && w+1 < len(v.words) {
		e |= v.words[w+1] << (64 - at&63)
	}
	return e & (1<<width - 1)
}

func (s *SubModel) entryBits() uint { return uint(s.corrBits) + uint(s.alnBits) }

func (s *SubModel) ttWords() int {
	return int((uint(s.Leaves())*s.entryBits() + 63) / 64)
}

// cell returns the first cell of leaf i.
func (s *SubModel) cell(v ttView, i int) int64 {
	k := v.entry(uint(i)*s.entryBits(), uint(s.corrBits))
	return int64(i)<<fracBits>>s.corrShift + int64(k)
}

// resolve chooses among the leaves lo … hi with the corrections of v.
func (s *SubModel) resolve(v ttView, pos int64, lo, hi int) Prediction {
	p := Prediction{Lo: lo, Hi: hi, Knows: KnowsALN}
	if s.corrBits == 0 && s.corrShift == 0 {
		p.Leaf = s.guess(pos, lo, hi)
	} else {
		p.Leaf, p.Lo, p.Hi = s.correct(v, pos, lo, hi)
	}
	p.ALN = s.alnAt(v, p.Leaf)
	return p
}

// wideWindow is the number of leaves from which a binary search beats walking.
const wideWindow = 16

// correct counts the cells at or below pos, and does so again at the two ends
// of the slack to see whether a neighbour is possible.
func (s *SubModel) correct(v ttView, pos int64, lo, hi int) (leaf, first, last int) {
	rel := pos - int64(s.residualMin)
	shift := s.corrShift
	at, low, high := rel>>shift, (rel-int64(s.slackHi))>>shift, (rel+int64(s.slackLo))>>shift
	if hi-lo > wideWindow {
		return s.search(v, at, lo, hi), s.search(v, low, lo, hi), s.search(v, high, lo, hi)
	}
	// Residuals change slowly from leaf to leaf, so the residual at a first
	// guess makes a second guess that is nearly always right.
	mid := (int64(s.residualMin) + int64(s.residualMax)) >> 1
	leaf = int(min(max((pos-mid)>>fracBits, int64(lo)), int64(hi)))
	residual := s.cell(v, leaf)<<shift - int64(leaf)<<fracBits
	leaf = int(min(max((rel-residual)>>fracBits, int64(lo)), int64(hi)))
	for leaf < hi && s.cell(v, leaf+1) <= at {
		leaf++
	}
	for leaf > lo && s.cell(v, leaf) > at {
		leaf--
	}
	first, last = leaf, leaf
	for first > lo && s.cell(v, first) > low {
		first--
	}
	for last < hi && s.cell(v, last+1) <= high {
		last++
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
	if !s.hasTT {
		return 0
	}
	return s.alnAt(ttView{words: s.body[s.ttAt:]}, min(max(leaf, 0), s.Leaves()-1))
}

func (s *SubModel) alnAt(v ttView, leaf int) uint32 {
	r := v.entry(uint(leaf)*s.entryBits()+uint(s.corrBits), uint(s.alnBits))
	if s.exceptions > 0 && r == 1<<s.alnBits-1 {
		return s.exceptionALN(leaf)
	}
	return s.alnBase + uint32(leaf) + uint32(r)
}

func (s *SubModel) exceptionALN(leaf int) uint32 {
	list := s.body[int(s.ttAt)-int(s.exceptions) : s.ttAt]
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

// TTWindow returns where in the encoded block the TT entries of leaves lo … hi
// are: a word offset from the block's first word and a number of words, 0 if
// entries take no bits. It is what a client without the TT READs.
func (s *SubModel) TTWindow(lo, hi int) (offset, words int) {
	first, end := s.ttSpan(lo, hi)
	return s.HeadWords() + first, end - first
}

// ttSpan returns the TT words [first, end) that hold the entries of lo … hi.
func (s *SubModel) ttSpan(lo, hi int) (first, end int) {
	last := s.Leaves() - 1
	lo = min(max(lo, 0), last)
	hi = min(max(hi, lo), last)
	width := s.entryBits()
	return int(uint(lo) * width >> 6), int((uint(hi+1)*width + 63) >> 6)
}

// Resolve completes the prediction p of key, made without the TT, with the
// words that [SubModel.TTWindow] of (p.Lo, p.Hi) named. It works on any
// sub-model with the same encoding as the one that was READ.
func (s *SubModel) Resolve(key uint64, p Prediction, words []uint64) (Prediction, error) {
	first, end := s.ttSpan(p.Lo, p.Hi)
	if len(words) != end-first {
		return p, fmt.Errorf("%w: TT window of %d words, want %d", ErrCorrupt, len(words), end-first)
	}
	last := s.Leaves() - 1
	if p.Lo < 0 || p.Hi > last || p.Lo > p.Hi {
		return p, fmt.Errorf("%w: leaves %d to %d of %d", ErrCorrupt, p.Lo, p.Hi, last+1)
	}
	v := ttView{words: words, skip: first}
	var r Prediction
	if key < s.anchor || s.leaves <= 1 {
		r = Prediction{Knows: KnowsALN, ALN: s.alnAt(v, 0)}
	} else {
		r = s.resolve(v, s.position(key), p.Lo, p.Hi)
	}
	r.SubModel = p.SubModel
	return r, nil
}

// DropTT forgets the TT, as a client does to free memory. Exceptions stay: they
// are part of the head.
func (s *SubModel) DropTT() {
	if s.hasTT {
		s.body = s.body[:s.ttAt:s.ttAt]
		s.hasTT = false
	}
}

// LoadTT adds the TT, the block's words from [SubModel.HeadWords] on, to a
// sub-model held without it. It copies words.
func (s *SubModel) LoadTT(words []uint64) error {
	if len(words) != s.ttWords() {
		return fmt.Errorf("%w: TT of %d words, want %d", ErrCorrupt, len(words), s.ttWords())
	}
	s.body = append(s.body[:s.ttAt], words...)
	s.hasTT = true
	return nil
}

// ErrCorrupt is wrapped by every error about encoded words: the block is not a
// model, belongs to another format, or was damaged.
var ErrCorrupt = errors.New("xmodel: corrupt encoding")
