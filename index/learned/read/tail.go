package read

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/rdma"
)

// Bounds of one READ of a tail list, in words. The first ones of a sub-model are
// small: most readers lack a few entries.
const (
	newsLeast = 64
	newsMost  = 1024
	// newsMax is how many READs of tail lists one operation may make. If windows double
	// from the least one on, a whole list takes six, and one more if it lies across the
	// end of the ring.
	newsMax = 8
)

// freshMax bounds the leaves in the patch of a sub-model with a tail list. From
// freshEnough on the sub-model is worth fetching again.
const (
	freshMax    = 4096
	freshEnough = 256
)

// tailList is the client's state of the tail list of a held sub-model: the leaves
// that splits have added since the training. Its entries become leaves of the patch.
// They are hints, too: the fences of the leaf to which an entry points prove an
// answer.
type tailList struct {
	addr     uint64
	next     atomic.Uint64 // the number of the next entry to READ
	window   atomic.Int32  // how many entries to READ
	learning sync.Mutex    // held to change the patch; only tried, never waited for
}

func newTailList(at model.Tail) *tailList {
	if at.Addr == 0 {
		return nil
	}
	l := &tailList{addr: at.Addr}
	l.next.Store(at.Next)
	return l
}

// learn remembers a leaf that a chase found, unless the tail list has already added
// it.
func (l *tailList) learn(of *heldSub, found patchLeaf) {
	if !l.learning.TryLock() {
		return
	}
	defer l.learning.Unlock()
	var known leafList
	if p := of.patch.Load(); p != nil {
		known = p.before
	}
	if k := known.last(found.low); k == nil || k.low != found.low || k.addr != found.addr {
		of.patch.Store(&patch{before: known.grown(&found)})
	}
}

// take remembers leaves that splits have made, in the order of their numbers. next is
// the number of the entry after them. It returns false if another operation is
// learning.
func (l *tailList) take(of *heldSub, leaves []patchLeaf, next uint64) bool {
	if !l.learning.TryLock() {
		return false
	}
	defer l.learning.Unlock()
	for len(leaves) > 0 && leaves[0].number < l.next.Load() {
		leaves = leaves[1:] // another operation has added these
	}
	if len(leaves) > 0 {
		var known leafList
		if p := of.patch.Load(); p != nil {
			known = p.before
		}
		of.patch.Store(&patch{before: known.grown(pointers(leaves)...)})
	}
	if l.next.Load() < next {
		l.next.Store(next)
	}
	return true
}

// pointers returns pointers to copies of leaves.
func pointers(leaves []patchLeaf) []*patchLeaf {
	own, ps := slices.Clone(leaves), make([]*patchLeaf, len(leaves))
	for i := range own {
		ps[i] = &own[i]
	}
	return ps
}

// adopt copies from an older copy of the same sub-model the splits that it has learnt
// of since the training of this one.
func (s *heldSub) adopt(old *heldSub, h *cache) {
	if old == nil {
		return
	}
	if old.tail == nil && s.model.HasTT() {
		s.adoptChased(old, h)
		return
	}
	if old.tail == nil || s.tail == nil || old.tail.addr != s.tail.addr {
		return
	}
	first, next, p := s.tail.next.Load(), old.tail.next.Load(), old.patch.Load()
	if next <= first {
		return
	}
	s.tail.window.Store(old.tail.window.Load())
	s.tail.next.Store(next)
	if p == nil {
		return
	}
	var leaves []patchLeaf
	for _, l := range p.before.leaves {
		if l.number >= first {
			leaves = append(leaves, *l)
			leaves[len(leaves)-1].from = s.model.Predict(h.Input(l.low, s.prefix)).Leaf
		}
	}
	if len(leaves) > 0 {
		s.patch.Store(&patch{before: listOf(pointers(leaves))})
	}
}

// adoptChased copies leaves that the model does not name: most of them were split off
// after its training.
func (s *heldSub) adoptChased(old *heldSub, h *cache) {
	p := old.patch.Load()
	if p == nil {
		return
	}
	var kept []patchLeaf
	for _, l := range p.all() {
		pred := s.model.Predict(h.Input(l.low, s.prefix))
		if h.root.Layout.LeafAddr(pred.ALN) != l.addr {
			kept = append(kept, *l)
			kept[len(kept)-1].from = pred.Lo
		}
	}
	if len(kept) > 0 {
		s.patch.Store(&patch{before: listOf(pointers(kept))})
	}
}

// grown returns the list with more leaves, which were seen just now. If keys ascend,
// each new leaf begins after all others: then both lists share memory. So only the
// newest list of a sub-model may grow, by one goroutine at a time.
//
// A leaf of this list keeps its original high fence, even if later leaves begin below
// that: a search finds these first.
func (s leafList) grown(leaves ...*patchLeaf) leafList {
	for i, l := range leaves {
		n := len(s.leaves)
		e, ok := s.briefOf(l)
		if n == 0 || n == freshMax || !ok || !below(s.leaves[n-1].low, l.low) {
			return s.with(leaves[i:])
		}
		s.leaves, s.briefs = append(s.leaves, l), append(s.briefs, e)
	}
	return s
}

