package tree

import (
	"slices"
	"strings"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// Scan implements index.OrderedServer. It may run concurrently with one mutator. Each
// leaf is read atomically; the caller validates the proofs to know whether the leaves
// form a consistent snapshot.
func (t *Tree) Scan(lo, hi index.Key, limit int, res *index.ScanResult, buf []uint64) []uint64 {
	*res = index.ScanResult{Entries: res.Entries[:0], Quick: res.Quick[:0], Gaps: res.Gaps[:0]}
	buf = buf[:0]
	if lo.Compare(hi) > 0 {
		res.Status = index.Found
		return buf
	}
	c := t.cursors.Get().(*cursor)
	c.t, c.lo, c.hi, c.limit, c.res, c.buf = t, lo, hi, limit, res, buf
	res.Status = c.run()
	buf = c.buf
	c.lo, c.hi, c.res, c.buf = index.Key{}, index.Key{}, nil, nil
	t.cursors.Put(c)
	return buf
}

func (c *cursor) run() index.Status {
	t := c.t
	addr := t.descend(c.lo)
	if addr != 0 {
		t.prefetchAll(t.span(addr))
	}
	for try := 0; try < readTries; {
		v := t.keys.scan(c, addr)
		switch v {
		case present:
			addr = c.right
			continue
		case absent: // the end of the range
			return index.Found
		}
		if v == locked && try > spinsShort {
			break
		}
		try++
		yield(try)
		addr = t.descend(c.lo)
	}
	return index.Locked
}

// cursor is a scan that has covered all keys below lo.
type cursor struct {
	t      *Tree
	lo, hi index.Key
	limit  int
	res    *index.ScanResult
	buf    []uint64
	right  uint64
	words  [leafHeadWords]uint64 // copy of a leaf, without inline rows
	order  order
	space  [leaf.MaxSlots]slotKey

	// Of a scan or lookup at a tick.
	at     clock.Tick
	past   []pastRow
	graves []leaf.Grave
	listed []block.Older
	block  []uint64
}

// leafHeadWords bounds the words of a leaf before its inline rows.
const leafHeadWords = 24 + 2*leaf.MaxSlots

// scan returns present if the scan goes on at c.right, and absent if it is done.
// Otherwise it has added nothing.
func (n *nativeKeys) scan(c *cursor, addr uint64) verdict {
	if addr == 0 {
		return again
	}
	t := n.t
	s := t.span(addr)
	words := c.words[:t.lay.RowsAt]
	s.CopyOut(words)
	c.order.copy(&t.lay, s)
	h, m, low, high := words[block.HeaderWord], words[leaf.MetaWord], words[leaf.LowWord], words[leaf.HighWord]
	last := leaf.IsLast(m)
	c.right = words[leaf.RightWord]
	if block.Header(h).Locked() || c.lo.Num < low {
		return again
	}
	if c.lo.Num >= high && !last {
		if s.Load(block.HeaderWord) != h {
			return again
		}
		return present
	}
	entries := len(c.res.Entries)
	live := min(leaf.Unpack(m).Live, t.lay.Slots)
	if high <= c.hi.Num && !last && (c.limit <= 0 || c.limit-entries > live) {
		// The scan probably goes on there: prefetch it while this leaf is processed.
		if next, ok := t.a.Region().Span(c.right, uint64(t.lay.PresentWords)*mem.WordBytes); ok {
			next.Prefetch()
		}
	}
	more, v := c.numRows(s, addr, min(leaf.CountOf(m), t.lay.Slots), live)
	if changed := s.Load(block.HeaderWord) != h; changed || v != present {
		c.res.Entries = c.res.Entries[:entries]
		if changed {
			v = again
		}
		return v
	}
	c.res.RestOn(block.CSN(words[t.lay.DeleteAt]), c.res.Entries[entries:])
	return c.covered(addr, h, words[leaf.GapWord], more, last || high > c.hi.Num, index.Num(high))
}

// covered adds the proofs of a leaf whose rows were added, and returns absent if the
// scan is done. next is the low fence of the next leaf; end says that the range ends
// in this one.
func (c *cursor) covered(addr, h, gap uint64, more, end bool, next index.Key) verdict {
	c.res.Quick = append(c.res.Quick, index.Proof{Addr: addr, Word: h})
	c.res.Gaps = append(c.res.Gaps, index.Proof{Addr: leaf.GapAddr(addr), Word: gap})
	switch {
	case end:
		c.res.More = more
		return absent
	case c.limit > 0 && len(c.res.Entries) == c.limit:
		c.res.More = true
		return absent
	}
	c.lo = next
	return present
}

// numRows adds the rows in the first count slots of a leaf of native keys, of which so
// many are in use, in key order; more says that the limit left some out.
func (c *cursor) numRows(s mem.Span, addr uint64, count, used int) (more bool, v verdict) {
	t := c.t
	live, ok := c.inRange(count, used)
	if !ok {
		return false, again
	}
	if room := c.limit - len(c.res.Entries); c.limit > 0 && len(live) > room {
		live, more = live[:max(room, 0)], true
	}
	if len(live) == 0 {
		return more, present
	}
	at := len(c.res.Entries)
	c.res.Entries = slices.Grow(c.res.Entries, len(live))[:at+len(live)]
	entries := c.res.Entries[at:]
	if t.lay.Kind == leaf.Apart {
		for i, sk := range live {
			e := &entries[i]
			*e = index.Entry{Key: index.Num(sk.word), Addr: sk.head, Row: c.room(t.lay.RowWords)}
			if v, e.Header = t.readRow(e.Addr, sk.word, e.Row); v != present {
				return false, v
			}
		}
		return more, present
	}
	// One copy of all payloads is cheaper than a copy of each, even if few are
	// needed.
	w := t.lay.RowWords
	rows := c.room(count * w)
	s.Slice(t.lay.RowsAt, len(rows)).CopyOut(rows)
	first := t.lay.HeadAddr(addr, 0)
	for i, sk := range live {
		h := block.Header(sk.head)
		if h.Locked() {
			return false, locked
		}
		row := sk.slot * w
		e := &entries[i]
		e.Key, e.Addr, e.Header = index.Num(sk.word), first+uint64(sk.slot)*mem.WordBytes, h
		e.Row = rows[row : row+w : row+w]
	}
	return more, present
}

// inRange returns those of the used slots in use, which are among the first count ones,
// whose native keys the scan has yet to cover, in key order. It returns false if the
// copy of the leaf is torn.
func (c *cursor) inRange(count, used int) (live []slotKey, ok bool) {
	lo, width := c.lo.Num, c.hi.Num-c.lo.Num
	keys, heads := c.words[c.t.lay.KeysAt:][:count], c.words[c.t.lay.HeadsAt:][:count]
	n := 0
	for _, b := range c.order.slots(used) {
		at := int(b)
		if at >= len(keys) || at >= len(heads) {
			return nil, false
		}
		if k := keys[at]; k-lo <= width {
			c.space[n] = slotKey{k, at, heads[at]}
			n++
		}
	}
	return c.space[:n], true
}

func (k *stringKeys) scan(c *cursor, _ uint64) verdict {
	sn, ok := k.see(c.lo)
	if !ok {
		return again
	}
	f, gap, deleted := sn.f, sn.s.Load(leaf.GapWord), block.CSN(sn.s.Load(k.t.lay.DeleteAt))
	entries := len(c.res.Entries)
	more, v := c.strRows(sn.s, f)
	if changed := sn.changed(); changed || v != present {
		c.res.Entries = c.res.Entries[:entries]
		if changed {
			v = again
		}
		return v
	}
	c.res.RestOn(deleted, c.res.Entries[entries:])
	return c.covered(f.addr, sn.h, gap, more, f.last || f.high.Str > c.hi.Str, f.high)
}

// strRows adds the rows of a leaf of string keys in key order; more says that
// the limit left some out.
func (c *cursor) strRows(s mem.Span, f *fences) (more bool, v verdict) {
	t := c.t
	prefix := f.low.Str[:f.prefix]
	from, to := leaf.DigestAfter(prefix, c.lo.Str), leaf.DigestAfter(prefix, c.hi.Str)
	live := c.space[:0]
	for _, b := range c.order.live(&t.lay, s) {
		i := int(b)
		if i >= t.lay.Slots {
			return false, again // the leaf is being changed
		}
		if d := s.Load(t.lay.KeysAt + i); d >= from && d <= to {
			live = append(live, slotKey{d, i, s.Load(t.lay.HeadsAt + i)})
		}
	}
	for i := 0; i < len(live); {
		if more = c.limit > 0 && len(c.res.Entries) >= c.limit; more {
			break
		}
		// Rows whose digests are equal are sorted by their keys.
		begin, d := len(c.res.Entries), live[i].word
		for ; i < len(live) && live[i].word == d; i++ {
			if v := c.strRow(leaf.Pointer(live[i].head)); v != present {
				return false, v
			}
		}
		if tied := c.res.Entries[begin:]; len(tied) > 1 {
			slices.SortFunc(tied, func(a, b index.Entry) int { return strings.Compare(a.Key.Str, b.Key.Str) })
		}
	}
	if c.limit > 0 && len(c.res.Entries) > c.limit {
		c.res.Entries, more = c.res.Entries[:c.limit], true
	}
	return more, present
}

// strRow adds one row, if its key is in the range.
func (c *cursor) strRow(p leaf.Pointer) verdict {
	s, ok := c.t.rowSpan(p)
	if !ok {
		return again
	}
	h := block.Header(s.Load(block.HeaderWord))
	size := s.Load(leaf.StrSizeWord)
	n := int(size >> 32)
	keyWords := (n + mem.WordBytes - 1) / mem.WordBytes
	words := keyWords + int(uint32(size))
	switch {
	case h == leaf.Free || n > index.MaxKeyBytes || leaf.StrKeyWord+words > s.Words():
		return again
	case h.Locked():
		// The verdict is locked only if the key is in the range. The key of a row
		// never changes, so it can be read now.
		words = keyWords
	}
	b := c.room(words)
	s.Slice(leaf.StrKeyWord, words).CopyOut(b)
	if block.Header(s.Load(block.HeaderWord)) != h && !h.Locked() {
		return again
	}
	key := mem.WordString(b, n)
	if key < c.lo.Str || key > c.hi.Str {
		c.buf = c.buf[:len(c.buf)-words]
		return present
	}
	if h.Locked() {
		return locked
	}
	c.res.Entries = append(c.res.Entries, index.Entry{
		Key: index.Str(key), Row: b[keyWords:words:words], Header: h, Addr: p.Addr(),
	})
	return present
}

// room returns n more words for keys and payloads.
func (c *cursor) room(n int) []uint64 {
	at := len(c.buf)
	if at+n > cap(c.buf) {
		// Entries added already keep the old memory.
		c.buf, at = make([]uint64, 0, max(2*cap(c.buf), 16*n)), 0
	}
	c.buf = c.buf[:at+n]
	return c.buf[at : at+n : at+n]
}

// Before implements index.Ruler: it returns the low fence of the leaf that should
// hold key, or the least key if a mutator is changing inner nodes.
func (t *Tree) Before(key index.Key, _ int) index.Key {
	nd, i := t.bottom(key)
	if nd == nil {
		return index.Key{}
	}
	low := t.keys.lowAt(nd, i)
	if low.Compare(key) > 0 {
		return index.Key{} // a mutator was in the way
	}
	return low
}

func (n *nativeKeys) lowAt(nd *node, i int) index.Key {
	if addr := nd.addrs[i].Load(); addr != 0 {
		return index.Num(n.t.span(addr).Load(leaf.LowWord))
	}
	return index.Key{}
}

func (k *stringKeys) lowAt(nd *node, i int) index.Key {
	if f := nd.str.lows[i].Load(); f != nil {
		return f.low
	}
	return index.Key{}
}
