package hash

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/invariants"
	"github.com/zeebo/xxh3"
)

// This file changes rows of variable size. A row stays in its block while it fits and
// fills enough of it, and moves otherwise:
//
//	LockWrite   old block locked              slot ─▶ old block
//	Reserve     new block allocated, locked   slot ─▶ old block
//	Publish     new block written, unlocked   slot ─▶ old block
//	            the slot is swapped under a new version of the chain
//	            old block freed: locked until it is another row
//
// So a reader finds the old row, a locked row or the new row. A slot that was READ
// before the swap points to a block that stays locked, or that another row has reused
// since. In either case the head of the chain has changed, and a reader checks the
// head before it reports the key absent.

// wastePart: a row that fills less than one part in wastePart of its block moves to a
// smaller one.
const wastePart = 2

// usualMax bounds the room, in words, of a placeholder: a larger row gets its block
// at Reserve, and is written once instead of twice.
const usualMax = 512

// hash returns the hash of a key of this index.
func (s *Server) hash(key index.Key) uint64 {
	if !s.strings {
		return hashKey(key.Num)
	}
	return hashString(key.Str)
}

// hashString does the same as hashStr for a string.
//
//go:noinline
func hashString(key string) uint64 { return hashKey(xxh3.HashString(key)) }

// wrongKind reports that the key does not have the kind of this index.
func (s *Server) wrongKind(key index.Key) bool {
	if s.strings {
		return key.Num != 0 || len(key.Str) > index.MaxKeyBytes
	}
	return len(key.Str) != 0
}

func (s *Server) keyError(key index.Key) error { return keyError(s.strings, key) }

func keyError(strings bool, key index.Key) error {
	switch {
	case !strings:
		return fmt.Errorf("%w: a string of %d bytes, want a number", index.ErrKey, len(key.Str))
	case key.Num != 0:
		return fmt.Errorf("%w: the number %d, want a string", index.ErrKey, key.Num)
	}
	return fmt.Errorf("%w: %d bytes, want at most %d", index.ErrKey, len(key.Str), index.MaxKeyBytes)
}

// lockStr implements LockWrite for string keys. If the key is absent, its placeholder
// gets room for a row of so many words, if there is memory.
func (s *Server) lockStr(o index.Owner, key index.Key, words int) (*index.Held, error) {
	if s.wrongKind(key) {
		return nil, s.keyError(key)
	}
	hash := s.hash(key)
	head := s.bucketAddr(bucketOf(hash, s.buckets.Load()))
	pos, ref := s.walk(head, hash, key)
	if ref == 0 {
		return s.lockAbsentStr(o, key, hash, head, words)
	}
	row := refAddr(ref)
	if held := s.held[row]; held != nil {
		if held.Owner != o {
			return nil, index.ErrLocked
		}
		return held, nil
	}
	if s.isAbsent(row) {
		held, err := s.lockTomb(o, key.Clone(), row, int(refClass(ref)))
		if err == nil {
			s.held[row] = held
		}
		return held, err
	}
	if s.sharedByOther(row, o) {
		return nil, index.ErrLocked
	}
	held := s.helds.New(index.Held{
		Key: key.Clone(), Owner: o, Addr: row, Prev: s.lockRow(row), Existed: true,
		Home: s.chain[pos.at], Slot: int(refClass(ref)),
	})
	s.held[row] = held
	return held, nil
}

func (s *Server) lockAbsentStr(o index.Owner, key index.Key, hash, head uint64, words int) (*index.Held, error) {
	if s.sharedByOther(head, o) {
		return nil, index.ErrLocked
	}
	if words > usualMax {
		words = 0
	}
	class := block.ClassFor(strBlockWords(len(key.Str), words))
	row, class, err := s.varied.AllocNear(class)
	if least := block.ClassFor(strBlockWords(len(key.Str), 0)); err != nil && least < class {
		class = least
		row, err = s.varied.Alloc(class)
	}
	if err != nil {
		return nil, full(err)
	}
	const header = block.LockBit | block.AbsentBit
	s.fill(row, class, key.Str, nil, 0, header)
	if err := s.link(makeSlot(hash, makeRef(row, class))); err != nil {
		s.varied.Free(row, class)
		return nil, err
	}
	held := s.helds.New(index.Held{Key: key.Clone(), Owner: o, Addr: row, Prev: header, Home: head, Slot: int(class)})
	s.held[row] = held
	return held, nil
}

// fill writes a whole block to which no slot points yet, and publishes it under h.
func (s *Server) fill(addr uint64, class block.Class, key string, row []uint64, older block.Older, h block.Header) {
	body := append(s.body[:0], lengths{key: len(key), row: len(row), tag: s.tag}.word(), uint64(older))
	body = append(appendKey(body, key), row...)
	for want := class.Words() - block.BodyWord; len(body) < want; {
		body = append(body, zeros[:min(want-len(body), len(zeros))]...)
	}
	s.body = body
	e := s.arena.CreateOf(addr, body)
	e.Commit(h)
}

