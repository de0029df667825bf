package read

import (
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/rdma"
)

// A model bounds the leaves that may cover a key. As long as the tree has not changed
// since training the bounds are certain, and a prediction may be off by as many
// leaves as they span. A span is such a range of leaves. A small one is READ in one
// round. A larger one is narrowed: a round READs spanReadsMax of its leaves.

const (
	spanReadsMax = 16 // leaves of a span in one round
	spansMax     = 4  // rounds of spans: enough for every sub-model
	// chasesBeforeSpan is how many right links a search follows one by one if it did
	// not begin at the predicted leaf, or has READ leaves ahead already.
	chasesBeforeSpan = 2
)

// span is a range of logical leaves being searched.
type span struct {
	lo, hi int
	was    int // leaves at first
	rounds int
}

func (s *span) begin(lo, hi int) { s.lo, s.hi, s.was = lo, hi, hi-lo+1 }

// wide reports whether the span had more than one leaf at first.
func (s *span) wide() bool { return s.was > 1 }

// pivots returns how many leaves of the span a round READs.
func (s *span) pivots() int { return min(s.hi-s.lo+1, spanReadsMax) }

// pivot returns the ith logical leaf that a round READs.
func (s *span) pivot(i int) int { return s.lo + i*(s.hi-s.lo+1)/s.pivots() }

// narrow reduces the span, given the verdict on one of its leaves.
func (s *span) narrow(leaf int, see leafVerdict) {
	switch see {
	case seeRight:
		s.lo = max(s.lo, leaf+1)
	case seeLeft:
		s.hi = min(s.hi, leaf-1)
	}
}

// leafAddr returns the address of a logical leaf of the model, or false if the finder
// has no TT entry for it.
func (f *finder) leafAddr(leaf int) (uint64, bool) {
	switch {
	case f.model == nil:
		return 0, false
	case f.model.HasTT():
		return f.lay.LeafAddr(f.model.ALN(leaf)), true
	case f.held == nil || f.winOf != f.held || leaf < f.winLo:
		return 0, false
	}
	// Of the TT there are only the entries that were READ for the prediction.
	from, _ := f.model.TTWindow(f.winLo, f.winLo)
	at, n := f.model.TTWindow(leaf, leaf)
	if at < from || at-from+n > len(f.win) {
		return 0, false
	}
	p, err := f.model.Resolve(f.h.Input(f.key, f.held.prefix), model.Prediction{Lo: leaf, Hi: leaf}, f.win[at-from:at-from+n])
	if err != nil || p.Leaf != leaf || p.ALN < f.held.low || p.ALN > f.held.high {
		return 0, false
	}
	return f.lay.LeafAddr(p.ALN), true
}

// needsTT reports whether a search that has followed so many right links should READ
// TT entries. It began at a leaf of the patch, so it has READ none, and there may be
// more leaves up to the upper bound than it may follow.
func (f *finder) needsTT(chases int) bool {
	return chases == chasesBeforeSpan && f.held != nil && f.winOf == nil && !f.model.HasTT() &&
		f.pred.Knows != model.KnowsALN && f.pred.Hi > f.leaf
}

// spanTo returns the leaves on one side of the predicted one that may cover the key.
// at is the address of the leaf that was READ. ok is false if a span is of no use.
func (f *finder) spanTo(see leafVerdict, at uint64) (lo, hi int, ok bool) {
	addr, ok := f.leafAddr(f.leaf)
	if !ok {
		return 0, 0, false
	}
	lo, hi = f.pred.Lo, f.leaf
	if see == seeRight {
		return f.leaf + 1, f.pred.Hi, f.leaf+1 <= f.pred.Hi
	}
	if at == addr {
		hi--
	}
	return lo, hi, lo <= hi
}

// spanLeaf is a leaf of a span being READ by a lookup.
type spanLeaf struct {
	leaf int // logical
	addr uint64
	wr   int
}

