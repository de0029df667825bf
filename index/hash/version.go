package hash

import (
	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
)

// This file keeps versions and tombstones for readers of the past, if the partition's
// history keeps them: see docs/versions.md.
//
//	update        copy or patch of the row ◀─ older ── row
//	move, delete  old block       ◀─ older ── new block, or tombstone
//	insert        tombstone, or its copy ◀─ older ── row
//
// A version has the layout of a row block, or is a patch: see block.Older. It has a
// locked header with the version's CSN. A tombstone is a block in a slot whose header
// is absent and has the CSN of the deletion. For readers of the present, the slot
// points to no row; their proof is the version of the chain, which the deletion
// raised.

// grave is an entry of the queue of tombstones to remove.
type grave struct {
	hash uint64
	tick clock.Tick // of the deletion
}

// graves is a queue.
type graves struct {
	list  []grave
	first int
}

func (q *graves) len() int { return len(q.list) - q.first }

func (q *graves) push(g grave) {
	if len(q.list) == cap(q.list) && 2*q.first >= len(q.list) {
		q.list, q.first = q.list[:copy(q.list, q.list[q.first:])], 0
	}
	q.list = append(q.list, g)
}

func (q *graves) pop() grave {
	g := q.list[q.first]
	q.first++
	return g
}

// isTomb reports whether the lock is on a key with a tombstone.
func isTomb(held *index.Held) bool { return !held.Existed && held.Prev.CSN() != 0 }

// patchWord is the first word of a patch that is payload.
const patchWord = rowWord

// Patches of both kinds of row have their payload in the same place.
var _ [strWord - patchWord]struct{}

// versionsOf returns the places of the words in row blocks that point to versions.
func versionsOf(strings bool) block.VersionWords {
	if strings {
		return block.VersionWords{OlderWord: strOlderWord, PatchWord: patchWord}
	}
	return block.VersionWords{OlderWord: olderWord, PatchWord: patchWord}
}

// lockTomb locks a key that has a tombstone, in the chain walked last. The tombstone
// keeps its CSN, which readers of the past need. It is locked before the gap word
// changes, so no reader finds it unlocked under the new gap word and then misses the
// insert.
func (s *Server) lockTomb(o index.Owner, key index.Key, row uint64, slot int) (*index.Held, error) {
	head := s.chain[0]
	if s.sharedByOther(head, o) {
		return nil, index.ErrLocked
	}
	held := s.helds.New(index.Held{Key: key, Owner: o, Addr: row, Prev: s.lockRow(row), Home: head, Slot: slot})
	s.open(head)
	s.commit()
	return held, nil
}

// leave saves the row under change as a version, if one is needed, makes the row
// point to it, and announces the new header h. row is the new payload, which begins
// at word at; resized says that its length changes. leave returns the range of
// payload words that the caller must write.
func (s *Server) leave(e *block.Edit, held *index.Held, at int, row []uint64, resized bool, h block.Header) (lo, hi int) {
	c := block.Change{Hi: len(row), Words: len(row), Resized: resized}
	if !resized {
		c.Lo, c.Hi = e.Differ(at, row)
	}
	if held.Prev.CSN() == 0 {
		return c.Lo, c.Hi // the key had no row before
	}
	overwrites := held.Prev.CSN().Tick() < h.CSN().Tick()
	if keeps, whole := s.versions.Leaves(block.Older(e.Load(s.versions.OlderWord)), overwrites, c); keeps {
		older := block.Older(0)
		if s.needed(held.Prev) {
			older = e.SaveVersion(s.history, s.versions, at, c, whole, held.Prev, h.CSN().Tick())
		}
		e.Set(s.versions.OlderWord, uint64(older))
	}
	e.Announce(h)
	return c.Lo, c.Hi
}

// needed reports whether readers of the past need a version with this header.
func (s *Server) needed(h block.Header) bool {
	return !h.IsAbsent() || h.CSN().Tick() > s.history.Floor()
}

// replaced returns the link to older versions for a block that replaces the locked
// one, at h. kept says that the link points to the locked block, which then is a
// version. That is also the case within a tick if the row points to a patch, because
// the patch applies to that block.
func (s *Server) replaced(held *index.Held, old uint64, h block.Header) (older block.Older, kept bool) {
	switch {
	case !s.history.Keeps() || held.Prev.CSN() == 0 || !s.needed(held.Prev):
		return 0, false
	case held.Prev.CSN().Tick() == h.CSN().Tick():
		if older = block.Older(s.load(refAddr(old), s.versions.OlderWord)); !older.IsPatch() {
			return older, false
		}
	}
	return block.Older(old), true
}

