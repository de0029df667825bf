package finestore

import (
	"slices"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
)

// sparseShare says which arrays are joined to a neighbour: those with one row at most for so many keys
// that they may have.
const sparseShare = 4

// emptyBinRows is how many rows a bin without rows counts for in the weight of an array's bins. Writes
// that are refused or aborted leave such bins, and so do deletions. A bin takes about as much memory as
// so many of the smallest rows. If it counted for less, such bins could take many times the memory of
// their array. If it counted for more, a few refused writes would cost a merge.
const emptyBinRows = 4

// weight is how much a merge would move or free below an array: rows in bins, and bins without rows.
func (a *array) weight() int { return a.binned + emptyBinRows*a.empty }

// crowded reports whether an array is to be merged with its bins: if they weigh as many rows as an
// array may have keys. An earlier merge would serve readers, of which fewer would need a round for a
// bin; but models learn of each array that a merge makes, and that costs more than the merge.
func (s *Server) crowded(a *array) bool { return a.weight() >= s.lay.Slots }

// divide makes room in the interval of a full bin: it gives rows to the bin before it, divides the
// bin, or merges the array. On an error nothing has changed.
func (s *Server) divide(p *place, key uint64) error {
	rows := s.binRows(p.bin)
	if p.root == 0 {
		return s.toRoot(p, key, rows)
	}
	r := s.rootAt(p.root)
	if p.kid > 0 && s.giveLeft(p, r, rows) {
		return nil
	}
	if r.Len() == leaf.RootChildren {
		return s.rebuild(p.arr)
	}
	low, fence, high, last := s.cut(p.bin, key, rows)
	right, err := s.newBin(p.arr, fence, high, last, s.binSpan(p.bin).Load(s.bins.DeleteAt), above(rows, fence))
	if err != nil {
		return err
	}
	s.step("bin made")
	s.shrink(p.bin, low, fence, below(rows, fence))
	s.step("bin divided")
	fences, kids := s.children(r)
	fences, kids = slices.Insert(fences, p.kid+1, fence), slices.Insert(kids, p.kid+1, right)
	s.setRoot(s.a.Begin(p.root, leaf.RootBlockWords), p, fences, kids)
	s.locks.Copy(leaf.GapAddr(p.bin), leaf.GapAddr(right))
	s.binSplits++
	return nil
}

// binRows returns the rows of a bin, in key order.
func (s *Server) binRows(bin uint64) []rowAt { return s.appendBin(nil, bin) }

func (s *Server) appendBin(dst []rowAt, bin uint64) []rowAt {
	b, from := s.binSpan(bin), len(dst)
	for i := range leaf.CountOf(b.Load(leaf.MetaWord)) {
		if at := b.Load(s.bins.HeadsAt + i); at != 0 {
			dst = append(dst, rowAt{b.Load(s.bins.KeysAt + i), at})
		}
	}
	slices.SortFunc(dst[from:], func(a, b rowAt) int {
		if a.key < b.key {
			return -1
		}
		return 1
	})
	return dst
}

// cut chooses where to divide a full bin for a new key: in the middle, or, if the key is above all
// others, at the key, so that ascending keys fill bins. It also returns the bin's bounds.
func (s *Server) cut(bin, key uint64, rows []rowAt) (low, fence, high uint64, last bool) {
	b := s.binSpan(bin)
	fence = rows[len(rows)/2].key
	if key > rows[len(rows)-1].key {
		fence = key
	}
	return b.Load(leaf.LowWord), fence, b.Load(leaf.HighWord), leaf.IsLast(b.Load(leaf.MetaWord))
}

func below(rows []rowAt, fence uint64) []rowAt {
	n := 0
	for n < len(rows) && rows[n].key < fence {
		n++
	}
	return rows[:n]
}

func above(rows []rowAt, fence uint64) []rowAt { return rows[len(below(rows, fence)):] }

