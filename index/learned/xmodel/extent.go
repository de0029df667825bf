package xmodel

import (
	"math"
	"math/bits"
	"slices"
)

// Where the leaves of a sub-model lie in a few extents, aligned runs of
// 1<<shift numbers, an ALN is said by its extent and its place in it. The
// extents are listed in the order of the leaves that are in them, so the
// extent of logical leaf i is near i*slope in the list, and the entry holds
//
//	place (shift bits) | index in the list - i*slope - bias
//
// The list takes the place of exceptions: a word with the lowest extent, then
// differences from it, of 16 bits or, if wide, 32. alnBase is
// slope(16, a fraction) | bias(16, signed).
const (
	flagWide      = 1 << 3
	extentShiftAt = 4 // in flags; a shift of 0 means that there is no list

	extentShiftMin = 2
	extentShiftMax = 7
	slopeBits      = 16
)

func (s *SubModel) extentShift() uint { return uint(s.flags >> extentShiftAt) }

// extentMode is what the encoding says of extents: shift(4) below wide(1).
func (s *SubModel) extentMode() uint64 {
	return uint64(s.flags>>extentShiftAt | s.flags&flagWide<<1)
}

// setExtentMode takes over an encoded mode.
func (s *SubModel) setExtentMode(m uint8) {
	s.flags |= m<<extentShiftAt | m>>1&flagWide
}

// aboutExtent is the index in the list of the first extent that the entry of a
// leaf can name. It is below zero only in a corrupt model.
func aboutExtent(leaf int, alnBase uint32) int64 {
	return int64(leaf)*int64(alnBase>>16)>>slopeBits + int64(int16(alnBase))
}

// extentALN is the ALN of a leaf whose entry says r. Any r, and any list, is safe.
func (s *SubModel) extentALN(leaf int, r uint64) uint32 {
	list := s.body[int(s.ttAt)-s.exceptions() : s.ttAt]
	shift, logWidth := s.extentShift(), uint(4+s.flags&flagWide>>3)
	at := uint64(aboutExtent(leaf, s.alnBase)) + r>>shift
	word := at>>(6-logWidth) + 1
	if word >= uint64(len(list)) {
		return uint32(list[0]) << shift // only in a corrupt model
	}
	d := list[word] >> (at << logWidth & 63) & (1<<(1<<logWidth) - 1)
	return (uint32(list[0])+uint32(d))<<shift | uint32(r&(1<<shift-1))
}

// extentList is a list of extents in the making.
type extentList struct {
	shift, bits int // bits of an entry
	alnBase     uint32
	wide        bool
	low         uint32
	extents     []uint32 // in the order of the list
	index       []uint16 // in the list, of each leaf's extent
}

// words is the length of the encoded list.
func (l *extentList) words() int {
	if l.wide {
		return 1 + (len(l.extents)+1)/2
	}
	return 1 + (len(l.extents)+3)/4
}

// chooseExtents looks for a list with which table and list take fewer bits
// than cost, and leaves the best in t.list. A shift of 0 says there is none.
func (t *Trainer) chooseExtents(cost int) {
	t.list.shift = 0
	n := len(t.alns)
	t.order = t.order[:0]
	for i, a := range t.alns {
		t.order = append(t.order, int64(a)<<16|int64(i))
	}
	slices.Sort(t.order)
	for shift := extentShiftMin; shift <= extentShiftMax; shift++ {
		l := &t.trial
		if t.listExtents(l, shift) {
			if c := n*l.bits + 64*l.words(); c < cost {
				cost = c
				t.list, t.trial = t.trial, t.list
			}
		}
	}
}

// listExtents makes the list of the extents of one size. It reports false if
// the form cannot say it.
func (t *Trainer) listExtents(l *extentList, shift int) bool {
	n := len(t.alns)
	l.shift, l.extents = shift, l.extents[:0]
	l.index = slices.Grow(l.index[:0], n)[:n]
	t.runs, t.means = t.runs[:0], t.means[:0]
	for i := 0; i < n; {
		// Leaves of one extent follow each other in t.order.
		extent, first, last := uint32(t.order[i]>>16)>>shift, int64(math.MaxUint16), int64(0)
		for ; i < n && uint32(t.order[i]>>16)>>shift == extent; i++ {
			leaf := t.order[i] & math.MaxUint16
			l.index[leaf] = uint16(len(t.runs))
			first, last = min(first, leaf), max(last, leaf)
		}
		t.means = append(t.means, (first+last)<<16|int64(len(t.runs)))
		t.runs = append(t.runs, extent)
	}
	slices.Sort(t.means)
	l.low = t.runs[0]
	l.wide = t.runs[len(t.runs)-1]-l.low > math.MaxUint16
	t.ranks = slices.Grow(t.ranks[:0], len(t.runs))[:len(t.runs)]
	for rank, m := range t.means {
		run := m & math.MaxUint16
		l.extents = append(l.extents, t.runs[run])
		t.ranks[run] = uint16(rank)
	}
	slope := min(uint32(len(l.extents))<<slopeBits/uint32(n), math.MaxUint16)
	lo, hi := int64(math.MaxInt64), int64(math.MinInt64)
	for i := range l.index {
		l.index[i] = t.ranks[l.index[i]]
		r := int64(l.index[i]) - aboutExtent(i, slope<<16)
		lo, hi = min(lo, r), max(hi, r)
	}
	l.alnBase = slope<<16 | uint32(uint16(lo))
	l.bits = shift + bits.Len64(uint64(hi-lo))
	return l.words() <= n && l.bits <= 32
}

// entry is the ALN's part of the entry of a leaf.
func (l *extentList) entry(leaf int, aln uint32) uint64 {
	k := int64(l.index[leaf]) - aboutExtent(leaf, l.alnBase)
	return uint64(k)<<l.shift | uint64(aln)&(1<<l.shift-1)
}

// fillExtents writes the list into dst's body.
func (l *extentList) fillExtents(dst *SubModel) {
	dst.alnBase, dst.alnBits = l.alnBase, uint8(l.bits)
	mode, logWidth := uint8(l.shift), uint(4)
	if l.wide {
		mode, logWidth = mode|1<<4, 5
	}
	dst.setExtentMode(mode)
	n := l.words()
	at := len(dst.body)
	dst.body = slices.Grow(dst.body, n)[:at+n]
	list := dst.body[at:]
	clear(list)
	list[0] = uint64(l.low)
	for i, e := range l.extents {
		bit := uint(i) << logWidth
		list[1+bit>>6] |= uint64(e-l.low) << (bit & 63)
	}
	dst.body[1] += uint64(n) // counts
}