// spanGet is the state of a lookup that searches a span.
type spanGet struct {
	span
	right uint64 // leaf that a right link named, which is READ too; 0 if there is none
	asked []spanLeaf
	buf   []uint64
}

// readSpan READs leaves of the span. asked is false if that is of no use.
func (o *getOp) readSpan(next *rdma.Batch) (asked, finished bool) {
	s := &o.span
	if s.lo > s.hi || s.rounds >= spansMax {
		return false, false
	}
	s.asked = s.asked[:0]
	if s.right != 0 {
		s.asked = append(s.asked, spanLeaf{leaf: s.lo - 1, addr: s.right})
	}
	for i := range s.pivots() {
		at := s.pivot(i)
		if addr, ok := o.leafAddr(at); ok && addr != s.right {
			s.asked = append(s.asked, spanLeaf{leaf: at, addr: addr})
		}
	}
	if len(s.asked) == 0 {
		return false, false
	}
	s.rounds++
	if o.awaitRound(getSpan, 1) {
		return true, true
	}
	o.extra += len(s.asked) - 1
	words := o.leafWords(o.tick, o.lay.LookupWords)
	s.buf = grow(s.buf, words*len(s.asked))
	for i := range s.asked {
		s.asked[i].wr = next.Read(o.c.o.Leaves, s.asked[i].addr, s.buf[i*words:(i+1)*words:(i+1)*words])
	}
	return true, false
}

// toRight READs the leaf that a right link names and the leaves up to the upper bound
// of the prediction. asked is false if it is better to follow right links.
func (o *getOp) toRight(next *rdma.Batch) (asked, finished bool) {
	predicted, ok := o.leafAddr(o.leaf)
	if !ok || o.span.rounds > 0 || o.chases > chasesBeforeSpan || o.addr != predicted && o.chases < chasesBeforeSpan {
		return false, false
	}
	lo, hi, ok := o.spanTo(seeRight, o.addr)
	if !ok || hi == lo { // the right link most likely leads there
		return false, false
	}
	o.span.begin(lo, hi)
	o.span.right = o.view.Right()
	if asked, finished = o.readSpan(next); asked {
		o.n.chases.Add(1)
	}
	return asked, finished
}

// toLeft READs the leaves from the lower bound of the prediction on, or the leaf
// before the predicted one if a span is of no use.
func (o *getOp) toLeft(next *rdma.Batch) bool {
	o.lefts++
	if o.span.rounds == 0 {
		if lo, hi, ok := o.spanTo(seeLeft, o.addr); ok {
			o.span.begin(lo, hi)
			o.span.right = 0
			if asked, finished := o.readSpan(next); asked {
				return finished
			}
		}
	}
	return o.stepLeft(next)
}

// stepLeft goes to the leaf before the one predicted.
func (o *getOp) stepLeft(next *rdma.Batch) bool {
	if o.lefts > leftsMax {
		return o.fallback()
	}
	st, addr := o.back(next)
	return o.located(st, addr, next)
}

// onSpan continues with the leaf of the span that covers the key, or with the nearest
// leaf on the left of the key.
func (o *getOp) onSpan(done, next *rdma.Batch) bool {
	s := &o.span
	nearest := -1 // in asked
	for i := range s.asked {
		l := &s.asked[i]
		see, v := o.finder.judge(&done.WRs[l.wr])
		if see == seeDown {
			return o.down(&done.WRs[l.wr])
		}
		if see == seeHere {
			see = o.kind.side(&v)
		}
		if see == seeHere || see == seeRight {
			nearest = i
		}
		if see == seeHere {
			break
		}
		s.narrow(l.leaf, see)
	}
	if nearest >= 0 {
		l := &s.asked[nearest]
		o.addr, o.wr = l.addr, l.wr
		o.buf = append(o.buf[:0], done.WRs[l.wr].Buf...)
		o.view, _ = o.lay.View(o.buf)
		if o.kind.side(&o.view) == seeHere {
			see, finished := o.kind.search(next)
			if see == seeHere {
				return finished
			}
			return o.elsewhere(see, next) // the keys of an array do not ascend
		}
	}
	linked := s.right != 0
	s.right = 0
	if asked, finished := o.readSpan(next); asked {
		return finished
	}
	if nearest >= 0 || linked {
		return o.elsewhere(seeRight, next)
	}
	o.leaf = s.hi + 1
	return o.stepLeft(next)
}

