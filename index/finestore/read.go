package finestore

import (
	"math"
	"slices"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// Lookup implements index.Server.
func (s *Server) Lookup(key index.Key, res *index.GetResult) {
	row := res.Row[:0]
	*res = index.GetResult{Status: index.NotFound, Proofs: res.Proofs[:0], Row: row}
	s.mu.RLock()
	defer s.mu.RUnlock()
	p := s.find(key.Num, 0)
	res.Hint = p.arr.addr
	if p.row == 0 {
		gap, at := s.a.Span(p.gap(), 1), s.span(p.arr.addr).Load(s.lay.DeleteAt)
		if p.bin != 0 {
			at = s.binSpan(p.bin).Load(s.bins.DeleteAt)
		}
		res.Rests = block.CSN(at)
		res.Proofs = append(res.Proofs, index.Proof{Addr: p.gap(), Word: gap.Load(0)})
		return
	}
	w := s.a.Span(p.row, s.lay.RowBlockWords)
	h := block.Header(w.Load(block.HeaderWord))
	if h.Locked() {
		res.Status = index.Locked
		return
	}
	res.Row = slices.Grow(row, s.lay.RowWords)[:s.lay.RowWords]
	w.Slice(leaf.RowWord, s.lay.RowWords).CopyOut(res.Row)
	res.Status, res.Header, res.Rests = index.Found, h, h.CSN()
	res.Proofs = append(res.Proofs, index.Proof{Addr: p.row, Word: uint64(h)})
}

// Get implements index.Server.
func (s *Server) Get(key index.Key, buf []uint64) index.GetResult {
	res := index.GetResult{Row: buf}
	s.Lookup(key, &res)
	return res
}

// LookupAt implements index.Server: there are no older versions.
func (s *Server) LookupAt(_ index.Key, _ clock.Tick, res *index.GetResult) {
	*res = index.GetResult{Status: index.Gone, Row: res.Row[:0], Proofs: res.Proofs[:0]}
}

// ScanAt implements index.OrderedServer: there are no older versions.
func (s *Server) ScanAt(_, _ index.Key, _ int, _ clock.Tick, res *index.ScanResult, buf []uint64) []uint64 {
	*res = index.ScanResult{Status: index.Gone, Entries: res.Entries[:0], Quick: res.Quick[:0], Gaps: res.Gaps[:0]}
	return buf[:0]
}

// scan is a range scan of the server.
type scan struct {
	s      *Server
	lo, hi uint64
	limit  int
	res    *index.ScanResult
	buf    []uint64
	rows   []rowAt
}

// Scan implements index.OrderedServer.
func (s *Server) Scan(lo, hi index.Key, limit int, res *index.ScanResult, buf []uint64) []uint64 {
	*res = index.ScanResult{Status: index.Found, Entries: res.Entries[:0], Quick: res.Quick[:0], Gaps: res.Gaps[:0]}
	c := scan{s: s, lo: lo.Num, hi: hi.Num, limit: limit, res: res, buf: buf[:0]}
	if lo.Num > hi.Num {
		return c.buf
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	s.arrays.AscendGreaterOrEqual(s.arrayOf(c.lo), func(a *array) bool { return a.low <= c.hi && c.array(a) })
	return c.buf
}

func (c *scan) proves(addr uint64, deleted uint64) {
	w := c.s.a.Span(addr, leaf.GapWord+1)
	c.res.Quick = append(c.res.Quick, index.Proof{Addr: addr, Word: w.Load(block.HeaderWord)})
	c.res.Gaps = append(c.res.Gaps, index.Proof{Addr: leaf.GapAddr(addr), Word: w.Load(leaf.GapWord)})
	c.res.Rests = max(c.res.Rests, block.CSN(deleted))
}

// array adds the rows of an array and of its bins. It reports whether the scan goes on.
func (c *scan) array(a *array) (goesOn bool) {
	s := c.s
	w := s.span(a.addr)
	c.proves(a.addr, w.Load(s.lay.DeleteAt))
	n := leaf.CountOf(w.Load(leaf.MetaWord))
	c.prefetch(w, n)
	for i := range n + 1 {
		low, high, last := s.interval(a, i)
		if low > c.hi {
			return false
		}
		if last || high > c.lo { // the interval meets the range: the key that ends it is not in it
			if !c.below(leaf.Below(w.Load(s.lay.BelowAt + i))) {
				return false
			}
		}
		if i == n {
			break
		}
		key, at := w.Load(s.lay.KeysAt+i), w.Load(s.lay.HeadsAt+i)
		if at != 0 && !c.row(rowAt{key, at}) {
			return false
		}
	}
	return true
}

// prefetch prefetches the rows and bins of an array of n keys: they are apart from it and from each
// other, and the scan would wait for one after the other.
func (c *scan) prefetch(w mem.Span, n int) {
	s := c.s
	most := s.lay.Slots
	if c.limit > 0 {
		most = c.limit - len(c.res.Entries)
	}
	for i := 0; i <= n && most > 0; i++ {
		key := uint64(math.MaxUint64)
		if i < n {
			key = w.Load(s.lay.KeysAt + i)
		}
		if key < c.lo {
			continue
		}
		if to := leaf.Below(w.Load(s.lay.BelowAt + i)); key > c.lo && to != 0 && !to.IsRoot() {
			s.binSpan(to.Addr()).Prefetch()
		}
		if key > c.hi || i == n {
			return
		}
		if at := w.Load(s.lay.HeadsAt + i); at != 0 {
			s.a.Span(at, s.lay.RowBlockWords).Prefetch()
			most--
		}
	}
}

// below adds the rows of an interval.
func (c *scan) below(to leaf.Below) (goesOn bool) {
	switch {
	case to == 0:
	case to.IsRoot():
		r := c.s.rootAt(to.Addr())
		for i := range r.Len() {
			if r.Fence(i) > c.hi {
				return false
			}
			if i+1 < r.Len() && r.Fence(i+1) <= c.lo {
				continue
			}
			if !c.bin(r.Child(i)) {
				return false
			}
		}
	default:
		return c.bin(to.Addr())
	}
	return true
}

func (c *scan) bin(addr uint64) (goesOn bool) {
	c.proves(addr, c.s.binSpan(addr).Load(c.s.bins.DeleteAt))
	c.rows = c.s.appendBin(c.rows[:0], addr)
	for _, r := range c.rows {
		if r.key >= c.lo && r.key <= c.hi {
			c.s.a.Span(r.addr, c.s.lay.RowBlockWords).Prefetch()
		}
	}
	for _, r := range c.rows {
		if !c.row(r) {
			return false
		}
	}
	return true
}

// row adds a row, if it is in the range.
func (c *scan) row(r rowAt) (goesOn bool) {
	switch {
	case r.key < c.lo:
		return true
	case r.key > c.hi:
		return false
	case c.limit > 0 && len(c.res.Entries) == c.limit:
		c.res.More = true
		return false
	}
	n := c.s.lay.RowWords
	w := c.s.a.Span(r.addr, c.s.lay.RowBlockWords)
	h := block.Header(w.Load(block.HeaderWord))
	if h.Locked() {
		c.res.Status = index.Locked
		return false
	}
	at := len(c.buf)
	c.buf = slices.Grow(c.buf, n)[:at+n]
	row := c.buf[at : at+n : at+n]
	w.Slice(leaf.RowWord, n).CopyOut(row)
	c.res.Entries = append(c.res.Entries, index.Entry{Key: index.Num(r.key), Row: row, Header: h, Addr: r.addr})
	c.res.Rests = max(c.res.Rests, h.CSN())
	return true
}

// Visit implements index.Server. The place is the lowest key that has not been visited.
func (s *Server) Visit(at *index.Place, words int, visit func(*index.Entry)) (more bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var rows []rowAt
	from, row := at.Key.Num, make([]uint64, s.lay.RowWords)
	s.arrays.AscendGreaterOrEqual(s.arrayOf(from), func(a *array) bool {
		if words <= 0 {
			at.Key, more = index.Num(a.low), true
			return false
		}
		rows = s.rowsOf(a, rows[:0])
		for _, r := range rows {
			w := s.a.Span(r.addr, s.lay.RowBlockWords)
			h := block.Header(w.Load(block.HeaderWord))
			if h.IsAbsent() || r.key < from {
				continue
			}
			w.Slice(leaf.RowWord, s.lay.RowWords).CopyOut(row)
			visit(&index.Entry{Key: index.Num(r.key), Row: row, Header: h.Unlock(), Addr: r.addr})
		}
		words -= s.lay.LeafWords + len(rows)*s.lay.RowBlockWords
		return true
	})
	return more
}

// rowsOf appends the rows of an array and of its bins, in key order, placeholders included.
func (s *Server) rowsOf(a *array, dst []rowAt) []rowAt {
	w := s.span(a.addr)
	n := leaf.CountOf(w.Load(leaf.MetaWord))
	for i := range n + 1 {
		for _, bin := range s.binsOf(leaf.Below(w.Load(s.lay.BelowAt + i))) {
			dst = s.appendBin(dst, bin)
		}
		if i == n {
			break
		}
		if at := w.Load(s.lay.HeadsAt + i); at != 0 {
			dst = append(dst, rowAt{w.Load(s.lay.KeysAt + i), at})
		}
	}
	return dst
}

// binsOf returns the bins of an interval, in key order.
func (s *Server) binsOf(to leaf.Below) []uint64 {
	switch {
	case to.IsBin():
		return []uint64{to.Addr()}
	case to.IsRoot():
		_, kids := s.children(s.rootAt(to.Addr()))
		return kids
	}
	return nil
}
