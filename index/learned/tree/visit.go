package tree

import (
	"slices"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Visit implements index.Server. The place is the lowest key that has not been
// visited, so splits and merges between two calls do no harm. Rows are visited in key
// order.
func (t *Tree) Visit(at *index.Place, words int, visit func(*index.Entry)) (more bool) {
	from := at.Key
	t.Walk(from, func(low index.Key, addr uint64) bool {
		if more = words <= 0; more {
			at.Key = low
			return false
		}
		words -= t.visitLeaf(addr, from, visit)
		return true
	})
	return more
}

// visitLeaf visits the rows of a leaf from a key on and returns how many words it has
// read.
func (t *Tree) visitLeaf(addr uint64, from index.Key, visit func(*index.Entry)) (read int) {
	s := t.span(addr)
	t.sorted = t.appendLive(t.sorted[:0], s)
	read = t.lay.OldersAt
	for _, sk := range t.sorted {
		e := t.rows.visit(s, sk)
		if e.Header.IsAbsent() || e.Key.Compare(from) < 0 {
			continue
		}
		e.Header = e.Header.Unlock()
		visit(&e)
		read += len(e.Row)
	}
	return read
}

// copyRow copies words that no mutator is changing. The next call reuses the memory.
func (t *Tree) copyRow(s mem.Span) []uint64 {
	t.visited = slices.Grow(t.visited[:0], s.Words())[:s.Words()]
	s.CopyOut(t.visited)
	return t.visited
}

func (r *inlineRows) visit(s mem.Span, sk slotKey) index.Entry {
	return index.Entry{
		Key: index.Num(sk.word), Header: block.Header(sk.head), Row: r.t.copyRow(s.Slice(r.payload(sk.slot), r.words)),
	}
}

func (r *apartRows) visit(_ mem.Span, sk slotKey) index.Entry {
	b := r.t.a.Span(sk.head, r.t.lay.RowBlockWords)
	return index.Entry{
		Key: index.Num(sk.word), Header: block.Header(b.Load(block.HeaderWord)), Addr: sk.head,
		Row: r.t.copyRow(b.Slice(leaf.RowWord, r.words)),
	}
}

func (r *variedRows) visit(_ mem.Span, sk slotKey) index.Entry {
	p := leaf.Pointer(sk.head)
	b := r.t.a.Span(p.Addr(), p.Words())
	e := index.Entry{Header: block.Header(b.Load(block.HeaderWord)), Addr: p.Addr()}
	size := b.Load(leaf.StrSizeWord)
	key := int(size >> 32)
	keyWords := (key + mem.WordBytes - 1) / mem.WordBytes
	words := r.t.copyRow(b.Slice(leaf.StrKeyWord, keyWords+int(uint32(size))))
	e.Key, e.Row = index.Str(mem.WordString(words, key)), words[keyWords:]
	return e
}
