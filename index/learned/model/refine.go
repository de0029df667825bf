package model

import (
	"fmt"
	"math"
	"math/bits"

	"drtmx/index"
)

// Where keys cluster, a few lines distinguish the clusters but not the leaves within.
// The TT then begins with refinements: second-level lines that turn the rough
// position from the sub-model's own lines into a precise one. They are part of the
// TT, since a precise position is of use only together with corrections. In words:
//
//	0   lowest residual(32, signed) | highest(32, signed) of refined positions
//	1…  from(25) | to(16, in 1/16 leaf) | slope(17) | shift(6)
//
// A position p at or above from, and below the next refinement's, becomes
//
//	to + (p - from) * slope >> shift
//
// but stays below the next one's to, so positions never fall.
const (
	fromBits   = 25
	toBits     = 16
	slopeWidth = 17
	shiftWidth = 6
	toScale    = fracBits - 4 // bits of a position in a unit of to

	// refinementsMax is the most that the count in a header, which includes word 0,
	// can represent.
	refinementsMax = 1<<refineBits - 2
)

// refine evaluates the refinements; there must be at least one. Any words are safe.
func refine(words []uint64, pos int64) int64 {
	const top = 1<<fromBits - 1
	p := uint64(min(max(pos, 0), top))
	j := searchFew(words, p<<(64-fromBits)|(1<<(64-fromBits)-1))
	w := words[j]
	d := p - min(p, w>>(64-fromBits))
	to := refinedTo(w) + int64(d*(w>>shiftWidth&(1<<slopeWidth-1))>>(w&(1<<shiftWidth-1)))
	next := refinedTo(words[min(j+1, len(words)-1)]) - 1
	if j == len(words)-1 {
		next = math.MaxInt64
	}
	return min(to, next)
}

func refinedTo(w uint64) int64 {
	return int64(w>>(slopeWidth+shiftWidth)&(1<<toBits-1)) << toScale
}

// refinement is the encoded form of a line over positions.
func (g segment) refinement() uint64 {
	from := min(g.key, 1<<fromBits-1)
	to := min((max(g.line.base(), 0)+1<<toScale-1)>>toScale, 1<<toBits-1)
	// The line's rise is d*slope >> shift.
	slope := uint64(g.line >> (baseBits + normBits))
	shift := 64 - int(g.line>>baseBits&(1<<normBits-1))
	if over := bits.Len64(slope) - slopeWidth; over > 0 || slope > 0 {
		over = min(over, shift)
		shift -= over
		if over > 0 {
			slope >>= over
		} else {
			slope <<= -over
		}
	}
	slope = min(slope, 1<<slopeWidth-1)
	return from<<(64-fromBits) | uint64(to)<<(slopeWidth+shiftWidth) | slope<<shiftWidth | uint64(min(shift, 1<<shiftWidth-1))
}

// adoptRefinements sets the residuals to those of refined positions, which lookups
// use while the TT is held. tt begins with the TT's first word.
func (s *SubModel) adoptRefinements(tt []uint64) error {
	if s.flags&flagRefined == 0 {
		return nil
	}
	lo, hi := int32(tt[0]>>32), int32(tt[0])
	if lo > hi {
		return fmt.Errorf("%w: refined residuals %d to %d", index.ErrCorrupt, lo, hi)
	}
	s.residualMin, s.residualMax = lo, hi
	return nil
}

// chords makes lines that distinguish runs of leaves: one for each stretch between
// breaks of the key density, from its first fence to its last. Such a line is never
// above the next one's first position, so positions distinguish keys as well as their
// resolution allows.
func chords(dst []segment, fences []uint64) []segment {
	from := 0
	chord := func(to int) { // of fences[from:to]
		reach := fences[to-1] - fences[from]
		slope := 0.0
		if reach > 0 {
			slope = float64(to-1-from) / float64(reach)
		}
		dst = append(dst, segment{fences[from], quantise(slope*float64(one), float64(from+1)*float64(one), reach)})
		from = to
	}
	for i := 1; i < len(fences); i++ {
		if i-from >= blockLeaves && len(fences)-i >= blockLeaves && breaks(fences, i) {
			chord(i)
		}
	}
	chord(len(fences))
	return dst
}

// fitRefined fits lines for a rough position, and as many refinements as the error
// bounds and the accuracy require.
func (t *Trainer) fitRefined(enough int) {
	if t.opt.CorrectionBits < 0 || len(t.fences) <= blockLeaves {
		return
	}
	t.refined = t.refined[:0]
	t.segs = chords(t.segs[:0], t.fences[1:])
	t.cand.begin(t.start, 0, t.opt.Family, t.segs)
	t.positions()
	t.points = t.points[:0]
	for i, p := range t.begin {
		if n := len(t.points); n == 0 || uint64(p) > t.points[n-1].x {
			t.points = append(t.points, point{uint64(p), int64(i+1) << fracBits})
		}
	}
	limit := min(refinementsMax, max(1, len(t.fences)/t.opt.LeavesPerRefinement))
	// Refinements take about one bit per leaf: they halve the error, so corrections
	// need one bit less.
	t.corrLimit = min(t.corrLimit, yieldBits)
	eps := int64(t.opt.ErrorLeaves) << fracBits / 2
	ok := t.refineWithin(eps, limit)
	for !ok && eps < MaxLeaves<<fracBits {
		eps *= 2
		ok = t.refineWithin(eps, limit)
	}
	for ok && eps >= one/8 {
		t.consider()
		if t.best.q.FirstLeafWrong <= enough {
			break
		}
		eps /= 2
		ok = t.refineWithin(eps, limit)
	}
	t.refined = t.refined[:0]
}

// refineWithin makes refinements with a bounded error, if the limit allows.
func (t *Trainer) refineWithin(eps int64, limit int) bool {
	segs, ok := piecewise(t.seconds[:0], &t.pla, t.points, eps, limit)
	t.seconds, t.refined = segs, t.refined[:0]
	for _, g := range segs {
		t.refined = append(t.refined, g.refinement())
	}
	return ok
}

// refinePositions refines the results of positions.
func (t *Trainer) refinePositions() {
	for i := range t.begin {
		t.begin[i] = refine(t.refined, t.begin[i])
		if i == 0 {
			t.prior[0] = t.begin[0] - 1
		} else {
			t.prior[i] = refine(t.refined, t.prior[i])
		}
	}
}

// position returns the position that lookups compute with the candidate's TT.
func (t *Trainer) position(key uint64) int64 {
	p := t.cand.position(key)
	if len(t.refined) > 0 {
		return refine(t.refined, p)
	}
	return p
}

// fillRefinements begins dst's TT with the refinements.
func (c *candidate) fillRefinements(dst *SubModel) {
	if len(c.refined) == 0 {
		return
	}
	dst.flags |= flagRefined
	dst.body[1] |= uint64(1+len(c.refined)) << (segmentBits + listBits)
	dst.body = append(dst.body, pairOf(c.residualMin, c.residualMax))
	dst.body = append(dst.body, c.refined...)
}

func pairOf(lo, hi int64) uint64 {
	lo, hi = max(lo, math.MinInt32), min(hi, math.MaxInt32)
	return uint64(uint32(lo))<<32 | uint64(uint32(hi))
}