// shrink gives a bin a lower high fence. Rows above it are in another bin already.
func (s *Server) shrink(bin, low, high uint64, rows []rowAt) {
	e := s.a.Begin(bin, s.bins.LeafWords)
	s.setBin(&e, low, high, false, rows)
	s.commit(&e)
}

// toRoot divides the only bin of an interval among two below a new root.
func (s *Server) toRoot(p *place, key uint64, rows []rowAt) error {
	root, err := s.rootSlab.Alloc()
	if err != nil {
		return full(err)
	}
	low, fence, high, last := s.cut(p.bin, key, rows)
	right, err := s.newBin(p.arr, fence, high, last, s.binSpan(p.bin).Load(s.bins.DeleteAt), above(rows, fence))
	if err != nil {
		s.rootSlab.Free(root)
		return err
	}
	s.setRoot(s.a.Create(root, leaf.RootBlockWords), p, []uint64{low, fence}, []uint64{p.bin, right})
	s.step("root made")
	s.shrink(p.bin, low, fence, below(rows, fence))
	s.step("only bin divided")
	e := s.a.Begin(p.arr.addr, s.lay.LeafWords)
	e.Set(s.lay.BelowAt+p.slot, uint64(leaf.ToRoot(root)))
	s.commit(&e)
	s.locks.Copy(leaf.GapAddr(p.bin), leaf.GapAddr(right))
	s.binSplits++
	return nil
}

// setRoot writes the root of an interval, and publishes it.
func (s *Server) setRoot(e block.Edit, p *place, fences, kids []uint64) {
	low, high, last := s.interval(p.arr, p.slot)
	s.lay.SetRoot(&e, low, high, last, fences, kids)
	s.commit(&e)
}

// children returns the fences and the bins of a root.
func (s *Server) children(r leaf.Root) (fences, kids []uint64) {
	for i := range r.Len() {
		fences, kids = append(fences, r.Fence(i)), append(kids, r.Child(i))
	}
	return fences, kids
}

// giveLeft moves the lowest rows of a full bin to the bin before it, if that has room: so bins are
// fuller before the interval needs another. First the bin before it takes the keys, so that at every
// moment some bin has them.
func (s *Server) giveLeft(p *place, r leaf.Root, rows []rowAt) bool {
	left := r.Child(p.kid - 1)
	have := s.binRows(left)
	n := (s.bins.Slots - len(have)) / 2
	if n == 0 {
		return false
	}
	if len(have) == 0 {
		p.arr.empty--
	}
	fence := rows[n].key
	b, l := s.binSpan(p.bin), s.binSpan(left)
	high, last := b.Load(leaf.HighWord), leaf.IsLast(b.Load(leaf.MetaWord))
	e := s.a.Begin(left, s.bins.LeafWords)
	s.setBin(&e, l.Load(leaf.LowWord), fence, false, append(have, rows[:n]...))
	e.Set(s.bins.DeleteAt, max(l.Load(s.bins.DeleteAt), b.Load(s.bins.DeleteAt)))
	s.commit(&e)
	s.step("rows given")
	e = s.a.Begin(p.bin, s.bins.LeafWords)
	s.setBin(&e, fence, high, last, rows[n:])
	s.commit(&e)
	s.step("rows taken")
	fences, kids := s.children(r)
	fences[p.kid] = fence
	s.setRoot(s.a.Begin(p.root, leaf.RootBlockWords), p, fences, kids)
	s.locks.Copy(leaf.GapAddr(p.bin), leaf.GapAddr(left))
	return true
}

// part is what a merge makes an array of.
type part struct {
	low, high uint64
	last      bool
	rows      []rowAt
	addr      uint64
}

// meets reports whether two ranges of keys meet.
func (p *part) meets(low, high uint64, last bool) bool {
	return (last || p.low < high) && (p.last || low < p.high)
}

// scratch is memory that merges use again.
type scratch struct {
	inner bool // there are bins before the last key of an array
	rows  []rowAt
	parts []part
	words []proved
	bins  []uint64
	roots []uint64
}

// proved is a gap word that goes away, with the range of keys of which it was the proof.
type proved struct {
	gap, low, high uint64
	last           bool
}

