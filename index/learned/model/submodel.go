package model

import "math"

// Family is the way a sub-model's lines are fitted. Inference is the same for
// both, so the sub-models of one index may differ in it.
type Family uint8

const (
	// RMI is one least-squares line per sub-model (XStore §5.1).
	RMI Family = 1
	// PLR is as many lines as an error bound requires (ROLEX §3.2).
	PLR Family = 2
)

func (f Family) String() string {
	switch f {
	case RMI:
		return "rmi"
	case PLR:
		return "plr"
	}
	return "unknown"
}

// MaxLeaves is the most leaves one sub-model can cover.
const MaxLeaves = 4096

// correctionBitsMax bounds the corrections' share of a TT entry.
const correctionBitsMax = 16

// Knowledge says how far the parts that a client holds suffice for a prediction.
type Knowledge uint8

const (
	// KnowsSubModel: the key was routed, the sub-model is not held.
	KnowsSubModel Knowledge = iota
	// KnowsLeaf: the sub-model is held without its TT: Lo and Hi are certain,
	// Leaf is the line's guess, ALN is unknown.
	KnowsLeaf
	// KnowsALN: all fields are set.
	KnowsALN
)

// A Prediction says where a key should be. Leaf, Lo and Hi are logical leaf
// numbers of the sub-model. The key's leaf is Leaf most of the time and within
// [Lo, Hi] always, provided the tree is as it was at training.
type Prediction struct {
	SubModel int
	Leaf     int
	Lo, Hi   int
	ALN      uint32 // of Leaf
	Knows    Knowledge
}

// A SubModel predicts the leaf of a key within one contiguous key interval.
// The zero value covers one leaf, number 0, and knows no TT.
//
// It is written by [Trainer.Train], [SubModel.Decode] and [SubModel.DecodeHead];
// between those calls any number of goroutines may read it. It must not be copied
// while in use, since copies share their tables.
type SubModel struct {
	// The struct is one cache line, and all that a lookup needs besides the
	// TT: in a large model most of a lookup's time goes into fetching lines.

	// anchor is the first trained fence, the low fence of leaf 1: keys below
	// it are in leaf 0. line is the first segment's.
	anchor uint64
	line   line
	// body is start | counts | line residuals | segment keys | segment lines
	// (both only if segments > 1) | exceptions | TT words, where counts is
	// version(32) | refinement words(7) | segments(12) | exceptions(13).
	body []uint64
	// residualMin and residualMax bound, over leaves i ≥ 1, the difference
	// between the position where leaf i truly begins and i leaves; refined
	// positions, if the TT is held and has refinements.
	residualMin, residualMax int32
	alnBase                  uint32
	// slackLo and slackHi bound, in cells, how far a leaf's cell is above that of the
	// leaf's first key, and by how much a key must exceed the cell to be certainly
	// not in the leaf before.
	slackLo, slackHi uint16
	leaves           uint16
	ttAt             uint16 // index of the TT in body
	corrBits         uint8
	corrShift        uint8 // 0: no corrections
	alnBits          uint8
	flags            uint8
}

// coldWords is the part of body before the segments.
const coldWords = 3

// Widths of the fields of counts, from the lowest bit on.
const (
	listBits    = 13
	segmentBits = 12
	refineBits  = 7
)

const (
	flagTT       = 1 << iota // the TT is held
	flagSegments             // there are several segments
	flagPLR                  // the family is PLR, else RMI
	flagRefined              // the TT begins with refinements
)

// Start returns the first key of the sub-model's interval, which identifies it.
func (s *SubModel) Start() uint64 {
	if len(s.body) == 0 {
		return 0
	}
	return s.body[0]
}

func (s *SubModel) counts() uint64 {
	if len(s.body) == 0 {
		return 0
	}
	return s.body[1]
}

// Version returns the number given at training.
func (s *SubModel) Version() uint32 { return uint32(s.counts() >> 32) }

// Family returns how the lines were fitted.
func (s *SubModel) Family() Family {
	if s.flags&flagPLR != 0 {
		return PLR
	}
	return RMI
}

// Leaves returns the number of logical leaves, at least 1.
func (s *SubModel) Leaves() int { return max(1, int(s.leaves)) }

// Segments returns the number of lines, 0 if there is one leaf.
func (s *SubModel) Segments() int { return int(s.counts() >> listBits & (1<<segmentBits - 1)) }

// exceptions returns the number of exceptions, which lie right below the TT.
func (s *SubModel) exceptions() int { return int(s.counts() & (1<<listBits - 1)) }

// front returns the number of words of refinements, with which the TT begins.
func (s *SubModel) front() int {
	if s.flags&flagRefined == 0 {
		return 0
	}
	return int(s.counts() >> (segmentBits + listBits) & (1<<refineBits - 1))
}

// view returns the TT, which must be held, after its refinements.
func (s *SubModel) view() ttView { return ttView{words: s.body[int(s.ttAt)+s.front():]} }

