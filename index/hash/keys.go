package hash

import "drtmx/index"

// Keys appends the keys in the chain of a bucket, those of locked rows and of
// deletions included. more is false, and nothing is appended, if there is no such
// bucket. A caller that asks for all buckets in ascending order finds every key that
// is present all the time, because splits move keys only to later buckets. The caller
// serialises Keys with the mutators.
func (s *Server) Keys(bucket uint64, keys []index.Key) (_ []index.Key, more bool, err error) {
	if bucket >= s.buckets.Load() {
		return keys, false, nil
	}
	for addr := s.bucketAddr(bucket); addr != 0; {
		b, err := s.readBlock(addr, bucketWords)
		if err != nil {
			return keys, true, err
		}
		for _, slot := range b[slotWord:linkWord] {
			if slot == 0 {
				continue
			}
			at, words := slotRef(slot), s.rowBlock
			if s.strings {
				at, words = refAddr(slotRef(slot)), min(words, refClass(slot).Words())
			}
			row, err := s.readBlock(at, words)
			if err != nil {
				return keys, true, err
			}
			key, err := s.keyOf(row)
			if err != nil {
				return keys, true, err
			}
			keys = append(keys, key)
		}
		addr = linkNext(b[linkWord])
	}
	return keys, true, nil
}