// suits reports whether a row that needs class need can stay in a block of
// class have.
func suits(have, need block.Class) bool {
	return need <= have && have.Words() <= wastePart*need.Words()
}

// reserveStr implements Reserve for string keys.
func (s *Server) reserveStr(held *index.Held, words int) error {
	if words < 0 || words > s.rowWords {
		return fmt.Errorf("%w: %d words, want 0 to %d", index.ErrRowSize, words, s.rowWords)
	}
	need := block.ClassFor(strBlockWords(len(held.Key.Str), words))
	own, room := block.Class(held.Slot), block.ClassFor(held.Room.Words)
	if suits(own, need) {
		s.giveBack(held)
		return nil
	}
	if suits(room, need) {
		return nil
	}
	addr, class, err := s.varied.AllocNear(need)
	switch {
	case err == nil:
		s.giveBack(held)
		held.Room = index.Room{Addr: addr, Words: class.Words()}
	case need <= own: // the old block is larger than necessary, but it has room
		s.giveBack(held)
	case need > room:
		return full(err)
	}
	return nil
}

// giveBack frees reserved room that was not used.
func (s *Server) giveBack(held *index.Held) {
	if held.Room.Addr != 0 {
		s.varied.Free(held.Room.Addr, block.ClassFor(held.Room.Words))
		held.Room = index.Room{}
	}
}

// publishStr implements Publish for string keys.
func (s *Server) publishStr(held *index.Held, row []uint64, h block.Header) {
	class, room := block.Class(held.Slot), held.Room
	if room.Addr != 0 {
		class = block.ClassFor(room.Words)
	}
	if need := strBlockWords(len(held.Key.Str), len(row)); need > class.Words() || len(row) > s.rowWords {
		panic(fmt.Sprintf("hash: a row of %d words has no room reserved", len(row)))
	}
	s.drop(held)
	if invariants.Enabled {
		s.checkHeld(held, h)
	}
	if room.Addr != 0 {
		s.move(held, class, row, h.Unlock())
	} else {
		e := s.arena.Begin(held.Addr, class.Words())
		at, lo, hi := strWord+keyWords(len(held.Key.Str)), 0, len(row)
		if s.history.Keeps() {
			resized := lengthsOf(e.Load(lengthWord)).row != len(row)
			lo, hi = s.leave(&e, held, at, row, resized, h)
		}
		e.Set(lengthWord, lengths{key: len(held.Key.Str), row: len(row), tag: s.tag}.word())
		e.Write(at+lo, row[lo:hi])
		e.Commit(h.Unlock())
	}
	if !held.Existed {
		s.usual = len(row)
		s.inserted(held)
	}
}

// move publishes the row in its reserved block, which has the given class.
func (s *Server) move(held *index.Held, class block.Class, row []uint64, h block.Header) {
	pos, old := s.find(held)
	to := held.Room.Addr
	s.moveTo(held, pos, old, makeRef(to, class), row, h)
	if s.locks != nil && !s.locks.Empty() {
		s.locks.Move(held.Addr, to)
	}
	held.Addr, held.Slot, held.Room = to, int(class), index.Room{}
}

// loadStr implements Load for string keys.
func (s *Server) loadStr(key index.Key, row []uint64, h block.Header) error {
	if len(row) > s.rowWords {
		return fmt.Errorf("%w: %d words, want 0 to %d", index.ErrRowSize, len(row), s.rowWords)
	}
	held, err := s.lockStr(0, key, len(row))
	if err != nil {
		return err
	}
	if err := s.Reserve(held, len(row)); err != nil {
		s.Release(held)
		return err
	}
	s.Publish(held, row, h)
	return nil
}

// readStrRow copies the payload of the row: see readRow.
func (s *Server) readStrRow(ref uint64, key string, res *index.GetResult) {
	addr := refAddr(ref)
	sp := s.arena.Span(addr, refClass(ref).Words())
	h := block.Header(sp.Load(block.HeaderWord))
	switch {
	case h.IsAbsent() && !h.Locked() || !hasStr(sp, key):
		s.settle(res, index.NotFound, 0, 0)
		return
	case h.Locked():
		s.settle(res, index.Locked, 0, addr)
		return
	}
	l := lengthsOf(sp.Load(lengthWord))
	start := strWord + keyWords(len(key))
	if start+l.row > sp.Words() {
		s.settle(res, index.Pending, 0, 0)
		return
	}
	if cap(res.Row) < l.row {
		res.Row = make([]uint64, l.row)
	}
	res.Row = res.Row[:l.row]
	sp.Slice(start, l.row).CopyOut(res.Row)
	if block.Header(sp.Load(block.HeaderWord)) != h {
		s.settle(res, index.Pending, 0, 0)
		return
	}
	s.settle(res, index.Found, h, addr)
	res.Rests = h.CSN()
	res.Proofs = append(res.Proofs, index.Proof{Addr: addr, Word: uint64(h)})
}
