package xtree

import (
	"runtime"
	"slices"

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
func (t *Tree) Get(key uint64, res *index.GetResult) {
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
		res.Header, res.Rests = head, head.CSN()
		res.Proofs = append(res.Proofs, index.Proof{Addr: addr, Word: uint64(head)})
		return present
	}
	res.Rests = block.CSN(s.Load(deleteWord))
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
func (t *Tree) Scan(lo, hi uint64, limit int, res *index.ScanResult, buf []uint64) []uint64 {
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
	words  [keysWord + 2*MaxSlots]uint64 // copy of a leaf, without payloads
	space  [MaxSlots]slotKey
}

// leaf adds the rows of one leaf: present if the scan goes on at c.right,
// absent if it is done, else nothing was added.
func (c *cursor) leaf(leaf uint64) verdict {
	if leaf == 0 {
		return again
	}
	t := c.t
	s := t.span(leaf)
	words := c.words[:t.lay.rowAt]
	s.CopyOut(words)
	h, m, low, high := words[block.HeaderWord], words[metaWord], words[lowWord], words[highWord]
	last := m&lastFlag != 0
	c.right = words[rightWord]
	if block.Header(h).Locked() || c.lo < low {
		return again
	}
	if c.lo >= high && !last {
		if s.Load(block.HeaderWord) != h {
			return again
		}
		return present
	}
	entries := len(c.res.Entries)
	if live := unpackMeta(m).live; high <= c.hi && !last && (c.limit <= 0 || c.limit-entries > live) {
		// Most likely the scan goes on there: fetch it while this leaf is worked on.
		if next, ok := t.a.Region().Span(c.right, t.lay.LeafBytes()); ok {
			next.Prefetch()
		}
	}
	more, v := c.rows(s, leaf, min(int(m&0xff), t.lay.Slots))
	if changed := s.Load(block.HeaderWord) != h; changed || v != present {
		c.res.Entries = c.res.Entries[:entries]
		if changed {
			v = again
		}
		return v
	}
	c.res.Quick = append(c.res.Quick, index.Proof{Addr: leaf, Word: h})
	c.res.Gaps = append(c.res.Gaps, index.Proof{Addr: GapAddr(leaf), Word: words[GapWord]})
	c.res.RestOn(block.CSN(words[deleteWord]), c.res.Entries[entries:])
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

// rows adds the rows of a leaf, whose first count slots are looked at, in key
// order; more says that the limit left some out.
func (c *cursor) rows(s mem.Span, leaf uint64, count int) (more bool, v verdict) {
	t := c.t
	live := c.inRange(count)
	if room := c.limit - len(c.res.Entries); c.limit > 0 && len(live) > room {
		live, more = live[:max(room, 0)], true
	}
	if len(live) == 0 {
		return more, present
	}
	heads := c.words[t.lay.headAt:t.lay.rowAt]
	at := len(c.res.Entries)
	c.res.Entries = slices.Grow(c.res.Entries, len(live))[:at+len(live)]
	entries := c.res.Entries[at:]
	if !t.lay.Inline {
		for i, sk := range live {
			e := &entries[i]
			*e = index.Entry{Key: index.Num(sk.key), Addr: heads[sk.slot], Row: c.room(t.lay.RowWords)}
			if v, e.Header = t.readRow(e.Addr, sk.key, e.Row); v != present {
				return false, v
			}
		}
		return more, present
	}
	// All payloads in one go: cheaper than one by one, even if few are needed.
	w := t.lay.RowWords
	rows := c.room(count * w)
	s.Slice(t.lay.rowAt, len(rows)).CopyOut(rows)
	first := t.lay.HeadAddr(leaf, 0)
	for i, sk := range live {
		h := block.Header(heads[sk.slot])
		if h.Locked() {
			return false, locked
		}
		row := sk.slot * w
		e := &entries[i]
		e.Key, e.Addr, e.Header = index.Num(sk.key), first+uint64(sk.slot)*mem.WordBytes, h
		e.Row = rows[row : row+w : row+w]
	}
	return more, present
}

// inRange lists the slots in use, of the first count, whose keys the scan has
// yet to cover, in key order.
func (c *cursor) inRange(count int) []slotKey {
	free := uint64(0)
	if c.t.lay.Inline {
		free = uint64(Free)
	}
	lo, width := c.lo, c.hi-c.lo
	live, n := &c.space, 0
	heads := c.words[c.t.lay.headAt:][:count]
	for i, k := range c.words[keysWord:][:count] {
		if k-lo > width || heads[i] == free {
			continue
		}
		// Slots mostly are in order, or nearly.
		j := n
		for ; j > 0 && live[j-1].key > k; j-- {
			live[j] = live[j-1]
		}
		live[j] = slotKey{k, i}
		n++
	}
	return live[:n]
}

// room is n more words for payloads.
func (c *cursor) room(n int) []uint64 {
	at := len(c.buf)
	if at+n > cap(c.buf) {
		// Rows already handed out keep the old memory.
		c.buf, at = make([]uint64, 0, max(2*cap(c.buf), 16*n)), 0
	}
	c.buf = c.buf[:at+n]
	return c.buf[at : at+n : at+n]
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
