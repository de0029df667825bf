package rolex

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// The data server changes leaves itself, too, beside the writers and by their rules: for
// transactions that its clients send it (see hold.go), and to take empty leaves out. It is owner
// 0. It needs no intent, because it does not end without its memory.

// nearest returns the last known leaf that begins at or before a key.
func (s *Server) nearest(key uint64) knownLeaf {
	at := knownLeaf{0, s.first}
	s.known.DescendLessOrEqual(knownLeaf{low: key}, func(l knownLeaf) bool {
		at = l
		return false
	})
	return at
}

// copy copies a leaf, and returns its header. ok is false if it was being changed.
func (s *Server) copy(m image, addr uint64) (h Header, ok bool) {
	p := s.span(addr)
	h = Header(p.Load(block.HeaderWord))
	p.CopyOut(m.w)
	mem.Acquire()
	return h, !h.Held() && Header(p.Load(block.HeaderWord)) == h && m.header() == h
}

// take locks leaves that the server changes for itself, or none, and reports whether it did.
func (s *Server) take(changes []change) bool {
	for i := range changes {
		if c := &changes[i]; s.swap(c.addr, c.was.header(), c.from(0)) {
			continue
		}
		for _, c := range changes[:i] {
			s.swap(c.addr, c.from(0), c.was.header())
		}
		return false
	}
	return true
}

// finish changes the words of leaves that the server holds, and unlocks them.
func (s *Server) finish(changes []change) {
	for i := range changes {
		c := &changes[i]
		p := s.span(c.addr)
		c.runs(func(first, n int) { p.Slice(first, n).CopyIn(c.will.w[first : first+n]) })
	}
	for i := range changes {
		c := &changes[i]
		s.swap(c.addr, c.from(0), c.will.header())
	}
}

// sweep looks at some leaves, and takes those out that are empty. It reports whether there were
// any.
func (s *Server) sweep(limit int) (worked bool) {
	var empty []knownLeaf
	n := 0
	s.known.AscendGreaterOrEqual(knownLeaf{low: s.swept}, func(l knownLeaf) bool {
		if n++; n > limit {
			s.swept = l.low
			return false
		}
		p := s.span(l.addr)
		if leaf.Unpack(p.Load(leaf.MetaWord)).Live == 0 && l.addr != s.first {
			empty = append(empty, l)
		}
		return true
	})
	if n <= limit {
		s.swept = 0
	}
	for _, l := range empty {
		worked = s.unlink(l) || worked
	}
	return worked
}

// unlink takes an empty leaf out of the index, unless a writer is faster: the leaf on its left
// covers its keys from then on. Its memory serves again at once, because no header repeats.
func (s *Server) unlink(l knownLeaf) bool {
	left := s.nearest(l.low - 1)
	for steps := 0; s.span(left.addr).Load(leaf.RightWord) != l.addr; steps++ {
		next, ok := leaves{s}.after(left)
		if !ok || next.low >= l.low || steps == leftSteps {
			return false
		}
		left = next // it was split off, and is not known yet
	}
	a, b := image{s.l, make([]uint64, s.l.LeafWords)}, image{s.l, make([]uint64, s.l.LeafWords)}
	ha, okA := s.copy(a, left.addr)
	hb, okB := s.copy(b, l.addr)
	if !okA || !okB || ha.Dead() || hb.Dead() || a.check(left.addr) != nil || b.check(l.addr) != nil || b.meta().Live > 0 || a.right() != l.addr {
		return false
	}
	changes := []change{
		{addr: l.addr, was: b, will: b.clone()},
		{addr: left.addr, was: a, will: a.clone()},
	}
	if !s.take(changes) {
		return false
	}
	gone, stays := changes[0].will, changes[1].will
	meta := stays.meta()
	meta.Last = b.meta().Last
	stays.w[leaf.MetaWord], stays.w[leaf.HighWord], stays.w[leaf.RightWord] = s.l.Pack(meta), b.w[leaf.HighWord], b.right()
	stays.seal(left.addr, ha.next())
	gone.w[leaf.RightWord] = left.addr // where its keys are: see leaf.Layout's Forward
	gone.w[block.HeaderWord] = uint64(dead(hb.Version() + 1))
	s.finish(changes)
	if s.o.Locks != nil { // who shares that a key is absent shares it in the leaf where it would be inserted now
		s.o.Locks.Move(s.proof(l.addr, 0).Addr, s.proof(left.addr, 0).Addr)
	}
	s.known.Delete(l)
	s.leaves.Add(^uint64(0))
	s.unlinks.Add(1)
	s.spares = append(s.spares, l.addr)
	if s.last == l.addr {
		s.last = s.first
	}
	s.trainer.Changed(index.Num(l.low), index.Num(b.w[leaf.HighWord]), !b.meta().Last, 0, false)
	return true
}

// leftSteps bounds the search for the leaf on the left of another.
const leftSteps = 64
