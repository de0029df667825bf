package hash

import "drtmx/index"

var _ index.Prefetcher = (*Server)(nil)

// prefetchWords bounds the words of a row of variable size that are prefetched: for
// longer copies the processor prefetches by itself.
const prefetchWords = 64

// Prefetch implements index.Prefetcher. Stage 0 prefetches the head of the chain,
// stage 1 the row in it that may be the key's.
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