// gather takes the rows of an array and of its bins, in key order, and lists the bins. deleted is the
// newest deletion of all.
func (s *Server) gather(a *array, deleted uint64) uint64 {
	c := &s.scr
	w := s.span(a.addr)
	n := leaf.CountOf(w.Load(leaf.MetaWord))
	deleted = max(deleted, w.Load(s.lay.DeleteAt))
	take := func(bin uint64) {
		b := s.binSpan(bin)
		c.rows = s.appendBin(c.rows, bin)
		c.bins = append(c.bins, bin)
		c.words = append(c.words, proved{leaf.GapAddr(bin), b.Load(leaf.LowWord), b.Load(leaf.HighWord), leaf.IsLast(b.Load(leaf.MetaWord))})
		deleted = max(deleted, b.Load(s.bins.DeleteAt))
	}
	for i := range n + 1 {
		had := len(c.bins)
		switch to := leaf.Below(w.Load(s.lay.BelowAt + i)); {
		case to.IsRoot():
			r := s.rootAt(to.Addr())
			for k := range r.Len() {
				take(r.Child(k))
			}
			c.roots = append(c.roots, to.Addr())
		case to.IsBin():
			take(to.Addr())
		}
		if i == n {
			break
		}
		c.inner = c.inner || len(c.bins) > had
		if at := w.Load(s.lay.HeadsAt + i); at != 0 {
			c.rows = append(c.rows, rowAt{w.Load(s.lay.KeysAt + i), at})
		}
	}
	return deleted
}

// rebuild merges an array, or neighbours, with their bins: the first array gets their keys, and those
// on its right what does not fit. On an error nothing has changed.
//
// New arrays are complete before the first one links to them, and the first one has their keys no
// more before its bins die. A reader of an old copy thus finds a bin that still has all its keys, for
// nothing is written meanwhile, or finds it dead, and READs the array again. What it has read is
// proved by words that change here: the array's gap word, and those of the bins.
func (s *Server) rebuild(as ...*array) error {
	c, first, end := &s.scr, as[0], as[len(as)-1]
	c.rows, c.parts, c.words, c.bins, c.roots = c.rows[:0], c.parts[:0], c.words[:0], c.bins[:0], c.roots[:0]
	c.inner = false
	deleted := uint64(0)
	for _, a := range as {
		deleted = s.gather(a, deleted)
	}
	w := s.span(end.addr)
	high, last, right := w.Load(leaf.HighWord), leaf.IsLast(w.Load(leaf.MetaWord)), w.Load(leaf.RightWord)
	rising := len(as) == 1 && !c.inner
	s.divideRows(first.low, high, last, rising)
	for i := 1; i < len(c.parts); i++ {
		var err error
		if c.parts[i].addr, err = s.arraySlab.Alloc(); err != nil {
			for _, p := range c.parts[1:i] {
				s.arraySlab.Free(p.addr)
			}
			return full(err)
		}
	}
	c.parts[0].addr = first.addr
	oldHigh, oldLast := s.span(first.addr).Load(leaf.HighWord), leaf.IsLast(s.span(first.addr).Load(leaf.MetaWord))
	for i := len(c.parts) - 1; i >= 0; i-- {
		p := &c.parts[i]
		e := block.Edit{}
		if i == 0 {
			e = s.a.Begin(p.addr, s.lay.LeafWords)
		} else {
			e = s.a.Create(p.addr, s.lay.LeafWords)
		}
		e.Set(leaf.RightWord, right)
		s.setArray(e, *p, deleted)
		right = p.addr
		s.step("array made")
	}
	for _, a := range as[1:] {
		w := s.span(a.addr)
		c.words = append(c.words, proved{leaf.GapAddr(a.addr), a.low, w.Load(leaf.HighWord), leaf.IsLast(w.Load(leaf.MetaWord))})
	}
	s.moveLocks(proved{leaf.GapAddr(first.addr), first.low, oldHigh, oldLast})
	for _, b := range c.bins {
		s.kill(b, 0, s.binSlab)
	}
	for _, r := range c.roots {
		s.kill(r, 0, s.rootSlab)
	}
	s.step("bins dead")
	s.enlist(as)
	return nil
}

