package hash

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Expect implements index.Server. It makes as many buckets as there would be after so
// many inserts. Rows that arrive in the order of a visit then fill one bucket after
// the other.
func (s *Server) Expect(rows uint64) {
	n := 2 * rows / rowsPerTwoBuckets
	if s.linked.Load() > 0 || n <= s.buckets.Load() || n>>levelMax != 0 {
		return
	}
	for s.geo.capacity(uint64(len(*s.chunks.Load()))) < n {
		if s.addChunk() != nil {
			s.publishRoot() // it names all chunks
			return          // the table grows later, if it can
		}
	}
	v := block.Present(s.arena.NextCSN())
	for b := range n {
		s.emptyHead(s.bucketAddr(b), levelOf(b, n), v)
	}
	s.buckets.Store(n)
	s.publishRoot()
}

// Restore implements index.Server.
func (s *Server) Restore(key index.Key, row []uint64, h block.Header) error {
	if s.wrongKind(key) {
		return s.keyError(key)
	}
	if !h.IsAbsent() && (len(row) > s.rowWords || !s.strings && len(row) < s.rowWords) {
		return fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, len(row), s.rowWords)
	}
	hash := s.hash(key)
	head := s.bucketAddr(bucketOf(hash, s.buckets.Load()))
	if slot, ok := s.freeSlot(head, hash); ok {
		return s.restoreFirst(key, hash, row, h, head, slot)
	}
	pos, ref := s.walk(head, hash, key)
	if ref == 0 {
		return s.restoreNew(key, hash, row, h)
	}
	switch now := block.Header(s.load(refAddr(ref), block.HeaderWord)); {
	case now.Locked():
		return index.ErrLocked
	case now.CSN() >= h.CSN():
		return nil
	case h.IsAbsent():
		s.least = h.CSN()
		s.unlink(pos)
		s.freeRow(ref)
		return nil
	case s.strings:
		return s.loadStr(key, row, h)
	}
	e := s.arena.Begin(ref, s.rowBlock)
	e.Write(rowWord, row)
	e.Commit(h)
	return nil
}

// freeSlot returns the first empty slot of a chain of one bucket; all slots after it
// are empty, too. It returns false if there is none, or if another slot may have a
// key with this hash.
func (s *Server) freeSlot(head, hash uint64) (int, bool) {
	b := s.arena.Span(head, bucketWords)
	if linkNext(b.Load(linkWord)) != 0 {
		return 0, false
	}
	for i := range slots {
		switch w := b.Load(slotWord + i); {
		case w == 0:
			return i, true
		case slotMatches(w, hash):
			return 0, false
		}
	}
	return 0, false
}

// restoreFirst adds a row in a slot that freeSlot has returned. In a table that has
// its final size this is the case for nearly all rows.
func (s *Server) restoreFirst(key index.Key, hash uint64, row []uint64, h block.Header, head uint64, slot int) error {
	if h.IsAbsent() {
		return nil
	}
	ref, err := s.newRow(key, row, h)
	if err != nil {
		return full(err)
	}
	e := s.arena.Begin(head, bucketWords)
	e.Set(slotWord+slot, makeSlot(hash, ref))
	v := block.Header(e.Load(block.HeaderWord)).CSN() + 1
	s.arena.CoverCSN(v)
	e.Commit(block.Present(v))
	s.linked.Add(1)
	s.grow()
	return nil
}

// restoreNew adds a row to the chain walked last, which does not have its key.
func (s *Server) restoreNew(key index.Key, hash uint64, row []uint64, h block.Header) error {
	if h.IsAbsent() {
		return nil
	}
	ref, err := s.newRow(key, row, h)
	if err != nil {
		return full(err)
	}
	if err := s.link(makeSlot(hash, ref)); err != nil {
		s.freeRow(ref)
		return err
	}
	s.grow()
	return nil
}

// newRow makes a row that is in no chain, and returns its reference.
func (s *Server) newRow(key index.Key, row []uint64, h block.Header) (uint64, error) {
	if s.strings {
		class := block.ClassFor(strBlockWords(len(key.Str), len(row)))
		addr, err := s.varied.Alloc(class)
		if err != nil {
			return 0, err
		}
		s.fill(addr, class, key.Str, row, 0, h)
		return makeRef(addr, class), nil
	}
	addr, err := s.rows.Alloc()
	if err != nil {
		return 0, err
	}
	body := append(append(s.body[:0], 0, key.Num), row...)
	body = append(body, zeros[:s.rowBlock-block.BodyWord-len(body)]...)
	s.body = body
	e := s.arena.CreateOf(addr, body)
	e.Commit(h)
	return addr, nil
}

// A row of one size leaves less than a line unused.
var _ [len(zeros) - mem.LineBytes/mem.WordBytes]struct{}