// moveTo fills a new block with the row as of h, swaps the slot at pos, which points
// to the old block, and retains or frees the old block.
func (s *Server) moveTo(held *index.Held, pos position, old, to uint64, row []uint64, h block.Header) {
	older, kept := s.replaced(held, old, h)
	s.fill(refAddr(to), refClass(to), held.Key.Str, row, older, h)
	s.relink(pos, makeSlot(s.hash(held.Key), to))
	if kept {
		s.history.RetainRow(older, h.CSN().Tick())
	} else {
		s.varied.Free(held.Addr, refClass(old))
	}
}

// entomb deletes a row and leaves a tombstone. It returns false if none is
// needed, or if there is no memory.
func (s *Server) entomb(held *index.Held, h block.Header) bool {
	sameTick := held.Prev.CSN().Tick() == h.CSN().Tick()
	if !s.history.Keeps() || !held.Existed || sameTick && s.load(held.Addr, s.versions.OlderWord) == 0 {
		return false
	}
	if !s.entombIn(held, sameTick, block.Absent(h.CSN())) {
		return false
	}
	s.tombs.Add(1)
	s.graves.push(grave{s.hash(held.Key), h.CSN().Tick()})
	return true
}

// entombIn makes the tombstone. It raises the version of the chain first, and the row
// stays locked until then, because an absence depends on the deletion.
func (s *Server) entombIn(held *index.Held, sameTick bool, h block.Header) bool {
	if s.strings {
		return s.entombStr(held, h)
	}
	e := s.arena.Begin(held.Addr, s.rowBlock)
	if !sameTick {
		older := e.SaveVersion(s.history, s.versions, rowWord, block.Change{Words: s.rowWords}, false, held.Prev, h.CSN().Tick())
		if older == 0 {
			return false
		}
		e.Set(olderWord, uint64(older))
	}
	s.find(held)
	s.least = h.CSN()
	s.open(s.chain[0])
	s.commit()
	e.Commit(h)
	return true
}

// entombStr puts a tombstone without payload in the place of the row.
func (s *Server) entombStr(held *index.Held, h block.Header) bool {
	class := block.ClassFor(strBlockWords(len(held.Key.Str), 0))
	addr, err := s.varied.Alloc(class)
	if err != nil {
		s.history.Lose(h.CSN().Tick())
		return false
	}
	pos, old := s.find(held)
	s.least = h.CSN()
	s.moveTo(held, pos, old, makeRef(addr, class), nil, h)
	return true
}

// Bury implements index.Server.
func (s *Server) Bury(floor clock.Tick, most int) (done int) {
	for n := min(s.graves.len(), buryShare*most); n > 0 && done < most; n-- {
		if s.graves.list[s.graves.first].tick > floor {
			break
		}
		g := s.graves.pop()
		pos, ref, locked := s.walkTomb(g.hash, floor)
		switch {
		case locked:
			s.graves.push(g)
		case ref != 0:
			s.unlink(pos)
			s.freeRow(ref)
			s.tombs.Add(^uint64(0))
			done++
		}
	}
	return done
}

// buryShare bounds the graves that Bury examines for each tombstone that it may
// remove: keys may have been inserted again.
const buryShare = 4

// walkTomb walks the chain of a hash to a tombstone of any key with this hash, of a
// deletion up to the floor. If the tombstone is locked, it cannot be removed.
func (s *Server) walkTomb(hash uint64, floor clock.Tick) (pos position, ref uint64, locked bool) {
	s.chain = s.chain[:0]
	for addr := s.bucketAddr(bucketOf(hash, s.buckets.Load())); addr != 0; addr = linkNext(s.load(addr, linkWord)) {
		for i := range slots {
			w := s.load(addr, slotWord+i)
			if ref != 0 || !slotMatches(w, hash) || s.rowHash(slotRef(w)) != hash {
				continue
			}
			h := block.Header(s.load(refAddr(slotRef(w)), block.HeaderWord))
			if h.IsAbsent() && h.CSN() != 0 && h.CSN().Tick() <= floor {
				pos, ref, locked = position{len(s.chain), i}, slotRef(w), h.Locked()
			}
		}
		s.chain = append(s.chain, addr)
	}
	return pos, ref, locked
}