// divideRows divides the gathered rows among parts that cover from low to high.
func (s *Server) divideRows(low, high uint64, last, rising bool) {
	c := &s.scr
	n := len(c.rows)
	size := s.lay.Slots
	if n > size && !rising {
		parts := (4*n + 3*size - 1) / (3 * size) // three quarters full
		size = (n + parts - 1) / parts
	}
	for rest := c.rows; ; {
		k := min(size, len(rest))
		p := part{low: low, high: high, last: last, rows: rest[:k]}
		if rest = rest[k:]; len(rest) > 0 {
			p.high, p.last = rest[0].key, false
		}
		c.parts = append(c.parts, p)
		if low = p.high; len(rest) == 0 {
			return
		}
	}
}

// setArray writes all of an array but its right link, and publishes it.
func (s *Server) setArray(e block.Edit, p part, deleted uint64) {
	e.Set(leaf.LowWord, p.low)
	e.Set(leaf.HighWord, p.high)
	if p.last {
		e.Set(leaf.HighWord, 0)
	}
	e.Set(s.lay.DeleteAt, deleted)
	for i := range s.lay.Slots {
		r := rowAt{}
		if i < len(p.rows) {
			r = p.rows[i]
		}
		e.Set(s.lay.KeysAt+i, r.key)
		e.Set(s.lay.HeadsAt+i, r.addr)
		e.Set(s.lay.BelowAt+i, 0)
	}
	e.Set(s.lay.BelowAt+s.lay.Slots, 0)
	e.Set(leaf.GapWord, s.a.NextVersion())
	e.Set(leaf.MetaWord, s.lay.Pack(leaf.Meta{Last: p.last, Newest: leaf.NoNewest, Live: len(p.rows), Count: len(p.rows)}))
	s.commit(&e)
}

// moveLocks lets who shares words that go away share those that prove the same now. own is that of
// the first array, which stays.
func (s *Server) moveLocks(own proved) {
	if s.locks.Empty() {
		return
	}
	c := &s.scr
	for _, w := range append(c.words, own) {
		to := uint64(0)
		for i := range c.parts {
			p := &c.parts[i]
			if p.meets(w.low, w.high, w.last) {
				to = leaf.GapAddr(p.addr)
				s.locks.Copy(w.gap, to)
			}
		}
		if w.gap != own.gap {
			s.locks.Move(w.gap, to)
		}
	}
}

// kill makes a block unreadable and frees it. to is where the keys of an array are now.
func (s *Server) kill(addr, to uint64, slab *block.Slab) {
	w := s.a.Span(addr, int(slab.BlockBytes())/8)
	w.Store(block.HeaderWord, uint64(leaf.Free))
	w.Store(leaf.RightWord, to)
	w.Store(leaf.GapWord, uint64(leaf.Free)|s.a.NextVersion())
	slab.Free(addr)
}

// enlist makes the server and its trainer know what a merge has made of arrays.
func (s *Server) enlist(as []*array) {
	c, first := &s.scr, as[0]
	for _, a := range as[1:] {
		w := s.span(a.addr)
		high, last := w.Load(leaf.HighWord), leaf.IsLast(w.Load(leaf.MetaWord))
		s.arrays.Delete(a)
		delete(s.byAddr, a.addr)
		s.kill(a.addr, first.addr, s.arraySlab)
		a.gone = true
		s.unlinks++
		s.trainer.Changed(index.Num(a.low), index.Num(high), !last, 0, false)
	}
	s.merges++
	first.own, first.binned, first.empty = len(c.parts[0].rows), 0, 0
	for _, p := range c.parts[1:] {
		s.enrol(&array{low: p.low, addr: p.addr, own: len(p.rows)})
		s.splits++
		s.trainer.Changed(index.Num(p.low), index.Num(p.high), !p.last, p.addr, false)
	}
}

