package model

import (
	"math"
	"math/bits"
	"slices"
)

// Where leaves were split off, a sub-model encodes ALNs by blocks of blockLeaves. In
// each block, the leaves with consecutive numbers, which a load in key order has
// left, are flagged: the block holds the number of the first. The other leaves are
// listed. These lie in a few extents, aligned runs of 1<<shift numbers, so an ALN is
// encoded by its extent and its place in it. Extents are in the order of their
// leaves, so the extent of leaf i is near i*slope, and the entry of a listed leaf
// holds
//
//	place (shift bits) | index of the extent - i*slope - bias
//
// The list replaces the exceptions. Its words are
//
//	0   lowest extent(32) | slope(16, a fraction) | bias(16, signed)
//	1   base(32) | 0(26) | step(6): block k's first flagged number is
//	    base + k*step + the number in its header
//	2…  each extent less the lowest, in 16 bits or, if wide, 32
//
// alnBase then has stride(11) | numberBits(6) | 0(4) | wide(1) | words of the
// list(10), where the stride is the length of a block in bits.
const (
	blockShift  = 5
	blockLeaves = 1 << blockShift

	listHead       = 2 // words before the extents
	listMax        = 1<<10 - 1
	extentShiftAt  = 4 // in flags; a shift of 0 means that there is no list
	extentShiftMin = 2
	extentShiftMax = 7
	slopeBits      = 16
)

func (s *SubModel) extentShift() uint { return uint(s.flags >> extentShiftAt) }

func (s *SubModel) numberBits() uint { return uint(s.alnBase >> 15 & 63) }

func blockShape(stride, numberBits, wide, words int) uint32 {
	return uint32(stride)<<21 | uint32(numberBits)<<15 | uint32(wide)<<10 | uint32(words)
}

// aboutExtent returns the index in the list of the first extent that the entry of a
// leaf can name. It is below zero only in a corrupt model.
func aboutExtent(leaf int, shape uint64) int64 {
	return int64(leaf)*int64(shape>>16&0xffff)>>slopeBits + int64(int16(shape))
}

// blockALN returns the ALN of a leaf of a sub-model with a list. It does not branch
// on whether the leaf is flagged, since random keys would mispredict that. Any bits
// are safe.
func (s *SubModel) blockALN(v ttView, leaf int) uint32 {
	k, j := uint(leaf)>>blockShift, uint(leaf)&(blockLeaves-1)
	start := k * uint(s.alnBase>>21)
	header := v.bits(start)
	list := s.body[uint(s.ttAt)-uint(s.alnBase&listMax) : s.ttAt]
	if len(list) < listHead {
		return 0 // never: decoding checks it
	}
	flagged := uint(bits.OnesCount32(uint32(header) & (1<<j - 1)))
	number := uint32(header >> blockLeaves & low(s.numberBits()))
	inRun := uint32(list[1]>>32) + uint32(k)*uint32(list[1]&63) + number + uint32(flagged)

	r := v.bits(start+blockLeaves+s.numberBits()+(j-flagged)*uint(s.alnBits)) & low(uint(s.alnBits))
	shift, logWidth := s.extentShift(), uint(4+s.alnBase>>10&1)
	at := uint64(aboutExtent(leaf, list[0])) + r>>shift
	extent := uint32(list[0] >> 32)
	if word := at>>(6-logWidth) + listHead; word < uint64(len(list)) { // else it is corrupt
		extent += uint32(list[word] >> (at << logWidth & 63) & (1<<(1<<logWidth) - 1))
	}
	listed := extent<<shift | uint32(r&low(shift))

	isFlagged := -uint32(header >> j & 1)
	return inRun&isFlagged | listed&^isFlagged
}

// numbering is an encoding of a sub-model's ALNs by blocks, under construction.
type numbering struct {
	flags  []uint32 // of each block
	first  []int64  // ALN of each block's first flagged leaf, less step a block
	listed []int    // leaves
	most   int      // listed leaves of a block

	base, step          int64
	numberBits, alnBits int
	shift               int // of the extents; 0: no blocks
	low                 uint32
	slope, bias         int64
	wide                int // 1 if the list is
	extents             []uint32
	sorted              []uint32
	index               []uint16 // in the list, of each listed leaf's extent
}

// chooseBlocks searches for an encoding by blocks that takes fewer bits than cost,
// and returns the least cost. A shift of 0 in t.num says that there is none.
func (t *Trainer) chooseBlocks(cost int) int {
	n := &t.num
	t.flagRuns()
	blocks := len(n.flags)
	fixed := blocks*(blockLeaves+n.numberBits) + 64*listHead
	n.shift = 0
	if fixed >= cost || n.numberBits > 32 {
		return cost
	}
	t.order = t.order[:0]
	for k, i := range n.listed {
		t.order = append(t.order, int64(t.alns[i])<<16|int64(k))
	}
	slices.Sort(t.order)
	best := 0
	for shift := extentShiftMin; shift <= extentShiftMax; shift++ {
		if t.listExtents(shift) {
			if c := fixed + blocks*n.most*n.alnBits + 64*(n.words()-listHead); c < cost {
				cost, best = c, shift
			}
		}
	}
	if best > 0 {
		t.listExtents(best)
	}
	n.shift = best
	return cost
}

