package hash

import (
	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/invariants"
)

// This file changes chains. A change first opens the head, which locks it, and
// then the other buckets that it needs. commit publishes all of them under one
// version, the head last (see the package comment). Chains are dense: only the
// last bucket of a chain may have empty slots, and they are its last slots.

// openBlock is a bucket being changed.
type openBlock struct {
	addr uint64
	edit block.Edit
}

// open begins a change of the bucket, if the current change has not opened it
// already.
func (s *Server) open(addr uint64) *block.Edit {
	for i := range s.edits {
		if s.edits[i].addr == addr {
			return &s.edits[i].edit
		}
	}
	s.edits = append(s.edits, openBlock{addr, s.arena.Begin(addr, bucketWords)})
	return &s.edits[len(s.edits)-1].edit
}

// openNew begins to fill a bucket that is in no chain.
func (s *Server) openNew(addr uint64, link uint64) *block.Edit {
	s.edits = append(s.edits, openBlock{addr, s.arena.Create(addr, bucketWords)})
	e := &s.edits[len(s.edits)-1].edit
	e.Set(linkWord, link)
	return e
}

// commit publishes the open buckets. The head, which was opened first, comes last.
func (s *Server) commit() block.Header {
	if invariants.Enabled && len(s.edits) == 0 {
		invariants.Failf("hash: no bucket is open, so nothing changes the gap word of a chain")
	}
	v := s.nextVersion()
	for i := len(s.edits) - 1; i >= 0; i-- {
		s.edits[i].edit.Commit(v)
	}
	s.edits = s.edits[:0]
	return v
}

// nextVersion returns the version that the current change gives the chain. It is
// above the head's version, so that it never repeats there. If the change is a
// deletion, it is not below the CSN of the deletion, so that it bounds the commits on
// which the key's absence depends. And it is above the version under which any
// overflow bucket that the chain takes over was freed. It is the smallest such
// version: any other change of a chain, such as the release of a placeholder, raises
// it by one.
func (s *Server) nextVersion() block.Header {
	old := block.Header(s.edits[0].edit.Load(block.HeaderWord)).CSN()
	v := max(old+1, s.least)
	s.least = 0
	s.arena.CoverCSN(v)
	return block.Present(v)
}

// takeOverflow allocates an overflow bucket for the current change.
func (s *Server) takeOverflow() (uint64, error) {
	addr, err := s.overflow.Alloc()
	if err != nil {
		return 0, err
	}
	// A reader with an old head may still read this bucket: it must find a
	// version above that head's.
	s.least = max(s.least, block.CSN(s.load(addr, freedWord))+1)
	return addr, nil
}

// freeOverflow frees an overflow bucket to which no chain leads since version
// v. It locks the bucket first, because a reader with the old head may be
// reading it.
func (s *Server) freeOverflow(addr uint64, v block.Header) {
	sp := s.arena.Span(addr, bucketWords)
	sp.Store(block.HeaderWord, uint64(block.LockBit|block.AbsentBit))
	sp.Store(freedWord, uint64(v.CSN()))
	s.overflow.Free(addr)
}

// load reads a word of a bucket.
func (s *Server) load(addr uint64, word int) uint64 {
	return s.arena.Span(addr, bucketWords).Load(word)
}

// position is a slot of the chain walked last: place i of bucket chain[at].
type position struct{ at, i int }

// walk fills s.chain with the buckets of the chain at head. It returns the position
// of the key's slot and the reference to its row, which is 0 if there is none.
func (s *Server) walk(head, hash uint64, key index.Key) (pos position, row uint64) {
	s.chain = s.chain[:0]
	for addr := head; addr != 0; addr = linkNext(s.load(addr, linkWord)) {
		sp := s.arena.Span(addr, bucketWords)
		for i := 0; row == 0 && i < slots; i++ {
			w := sp.Load(slotWord + i)
			if !slotMatches(w, hash) {
				continue
			}
			if s.strings && s.rowHasStr(slotRef(w), key.Str) || !s.strings && s.arena.Span(slotRef(w), s.rowBlock).Load(keyWord) == key.Num {
				pos, row = position{len(s.chain), i}, slotRef(w)
			}
		}
		s.chain = append(s.chain, addr)
	}
	return pos, row
}

// rowHasStr reports whether the row has the key.
func (s *Server) rowHasStr(ref uint64, key string) bool {
	return hasStr(s.arena.Span(refAddr(ref), refClass(ref).Words()), key)
}

// last returns the position after the last slot in use of the chain walked last.
func (s *Server) last() position {
	at := len(s.chain) - 1
	i := 0
	for i < slots && s.load(s.chain[at], slotWord+i) != 0 {
		i++
	}
	return position{at, i}
}

// link adds a slot to the chain walked last. On an error nothing has changed.
func (s *Server) link(slot uint64) error {
	end := s.last()
	tail := s.chain[end.at]
	if end.i < slots {
		s.open(s.chain[0])
		s.open(tail).Set(slotWord+end.i, slot)
		s.commit()
	} else {
		addr, err := s.takeOverflow()
		if err != nil {
			return full(err)
		}
		s.open(s.chain[0])
		s.setNext(s.open(tail), addr)
		s.openNew(addr, makeLink(kindOverflow, 0, 0)).Set(slotWord, slot)
		s.commit()
	}
	s.linked.Add(1)
	return nil
}

// relink replaces the slot at pos of the chain walked last.
func (s *Server) relink(pos position, slot uint64) {
	s.open(s.chain[0])
	s.open(s.chain[pos.at]).Set(slotWord+pos.i, slot)
	s.commit()
}

