package hash

import "drtmx/index"

var _ index.Prefetcher = (*Server)(nil)

// prefetchWords is how much of a row that varies in size is fetched: the
// processor's own prefetching follows a longer copy.
const prefetchWords = 64

// Prefetch implements index.Prefetcher: first the bucket, then the row that
// the head of the chain says the key may have.
func (s *Server) Prefetch(key index.Key, stage int) {
	hash := s.hash(key)
	head := s.arena.Span(s.bucketAddr(bucketOf(hash, s.buckets.Load())), bucketWords)
	if stage == 0 {
		head.Prefetch()
		return
	}
	for i := range slots {
		if w := head.Load(slotWord + i); slotMatches(w, hash) {
			ref, words := slotRef(w), s.rowBlock
			if s.strings {
				words = min(refClass(ref).Words(), prefetchWords)
			}
			s.arena.Span(refAddr(ref), words).Prefetch()
		}
	}
}
