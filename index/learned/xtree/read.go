package xtree

import (
	"runtime"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Bounds of a reader beside a mutator. A leaf is in the middle of an edit for
// well under a microsecond, so running out means that the mutator's goroutine
// is not running; the answer is then Locked.
const (
	readTries  = 4096
	chaseMax   = 16
	spinsShort = 8
)

// yield lets the mutator run on after a few short spins.
func yield(try int) {
	if try >= spinsShort {
		runtime.Gosched()
	}
}

// verdict is what a racy look at a leaf came to.
type verdict uint8

const (
	again   verdict = iota // torn, busy, dead or not the leaf of the key
	present                // row copied
	absent
	locked
)

// Get looks up a committed row. res is overwritten, but for the memory of its
// Proofs and Row, which is used again. It may run beside one mutator.
func (t *Tree) Get(key index.Key, res *index.GetResult) {
	proofs, buf := res.Proofs[:0], res.Row[:0]
	if cap(buf) < t.lay.RowWords {
		buf = make([]uint64, t.lay.RowWords)
	}
	*res = index.GetResult{Status: index.Locked, Proofs: proofs, Row: buf[:t.lay.RowWords]}
	for try := range readTries {
		v := t.look(key, res)
		if v == again {
			yield(try)
			continue
		}
		if v == present {
			res.Status = index.Found
			return
		}
		res.Row = res.Row[:0]
		if v == absent {
			res.Status = index.NotFound
		}
		return
	}
	res.Row = res.Row[:0]
}

// look makes one attempt to read key's row into res.Row.
func (t *Tree) look(key uint64, res *index.GetResult) verdict {
	leaf := t.descend(key)
	for range chaseMax {
		if leaf == 0 {
			return again
		}
		s := t.span(leaf)
		h := s.Load(block.HeaderWord)
		if block.Header(h).Locked() || key < s.Load(lowWord) {
			return again
		}
		m, high, right := s.Load(metaWord), s.Load(highWord), s.Load(rightWord)
		if key >= high && m&lastFlag == 0 {
			if s.Load(block.HeaderWord) != h {
				return again
			}
			leaf = right
			continue
		}
		v := t.lookIn(s, leaf, m, key, res)
		if s.Load(block.HeaderWord) != h {
			return again
		}
		return v
	}
	return again
}

// lookIn reads key's slot. The caller checks that the leaf did not change.
func (t *Tree) lookIn(s mem.Span, leaf, m, key uint64, res *index.GetResult) verdict {
	res.Hint, res.Proofs = leaf, res.Proofs[:0]
	n := min(int(m&0xff), t.lay.Slots)
	for i := range n {
		if s.Load(keysWord+i) != key || !t.inUse(s, i) {
			continue
		}
		addr, head := t.lay.HeadAddr(leaf, i), block.Header(s.Load(t.lay.headAt+i))
		if !t.lay.Inline {
			addr = uint64(head)
			var v verdict
			if v, head = t.readRow(addr, key, res.Row); v != present {
				return v
			}
		} else {
			s.Slice(t.lay.rowAt+i*t.lay.RowWords, t.lay.RowWords).CopyOut(res.Row)
		}
		if head.Locked() {
			return locked
		}
		res.Header = head
		res.Proofs = append(res.Proofs, index.Proof{Addr: addr, Word: uint64(head)})
		return present
	}
	res.Proofs = append(res.Proofs, index.Proof{Addr: GapAddr(leaf), Word: s.Load(GapWord)})
	return absent
}

// readRow copies the payload of a row block.
func (t *Tree) readRow(addr, key uint64, dst []uint64) (verdict, block.Header) {
	s, ok := t.a.Region().Span(addr, uint64(t.lay.RowBlockWords)*mem.WordBytes)
	if !ok {
		return again, 0 // the slot was read in the middle of an edit
	}
	h := block.Header(s.Load(block.HeaderWord))
	if h == Free || s.Load(rowKeyWord) != key {
		return again, 0
	}
	if h.Locked() {
		return locked, 0
	}
	s.Slice(RowWord, t.lay.RowWords).CopyOut(dst)
	if block.Header(s.Load(block.HeaderWord)) != h {
		return again, 0
	}
	return present, h
}

// Scan is index.OrderedServer's. It may run beside one mutator: each leaf is
// read at one moment, and the proofs tell whether these agree.
func (t *Tree) Scan(lo, hi index.Key, limit int, res *index.ScanResult, buf []uint64) []uint64 {
	*res = index.ScanResult{Entries: res.Entries[:0], Quick: res.Quick[:0], Gaps: res.Gaps[:0]}
	buf = buf[:0]
	if lo > hi {
		res.Status = index.Found
		return buf
	}
	c := cursor{t: t, lo: lo, hi: hi, limit: limit, res: res, buf: buf}
	leaf := t.descend(lo)
	for try := 0; try < readTries; {
		v := c.leaf(leaf)
		switch v {
		case present:
			leaf = c.right
			continue
		case absent: // the end of the range
			res.Status = index.Found
			return c.buf
		}
		if v == locked && try > spinsShort {
			break
		}
		try++
		yield(try)
		leaf = t.descend(c.lo)
	}
	res.Status = index.Locked
	return c.buf
}

// cursor is a scan that has covered all keys below lo.
type cursor struct {
	t      *Tree
	lo, hi uint64
	limit  int
	res    *index.ScanResult
	buf    []uint64
	right  uint64
}

// leaf adds the rows of one leaf: present if the scan goes on at c.right,
// absent if it is done, else nothing was added.
func (c *cursor) leaf(leaf uint64) verdict {
	if leaf == 0 {
		return again
	}
	t := c.t
	s := t.span(leaf)
	h := s.Load(block.HeaderWord)
	m, low, high := s.Load(metaWord), s.Load(lowWord), s.Load(highWord)
	last := m&lastFlag != 0
	c.right = s.Load(rightWord)
	if block.Header(h).Locked() || c.lo < low {
		return again
	}
	if c.lo >= high && !last {
		if s.Load(block.HeaderWord) != h {
			return again
		}
		return present
	}
	entries, more := len(c.res.Entries), false
	var space [MaxSlots]slotKey
	live := space[:0]
	for i := range min(int(m&0xff), t.lay.Slots) {
		if k := s.Load(keysWord + i); k >= c.lo && k <= c.hi && t.inUse(s, i) {
			live = insertSorted(live, slotKey{k, i})
		}
	}
	v := present
	for _, sk := range live {
		if c.limit > 0 && len(c.res.Entries) == c.limit {
			more = true
			break
		}
		if v = c.row(s, leaf, sk); v != present {
			break
		}
	}
	gap := s.Load(GapWord)
	if changed := s.Load(block.HeaderWord) != h; changed || v != present {
		c.res.Entries = c.res.Entries[:entries]
		if changed {
			v = again
		}
		return v
	}
	c.res.Quick = append(c.res.Quick, index.Proof{Addr: leaf, Word: h})
	c.res.Gaps = append(c.res.Gaps, index.Proof{Addr: GapAddr(leaf), Word: gap})
	switch {
	case last || high > c.hi:
		c.res.More = more
		return absent
	case c.limit > 0 && len(c.res.Entries) == c.limit:
		c.res.More = true
		return absent
	}
	c.lo = high
	return present
}

// row adds one row.
func (c *cursor) row(s mem.Span, leaf uint64, sk slotKey) verdict {
	t := c.t
	at := len(c.buf)
	if at+t.lay.RowWords > cap(c.buf) {
		// Rows already handed out keep the old memory.
		c.buf, at = make([]uint64, 0, max(2*cap(c.buf), 64*t.lay.RowWords)), 0
	}
	c.buf = c.buf[:at+t.lay.RowWords]
	row := c.buf[at : at+t.lay.RowWords : at+t.lay.RowWords]
	addr, head := t.lay.HeadAddr(leaf, sk.slot), block.Header(s.Load(t.lay.headAt+sk.slot))
	if !t.lay.Inline {
		addr = uint64(head)
		var v verdict
		if v, head = t.readRow(addr, sk.key, row); v != present {
			return v
		}
	} else {
		s.Slice(t.lay.rowAt+sk.slot*t.lay.RowWords, t.lay.RowWords).CopyOut(row)
	}
	if head.Locked() {
		return locked
	}
	c.res.Entries = append(c.res.Entries, index.Entry{Key: sk.key, Row: row, Header: head, Addr: addr})
	return present
}

// insertSorted adds to a list in key order: slots mostly are in order already.
func insertSorted(live []slotKey, sk slotKey) []slotKey {
	live = append(live, sk)
	for i := len(live) - 1; i > 0 && live[i-1].key > sk.key; i-- {
		live[i], live[i-1] = live[i-1], sk
	}
	return live
}

// Keys appends the keys of the rows of a leaf in ascending order, for training.
// It may run beside a mutator; it reports false if the leaf was being changed.
func (t *Tree) Keys(leaf uint64, dst []uint64) ([]uint64, bool) {
	s := t.span(leaf)
	h, n := s.Load(block.HeaderWord), len(dst)
	if block.Header(h).Locked() {
		return dst, false
	}
	for i := range min(int(s.Load(metaWord)&0xff), t.lay.Slots) {
		if !t.inUse(s, i) {
			continue
		}
		k := s.Load(keysWord + i)
		dst = append(dst, k)
		for j := len(dst) - 1; j > n && dst[j-1] > k; j-- {
			dst[j], dst[j-1] = dst[j-1], k
		}
	}
	if s.Load(block.HeaderWord) != h {
		return dst[:n], false
	}
	return dst, true
}
