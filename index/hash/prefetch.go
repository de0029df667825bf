package hash

import "drtmx/index"

var _ index.Prefetcher = (*Server)(nil)

// Prefetch implements index.Prefetcher: first the bucket, then the row that
// the head of the chain says the key may have.
func (s *Server) Prefetch(key index.Key, stage int) {
	hash := hashKey(key.Num)
	head := s.arena.Span(s.bucketAddr(bucketOf(hash, s.buckets.Load())), bucketWords)
	if stage == 0 {
		head.Prefetch()
		return
	}
	for i := range slots {
		if w := head.Load(slotWord + i); slotMatches(w, hash) {
			s.arena.Span(slotAddr(w), s.rowBlock).Prefetch()
		}
	}
}
