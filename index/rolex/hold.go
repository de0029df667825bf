package rolex

import (
	"errors"
	"fmt"
	"slices"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
)

// The data server's own transactions lock rows as index.Server says. What they lock is the
// leaf: its header is what writers and readers look at. So one transaction may lock any number
// of rows in a leaf, and another none of them meanwhile.

// holding is a leaf that transactions of the data server hold: one that writes there, or some
// that have read it and are prepared. What the transaction changes is in m. The leaf gets it when
// the last lock ends, in one piece.
type holding struct {
	owner index.Owner // the one that writes; 0: none
	addr  uint64
	was   Header // of the leaf when it is not held
	m     image  // has rows for keys that are locked and absent, too
	locks []*index.Held
	dirty bool // m is not what the leaf has, beside such rows

	readers []index.Owner // those that have read it
}

// mayWrite reports whether a transaction may change the leaf.
func (hd *holding) mayWrite(o index.Owner) bool {
	if hd.owner != 0 {
		return hd.owner == o
	}
	return !slices.ContainsFunc(hd.readers, func(r index.Owner) bool { return r != o })
}

// stays reports whether the leaf is as it was, and nobody can change it yet.
func (hd *holding) stays() bool { return hd.owner == 0 && !hd.dirty }

func (hd *holding) lock(key uint64) *index.Held {
	for _, h := range hd.locks {
		if h.Key.Num == key {
			return h
		}
	}
	return nil
}

// seek returns the leaf that covers a key. If a transaction of the data server holds it, hd is
// what it holds; otherwise m is a copy of the leaf, valid until the next call. err is a HeldError
// if a writer holds it, or wraps ErrChanged if it changes all the time.
func (s *Server) seek(key, hint uint64) (addr uint64, hd *holding, m image, err error) {
	addr = hint
	known := false    // the search began at a known leaf, and not at the hint
	from := uint64(0) // low fence of the leaf to come
	// Writers split leaves, and the server learns of the new ones later: there may be any number
	// between a known leaf and the key.
	for steps := (s.end-s.l.leavesAt)/s.l.LeafBytes() + tornMax; steps > 0; steps-- {
		_, ok := s.leafAt(addr)
		switch {
		case !ok && known:
			return 0, nil, m, corruptAt(addr)
		case !ok:
			addr, known, from = s.nearest(key).addr, true, 0
		}
		var h Header
		ok = true
		if hd = s.holds[addr]; hd != nil {
			m, h = hd.m, hd.was
		} else {
			m = s.scratch
			h, ok = s.copy(m, addr)
		}
		switch {
		case h.Held():
			return 0, nil, m, &HeldError{addr, h}
		case !ok: // it was changed meanwhile
		case h.Dead() || hd == nil && m.check(addr) != nil || key < m.low() || m.low() < from:
			if known { // nobody but the server takes leaves out, so a hostile writer has changed it
				return 0, nil, m, corruptAt(addr)
			}
			addr = 0
		case !m.above(key):
			return addr, hd, m, nil
		default: // fences rise to the right, so that the links of a hostile writer end, too
			from, addr = m.w[leaf.HighWord], m.right()
		}
	}
	return 0, nil, m, fmt.Errorf("%w: key %d", ErrChanged, key)
}

func corruptAt(addr uint64) error {
	return fmt.Errorf("%w: rolex: leaf %#x is not where it was", index.ErrCorrupt, addr)
}

// LockWrite implements index.Server. A leaf that a writer holds counts as a report of it, so that
// a writer that has stopped does not keep the data server from writing.
func (s *Server) LockWrite(o index.Owner, key index.Key, hint uint64) (*index.Held, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hd, err := s.holdFor(o, key.Num, hint)
	if err != nil {
		return nil, err
	}
	if h := hd.lock(key.Num); h != nil {
		return h, nil
	}
	existed := hd.m.find(key.Num) >= 0
	if !existed && !hd.m.put(key.Num, nil) {
		at, err := s.splitHeld(hd, key.Num)
		if err != nil {
			s.unlessHeld(hd)
			return nil, err
		}
		hd = at
		hd.m.put(key.Num, nil)
	}
	h := s.helds.New(index.Held{
		Key: index.Num(key.Num), Owner: o, Addr: s.proof(hd.addr, 0).Addr, Prev: block.Header(hd.was), Existed: existed, Home: hd.addr,
	})
	hd.locks = append(hd.locks, h)
	return h, nil
}

