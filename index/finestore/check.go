package finestore

import (
	"fmt"

	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
)

// Check implements index.Server.
func (s *Server) Check() error {
	if err := s.check(); err != nil {
		return fmt.Errorf("finestore: %w", err)
	}
	return s.trainer.Check()
}

func (s *Server) check() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var err error
	low, addr, rows, placeholders, bins, roots := uint64(0), s.first.addr, 0, 0, uint64(0), uint64(0)
	s.arrays.Ascend(func(a *array) bool {
		var c checked
		if a.low != low || a.addr != addr || s.byAddr[addr] != a || a.gone {
			err = fmt.Errorf("array %#x from %#x is known as %#x from %#x", addr, low, a.addr, a.low)
		} else if c, err = s.checkArray(a); err != nil {
			err = fmt.Errorf("array %#x from %#x: %w", addr, low, err)
		}
		low, addr = c.high, c.right
		rows, placeholders, bins, roots = rows+c.rows, placeholders+c.placeholders, bins+c.bins, roots+c.roots
		return err == nil
	})
	absent := 0
	for _, h := range s.held {
		if !h.Existed {
			absent++
		}
	}
	switch {
	case err != nil:
		return err
	case addr != 0:
		return fmt.Errorf("the last array links to %#x", addr)
	case uint64(rows) != s.live:
		return fmt.Errorf("%d rows, and %d are counted", rows, s.live)
	case placeholders != absent:
		return fmt.Errorf("%d placeholders, and %d locks on absent keys", placeholders, absent)
	case s.rows.Stats().Used != uint64(rows+placeholders):
		return fmt.Errorf("%d blocks of rows for %d rows and %d placeholders", s.rows.Stats().Used, rows, placeholders)
	case s.arrays.Len() != len(s.byAddr) || s.arraySlab.Stats().Used != uint64(s.arrays.Len()):
		return fmt.Errorf("%d arrays, %d by address, %d blocks", s.arrays.Len(), len(s.byAddr), s.arraySlab.Stats().Used)
	case s.binSlab.Stats().Used != bins || s.rootSlab.Stats().Used != roots:
		return fmt.Errorf("%d bins and %d roots, %d and %d blocks", bins, roots, s.binSlab.Stats().Used, s.rootSlab.Stats().Used)
	}
	return nil
}

// checked is what an array, or a part of it, was found to have.
type checked struct {
	rows, placeholders int
	empty              int // bins
	bins, roots        uint64
	high, right        uint64
}

func (s *Server) checkArray(a *array) (c checked, err error) {
	buf := make([]uint64, s.lay.LeafWords)
	w := s.span(a.addr)
	w.CopyOut(buf)
	if v := block.Accept(buf, w.Load(block.HeaderWord), a.addr, !s.a.Checksums()); v != block.OK {
		return c, fmt.Errorf("a reader finds it %v", v)
	}
	v, ok := s.lay.View(buf)
	if !ok || v.Low() != a.low || !v.Ascending() {
		return c, fmt.Errorf("no array with ascending keys from %#x", a.low)
	}
	own := 0
	for i := range v.Count() + 1 {
		low, high, last := s.interval(a, i)
		if to := v.Below(i); to != 0 {
			if err := s.checkBelow(&c, to, low, high, last); err != nil {
				return c, fmt.Errorf("interval %d: %w", i, err)
			}
		}
		if i == v.Count() {
			break
		}
		if at := v.Head(i); at != 0 {
			own++
			if err := s.checkRow(&c, v.Key(i), at); err != nil {
				return c, err
			}
		}
	}
	if binned := c.rows + c.placeholders - own; own != a.own || binned != a.binned {
		return c, fmt.Errorf("%d and %d rows, counted as %d and %d", own, binned, a.own, a.binned)
	}
	if c.empty != a.empty {
		return c, fmt.Errorf("%d bins without rows, counted as %d", c.empty, a.empty)
	}
	for i := v.Count() + 1; i <= s.lay.Slots; i++ {
		if v.Below(i) != 0 {
			return c, fmt.Errorf("something is below interval %d of %d", i, v.Count())
		}
	}
	c.high, _ = v.High()
	c.right = v.Right()
	return c, nil
}

func (s *Server) checkBelow(c *checked, to leaf.Below, low, high uint64, last bool) error {
	if !to.Valid() {
		return fmt.Errorf("word %#x", uint64(to))
	}
	if to.IsBin() {
		return s.checkBin(c, to.Addr(), low, high, last)
	}
	c.roots++
	buf := make([]uint64, leaf.RootBlockWords)
	w := s.rootSpan(to.Addr())
	w.CopyOut(buf)
	if v := block.Accept(buf, w.Load(block.HeaderWord), to.Addr(), !s.a.Checksums()); v != block.OK {
		return fmt.Errorf("a reader finds its root %v", v)
	}
	r, ok := s.lay.ViewRoot(buf)
	if !ok || !r.Is(low, high, last) {
		return fmt.Errorf("no root from %#x to %#x", low, high)
	}
	for i := range r.Len() {
		to, end := high, last
		if i+1 < r.Len() {
			to, end = r.Fence(i+1), false
		}
		if err := s.checkBin(c, r.Child(i), r.Fence(i), to, end); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) checkBin(c *checked, addr, low, high uint64, last bool) error {
	c.bins++
	buf := make([]uint64, s.bins.LeafWords)
	w := s.binSpan(addr)
	w.CopyOut(buf)
	if v := block.Accept(buf, w.Load(block.HeaderWord), addr, !s.a.Checksums()); v != block.OK {
		return fmt.Errorf("a reader finds bin %#x %v", addr, v)
	}
	v, ok := s.bins.View(buf)
	to, bounded := v.High()
	if !ok || v.Low() != low || bounded == last || bounded && to != high {
		return fmt.Errorf("no bin from %#x to %#x at %#x", low, high, addr)
	}
	live, seen := 0, map[uint64]bool{}
	for i := range v.Count() {
		if !v.InUse(i) {
			continue
		}
		k := v.Key(i)
		if k < low || v.Above(k) || seen[k] {
			return fmt.Errorf("key %#x in bin %#x from %#x to %#x", k, addr, low, high)
		}
		seen[k] = true
		live++
		if err := s.checkRow(c, k, v.Head(i)); err != nil {
			return err
		}
	}
	if live != v.Live() {
		return fmt.Errorf("bin %#x has %d rows, and says %d", addr, live, v.Live())
	}
	if live == 0 {
		c.empty++
	}
	return nil
}

func (s *Server) checkRow(c *checked, key, addr uint64) error {
	buf := make([]uint64, s.lay.RowBlockWords)
	s.a.Span(addr, s.lay.RowBlockWords).CopyOut(buf)
	if !s.lay.RowIs(buf, key) {
		return fmt.Errorf("block %#x is not the row of key %#x", addr, key)
	}
	h := block.Header(buf[block.HeaderWord])
	held := s.held[key]
	if h.Locked() != (held != nil) || h.IsAbsent() != (held != nil && !held.Existed) {
		return fmt.Errorf("the row of key %#x has header %v, and its lock is %v", key, h, held)
	}
	if h.IsAbsent() {
		c.placeholders++
	} else {
		c.rows++
	}
	return nil
}
