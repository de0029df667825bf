package hash

import (
	"runtime"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// versionsMax bounds the versions that one lookup of the server half follows.
const versionsMax = 1 << 20

// LookupAt implements index.Server. It may run concurrently with one mutator. The
// memory of versions that it follows may be reused meanwhile; then the status may be
// any, but the call ends.
func (s *Server) LookupAt(key index.Key, at clock.Tick, res *index.GetResult) {
	if s.wrongKind(key) {
		s.settle(res, index.Failed, 0, 0)
		res.Err = s.keyError(key)
		return
	}
	hash := s.hash(key)
	for range getAttempts {
		if s.tryGetAt(key, hash, at, res) {
			return
		}
		runtime.Gosched()
	}
	s.settle(res, index.Locked, 0, 0)
}

// tryGetAt does the same as tryGet for an answer as of the end of a tick.
func (s *Server) tryGetAt(key index.Key, hash uint64, at clock.Tick, res *index.GetResult) (ok bool) {
	var b [bucketWords]uint64
	num := bucketOf(hash, s.buckets.Load())
	head := s.bucketAddr(num)
	if !s.readBucket(head, &b) || !covers(num, linkLevel(b[linkWord]), hash) {
		return false
	}
	version := b[block.HeaderWord]
	for {
		for _, w := range b[slotWord : slotWord+slots] {
			if !slotMatches(w, hash) {
				continue
			}
			switch st := s.readAt(slotRef(w), key, at, res); st {
			case index.Locked: // the row is not this key's
			case index.Pending:
				return false
			default:
				return true
			}
		}
		next := linkNext(b[linkWord])
		if next == 0 {
			s.settle(res, index.NotFound, 0, head)
			return s.unchanged(head, version)
		}
		if !s.readBucket(next, &b) || b[block.HeaderWord] > version {
			return false
		}
	}
}

// readAt follows the versions of the row to which a slot points, and fills in res. It
// leaves res unchanged if it returns Locked, because there is no row or one of
// another key, or Pending, because the row has changed in between.
func (s *Server) readAt(ref uint64, key index.Key, at clock.Tick, res *index.GetResult) index.Status {
	bound, patch := block.CSN(0), block.Older(0)
	for hop := range versionsMax {
		words := s.rowBlock
		if s.strings || patch != 0 {
			words = refClass(ref).Words()
		}
		sp, ok := s.arena.Region().Span(refAddr(ref), uint64(words)*mem.WordBytes)
		if !ok || !goodAddr(refAddr(ref), mem.LineBytes) || words <= s.versions.OlderWord {
			break
		}
		h := block.Header(sp.Load(block.HeaderWord))
		ours := h.Unlock() != block.AbsentBit
		if patch != 0 {
			ours = ours && s.patchOf(sp.Load(lengthWord), sp.Load(keyWord), key, len(res.Row)) && patch.ApplySpan(patchWord, res.Row, sp)
		} else {
			ours = ours && s.hasKey(sp, key)
		}
		switch {
		case hop == 0 && !ours:
			return index.Locked
		case hop > 0 && (!ours || !h.Locked() || h.CSN() > bound):
			return s.gone(res)
		}
		older := block.Older(sp.Load(s.versions.OlderWord))
		ends := h.CSN().Tick() <= at || older == 0
		if patch == 0 && (older.IsPatch() || h.CSN().Tick() <= at) {
			s.takePayload(sp, key, res) // of the requested row, or of the one to which patches are applied
		}
		if (ends || older.IsPatch() || patch != 0) && block.Header(sp.Load(block.HeaderWord)).Unlock() != h.Unlock() {
			if hop > 0 {
				return s.gone(res)
			}
			return index.Pending
		}
		if ends {
			return s.take(h, at, refAddr(ref), res)
		}
		if !older.Valid() {
			break
		}
		if patch = 0; older.IsPatch() {
			patch = older
		}
		ref, bound = uint64(older.Block()), h.CSN()
		if hop > 0 {
			bound--
		}
	}
	return s.gone(res)
}

func (s *Server) gone(res *index.GetResult) index.Status {
	s.settle(res, index.Gone, 0, 0)
	return index.Gone
}

// hasKey reports whether a row block has the key.
func (s *Server) hasKey(sp mem.Span, key index.Key) bool {
	if s.strings {
		l := lengthsOf(sp.Load(lengthWord))
		return l.tag == s.tag && strWord+keyWords(l.key)+l.row <= sp.Words() && hasStr(sp, key.Str)
	}
	return sp.Load(keyWord) == key.Num
}

// patchOf reports whether a patch with these words, its lengths or its key, belongs
// to a row of the key with a payload of so many words.
func (s *Server) patchOf(lengths, num uint64, key index.Key, payload int) bool {
	if s.strings {
		l := lengthsOf(lengths)
		return l.tag == s.tag && l.key == len(key.Str) && l.row == payload
	}
	return num == key.Num
}

// takePayload copies the payload of a row block to res.
func (s *Server) takePayload(sp mem.Span, key index.Key, res *index.GetResult) {
	start, words := rowWord, s.rowWords
	if s.strings {
		start = strWord + keyWords(len(key.Str))
		words = min(lengthsOf(sp.Load(lengthWord)).row, sp.Words()-start)
	}
	if cap(res.Row) < words {
		res.Row = make([]uint64, words)
	}
	res.Row = res.Row[:words]
	sp.Slice(start, words).CopyOut(res.Row)
}

// take fills in res with a version that is either the one at the tick, or the oldest
// one and newer than the tick. Its payload is already in res.
func (s *Server) take(h block.Header, at clock.Tick, addr uint64, res *index.GetResult) index.Status {
	if h.CSN().Tick() > at || h.IsAbsent() {
		s.settle(res, index.NotFound, 0, addr)
		return index.NotFound
	}
	s.settle(res, index.Found, h.Unlock(), addr)
	res.Rests = h.CSN()
	return index.Found
}