// with returns a copy of the list with more leaves inserted. Listed leaves that begin
// within a new one are dropped.
func (s leafList) with(leaves []*patchLeaf) leafList {
	if len(s.leaves) == 0 {
		s, leaves = listOf(leaves[:1]), leaves[1:]
	}
	room := len(s.leaves) + len(leaves) + latelyMax
	all := leafList{leaves: append(make([]*patchLeaf, 0, room), s.leaves...), briefs: append(make([]brief, 0, room), s.briefs...), prefix: s.prefix}
	at := 0
	for _, l := range leaves {
		e, ok := all.briefOf(l)
		if !ok {
			all.prefix = all.prefix[:leaf.Common(all.prefix, l.low.Str)]
			all.digestAll()
			e, _ = all.briefOf(l)
		}
		at = all.upTo(l.low)
		end := at
		if at > 0 && all.leaves[at-1].low == l.low {
			at--
		}
		for end < len(all.leaves) && l.reaches(all.leaves[end].low) {
			end++
		}
		all.leaves, all.briefs = slices.Replace(all.leaves, at, end, l), slices.Replace(all.briefs, at, end, e)
	}
	if n := len(all.leaves); n > freshMax { // leaves near the newest one stay
		from := min(max(at-freshMax/4, 0), n-freshMax/2)
		all.leaves, all.briefs = all.leaves[from:from+freshMax/2], all.briefs[from:from+freshMax/2]
	}
	return all
}

// isTip reports whether leaf i of the list of a hot sub-model is the last known leaf
// of ascending keys.
func (s *leafList) isTip(i int) bool {
	l := s.leaves[i]
	return l.rising && (i+1 == len(s.leaves) || !l.reaches(s.leaves[i+1].low))
}

// news is the state of a READ of a part of a tail list.
type news struct {
	of      *heldSub
	sub     int
	wr      int
	from    uint64 // number of the first entry that was READ
	buf     []uint64
	entries []patchLeaf
	pending bool
	more    bool // the list has entries after the last READ
	asked   int  // READs by this operation
}

// resetNews begins an operation.
func (f *finder) resetNews() {
	if f.news != nil {
		f.news.pending, f.news.more, f.news.asked, f.news.of = false, false, 0, nil
	}
}

// askNews appends a READ of the new entries in the tail list of a sub-model, unless
// it has no list or the list has just been READ to its end.
func (f *finder) askNews(sub int, next *rdma.Batch) {
	if sub < 0 || !f.h.Trained() {
		return
	}
	held := f.h.held[sub].Load()
	if held == nil || held.tail == nil {
		return
	}
	n := f.news
	if n == nil {
		n = &news{}
		f.news = n
	}
	if n.pending || n.asked == newsMax || n.of == held && !n.more {
		return
	}
	l, size := held.tail, f.h.root.TailEntryWords()
	n.of, n.sub, n.from, n.pending = held, sub, l.next.Load(), true
	n.asked++
	count := max(int(l.window.Load()), newsLeast/size)
	count = min(count, int(f.h.root.TailEntries()-n.from%f.h.root.TailEntries()))
	n.buf = grow(n.buf, count*size)
	n.wr = next.Read(f.c.rkey, f.h.root.TailSlot(l.addr, n.from), n.buf)
	f.reads++
}

// takeNews adds the entries of the part of a tail list that was READ, if one was, to
// the patch.
func (f *finder) takeNews(done *rdma.Batch) {
	if f.way != nil {
		f.takeFresh(done)
		return
	}
	if f.news != nil && f.news.pending {
		f.decodeNews(done)
	}
}

func (f *finder) decodeNews(done *rdma.Batch) {
	n := f.news
	n.pending, n.more = false, false
	if done.WRs[n.wr].Status != rdma.StatusOK {
		return // the other READ of the round shows the cause
	}
	root, l := &f.h.root, n.of.tail
	size, laps := root.TailEntryWords(), root.TailEntries()
	n.entries = n.entries[:0]
	next, newest := n.from, uint64(0)
	for b := n.buf; len(b) > 0; b = b[size:] {
		e, number, ok := root.TailEntryOf(b, l.addr, next, n.of.prefix)
		if !ok {
			break
		}
		next, newest = next+1, max(newest, number)
		if model.ValidAddr(e.Leaf) {
			from := n.of.model.Predict(f.h.Input(e.Low, n.of.prefix)).Leaf
			n.entries = append(n.entries, patchLeaf{low: e.Low, high: e.High, bounded: e.Bounded, addr: e.Leaf, from: from, number: number, rising: e.Rising})
		}
	}
	n.more = next-n.from == uint64(len(n.buf)/size)
	window := min(max(2*(next-n.from)+1, newsLeast/uint64(size)), newsMost/uint64(size))
	if n.more { // it may have been short only because the ring ends
		window = max(window, uint64(l.window.Load()))
	}
	if l.window.Store(int32(window)); next == n.from {
		return
	}
	if newest >= n.from+laps { // the ring has wrapped: go on with the oldest entry that is left
		next, n.more = max(newest-laps+1, next), true
		slices.SortFunc(n.entries, func(a, b patchLeaf) int { return cmp.Compare(a.number, b.number) })
	}
	if !l.take(n.of, n.entries, next) {
		n.more = false // another operation is learning
	}
}

