package hash

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/invariants"
)

// LockWrite implements index.Server. It ignores the hint: only the bucket could prove
// the hint right, and the bucket has the row's address itself.
func (s *Server) LockWrite(o index.Owner, key index.Key, _ uint64) (*index.Held, error) {
	if s.strings {
		return s.lockStr(o, key, s.usual)
	}
	if s.wrongKind(key) {
		return nil, s.keyError(key)
	}
	num := key.Num
	if held := s.held[num]; held != nil {
		if held.Owner != o {
			return nil, index.ErrLocked
		}
		return held, nil
	}
	hash := hashKey(num)
	head := s.bucketAddr(bucketOf(hash, s.buckets.Load()))
	pos, row := s.walk(head, hash, key)
	switch {
	case row == 0:
		return s.lockAbsent(o, key, hash, head)
	case s.isAbsent(row):
		held, err := s.lockTomb(o, key, row, pos.i)
		if err == nil {
			s.held[num] = held
		}
		return held, err
	case s.sharedByOther(row, o):
		return nil, index.ErrLocked
	}
	held := s.helds.New(index.Held{
		Key: key, Owner: o, Addr: row, Prev: s.lockRow(row), Existed: true,
		Home: s.chain[pos.at], Slot: pos.i,
	})
	s.held[num] = held
	return held, nil
}

// isAbsent reports whether the block to which a slot points holds no row.
func (s *Server) isAbsent(row uint64) bool {
	return block.Header(s.load(row, block.HeaderWord)).IsAbsent()
}

// lockRow locks a row and returns the header that it had.
func (s *Server) lockRow(row uint64) block.Header {
	sp := s.arena.Span(row, 1)
	prev := sp.Load(block.HeaderWord)
	sp.Store(block.HeaderWord, prev|uint64(block.LockBit))
	return block.Header(prev)
}

func (s *Server) sharedByOther(addr uint64, o index.Owner) bool {
	return s.locks != nil && !s.locks.Empty() && s.locks.SharedByOther(addr, o)
}

// lockAbsent locks a key that has no row, in the chain walked last, by linking
// a placeholder: a row block whose header is locked and absent. Linking it
// changes the gap word.
func (s *Server) lockAbsent(o index.Owner, key index.Key, hash, head uint64) (*index.Held, error) {
	if s.sharedByOther(head, o) {
		return nil, index.ErrLocked
	}
	row, err := s.rows.Alloc()
	if err != nil {
		return nil, full(err)
	}
	const header = block.LockBit | block.AbsentBit
	e := s.arena.Create(row, s.rowBlock)
	e.Set(keyWord, key.Num)
	e.Commit(header)
	if err := s.link(makeSlot(hash, row)); err != nil {
		s.rows.Free(row)
		return nil, err
	}
	held := s.helds.New(index.Held{Key: key, Owner: o, Addr: row, Prev: header, Home: head})
	s.held[key.Num] = held
	return held, nil
}

// drop ends a lock. It panics if this index did not grant the lock or has ended
// it before: the caller has broken an invariant.
func (s *Server) drop(held *index.Held) {
	id := held.Key.Num
	if s.strings {
		id = held.Addr
	}
	if s.held[id] != held {
		panic(fmt.Sprintf("hash: key %v is not locked by owner %d", held.Key, held.Owner))
	}
	delete(s.held, id)
}

// Reserve implements index.Server. Rows of one size always have room.
func (s *Server) Reserve(held *index.Held, words int) error {
	if s.strings {
		return s.reserveStr(held, words)
	}
	if words != s.rowWords {
		return fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, words, s.rowWords)
	}
	return nil
}