// setNext changes the address in the link word and leaves the rest.
func (s *Server) setNext(e *block.Edit, next uint64) {
	e.Set(linkWord, e.Load(linkWord)&^addrMask|next)
}

// unlink takes the slot at pos out of the chain walked last and fills the hole
// with the chain's last slot.
func (s *Server) unlink(pos position) {
	end := s.last()
	end.i--
	s.open(s.chain[0])
	tail := s.open(s.chain[end.at])
	filler := tail.Load(slotWord + end.i)
	tail.Set(slotWord+end.i, 0)
	if pos != end {
		s.open(s.chain[pos.at]).Set(slotWord+pos.i, filler)
	}
	empty := end.i == 0 && end.at > 0
	if empty {
		s.setNext(s.open(s.chain[end.at-1]), 0)
	}
	v := s.commit()
	if empty {
		s.freeOverflow(s.chain[end.at], v)
	}
	s.linked.Add(^uint64(0))
}

// grow splits one bucket if the table is too full. This is the bounded share of
// growth that one insert pays. If there is no memory, or if a transaction
// shares the gap that the split would move, a later insert splits the bucket.
func (s *Server) grow() {
	n := s.buckets.Load()
	if 2*s.linked.Load() <= rowsPerTwoBuckets*n || n>>levelMax != 0 {
		return
	}
	num := bucketOf(n, n) // the bucket that covers the hashes of bucket n
	head := s.bucketAddr(num)
	if s.locks != nil && !s.locks.Empty() && s.locks.SharedByOther(head, 0) {
		return
	}
	added := n >= s.geo.capacity(uint64(len(*s.chunks.Load())))
	if added && s.addChunk() != nil {
		return
	}
	split := s.split(num, n)
	if split {
		s.buckets.Store(n + 1)
	}
	if split || added { // the root names all chunks
		s.publishRoot()
	}
}

// split moves the hashes of bucket num that bucket n covers from now on. Rows
// stay where they are. The new chain is published before the old head is, and
// until then the old head is locked: no reader finds a row in neither.
func (s *Server) split(num, n uint64) bool {
	level := levelOf(n, n+1)
	from, to := s.bucketAddr(num), s.bucketAddr(n)
	stay := s.partition(from, n, level)
	leave := s.moved[stay:]
	fresh, ok := s.allocOverflow(len(leave))
	if !ok {
		return false
	}
	s.open(from)
	s.fillNew(to, level, leave, fresh)
	s.refill(level, s.moved[:stay])
	v := s.commit()
	for _, addr := range s.chain[1+overflowsFor(stay):] {
		s.freeOverflow(addr, v)
	}
	return true
}

// partition walks the chain at from and collects its slots in s.moved: first those
// that stay, then those that bucket n covers. It returns how many stay.
func (s *Server) partition(from, n uint64, level uint8) (stay int) {
	s.chain, s.moved = s.chain[:0], s.moved[:0]
	for addr := from; addr != 0; addr = linkNext(s.load(addr, linkWord)) {
		s.chain = append(s.chain, addr)
		sp := s.arena.Span(addr, bucketWords)
		for i := range slots {
			w := sp.Load(slotWord + i)
			if w == 0 {
				break
			}
			s.moved = append(s.moved, w)
			if !covers(n, level, s.rowHash(slotRef(w))) {
				last := len(s.moved) - 1
				s.moved[stay], s.moved[last] = s.moved[last], s.moved[stay]
				stay++
			}
		}
	}
	return stay
}

// rowHash returns the hash of a row's key.
func (s *Server) rowHash(ref uint64) uint64 {
	if s.strings {
		return strRowHash(s.arena.Span(refAddr(ref), refClass(ref).Words()))
	}
	return hashKey(s.arena.Span(ref, s.rowBlock).Load(keyWord))
}

// overflowsFor returns the number of overflow buckets of a chain with n slots.
func overflowsFor(n int) int { return max(0, (n-1)/slots) }

func (s *Server) allocOverflow(n int) ([]uint64, bool) {
	var fresh []uint64
	for range overflowsFor(n) {
		addr, err := s.takeOverflow()
		if err != nil {
			for _, a := range fresh {
				s.overflow.Free(a) // nothing has been written to it
			}
			s.least = 0
			return nil, false
		}
		fresh = append(fresh, addr)
	}
	return fresh, true
}

// fillNew opens and fills the chain of a new bucket.
func (s *Server) fillNew(head uint64, level uint8, in, fresh []uint64) {
	addr, kind := head, uint8(kindHead)
	for {
		next := uint64(0)
		if len(fresh) > 0 {
			next = fresh[0]
		}
		lv := level
		if kind == kindOverflow {
			lv = 0
		}
		e := s.openNew(addr, makeLink(kind, lv, next))
		n := min(slots, len(in))
		e.Write(slotWord, in[:n])
		in = in[n:]
		if next == 0 {
			return
		}
		addr, kind, fresh = next, kindOverflow, fresh[1:]
	}
}

// refill writes the slots that stay into the chain walked last, head included,
// and ends the chain where they do.
func (s *Server) refill(level uint8, in []uint64) {
	keep := s.chain[:1+overflowsFor(len(in))]
	for at, addr := range keep {
		next := uint64(0)
		if at+1 < len(keep) {
			next = keep[at+1]
		}
		e := s.open(addr)
		for i := range slots {
			w := uint64(0)
			if i < len(in) {
				w = in[i]
			}
			e.Set(slotWord+i, w)
		}
		in = in[min(slots, len(in)):]
		if at == 0 {
			e.Set(linkWord, makeLink(kindHead, level, next))
		} else {
			e.Set(linkWord, makeLink(kindOverflow, 0, next))
		}
	}
}
