package read

import (
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/rdma"
)

// A model bounds the leaves that a key may be in. As long as the tree has not
// changed since training the bounds are certain, and a prediction may be off by
// as many leaves as they span. A span is such a range of leaves. It is READ in one
// round if it is small, and narrowed by that many leaves of it otherwise.

const (
	spanReadsMax = 16 // leaves of a span in one round
	spansMax     = 4  // rounds of spans: enough for every sub-model
	// chasesBeforeSpan is how many right links a search follows one by one where
	// it did not begin at the predicted leaf, or has leaves ahead already.
	chasesBeforeSpan = 2
)

// span is a range of logical leaves being searched.
type span struct {
	lo, hi int
	was    int // leaves at first
	rounds int
}

func (s *span) begin(lo, hi int) { s.lo, s.hi, s.was = lo, hi, hi-lo+1 }

// wide reports whether the span searched was of more than one leaf.
func (s *span) wide() bool { return s.was > 1 }

// pivots returns how many leaves of the span a round READs.
func (s *span) pivots() int { return min(s.hi-s.lo+1, spanReadsMax) }

// pivot returns the logical leaf that is READ as the i-th.
func (s *span) pivot(i int) int { return s.lo + i*(s.hi-s.lo+1)/s.pivots() }

// narrow takes in that the key lies on a side of a leaf of the span.
func (s *span) narrow(leaf int, see sight) {
	switch see {
	case seeRight:
		s.lo = max(s.lo, leaf+1)
	case seeLeft:
		s.hi = min(s.hi, leaf-1)
	}
}

// leafAddr returns the address of a logical leaf of the model, if the finder can
// tell it.
func (f *finder) leafAddr(leaf int) (uint64, bool) {
	switch {
	case f.model == nil:
		return 0, false
	case f.model.HasTT():
		return f.lay.LeafAddr(f.model.ALN(leaf)), true
	case f.held == nil || f.winOf != f.held || leaf < f.winLo:
		return 0, false
	}
	// What was READ for the prediction is all of the TT that there is.
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

// needsTT reports whether a search that has followed so many right links is better
// off with TT entries. It began at a leaf that the client had learnt of, so it has
// READ none, and the leaves up to the upper bound may be more than it may follow.
func (f *finder) needsTT(chases int) bool {
	return chases == chasesBeforeSpan && f.held != nil && f.winOf == nil && !f.model.HasTT() &&
		f.pred.Knows != model.KnowsALN && f.pred.Hi > f.leaf
}

// spanTo returns the leaves on a side of the predicted one that the key may be
// in. at is the leaf that was READ.
func (f *finder) spanTo(see sight, at uint64) (lo, hi int, ok bool) {
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

// spanGet is what a lookup knows of a span.
type spanGet struct {
	span
	right uint64 // leaf that a right link named, READ besides; 0 if there is none
	asked []spanLeaf
	buf   []uint64
}

// readSpan READs leaves of the span; false if that is of no use.
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
	words := o.leafWords(o.tick)
	s.buf = grow(s.buf, words*len(s.asked))
	for i := range s.asked {
		s.asked[i].wr = next.Read(o.c.rkey, s.asked[i].addr, s.buf[i*words:(i+1)*words:(i+1)*words])
	}
	return true, false
}

// toRight READs the leaves between a leaf, of which a right link names the next
// one, and the upper bound of the prediction; false if it is better to follow
// right links.
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

// toLeft READs the leaves from the lower bound of the prediction on, or else the
// leaf before the predicted one.
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

// onSpan continues with the leaf of the span that covers the key, or with the
// nearest one on its left.
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
			_, finished := o.kind.search(next)
			return finished
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

// spanScan is what a scan knows of a span.
type spanScan struct {
	span
	from, to int    // the leaves READ for it; none if equal
	whole    bool   // these are all leaves of the span
	right    uint64 // the leaf that a right link named; 0 if the key is on the left
}

// readSpan READs leaves of the span, besides those that the scan has; false if
// that is of no use.
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

// readBounds READs the leaves that the first one of the scan may be, on a side of
// the leaf l; false if that is of no use.
func (o *scanOp) readBounds(see sight, l *leafRead, next *rdma.Batch) bool {
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

// seekSpan makes the leaf of the span that covers the first key the wanted one,
// or that on the right of the nearest one.
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

// The side of a copy in which fences are not is unknown.

func (g *nativeGet) side(v *leaf.Leaf) sight { return sideOf(v, g.o.key.Num) }

func (g *stringGet) side(v *leaf.Leaf) sight {
	f, ok := v.Fences()
	if !ok {
		return seeBusy
	}
	return sideOfFences(&f, g.o.key.Str)
}