// holdFor makes the leaf that covers a key one that o holds, or returns an error that wraps
// index.ErrLocked: index.ErrHeldByClient if a writer holds the leaf, or changes it all the time.
func (s *Server) holdFor(o index.Owner, key, hint uint64) (*holding, error) {
	for range tornMax {
		addr, hd, m, err := s.seek(key, hint)
		if held, ok := err.(*HeldError); ok && s.report(held.Leaf, held.Header) {
			continue // its owner is settled
		}
		switch {
		case errors.Is(err, index.ErrCorrupt):
			return nil, err
		case err != nil:
			return nil, fmt.Errorf("%w: %w", index.ErrHeldByClient, err)
		case hd != nil && !hd.mayWrite(o):
			return nil, index.ErrLocked
		case hd != nil:
			hd.owner = o
			return hd, nil
		case s.o.Locks != nil && !s.o.Locks.Empty() && s.o.Locks.SharedByOther(s.proof(addr, 0).Addr, o):
			return nil, index.ErrLocked
		}
		if was := m.header(); s.swap(addr, was, was.hold(0)) {
			hd = &holding{owner: o, addr: addr, was: was, m: m.clone()}
			s.holds[addr] = hd
			return hd, nil
		} // a writer was faster
	}
	return nil, fmt.Errorf("%w: key %d", index.ErrHeldByClient, key)
}

// splitHeld splits a leaf that is held, so that there is room for a key. It returns the half
// that covers the key; the other is held as long as it has locks.
func (s *Server) splitHeld(hd *holding, key uint64) (*holding, error) {
	addr, err := s.newLeaf()
	if err != nil {
		return nil, err
	}
	before := s.header(addr)
	right := &holding{
		owner: hd.owner, addr: addr, was: before.next(), m: image{s.l, make([]uint64, s.l.LeafWords)}, dirty: true,
		readers: slices.Clone(hd.readers), // they have read what is there now
	}
	hd.m.split(right.m, addr, key)
	hd.dirty = true
	// A right link leads here once the left half is not held any more.
	s.span(addr).Slice(1, s.l.LeafWords-1).CopyIn(right.m.w[1:])
	s.swap(addr, before, right.was.hold(0))
	s.holds[addr] = right
	kept := hd.locks[:0]
	for _, h := range hd.locks {
		if !right.m.covers(h.Key.Num) {
			kept = append(kept, h)
			continue
		}
		h.Addr, h.Home, h.Prev = s.proof(addr, 0).Addr, addr, block.Header(right.was)
		right.locks = append(right.locks, h)
	}
	hd.locks = kept
	if s.o.Locks != nil {
		s.o.Locks.Copy(s.proof(hd.addr, 0).Addr, s.proof(addr, 0).Addr)
	}
	s.learn(right.m, addr)
	of, other := hd, right
	if right.m.covers(key) {
		of, other = right, hd
	}
	s.unlessHeld(other)
	return of, nil
}

// unlock ends a lock, and returns its leaf.
func (s *Server) unlock(h *index.Held) *holding {
	hd := s.holds[h.Home]
	i := slices.Index(hd.locks, h)
	hd.locks = slices.Delete(hd.locks, i, i+1)
	return hd
}

