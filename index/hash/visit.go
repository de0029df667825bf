package hash

import (
	"slices"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Visit implements index.Server. A split moves rows to a bucket after all others, so
// a visit of the buckets in order misses no row.
func (s *Server) Visit(at *index.Place, words int, visit func(*index.Entry)) (more bool) {
	for ; words > 0 && at.Bucket < s.buckets.Load(); at.Bucket++ {
		words -= s.visitChain(s.bucketAddr(at.Bucket), visit)
	}
	return at.Bucket < s.buckets.Load()
}

// visitChain visits the rows of a chain and returns how many words it has read.
func (s *Server) visitChain(head uint64, visit func(*index.Entry)) (read int) {
	for addr := head; addr != 0; {
		var b [bucketWords]uint64
		s.arena.Span(addr, bucketWords).CopyOut(b[:])
		read += bucketWords
		for _, slot := range b[slotWord:linkWord] {
			if slot != 0 {
				read += s.visitRow(slotRef(slot), visit)
			}
		}
		addr = linkNext(b[linkWord])
	}
	return read
}

func (s *Server) visitRow(ref uint64, visit func(*index.Entry)) (read int) {
	addr, words := refAddr(ref), s.rowBlock
	if s.strings {
		words = refClass(ref).Words()
	}
	sp := s.arena.Span(addr, words)
	h := block.Header(sp.Load(block.HeaderWord))
	if h.IsAbsent() {
		return 1
	}
	e := index.Entry{Addr: addr, Header: h.Unlock()}
	if s.strings {
		l := lengthsOf(sp.Load(lengthWord))
		words = keyWords(l.key) + l.row
		s.copyBody(sp.Slice(strWord, words))
		e.Key, e.Row = index.Str(mem.WordString(s.body, l.key)), s.body[keyWords(l.key):]
	} else {
		words = s.rowWords
		s.copyBody(sp.Slice(rowWord, words))
		e.Key, e.Row = index.Num(sp.Load(keyWord)), s.body
	}
	visit(&e)
	return words
}

// copyBody copies memory that is not being changed to s.body.
func (s *Server) copyBody(sp mem.Span) {
	s.body = slices.Grow(s.body[:0], sp.Words())[:sp.Words()]
	sp.CopyOut(s.body)
}