// wants lists an array that should be merged.
func (s *Server) wants(a *array) {
	if !a.due {
		a.due = true
		s.due = append(s.due, a)
	}
}

// sparse reports whether an array has so few rows that it should be joined to a neighbour.
func (s *Server) sparse(a *array) bool { return (a.own+a.binned)*sparseShare <= s.lay.Slots }

// tidiedShare bounds the merges of one call of tidy, which mutators wait for, to one for so many
// leaves that the trainer would tidy.
const tidiedShare = 4

// tidy merges some of the arrays that are due. It also reports that others are left: the caller must
// come again although none of those that were tried could be merged.
func (s *Server) tidy(limit int) (worked bool) {
	for limit = max(limit/tidiedShare, 1); limit > 0 && len(s.due) > 0; limit-- {
		a := s.due[0]
		s.due = s.due[1:]
		if a.due = false; a.gone {
			continue
		}
		if s.tidyOne(a) {
			worked = true
		}
	}
	if len(s.due) == 0 {
		s.due = nil
	}
	return worked || len(s.due) > 0
}

func (s *Server) tidyOne(a *array) bool {
	if s.sparse(a) {
		left, right := s.beside(a)
		for _, pair := range [...][2]*array{{left, a}, {a, right}} {
			if l, r := pair[0], pair[1]; l != nil && r != nil && s.join(l, r) {
				return s.rebuild(l, r) == nil
			}
		}
	}
	return s.crowded(a) && s.rebuild(a) == nil
}

// join reports whether neighbours should be one array: they have few rows, or one has none.
func (s *Server) join(l, r *array) bool {
	left, right := l.own+l.binned, r.own+r.binned
	return 2*(left+right) <= s.lay.Slots || min(left, right) == 0 && left+right <= s.lay.Slots
}

// beside returns the neighbours of an array, nil where there is none.
func (s *Server) beside(a *array) (left, right *array) {
	s.arrays.DescendLessOrEqual(a, func(b *array) bool {
		if b != a {
			left = b
		}
		return b == a
	})
	s.arrays.AscendGreaterOrEqual(a, func(b *array) bool {
		if b != a {
			right = b
		}
		return b == a
	})
	return left, right
}

// arrays are those of a server as its trainer sees them.
type arrays struct{ s *Server }

// Layout implements train.Leaves.
func (t arrays) Layout() leaf.Layout { return t.s.lay }

// First implements train.Leaves.
func (t arrays) First() uint64 { return t.s.first.addr }

// Inner implements train.Leaves: there are no inner nodes.
func (t arrays) Inner() uint64 { return 0 }

// Leaves implements train.Leaves.
func (t arrays) Leaves() uint64 {
	t.s.mu.RLock()
	defer t.s.mu.RUnlock()
	return uint64(t.s.arrays.Len())
}

// Tidy implements train.Leaves: it merges arrays that are due.
func (t arrays) Tidy(limit int) (worked bool) {
	t.s.mu.Lock()
	defer t.s.mu.Unlock()
	return t.s.tidy(limit)
}

// Walk implements train.Leaves.
func (t arrays) Walk(from index.Key, f func(low index.Key, leaf uint64) bool) {
	t.s.mu.RLock()
	defer t.s.mu.RUnlock()
	t.s.arrays.AscendGreaterOrEqual(t.s.arrayOf(from.Num), func(a *array) bool { return f(index.Num(a.low), a.addr) })
}

// Keys implements train.Leaves.
func (t arrays) Keys(addr uint64, dst []uint64) (words []uint64, prefix int, ok bool) {
	t.s.mu.RLock()
	defer t.s.mu.RUnlock()
	if t.s.byAddr[addr] == nil {
		return dst, 0, false
	}
	w := t.s.span(addr)
	for i := range leaf.CountOf(w.Load(leaf.MetaWord)) {
		dst = append(dst, w.Load(t.s.lay.KeysAt+i))
	}
	return dst, 0, true
}