// lineResiduals returns the residuals of positions that are not refined.
func (s *SubModel) lineResiduals() uint64 {
	if len(s.body) == 0 {
		return 0
	}
	return s.body[2]
}

// HasTT reports whether the TT is held.
func (s *SubModel) HasTT() bool { return s.flags&flagTT != 0 }

// position evaluates the lines at a key at or above the anchor.
func (s *SubModel) position(key uint64) int64 {
	if s.flags&flagSegments == 0 {
		return s.line.at(key - s.anchor)
	}
	return s.piecewisePosition(key)
}

func (s *SubModel) piecewisePosition(key uint64) int64 {
	n := s.Segments()
	segs := s.body[coldWords : coldWords+2*n]
	keys, lines := segs[:n], segs[n:]
	j := searchFew(keys, key)
	// Between its last trained key and the next segment a line may overshoot; the
	// next segment's base keeps the whole monotone.
	next := line(lines[min(j+1, n-1)]).base() - 1
	if j == n-1 {
		next = math.MaxInt64
	}
	return min(line(lines[j]).at(key-keys[j]), next)
}

// window returns the leaves that a position may belong to.
func (s *SubModel) window(pos int64) (lo, hi int) {
	last := s.Leaves() - 1
	lo = clamp((pos-int64(s.residualMax))>>fracBits, last)
	hi = clamp((pos-int64(s.residualMin))>>fracBits, last)
	return lo, max(lo, hi)
}

// clamp returns v limited to [min(1, last), last]: a key at or above the anchor
// is never in leaf 0.
func clamp(v int64, last int) int {
	return int(min(max(v, 1), int64(last)))
}

// Predict returns the leaf of key; Prediction.SubModel is 0. It does not
// allocate. A key outside the sub-model's interval yields its nearest leaf.
func (s *SubModel) Predict(key uint64) Prediction {
	leaf, lo, hi, aln, knows := s.predict(key)
	return Prediction{Leaf: leaf, Lo: lo, Hi: hi, ALN: aln, Knows: knows}
}

// predict returns a Prediction's fields one by one: they stay in registers,
// where the struct would be copied through memory by every caller.
func (s *SubModel) predict(key uint64) (leaf, lo, hi int, aln uint32, knows Knowledge) {
	if key < s.anchor || s.leaves <= 1 {
		if s.HasTT() {
			return 0, 0, 0, s.ALN(0), KnowsALN
		}
		return 0, 0, 0, 0, KnowsLeaf
	}
	pos := s.position(key)
	if !s.HasTT() {
		lo, hi = s.window(pos)
		return s.guess(pos, lo, hi), lo, hi, 0, KnowsLeaf
	}
	tt := s.body[s.ttAt:]
	if s.flags&flagRefined != 0 {
		front := s.front()
		pos, tt = refine(tt[1:front], pos), tt[front:]
	}
	lo, hi = s.window(pos)
	leaf, lo, hi, aln = s.resolve(ttView{words: tt}, pos, lo, hi)
	return leaf, lo, hi, aln, KnowsALN
}

// guess returns the leaf that the line alone predicts.
func (s *SubModel) guess(pos int64, lo, hi int) int {
	return int(min(max(pos>>fracBits, int64(lo)), int64(hi)))
}

// ModelBytes returns the size in bytes of the parts that a client without TT must
// hold: header and lines as encoded.
func (s *SubModel) ModelBytes() int { return 8 * (headerWords + 2*s.Segments()) }

// TTBytes returns the size in bytes of translation table, corrections and exceptions
// as encoded, whether the TT is held or not; as held if it is unpacked.
func (s *SubModel) TTBytes() int { return 8 * (s.exceptions() + s.ttWords()) }

// HeadTTBytes returns how many of TTBytes are in the head, and so held without the
// TT: exceptions or list.
func (s *SubModel) HeadTTBytes() int { return 8 * s.exceptions() }

// CorrectionBits returns the corrections' share of a TT entry, in bits a leaf.
func (s *SubModel) CorrectionBits() int { return int(s.corrBits) }

// begin resets s to the given identity and lines, with neither exceptions nor
// TT, keeping body's memory.
func (s *SubModel) begin(start uint64, version uint32, f Family, segs []segment) {
	*s = SubModel{anchor: math.MaxUint64, body: s.body[:0]}
	if f == PLR {
		s.flags = flagPLR
	}
	s.body = append(s.body, start, uint64(version)<<32|uint64(len(segs))<<listBits, 0)
	if len(segs) > 0 {
		s.anchor, s.line = segs[0].key, segs[0].line
	}
	if len(segs) > 1 {
		s.flags |= flagSegments
		for _, g := range segs {
			s.body = append(s.body, g.key)
		}
		for _, g := range segs {
			s.body = append(s.body, uint64(g.line))
		}
	}
}
