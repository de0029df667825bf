package tree

import (
	"cmp"
	"slices"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// LookupAt implements index.Server. It may run concurrently with one mutator.
func (t *Tree) LookupAt(key index.Key, at clock.Tick, res *index.GetResult) {
	row := res.Row[:0]
	*res = index.GetResult{Proofs: res.Proofs[:0], Row: row}
	c := t.cursors.Get().(*cursor)
	c.t, c.at = t, at
	v := again
	for try := 0; try < readTries && v == again; try++ {
		if v = c.lookAt(key, res); v == again {
			yield(try)
		}
	}
	switch v {
	case present:
		res.Status, res.Rests = index.Found, res.Header.CSN()
	case absent:
		res.Status = index.NotFound
	case again:
		res.Status = index.Locked
	default:
		res.Status = index.Gone
	}
	if v != present {
		res.Row, res.Header = row, 0
	}
	t.cursors.Put(c)
}

// lookAt makes one attempt to find the row at the cursor's tick.
func (c *cursor) lookAt(key index.Key, res *index.GetResult) verdict {
	t := c.t
	sn, ok := t.keys.see(key)
	if !ok {
		return again
	}
	res.Hint = sn.addr
	r, v := pastRow{key: key}, absent
	if slot := t.keys.find(&sn, key); slot >= 0 {
		v = c.slotAt(&sn, slot, &r, res.Row[:0])
	}
	deleted, graves := block.CSN(sn.s.Load(t.lay.DeleteAt)), block.Older(sn.s.Load(t.lay.GravesAt))
	if sn.changed() || v == again {
		return again
	}
	if v == absent {
		v = c.walk(&r, res.Row[:0])
	}
	if v == absent && deleted.Tick() > c.at {
		if v = c.exhume(graves); v != present {
			return v
		}
		r.older = 0
		for _, g := range c.graves {
			if g.Key == t.graveKey(key) && (r.older == 0 || g.Deleted < r.before) {
				r.older, r.before = g.Older, g.Deleted
			}
		}
		v = c.walk(&r, res.Row[:0])
	}
	res.Row, res.Header = r.row, r.head
	return v
}

// pastRow is the row of a key at a tick once found is set. Until then it says where
// to go on.
type pastRow struct {
	key    index.Key
	found  bool
	row    []uint64
	head   block.Header
	older  block.Older // the version to examine next, 0 if the key was absent
	before block.CSN   // the CSN of that version is not above it
}

// slotAt copies the row in a slot to r if it is the row at the cursor's tick. absent
// says that it is newer: then r.older is the next version, and r.row has the payload
// if that is a patch. The caller checks that the leaf did not change.
func (c *cursor) slotAt(sn *seen, slot int, r *pastRow, dst []uint64) verdict {
	t := c.t
	if t.lay.Kind == leaf.Inline {
		r.head = block.Header(sn.s.Load(t.lay.HeadsAt + slot)).Unlock()
		r.older, r.before = block.Older(sn.s.Load(t.lay.OldersAt+slot)), r.head.CSN()
		here := !r.head.IsAbsent() && r.head.CSN().Tick() <= c.at
		if here || r.older.IsPatch() {
			c.copyRow(r, dst, sn.s.Slice(t.lay.RowsAt+slot*t.lay.RowWords, t.lay.RowWords))
		}
		if r.found = here; here {
			return present
		}
		return absent
	}
	s, ok := t.blockOf(sn.s.Load(t.lay.HeadsAt + slot))
	if !ok {
		return again
	}
	return c.take(s, r, dst)
}

// take does the same as slotAt for a row block or a version, which may be locked. The
// verdict is again if it is not the key's.
func (c *cursor) take(s mem.Span, r *pastRow, dst []uint64) verdict {
	t := c.t
	h := block.Header(s.Load(block.HeaderWord)).Unlock()
	at, n, ok := t.payload(s, r.key)
	if !ok {
		return again
	}
	r.older, r.before = block.Older(s.Load(t.versions.OlderWord)), h.CSN()
	here := h.CSN().Tick() <= c.at
	switch {
	case h.IsAbsent():
		r.older = 0
		return absent
	case !here && !r.older.IsPatch():
		return absent
	}
	c.copyRow(r, dst, s.Slice(at, n))
	switch {
	case block.Header(s.Load(block.HeaderWord)).Unlock() != h:
		return again
	case !here:
		return absent
	}
	r.head, r.found = h, true
	return present
}

// takePatch does the same as take for the patch r.older, which it applies to r.row.
func (c *cursor) takePatch(s mem.Span, r *pastRow) verdict {
	t := c.t
	h := block.Header(s.Load(block.HeaderWord))
	if !t.patches(s, r) || !r.older.ApplySpan(leaf.PatchWord, r.row, s) {
		return again
	}
	older := block.Older(s.Load(t.versions.OlderWord))
	if block.Header(s.Load(block.HeaderWord)) != h {
		return again
	}
	r.older, r.before = older, h.CSN()
	if h.CSN().Tick() > c.at {
		return absent
	}
	r.head, r.found = h.Unlock(), true
	return present
}

// patches reports whether a block is a patch for r.row.
func (t *Tree) patches(s mem.Span, r *pastRow) bool {
	if s.Words() < leaf.PatchWord {
		return false
	}
	if t.lay.Kind == leaf.Strings {
		size := uint64(len(r.key.Str))<<32 | uint64(len(r.row))
		return s.Load(leaf.IDWord) == t.lay.StrTag() && s.Load(leaf.StrSizeWord) == size
	}
	return s.Load(leaf.RowKeyWord) == r.key.Num && s.Load(leaf.RowIDWord) == t.lay.IDTag()
}

// copyRow copies a payload to r.row. If that has no room from a newer version, it
// uses the memory of the scan, or of dst if there is no scan.
func (c *cursor) copyRow(r *pastRow, dst []uint64, s mem.Span) {
	switch n := s.Words(); {
	case n <= cap(r.row):
		r.row = r.row[:n]
	case c.res != nil:
		r.row = c.room(n)
	default:
		r.row = slices.Grow(dst, n)[:n]
	}
	s.CopyOut(r.row)
}

// walk follows r.older to the version at the cursor's tick. The history does not
// reuse the memory of a version while readers at that tick may need it. So any
// inconsistency means that they are no longer served: the verdict is gone.
func (c *cursor) walk(r *pastRow, dst []uint64) verdict {
	r.found = false
	for first := true; r.older != 0; first = false {
		s, ok := c.t.versionOf(r.older)
		if !ok {
			return gone
		}
		before, h := r.before, block.Header(s.Load(block.HeaderWord))
		if !h.Locked() || h.IsAbsent() || h.CSN() > before || h.CSN() == before && !first {
			return gone
		}
		v := absent
		if r.older.IsPatch() {
			v = c.takePatch(s, r)
		} else {
			v = c.take(s, r, dst)
		}
		switch {
		case v == again || v == absent && block.Header(s.Load(block.HeaderWord)) != h:
			return gone
		case v == present:
			return present
		}
	}
	return absent
}

// exhume sets c.graves to the graves of deletions after the cursor's tick that a
// leaf's word graves leads to. It returns present, or gone if readers at that tick
// are no longer served. A block in a list whose memory has been reused had no such
// graves.
func (c *cursor) exhume(word block.Older) verdict {
	c.graves = c.graves[:0]
	if word == 0 {
		return present
	}
	g, ok := c.gravesAt(word)
	if !ok {
		return gone
	}
	if !g.IsList() {
		c.addGraves(g)
		return present
	}
	c.listed = c.listed[:0]
	for i := range g.Len() {
		if at, newest := g.Block(i); newest.Tick() > c.at {
			c.listed = append(c.listed, at)
		}
	}
	for _, at := range c.listed {
		if g, ok = c.gravesAt(at); ok && !g.IsList() {
			c.addGraves(g)
		}
	}
	return present
}

func (c *cursor) addGraves(g leaf.Graves) {
	for i := range g.Len() {
		if one := g.Grave(i); one.Deleted.Tick() > c.at {
			c.graves = append(c.graves, one)
		}
	}
}

// gravesAt copies a block of graves or a list of blocks; the copy is valid until the
// next call.
func (c *cursor) gravesAt(at block.Older) (leaf.Graves, bool) {
	if !at.Valid() {
		return leaf.Graves{}, false
	}
	s, ok := c.t.a.Region().Span(at.Addr(), at.Class().Bytes())
	if !ok {
		return leaf.Graves{}, false
	}
	c.block = slices.Grow(c.block[:0], at.Words())[:at.Words()]
	for try := range readTries {
		h := s.Load(block.HeaderWord)
		s.CopyOut(c.block)
		if s.Load(block.HeaderWord) == h {
			break
		}
		yield(try) // deletions are being added
	}
	return c.t.lay.GravesOf(c.block)
}

// blockOf returns the row block of a head. The head was read racily: false if it is
// not valid.
func (t *Tree) blockOf(head uint64) (mem.Span, bool) {
	if t.lay.Kind == leaf.Strings {
		return t.rowSpan(leaf.Pointer(head))
	}
	return t.a.Region().Span(head, uint64(t.lay.RowBlockWords)*mem.WordBytes)
}

// versionOf returns the block that a word older refers to, or false if the word is
// not valid.
func (t *Tree) versionOf(o block.Older) (mem.Span, bool) {
	words := t.lay.RowBlockWords
	if t.lay.Kind == leaf.Strings || o.IsPatch() {
		words = o.Words()
	}
	if !o.Valid() {
		return mem.Span{}, false
	}
	return t.a.Region().Span(o.Addr(), uint64(words)*mem.WordBytes)
}

// payload returns the place and size of a row block's payload, in words; false if the
// block is not the key's.
func (t *Tree) payload(s mem.Span, key index.Key) (at, n int, ok bool) {
	if t.lay.Kind != leaf.Strings {
		return leaf.RowWord, t.lay.RowWords, s.Load(leaf.RowKeyWord) == key.Num && s.Load(leaf.RowIDWord) == t.lay.IDTag()
	}
	at, n = leaf.StrKeyWord+leaf.KeyWords(key.Str), int(uint32(s.Load(leaf.StrSizeWord)))
	return at, n, s.Load(leaf.IDWord) == t.lay.StrTag() && at+n <= s.Words() && isRow(s, key.Str)
}

// ScanAt implements index.OrderedServer. It may run concurrently with one mutator.
func (t *Tree) ScanAt(lo, hi index.Key, limit int, at clock.Tick, res *index.ScanResult, buf []uint64) []uint64 {
	*res = index.ScanResult{Entries: res.Entries[:0], Quick: res.Quick[:0], Gaps: res.Gaps[:0], Status: index.Found}
	buf = buf[:0]
	if lo.Compare(hi) > 0 {
		return buf
	}
	c := t.cursors.Get().(*cursor)
	c.t, c.lo, c.hi, c.limit, c.res, c.buf, c.at = t, lo, hi, limit, res, buf, at
	v := present
	for try := 0; try < readTries && (v == present || v == again); {
		if v = c.scanAt(); v == again {
			try++
			yield(try)
		}
	}
	switch v {
	case absent:
	case gone:
		res.Status, res.Entries = index.Gone, res.Entries[:0]
	default:
		res.Status, res.Entries = index.Locked, res.Entries[:0]
	}
	buf = c.buf
	clear(c.past)
	c.lo, c.hi, c.res, c.buf = index.Key{}, index.Key{}, nil, nil
	t.cursors.Put(c)
	return buf
}

// scanAt adds the rows of one leaf. It returns present if the scan goes on, absent if
// it is done, again if it has added nothing, and gone if readers at the tick are no
// longer served.
func (c *cursor) scanAt() verdict {
	t := c.t
	sn, ok := t.keys.see(c.lo)
	if !ok {
		return again
	}
	c.past = c.past[:0]
	for _, b := range c.order.live(&t.lay, sn.s) { // most of settle's rows are sorted then
		i := int(b)
		if i >= t.lay.Slots {
			return again // the leaf is being changed
		}
		key, ok := c.keyAt(sn.s.Load(t.lay.KeysAt+i), sn.s.Load(t.lay.HeadsAt+i))
		if !ok {
			return again
		}
		if key.Compare(c.lo) < 0 || key.Compare(c.hi) > 0 {
			continue
		}
		r := pastRow{key: key}
		if v := c.slotAt(&sn, i, &r, nil); v == again {
			return again
		} else if v == absent && r.older == 0 {
			continue
		}
		c.past = append(c.past, r)
	}
	deleted, graves := block.CSN(sn.s.Load(t.lay.DeleteAt)), block.Older(sn.s.Load(t.lay.GravesAt))
	end, next := t.keys.ends(&sn, c.hi)
	if sn.changed() {
		return again
	}
	c.graves = c.graves[:0]
	if deleted.Tick() > c.at {
		if v := c.exhume(graves); v != present {
			return v
		}
	}
	return c.settle(end, next)
}

// settle finds the rows at the tick and adds them to the result, in key order. next
// is the low fence of the next leaf; end says that the range ends in this one.
func (c *cursor) settle(end bool, next index.Key) verdict {
	for i := range c.past {
		if r := &c.past[i]; !r.found {
			if v := c.walk(r, nil); v == gone {
				return gone
			}
		}
	}
	c.past = slices.DeleteFunc(c.past, func(r pastRow) bool { return !r.found })
	if v := c.addDead(end, next); v != present {
		return v
	}
	slices.SortFunc(c.past, func(a, b pastRow) int { return a.key.Compare(b.key) })
	for _, r := range c.past {
		if c.limit > 0 && len(c.res.Entries) == c.limit {
			c.res.More = true
			return absent
		}
		c.res.Entries = append(c.res.Entries, index.Entry{Key: r.key, Row: r.row, Header: r.head})
		c.res.Rests = max(c.res.Rests, r.head.CSN())
	}
	switch {
	case end:
		return absent
	case c.limit > 0 && len(c.res.Entries) == c.limit:
		c.res.More = true
		return absent
	}
	c.lo = next
	return present
}

// addDead adds to c.past the rows that were deleted after the tick and of which
// c.past has no row at the tick. Graves may be of keys in other leaves.
func (c *cursor) addDead(end bool, next index.Key) verdict {
	t, alive := c.t, len(c.past)
	for _, g := range c.graves {
		r := pastRow{key: index.Num(g.Key), older: g.Older, before: g.Deleted}
		if t.lay.Kind == leaf.Strings {
			s, ok := t.versionOf(g.Older)
			if !ok {
				return gone
			}
			if r.key, ok = c.keyIn(s); !ok {
				return gone
			}
		}
		outside := r.key.Compare(c.lo) < 0 || r.key.Compare(c.hi) > 0 || !end && r.key.Compare(next) >= 0
		if outside || slices.ContainsFunc(c.past[:alive], func(p pastRow) bool { return p.key == r.key }) {
			continue
		}
		c.past = append(c.past, r)
	}
	// Of several graves of a key, the earliest deletion counts.
	dead := c.past[alive:]
	slices.SortFunc(dead, func(a, b pastRow) int {
		if d := a.key.Compare(b.key); d != 0 {
			return d
		}
		return cmp.Compare(a.before, b.before)
	})
	dead = slices.CompactFunc(dead, func(a, b pastRow) bool { return a.key == b.key })
	n := alive
	for i := range dead {
		switch c.walk(&dead[i], nil) {
		case gone:
			return gone
		case present:
			c.past[n] = dead[i]
			n++
		}
	}
	c.past = c.past[:n]
	return present
}

// keyAt returns the key of a slot.
func (c *cursor) keyAt(word, head uint64) (index.Key, bool) {
	if c.t.lay.Kind != leaf.Strings {
		return index.Num(word), true
	}
	s, ok := c.t.rowSpan(leaf.Pointer(head))
	if !ok {
		return index.Key{}, false
	}
	return c.keyIn(s)
}

// keyIn returns the string key of a row block, in the memory of the scan.
func (c *cursor) keyIn(s mem.Span) (index.Key, bool) {
	n := int(s.Load(leaf.StrSizeWord) >> 32)
	words := (n + mem.WordBytes - 1) / mem.WordBytes
	if n > index.MaxKeyBytes || leaf.StrKeyWord+words > s.Words() {
		return index.Key{}, false
	}
	b := c.room(words)
	s.Slice(leaf.StrKeyWord, words).CopyOut(b)
	return index.Str(mem.WordString(b, n)), true
}