// Publish implements index.Server. Publishing an insert may also split a
// bucket. The split happens now and not when the key is locked, so that a
// transaction does not fail its own validation by growing the table.
func (s *Server) Publish(held *index.Held, row []uint64, h block.Header) {
	if s.strings {
		s.publishStr(held, row, h)
		return
	}
	if len(row) != s.rowWords {
		panic(fmt.Sprintf("hash: row of %d words, want %d", len(row), s.rowWords))
	}
	s.drop(held)
	if invariants.Enabled {
		s.checkHeld(held, h)
	}
	e := s.arena.Begin(held.Addr, s.rowBlock)
	lo, hi := 0, len(row)
	if s.history.Keeps() {
		lo, hi = s.leave(&e, held, rowWord, row, false, h)
	}
	e.Write(rowWord+lo, row[lo:hi])
	e.Commit(h.Unlock())
	if !held.Existed {
		s.inserted(held)
	}
}

// inserted is called after Publish of a row whose key was absent.
func (s *Server) inserted(held *index.Held) {
	if isTomb(held) {
		s.tombs.Add(^uint64(0))
	}
	s.grow()
}

// checkHeld asserts that a row about to be published is locked, and that its
// versions only grow.
func (s *Server) checkHeld(held *index.Held, h block.Header) {
	now := block.Header(s.arena.Span(held.Addr, 1).Load(block.HeaderWord))
	if !now.Locked() || held.Existed && (now.Unlock() != held.Prev || h.CSN() <= held.Prev.CSN()) {
		invariants.Failf("hash: row of key %v, locked as %v, is %v when %v is published", held.Key, held.Prev, now, h)
	}
}

// PublishDelete implements index.Server. Without a history, the row's block
// never has the header h: it leaves its chain locked, and stays locked until
// another row reuses it. The chain's version becomes the CSN of h or slightly
// more: see nextVersion.
func (s *Server) PublishDelete(held *index.Held, h block.Header) {
	s.drop(held)
	if held.Room.Addr != 0 {
		s.giveBack(held)
	}
	switch {
	case isTomb(held): // the key stays absent since the same CSN, with a new proof
		s.find(held)
		s.least = h.CSN()
		s.open(s.chain[0])
		s.commit()
		s.unlockRow(held)
	case !s.entomb(held, h):
		s.remove(held, h.CSN())
	}
}

// Release implements index.Server.
func (s *Server) Release(held *index.Held) {
	s.drop(held)
	if held.Room.Addr != 0 {
		s.giveBack(held)
	}
	if !held.Existed && !isTomb(held) {
		s.remove(held, 0)
		return
	}
	s.unlockRow(held)
}

// unlockRow restores the header that a row or tombstone had before the lock.
func (s *Server) unlockRow(held *index.Held) {
	s.arena.Span(held.Addr, 1).Store(block.HeaderWord, uint64(held.Prev))
}

// remove unlinks a locked row from its chain and frees its block. It searches for the
// chain again, because the bucket may have been split since the lock. deleted is the
// CSN of the deletion, 0 for a placeholder.
func (s *Server) remove(held *index.Held, deleted block.CSN) {
	pos, ref := s.find(held)
	s.least = deleted
	s.unlink(pos)
	s.freeRow(ref)
}

// freeRow frees a row block to which no slot points.
func (s *Server) freeRow(ref uint64) {
	if s.strings {
		s.varied.Free(refAddr(ref), refClass(ref))
	} else {
		s.rows.Free(ref)
	}
}

// find walks the chain of a locked row, and returns its position and its reference.
func (s *Server) find(held *index.Held) (position, uint64) {
	hash := hashKey(held.Key.Num)
	if s.strings {
		hash = hashString(held.Key.Str)
	}
	pos, ref := s.walk(s.bucketAddr(bucketOf(hash, s.buckets.Load())), hash, held.Key)
	if ref == 0 || refAddr(ref) != held.Addr {
		panic(fmt.Sprintf("hash: locked row of key %v is not in its chain", held.Key))
	}
	return pos, ref
}

// Load implements index.Server. It overwrites an existing row.
func (s *Server) Load(key index.Key, row []uint64, h block.Header) error {
	if s.strings {
		return s.loadStr(key, row, h)
	}
	if len(row) != s.rowWords {
		return fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, len(row), s.rowWords)
	}
	held, err := s.LockWrite(0, key, 0)
	if err != nil {
		return err
	}
	s.Publish(held, row, h)
	return nil
}
