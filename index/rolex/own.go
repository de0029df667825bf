package rolex

import (
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// The data server changes leaves itself, too, beside the writers and by their rules: for
// transactions that its clients send it, and to take empty leaves out. It is owner 0. It needs
// no intent, because it does not end without its memory.

// local is where the data server finds leaves.
type local struct {
	*Server
	taken []Spare
}

// leaf returns a copy of the leaf that covers a key.
func (s *local) leaf(key, hint uint64) (uint64, image, error) {
	m := image{s.l, make([]uint64, s.l.LeafWords)}
	addr := hint
	for steps := 0; steps <= int(s.leaves.Load())+tornMax; steps++ {
		if _, ok := s.leafAt(addr); !ok {
			addr = s.nearest(key).addr
		}
		h, ok := s.copy(m, addr)
		switch {
		case h.Held():
			return 0, m, &HeldError{addr, h}
		case !ok: // it was changed meanwhile
		case h.Dead() || m.check(addr) != nil || key < m.low():
			if addr == s.nearest(key).addr {
				return 0, m, fmt.Errorf("%w: rolex: leaf %#x is not where it was", index.ErrCorrupt, addr)
			}
			addr = 0
		case !m.above(key):
			return addr, m, nil
		default:
			addr = m.right()
		}
	}
	return 0, m, fmt.Errorf("%w: key %d", ErrChanged, key)
}

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

func (s *local) spare() (Spare, error) {
	addr, err := s.newLeaf()
	if err != nil {
		return Spare{}, err
	}
	one := Spare{addr, s.header(addr)}
	s.taken = append(s.taken, one)
	return one, nil
}

// Lookup returns a row, nil if there is none, and what proves that. It returns a HeldError if
// a writer holds the leaf.
func (s *Server) Lookup(key uint64) (row []uint64, p index.Proof, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	addr, m, err := (&local{Server: s}).leaf(key, 0)
	if err != nil {
		return nil, p, err
	}
	if i := m.find(key); i >= 0 {
		row = m.row(i)
	}
	return row, index.Proof{Addr: addr, Word: uint64(m.header())}, nil
}

// Commit performs writes as one transaction of the data server, if what the proofs say still
// holds when it has locked what it changes. After an error nothing has happened.
func (s *Server) Commit(writes []Write, proofs []index.Proof) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	from := &local{Server: s}
	changes, err := s.l.plan(from, writes)
	if err == nil {
		err = s.hold(changes)
	}
	if err == nil {
		if err = s.prove(proofs); err != nil {
			s.letGo(changes)
		}
	}
	if err != nil {
		for _, one := range from.taken {
			s.spares = append(s.spares, one.Addr)
		}
		return err
	}
	for _, c := range changes {
		if c.fresh {
			s.span(c.addr).Slice(1, s.l.LeafWords-1).CopyIn(c.will.w[1:])
			s.swap(c.addr, c.was.header(), c.will.header())
		}
	}
	s.finish(changes)
	for _, c := range changes {
		if c.fresh {
			s.learn(c.will, c.addr)
		}
	}
	return nil
}

// hold locks the leaves that a transaction of the server changes, or none.
func (s *Server) hold(changes []change) error {
	for i := range changes {
		c := &changes[i]
		if c.fresh || s.swap(c.addr, c.was.header(), c.from(0)) {
			continue
		}
		s.letGo(changes[:i])
		if h := s.header(c.addr); h.Held() {
			return &HeldError{c.addr, h}
		}
		return fmt.Errorf("%w: leaf %#x", ErrChanged, c.addr)
	}
	return nil
}

// letGo undoes hold.
func (s *Server) letGo(changes []change) {
	for i := range changes {
		if c := &changes[i]; !c.fresh {
			s.swap(c.addr, c.from(0), c.was.header())
		}
	}
}

// prove checks proofs while the server holds what it changes.
func (s *Server) prove(proofs []index.Proof) error {
	for _, p := range proofs {
		if _, ok := s.leafAt(p.Addr); !ok {
			return fmt.Errorf("%w: there is no leaf %#x", ErrChanged, p.Addr)
		}
		h := s.header(p.Addr)
		if h.Held() && h.Owner() == 0 {
			h = h.release() // held by this transaction: the server has one at a time
		}
		if uint64(h) != p.Word {
			return fmt.Errorf("%w: leaf %#x", ErrChanged, p.Addr)
		}
	}
	return nil
}

// finish changes the words of leaves that the server holds, and unlocks them.
func (s *Server) finish(changes []change) {
	for i := range changes {
		if c := &changes[i]; !c.fresh {
			p := s.span(c.addr)
			c.runs(func(first, n int) { p.Slice(first, n).CopyIn(c.will.w[first : first+n]) })
		}
	}
	for i := range changes {
		if c := &changes[i]; !c.fresh {
			s.swap(c.addr, c.from(0), c.will.header())
		}
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
		{addr: l.addr, was: b, will: image{s.l, append([]uint64(nil), b.w...)}},
		{addr: left.addr, was: a, will: image{s.l, append([]uint64(nil), a.w...)}},
	}
	if s.hold(changes) != nil {
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
