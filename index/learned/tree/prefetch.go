package tree

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/mem"
)

var _ index.Prefetcher = (*Tree)(nil)

// Bounds on the words of a leaf that are prefetched. A processor can fetch only about
// as many lines at a time.
const (
	nearWordsMin = 20 * mem.LineBytes / mem.WordBytes
	nearWordsMax = 32 * mem.LineBytes / mem.WordBytes
	// nearRowWords bounds the words of a row block that are prefetched: for longer
	// copies the processor prefetches by itself.
	nearRowWords = 64
)

// nearWords returns how many words of a leaf are prefetched once its address is
// known: all that lookups of the present need if the leaf is small, else keys and
// heads. Without prefetching, each line would be a cache miss of its own.
func nearWords(l *leaf.Layout) int {
	return min(max(l.RowsAt, nearWordsMin), l.LookupWords, nearWordsMax)
}

func (t *Tree) prefetch(leaf mem.Span) { leaf.Slice(0, t.near).Prefetch() }

// prefetchAll also prefetches the order of the slots.
func (t *Tree) prefetchAll(leaf mem.Span) {
	t.prefetch(leaf)
	leaf.Slice(t.lay.OrderAt, t.lay.OrderWords).Prefetch()
}

// Prefetch implements index.Prefetcher. Stage 0 prefetches the leaf that should hold
// the key, stage 1 the row, if it has its own block. The tree may be changing
// meanwhile: Prefetch ignores addresses outside the region, and a wrong one inside
// does no harm.
func (t *Tree) Prefetch(key index.Key, stage int) {
	if stage == 0 {
		if key.Num >= t.tail.Load() {
			return // ascending keys: the leaf has just been used
		}
		if addr := t.descend(key); addr != 0 {
			t.prefetch(t.span(addr))
		}
		return
	}
	if t.lay.Kind != leaf.Inline {
		t.keys.prefetchRow(key)
	}
}

func (n *nativeKeys) prefetchRow(key index.Key) {
	t := n.t
	addr := t.descend(key)
	if addr == 0 {
		return
	}
	s := t.span(addr)
	for i := range min(leaf.CountOf(s.Load(leaf.MetaWord)), t.lay.Slots) {
		if s.Load(t.lay.KeysAt+i) == key.Num {
			t.prefetchBlock(s.Load(t.lay.HeadsAt+i), t.lay.RowBlockWords)
		}
	}
}

func (k *stringKeys) prefetchRow(key index.Key) {
	sn, ok := k.see(key)
	if !ok {
		return
	}
	t := k.t
	d, tag := leaf.DigestAt(key.Str, sn.f.prefix), leaf.Tag(key.Str)
	for i := range min(leaf.CountOf(sn.s.Load(leaf.MetaWord)), t.lay.Slots) {
		if sn.s.Load(t.lay.KeysAt+i) != d {
			continue
		}
		if p := leaf.Pointer(sn.s.Load(t.lay.HeadsAt + i)); p.Tag() == tag && p.Valid() {
			t.prefetchBlock(p.Addr(), p.Words())
		}
	}
}

// prefetchBlock prefetches a block whose address was read racily.
func (t *Tree) prefetchBlock(addr uint64, words int) {
	if s, ok := t.a.Region().Span(addr, uint64(min(words, nearRowWords))*mem.WordBytes); ok {
		s.Prefetch()
	}
}