// spanScan is the state of a scan that searches a span.
type spanScan struct {
	span
	from, to int    // the leaves READ for it; none if equal
	whole    bool   // they are all leaves of the span
	right    uint64 // the leaf that a right link named; 0 if the key is on the left
}

// readSpan READs leaves of the span that the scan does not have yet. It returns false
// if that is of no use.
func (o *scanOp) readSpan(next *rdma.Batch) bool {
	s := &o.span
	if s.lo > s.hi || s.rounds >= spansMax {
		return false
	}
	s.from, s.whole = len(o.leaves), s.pivots() == s.hi-s.lo+1
	for i := range s.pivots() {
		if addr, ok := o.leafAddr(s.pivot(i)); ok {
			o.readLeaf(addr, next)
			o.leaves[len(o.leaves)-1].logical = s.pivot(i)
		}
	}
	s.to = len(o.leaves)
	s.rounds++
	return s.to > s.from
}

// readBounds READs the leaves on one side of the leaf l that may be the scan's first
// one. It returns false if that is of no use.
func (o *scanOp) readBounds(see leafVerdict, l *leafRead, next *rdma.Batch) bool {
	if o.consumed > 0 || o.span.rounds > 0 || see == seeRight && o.chases != chasesBeforeSpan {
		return false
	}
	lo, hi, ok := o.spanTo(see, l.addr)
	if !ok || see == seeRight && hi < lo+chasesBeforeSpan {
		return false
	}
	o.span.begin(lo, hi)
	if o.span.right = 0; see == seeRight {
		o.span.right = l.view.Right()
	}
	return o.readSpan(next)
}

// seekSpan makes the leaf of the span that covers the first key the wanted one, or
// the right sibling of the nearest leaf on its left.
func (o *scanOp) seekSpan(next *rdma.Batch) action {
	s := &o.span
	var nearest *leafRead
	for i := s.from; i < s.to; i++ {
		l := &o.leaves[i]
		if l.state != readOK {
			continue
		}
		see := o.kind.side(l)
		if see == seeHere || see == seeRight {
			nearest = l
		}
		if see == seeHere {
			break
		}
		s.narrow(l.logical, see)
	}
	whole := s.whole
	s.from, s.to = 0, 0
	switch {
	case nearest != nil && o.kind.side(nearest) == seeHere:
	case o.readSpan(next):
		return endIf(o.wait())
	case nearest == nil && s.right != 0:
		o.want, o.linked = s.right, true
		return goOn
	case nearest == nil:
		o.leaf = s.hi + 1
		return o.stepLeft(next)
	}
	o.want, o.linked = nearest.addr, false
	if !whole && o.model.HasTT() {
		o.aheadSub, o.aheadLeaf, o.cursor.of = o.sub, nearest.logical+1, nil
		o.endSub, o.endLeaf = o.kind.end()
	}
	return goOn
}

// stepLeft goes to the leaf before the one predicted.
func (o *scanOp) stepLeft(next *rdma.Batch) action {
	if o.lefts++; o.lefts > leftsMax {
		return endIf(o.fallback())
	}
	st, addr := o.back(next)
	return endIf(o.located(st, addr, next))
}

// Without the fences in the copy, the side of the key is unknown.

func (g *nativeGet) side(v *leaf.Leaf) leafVerdict { return sideOf(v, g.o.key.Num) }

func (g *stringGet) side(v *leaf.Leaf) leafVerdict {
	f, ok := v.Fences()
	if !ok {
		return seeBusy
	}
	return sideOfFences(&f, g.o.key.Str)
}