// unhold ends the hold of a leaf without locks.
func (s *Server) unhold(hd *holding) {
	delete(s.holds, hd.addr)
	if !hd.dirty {
		s.swap(hd.addr, hd.was.hold(0), hd.was)
		return
	}
	to := hd.was.next()
	hd.m.seal(hd.addr, to)
	s.span(hd.addr).Slice(1, s.l.LeafWords-1).CopyIn(hd.m.w[1:])
	s.swap(hd.addr, hd.was.hold(0), to)
}

// Publish implements index.Server. The header is not used: the leaf has its own.
func (s *Server) Publish(h *index.Held, row []uint64, _ block.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hd := s.unlock(h)
	hd.m.put(h.Key.Num, row)
	hd.dirty = true
	s.unlessHeld(hd)
}

// PublishDelete implements index.Server.
func (s *Server) PublishDelete(h *index.Held, _ block.Header) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hd := s.unlock(h)
	hd.m.remove(h.Key.Num)
	hd.dirty = hd.dirty || h.Existed
	s.unlessHeld(hd)
}

// Release implements index.Server.
func (s *Server) Release(h *index.Held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	hd := s.unlock(h)
	if !h.Existed {
		hd.m.remove(h.Key.Num)
	}
	s.unlessHeld(hd)
}

// unlessHeld ends the hold of a leaf that nobody has locked or read.
func (s *Server) unlessHeld(hd *holding) {
	if len(hd.locks) > 0 {
		return
	}
	if hd.owner = 0; len(hd.readers) == 0 {
		s.unhold(hd)
	}
}

// Share keeps a leaf as it is until Unshare, also from writers, for a transaction that has read it
// and is prepared. It reports false if what the proof says does not hold any more, or if another
// transaction or a writer is changing the leaf: a stopped writer is reported. Several
// transactions may share a leaf. One that is alone with it may lock rows there as well.
func (s *Server) Share(p index.Proof, o index.Owner) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	region, addr := index.RegionOf(p.Addr)
	was := Header(p.Word)
	if region != s.o.Region || was.Held() || was.Dead() {
		return false
	}
	hd := s.holds[addr]
	switch {
	case hd == nil:
		at, ok := s.leafAt(addr)
		if !ok {
			return false
		}
		if !s.swap(addr, was, was.hold(0)) {
			s.report(addr, s.header(addr))
			return false
		}
		hd = &holding{addr: addr, was: was, m: image{s.l, make([]uint64, s.l.LeafWords)}}
		at.CopyOut(hd.m.w)
		hd.m.w[block.HeaderWord] = uint64(was)
		if hd.m.check(addr) != nil { // the server trusts the copies of leaves that it holds
			s.swap(addr, was.hold(0), was)
			return false
		}
		s.holds[addr] = hd
	case hd.was != was || hd.dirty || hd.owner != 0 && hd.owner != o:
		return false
	}
	if !slices.Contains(hd.readers, o) {
		hd.readers = append(hd.readers, o)
	}
	return true
}

// Unshare ends what Share has begun with a proof at the address, and with its copies (see
// index.SharedLocks).
func (s *Server) Unshare(proof uint64, o index.Owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, addr := index.RegionOf(proof)
	if hd := s.holds[addr]; hd != nil {
		hd.readers = slices.DeleteFunc(hd.readers, func(r index.Owner) bool { return r == o })
		s.unlessHeld(hd)
	}
}

// Reserve implements index.Server: rows have one size.
func (s *Server) Reserve(_ *index.Held, words int) error {
	if words != s.l.RowWords {
		return fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, words, s.l.RowWords)
	}
	return nil
}

// Holds reports whether what a proof says still holds, for a transaction that has locked all that
// it writes: writers may change anything else at any time, also between a look and a lock.
func (s *Server) Holds(p index.Proof, o index.Owner) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	region, addr := index.RegionOf(p.Addr)
	if region != s.o.Region {
		return false
	}
	if hd := s.holds[addr]; hd != nil {
		return (hd.stays() || hd.mayWrite(o)) && uint64(hd.was) == p.Word
	}
	_, ok := s.leafAt(addr)
	return ok && uint64(s.header(addr)) == p.Word
}
