package stree

import (
	"runtime"
	"slices"
	"strings"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Bounds of a reader beside a mutator. A leaf is in the middle of an edit for a
// few microseconds, so running out means that the mutator's goroutine is not
// running; the answer is then Locked.
const (
	readTries  = 4096
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
func (t *Tree) Get(key string, res *index.GetResult) {
	row := res.Row[:0]
	*res = index.GetResult{Status: index.Locked, Proofs: res.Proofs[:0], Row: row}
	tag := Tag(key)
	for try := range readTries {
		switch t.look(key, tag, res) {
		case again:
			yield(try)
			continue
		case present:
			res.Status = index.Found
			return
		case absent:
			res.Status = index.NotFound
		}
		res.Row = row
		return
	}
	res.Row = row
}

// look makes one attempt to read key's row into res.Row.
func (t *Tree) look(key string, tag uint16, res *index.GetResult) verdict {
	r := t.root.Load().descend(key)
	s := t.span(r.addr)
	h := s.Load(block.HeaderWord)
	if block.Header(h).Locked() || s.Load(versionWord) != r.version {
		return again
	}
	v := t.lookIn(s, r, key, tag, res)
	if s.Load(block.HeaderWord) != h {
		return again
	}
	return v
}

// lookIn reads key's slot. The caller checks that the leaf did not change.
func (t *Tree) lookIn(s mem.Span, r *ref, key string, tag uint16, res *index.GetResult) verdict {
	res.Hint, res.Proofs = r.addr, res.Proofs[:0]
	d := DigestAt(key, r.prefix)
	for i := range min(int(s.Load(metaWord)&0xff), t.lay.Slots) {
		if s.Load(digestWord+i) != d {
			continue
		}
		p := t.pointer(s, i)
		if p == 0 || p.Tag() != tag && !t.faults.firstTie {
			continue
		}
		row, ok := t.rowSpan(p)
		if !ok {
			return again
		}
		if !isRow(row, key) && !t.faults.firstTie {
			continue // of another key with that tag, or given away: then the leaf has changed
		}
		var v verdict
		if v, res.Row, res.Header = readRow(row, len(key), res.Row[:0]); v != present {
			return v
		}
		res.Rests = res.Header.CSN()
		res.Proofs = append(res.Proofs, index.Proof{Addr: p.Addr(), Word: uint64(res.Header)})
		return present
	}
	res.Rests = block.CSN(s.Load(deleteWord))
	res.Proofs = append(res.Proofs, index.Proof{Addr: GapAddr(r.addr), Word: s.Load(GapWord)})
	return absent
}

// rowSpan is the block that a pointer read racily leads to.
func (t *Tree) rowSpan(p Pointer) (mem.Span, bool) {
	if !p.Valid() {
		return mem.Span{}, false
	}
	return t.a.Region().Span(p.Addr(), uint64(p.Words())*mem.WordBytes)
}

// readRow appends the payload of a row with a key of so many bytes.
func readRow(s mem.Span, keyBytes int, dst []uint64) (verdict, []uint64, block.Header) {
	h := block.Header(s.Load(block.HeaderWord))
	if h == Free {
		return again, dst, 0
	}
	if h.Locked() {
		return locked, dst, 0
	}
	size := s.Load(rowSizeWord)
	at, n := rowKeyWord+(keyBytes+mem.WordBytes-1)/mem.WordBytes, int(uint32(size))
	if size>>32 != uint64(keyBytes) || at+n > s.Words() {
		return again, dst, 0
	}
	m := len(dst)
	dst = slices.Grow(dst, n)[:m+n]
	s.Slice(at, n).CopyOut(dst[m:])
	if block.Header(s.Load(block.HeaderWord)) != h {
		return again, dst[:m], 0
	}
	return present, dst, h
}

// Scan is index.OrderedServer's. It may run beside one mutator: each leaf is
// read at one moment, and the proofs tell whether these agree.
func (t *Tree) Scan(lo, hi string, limit int, res *index.ScanResult, buf []uint64) []uint64 {
	*res = index.ScanResult{Entries: res.Entries[:0], Quick: res.Quick[:0], Gaps: res.Gaps[:0]}
	buf = buf[:0]
	if lo > hi {
		res.Status = index.Found
		return buf
	}
	c := cursor{t: t, lo: lo, hi: hi, limit: limit, res: res, buf: buf}
	for try := 0; try < readTries; {
		switch v := c.leaf(); v {
		case present:
			continue
		case absent: // the end of the range
			res.Status = index.Found
			return c.buf
		case locked:
			if try > spinsShort {
				try = readTries
			}
		}
		try++
		yield(try)
	}
	res.Status = index.Locked
	return c.buf
}

// cursor is a scan that has covered all keys below lo.
type cursor struct {
	t      *Tree
	lo, hi string
	limit  int
	res    *index.ScanResult
	buf    []uint64
	space  [MaxSlots]slotKey
}

// leaf adds the rows of one leaf: present if the scan goes on at c.lo, absent
// if it is done, else nothing was added.
func (c *cursor) leaf() verdict {
	t := c.t
	r := t.root.Load().descend(c.lo)
	s := t.span(r.addr)
	h := s.Load(block.HeaderWord)
	if block.Header(h).Locked() || s.Load(versionWord) != r.version {
		return again
	}
	gap, deleted := s.Load(GapWord), block.CSN(s.Load(deleteWord))
	entries := len(c.res.Entries)
	more, v := c.rows(s, r)
	if changed := s.Load(block.HeaderWord) != h; changed || v != present {
		c.res.Entries = c.res.Entries[:entries]
		if changed {
			v = again
		}
		return v
	}
	c.res.Quick = append(c.res.Quick, index.Proof{Addr: r.addr, Word: h})
	c.res.Gaps = append(c.res.Gaps, index.Proof{Addr: GapAddr(r.addr), Word: gap})
	c.res.RestOn(deleted, c.res.Entries[entries:])
	switch {
	case r.last || r.high > c.hi:
		c.res.More = more
		return absent
	case c.limit > 0 && len(c.res.Entries) == c.limit:
		c.res.More = true
		return absent
	}
	c.lo = r.high
	return present
}

// rows adds the rows of a leaf in key order; more says that the limit left some out.
func (c *cursor) rows(s mem.Span, r *ref) (more bool, v verdict) {
	t, live := c.t, c.space[:0]
	prefix := r.low[:r.prefix]
	from, to := DigestAfter(prefix, c.lo), DigestAfter(prefix, c.hi)
	for i := range min(int(s.Load(metaWord)&0xff), t.lay.Slots) {
		d := s.Load(digestWord + i)
		p := t.pointer(s, i)
		if d < from || d > to || p == 0 {
			continue
		}
		live = append(live, slotKey{d, i, p})
		for j := len(live) - 1; j > 0 && live[j-1].digest > d; j-- {
			live[j], live[j-1] = live[j-1], live[j]
		}
	}
	for i := 0; i < len(live); {
		if more = c.limit > 0 && len(c.res.Entries) >= c.limit; more {
			break
		}
		// Rows whose digests tie come in the order of their keys.
		begin, d := len(c.res.Entries), live[i].digest
		for ; i < len(live) && live[i].digest == d; i++ {
			if v := c.row(live[i].p); v != present {
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

// row adds one row, if it is in the range.
func (c *cursor) row(p Pointer) verdict {
	s, ok := c.t.rowSpan(p)
	if !ok {
		return again
	}
	h := block.Header(s.Load(block.HeaderWord))
	size := s.Load(rowSizeWord)
	n := int(size >> 32)
	words := (n+mem.WordBytes-1)/mem.WordBytes + int(uint32(size))
	switch {
	case h == Free || n > index.MaxKeyBytes || rowKeyWord+words > s.Words():
		return again
	case h.Locked():
		// Locked is to be said only of keys in the range; the key of a row never changes.
		words = (n + mem.WordBytes - 1) / mem.WordBytes
	}
	b := c.room(words)
	s.Slice(rowKeyWord, words).CopyOut(b)
	if block.Header(s.Load(block.HeaderWord)) != h && !h.Locked() {
		return again
	}
	key := mem.WordString(b, n)
	if key < c.lo || key > c.hi {
		c.buf = c.buf[:len(c.buf)-words]
		return present
	}
	if h.Locked() {
		return locked
	}
	kw := (n + mem.WordBytes - 1) / mem.WordBytes
	c.res.Entries = append(c.res.Entries, index.Entry{
		Key: index.Str(key), Row: b[kw:words:words], Header: h, Addr: p.Addr(),
	})
	return present
}

// room is n more words for keys and payloads.
func (c *cursor) room(n int) []uint64 {
	at := len(c.buf)
	if at+n > cap(c.buf) {
		// Rows already handed out keep the old memory.
		c.buf, at = make([]uint64, 0, max(2*cap(c.buf), 16*n)), 0
	}
	c.buf = c.buf[:at+n]
	return c.buf[at : at+n : at+n]
}

// Digests appends the digests of the rows of a leaf in ascending order, and the
// length of the prefix they follow, for training. It may run beside a mutator;
// it reports false if the leaf was being changed.
func (t *Tree) Digests(leaf uint64, dst []uint64) (digests []uint64, prefix int, ok bool) {
	s := t.span(leaf)
	h := s.Load(block.HeaderWord)
	if block.Header(h).Locked() {
		return dst, 0, false
	}
	sh, ok := unpackShape(s.Load(shapeWord))
	n := len(dst)
	for i := range min(int(s.Load(metaWord)&0xff), t.lay.Slots) {
		if t.pointer(s, i) == 0 {
			continue
		}
		d := s.Load(digestWord + i)
		dst = append(dst, d)
		for j := len(dst) - 1; j > n && dst[j-1] > d; j-- {
			dst[j], dst[j-1] = dst[j-1], d
		}
	}
	if !ok || s.Load(block.HeaderWord) != h {
		return dst[:n], 0, false
	}
	return dst, sh.prefix, true
}
