package rolex

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// knownLeaf is a leaf that the server knows of, by its low fence, which never changes.
type knownLeaf struct{ low, addr uint64 }

func (l knownLeaf) before(m knownLeaf) bool { return l.low < m.low }

// givenLeaf is a leaf that a writer was given for a split.
type givenLeaf struct {
	addr uint64
	to   *record
}

// leaves are those of a server as its trainer sees them. Writers change them meanwhile: what
// the trainer learns may be old, as models may be. Its lock is the server's, which keeps no
// writer out.
type leaves struct{ *Server }

// Layout implements train.Leaves.
func (s leaves) Layout() leaf.Layout { return s.l.Layout }

// First implements train.Leaves.
func (s leaves) First() uint64 { return s.first }

// Inner implements train.Leaves: there are no inner nodes.
func (s leaves) Inner() uint64 { return 0 }

// Leaves implements train.Leaves.
func (s leaves) Leaves() uint64 { return s.leaves.Load() }

// pollAtOnce is how many leaves given to writers are looked at for each that the trainer would
// tidy.
const pollAtOnce = 4

// Tidy implements train.Leaves: it takes empty leaves out, and looks for leaves that writers
// have made part of the index. A push by the writers, as in the paper, would be lost with them.
func (s leaves) Tidy(limit int) (worked bool) {
	for n := min(limit*pollAtOnce, len(s.given)); n > 0 && len(s.given) > 0; n-- {
		if s.polled >= len(s.given) {
			s.polled = 0
		}
		g := s.given[s.polled]
		if s.header(g.addr).Dead() {
			s.polled++
			continue
		}
		if !s.discover(g.addr) {
			s.polled++ // it is looked at again
			continue
		}
		last := len(s.given) - 1
		s.given[s.polled] = s.given[last]
		s.given = s.given[:last]
		worked = true
	}
	return s.sweep(limit) || worked
}

// discover makes a leaf known that a writer has made part of the index. It returns false while
// the leaf is being changed.
func (s *Server) discover(addr uint64) bool {
	m := image{s.l, make([]uint64, s.l.LeafWords)}
	h, ok := s.copy(m, addr)
	if !ok || h.Dead() {
		return false
	}
	if m.check(addr) == nil { // else a hostile writer has made it
		s.learn(m, addr)
	}
	return true
}

// learn makes a leaf known that a split has made.
func (s *Server) learn(m image, addr uint64) {
	if _, found := s.known.Get(knownLeaf{low: m.low()}); found {
		return // a hostile writer
	}
	s.known.ReplaceOrInsert(knownLeaf{m.low(), addr})
	s.leaves.Add(1)
	last := leaf.IsLast(m.w[leaf.MetaWord])
	s.trainer.Changed(index.Num(m.low()), index.Num(m.w[leaf.HighWord]), !last, addr, m.meta().Live <= 1)
}

// Walk implements train.Leaves. It follows right links from the nearest leaf that is known, so
// that it meets those that are not known yet.
func (s leaves) Walk(from index.Key, f func(low index.Key, leaf uint64) bool) {
	at := s.nearest(from.Num)
	for steps := (s.end - s.l.leavesAt) / s.l.LeafBytes(); steps > 0; steps-- {
		next, ok := s.after(at)
		if !ok || next.low > from.Num {
			if !f(index.Num(at.low), at.addr) || !ok {
				return
			}
		}
		at = next
	}
}

// after returns the leaf on the right of another. ok is false at the end, and if what a writer
// has left there is no leaf.
func (s leaves) after(l knownLeaf) (next knownLeaf, ok bool) {
	p := s.span(l.addr)
	addr := p.Load(leaf.RightWord)
	q, ok := s.leafAt(addr)
	if !ok || leaf.IsLast(p.Load(leaf.MetaWord)) {
		return next, false
	}
	next = knownLeaf{q.Load(leaf.LowWord), addr}
	return next, next.low > l.low
}

// Keys implements train.Leaves.
func (s leaves) Keys(addr uint64, dst []uint64) (words []uint64, prefix int, ok bool) {
	m := image{s.l, make([]uint64, s.l.LeafWords)}
	p, ok := s.region.Span(addr, s.l.LeafBytes()) // not leafAt: the caller has no lock
	if !ok {
		return dst, 0, false
	}
	before := p.Load(block.HeaderWord)
	p.CopyOut(m.w)
	mem.Acquire()
	h := Header(p.Load(block.HeaderWord))
	if h != Header(before) || h.Held() || h.Dead() || m.check(addr) != nil {
		return dst, 0, false
	}
	for _, i := range m.order() {
		dst = append(dst, m.w[m.l.KeysAt+int(i)])
	}
	return dst, 0, true
}