// flagRuns flags the leaves of each block that have consecutive numbers.
func (t *Trainer) flagRuns() {
	n := &t.num
	n.flags, n.first, n.listed, n.most = n.flags[:0], n.first[:0], n.listed[:0], 0
	for from := 0; from < len(t.alns); from += blockLeaves {
		alns := t.alns[from:min(from+blockLeaves, len(t.alns))]
		f := longestRun(alns)
		n.flags = append(n.flags, f)
		n.first = append(n.first, int64(alns[bits.TrailingZeros32(f)]))
		n.most = max(n.most, len(alns)-bits.OnesCount32(f))
		for i := range alns {
			if f>>i&1 == 0 {
				n.listed = append(n.listed, from+i)
			}
		}
	}
	n.step = int64(len(t.alns)-len(n.listed)) / int64(len(n.flags)) & 63
	least, top := int64(math.MaxInt64), int64(math.MinInt64)
	for k := range n.first {
		n.first[k] -= int64(k) * n.step
		least, top = min(least, n.first[k]), max(top, n.first[k])
	}
	n.base, n.numberBits = least, bits.Len64(uint64(top-least))
}

// longestRun returns a bit set of the longest run of leaves with consecutive numbers.
func longestRun(alns []uint32) uint32 {
	var length, from [blockLeaves]int8
	best := 0
	for i, a := range alns {
		length[i], from[i] = 1, -1
		for j := i - 1; j >= 0; j-- {
			if alns[j] == a-1 {
				length[i], from[i] = length[j]+1, int8(j)
				break
			}
		}
		if length[i] > length[best] {
			best = i
		}
	}
	flags := uint32(0)
	for i := best; i >= 0; i = int(from[i]) {
		flags |= 1 << i
	}
	return flags
}

// listExtents makes the list of the extents of one size. It returns false if the
// format cannot represent it.
func (t *Trainer) listExtents(shift int) bool {
	n := &t.num
	count := len(n.listed)
	n.shift, n.index = shift, slices.Grow(n.index[:0], count)[:count]
	n.sorted, n.extents, t.means = n.sorted[:0], n.extents[:0], t.means[:0]
	n.low, n.slope, n.bias, n.wide, n.alnBits = 0, 0, 0, 0, shift
	if count == 0 {
		return true
	}
	for i := 0; i < count; {
		// Leaves of one extent are adjacent in t.order.
		extent, first, last := uint32(t.order[i]>>16)>>shift, int64(math.MaxUint16), int64(0)
		for ; i < count && uint32(t.order[i]>>16)>>shift == extent; i++ {
			k := t.order[i] & math.MaxUint16
			n.index[k] = uint16(len(n.sorted))
			first, last = min(first, k), max(last, k)
		}
		t.means = append(t.means, (first+last)<<16|int64(len(n.sorted)))
		n.sorted = append(n.sorted, extent)
	}
	slices.Sort(t.means)
	t.ranks = slices.Grow(t.ranks[:0], len(n.sorted))[:len(n.sorted)]
	for rank, m := range t.means {
		n.extents = append(n.extents, n.sorted[m&math.MaxUint16])
		t.ranks[m&math.MaxUint16] = uint16(rank)
	}
	n.low = n.sorted[0]
	if n.sorted[len(n.sorted)-1]-n.low > math.MaxUint16 {
		n.wide = 1
	}
	n.slope = min(int64(len(n.extents))<<slopeBits/int64(len(t.alns)), math.MaxUint16)
	lo, hi := int64(math.MaxInt64), int64(math.MinInt64)
	for k, i := range n.listed {
		n.index[k] = t.ranks[n.index[k]]
		x := int64(n.index[k]) - aboutExtent(i, uint64(n.slope)<<16)
		lo, hi = min(lo, x), max(hi, x)
	}
	n.bias, n.alnBits = lo, shift+bits.Len64(uint64(hi-lo))
	return n.words() <= min(len(t.alns), listMax) && n.alnBits <= 32
}

func (n *numbering) shape() uint64 { return uint64(n.slope)<<16 | uint64(uint16(n.bias)) }

// words is the length of the encoded list.
func (n *numbering) words() int { return listHead + (len(n.extents)<<(4+n.wide)+63)/64 }

// fillList writes the list into dst's body.
func (n *numbering) fillList(dst *SubModel) {
	words := n.words()
	stride := blockLeaves*(1+int(dst.corrBits)) + n.numberBits + n.most*n.alnBits
	dst.alnBits, dst.alnBase = uint8(n.alnBits), blockShape(stride, n.numberBits, n.wide, words)
	dst.flags |= uint8(n.shift) << extentShiftAt
	at := len(dst.body)
	dst.body = slices.Grow(dst.body, words)[:at+words]
	list := dst.body[at:]
	clear(list)
	list[0] = uint64(n.low)<<32 | n.shape()
	list[1] = uint64(uint32(n.base))<<32 | uint64(n.step)
	for i, e := range n.extents {
		putBits(list[listHead:], uint(i)<<(4+n.wide), 16<<n.wide, uint64(e-n.low))
	}
	dst.body[1] += uint64(words) // counts
}

// fillBlocks writes headers and entries to the TT of dst.
func (t *Trainer) fillBlocks(dst *SubModel, tt []uint64) {
	n, g, next := &t.num, dst.grid(), 0
	for k, f := range n.flags {
		at := uint(k) * g.stride
		putBits(tt, at, blockLeaves, uint64(f))
		putBits(tt, at+blockLeaves, uint(n.numberBits), uint64(n.first[k]-n.base))
		at += blockLeaves + uint(n.numberBits)
		for ; next < len(n.listed) && n.listed[next]>>blockShift == k; next++ {
			i := n.listed[next]
			x := int64(n.index[next]) - aboutExtent(i, n.shape())
			putBits(tt, at, uint(n.alnBits), uint64(x)<<n.shift|uint64(t.alns[i])&low(uint(n.shift)))
			at += uint(n.alnBits)
		}
	}
}