// known returns the listed leaf that covers the finder's key, according to the splits
// that the client has learnt of. ok is false if there is none, or if it is one of the
// two given leaves.
func (f *finder) known(sub int, not, nor uint64) (addr uint64, ok bool) {
	if f.way != nil {
		return f.fresher(not, nor)
	}
	if sub < 0 || !f.h.Trained() {
		return 0, false
	}
	held := f.h.held[sub].Load()
	if held == nil {
		return 0, false
	}
	p := held.patch.Load()
	if p == nil {
		return 0, false
	}
	l := p.leaf(p.place(f.key))
	if l == nil || !l.reaches(f.key) || l.addr == not || l.addr == nor {
		return 0, false
	}
	return l.addr, true
}

// covered reports whether a sub-model has a tail list that can still supply the
// leaves that the model lacks. Then a chase of right links is no reason to fetch the
// sub-model again.
func (f *finder) covered(sub int) bool {
	if f.way != nil {
		return true // the bottom node is READ again beside the leaf
	}
	if !f.h.Trained() {
		return false
	}
	held := f.h.held[sub].Load()
	if held == nil || held.tail == nil {
		return false
	}
	p := held.patch.Load()
	return p == nil || len(p.before.leaves) < freshEnough
}

// freshCursor is a scan's position in the patch of a sub-model.
type freshCursor struct {
	of *patch
	at place // the next leaves of its lists
}

// next returns the brief of the next leaf, nil if only a look at the leaves tells which
// one it is, or that there is none.
func (c *freshCursor) next() *brief {
	if s := c.of.before.briefs; len(c.of.lately.leaves) == 0 && c.at.before < len(s) {
		return &s[c.at.before]
	}
	return nil
}

// leaf returns the next leaf, nil if there is none. late says that it is one of
// of.lately.
func (c *freshCursor) leaf() (l *patchLeaf, late bool) {
	before, lately := c.of.before.leaves, c.of.lately.leaves
	if c.at.late > 0 {
		for c.at.before < len(before) && lately[c.at.late-1].reaches(before[c.at.before].low) {
			c.at.before++ // hidden
		}
	}
	switch {
	case c.at.late < len(lately) && (c.at.before == len(before) || !below(before[c.at.before].low, lately[c.at.late].low)):
		return lately[c.at.late], true
	case c.at.before < len(before):
		return before[c.at.before], false
	}
	return nil, false
}

// skip moves to the leaf after the one that leaf returned.
func (c *freshCursor) skip(late bool) {
	if late {
		c.at.late++
	} else {
		c.at.before++
	}
}

// beginFresh sets the cursor to the leaf that the finder has found in the list of a
// hot sub-model, and reports whether the range ends in that leaf.
func (o *scanOp) beginFresh(s *leafList) (alone bool) {
	i := o.listedAt
	if s.isTip(i) {
		o.tip = o.sub
	}
	l := s.leaves[i]
	if i+1 < len(s.leaves) && l.reaches(s.leaves[i+1].low) {
		return o.kind.beyond(s.leaves[i+1].low)
	}
	return l.bounded && o.kind.beyond(l.high)
}

// freshAhead returns the next leaf of the patch of a sub-model, if it begins before the
// next leaf of the model. left says that the model has a next leaf.
func (o *scanOp) freshAhead(left bool) (addr uint64, ok bool) {
	held := o.h.held[o.aheadSub].Load()
	if held == nil {
		return 0, false
	}
	p, c := held.patch.Load(), &o.cursor
	if p == nil {
		return 0, false
	}
	if c.of != p {
		o.kind.seek()
		c.of, c.at = p, p.place(o.key)
	}
	// A string is beyond no number, so the second test passes over string keys.
	if e := c.next(); e != nil && (left && e.from >= o.aheadLeaf || o.kind.beyond(index.Num(e.low))) {
		return 0, false
	}
	for l, late := c.leaf(); l != nil; l, late = c.leaf() {
		if left && l.from >= o.aheadLeaf || o.kind.beyond(l.low) {
			break
		}
		if held.tail != nil && p.before.isTip(c.at.before) { // all leaves of a hot sub-model are in before
			o.tip = o.aheadSub
		}
		c.skip(late)
		if l.from >= 0 {
			return l.addr, true
		}
	}
	return 0, false
}
