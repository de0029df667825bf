package read

import (
	"cmp"
	"slices"
	"strings"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// A scan of the past collects leaves as every scan does, and their graves, which it
// READs in the way of fences apart. A candidate is a slot or a grave that may have a
// row of the tick. The versions of all candidates are READ together, one step along
// older in each round. Two candidates lead to the same row if it was deleted between
// the READ of its leaf and that of the graves. Other candidates have no row of the
// tick, so a scan with a limit may have to continue after them; it takes twice as
// many candidates each time.

// resumesMax bounds how often a scan continues.
const resumesMax = 20

// pastScan has the additional state of a scan of the past.
type pastScan struct {
	kind    scanKind
	rows    []pastRow // of o.apart
	graves  []gravesRead
	mem     pieces
	words   int  // taken from mem
	settled int  // entries of the result whose versions are known
	cut     bool // the last leaf has more candidates after those taken
	lost    bool // a link to a version is not valid
	resumes int
}

// pastRow is the search for the row of one candidate.
type pastRow struct {
	newer block.CSN // a CSN above that of the version being READ; 0: the row's own block is being READ
	of    block.Older
	hash  uint64   // of a string key; 0 if it is unknown
	at    int      // of native keys: the entry of the result
	key   string   // of a string key; "" if it is unknown
	base  []uint64 // if of points to a patch: the payload to which it is applied
}

// gravesRead is one block of graves of a leaf.
type gravesRead struct {
	leaf int // in scanOp.leaves; -1 if the leaf was READ again since
	of   block.Older
	buf  []uint64
	wr   int // in the batch under way, -1 if it has arrived
	view leaf.Graves
}

// pieces allocates memory for one operation. The memory does not move.
type pieces struct {
	all  [][]uint64
	n    int // in use
	free []uint64
}

const pieceWordsMin = 1 << 9

func (p *pieces) reset() { p.n, p.free = 0, nil }

func (p *pieces) take(words int) []uint64 {
	for len(p.free) < words {
		if p.n == len(p.all) {
			p.all = append(p.all, make([]uint64, max(words, pieceWordsMin)))
		}
		p.free = p.all[p.n]
		p.n++
	}
	b := p.free[:words:words]
	p.free = p.free[words:]
	return b
}

// clearPast drops the candidates and graves collected so far.
func (o *scanOp) clearPast() {
	p := &o.past
	p.rows, p.graves = p.rows[:0], p.graves[:0]
	p.mem.reset()
	p.words, p.settled, p.resumes, p.cut, p.lost = 0, 0, 0, false, false
	o.goal = o.limit
}

// take returns memory for so many words, or nil if the scan has used its share.
func (p *pastScan) take(words int) []uint64 {
	if p.words += words; p.words > scanWordsMax {
		return nil
	}
	return p.mem.take(words)
}

// answer ends a scan of the past. Its answer needs no validation.
func (o *scanOp) answer(s index.Status) bool {
	o.res.Quick, o.res.Gaps, o.res.Rests = o.res.Quick[:0], o.res.Gaps[:0], 0
	return o.finish(s)
}

// askGraves READs the graves of a leaf that was just accepted, if the scan needs any,
// and reports whether it does.
func (o *scanOp) askGraves(l *leafRead, next *rdma.Batch) (asked bool) {
	at := o.indexOf(l)
	for i := range o.past.graves {
		if g := &o.past.graves[i]; g.leaf == at {
			g.leaf = -1
		}
	}
	of := gravesFor(&l.view, o.tick)
	if of != 0 {
		o.readGraves(at, of, next)
	}
	return of != 0
}

// readGraves appends the READ of one block of graves. If the link is not valid it
// READs the first line of the leaf instead, so that the block is judged in the same
// way as others.
func (o *scanOp) readGraves(at int, of block.Older, next *rdma.Batch) {
	p := &o.past
	addr, words := of.Addr(), of.Words()
	if !validVersion(of) {
		addr, words = o.leaves[at].addr, leaf.WholeLines(1)
	}
	p.words += words
	g := gravesRead{leaf: at, of: of, buf: p.mem.take(words)}
	g.wr = next.Read(o.c.rkey, addr, g.buf)
	p.graves = append(p.graves, g)
}

// onGraves judges the graves that were READ, and READs the blocks that they list.
func (o *scanOp) onGraves(done, next *rdma.Batch) bool {
	p, reads := &o.past, 0
	for i := range len(p.graves) {
		g := &p.graves[i]
		if g.leaf < 0 || g.wr < 0 {
			continue
		}
		wr := &done.WRs[g.wr]
		g.wr = -1
		var see rowVerdict
		switch g.view, see = o.judgeGraves(wr); {
		case see == rowDown:
			o.res.Err = wr.Status.Err()
			return o.finish(index.Failed)
		case see == rowReused || !validVersion(g.of):
			return o.answer(index.Gone)
		case see == rowTorn:
			o.n.retries.Add(1)
			g.wr = next.Read(o.c.rkey, g.of.Addr(), g.buf)
			reads++
		case g.view.IsList():
			list, at := g.view, g.leaf
			g.leaf = -1
			for j := range list.Len() {
				if of, newest := list.Block(j); newest.Tick() > o.tick && p.words <= scanWordsMax {
					o.readGraves(at, of, next)
					reads++
				}
			}
		}
	}
	switch {
	case p.words > scanWordsMax:
		return o.fallback()
	case reads == 0:
		return o.consumeAll(next)
	}
	o.reads += reads
	finished := o.wait()
	if !finished {
		o.state = scanFences
	}
	return finished
}

// gravesOf calls fn for the graves of a leaf that were dug after the tick.
func (o *scanOp) gravesOf(at int, fn func(d leaf.Grave)) {
	for i := range o.past.graves {
		g := &o.past.graves[i]
		if g.leaf != at {
			continue
		}
		for j := range g.view.Len() {
			if d := g.view.Grave(j); d.Deleted.Tick() > o.tick && d.Older != 0 {
				fn(d)
			}
		}
	}
}

// candidate adds a version to READ.
func (p *pastScan) candidate(r pastRow) {
	// A patch without a row to which it applies is not valid, unless the row is
	// missing for lack of memory.
	p.lost = p.lost || !validVersion(r.of) || r.of.IsPatch() && r.base == nil && p.words <= scanWordsMax
	p.rows = append(p.rows, r)
}

// listVersions adds the blocks of all candidates to o.apart.
func (o *scanOp) listVersions() bool {
	p, words := &o.past, 0
	if p.lost {
		return false
	}
	for i := range p.rows {
		words += o.wordsOf(&p.rows[i])
	}
	if o.apart.free = p.take(words); o.apart.free == nil && words > 0 {
		return false
	}
	for i := range p.rows {
		if r := &p.rows[i]; !o.apart.list(r.of.Addr(), o.wordsOf(r)) {
			p.lost = true
		}
	}
	return !p.lost
}

func (o *scanOp) wordsOf(r *pastRow) int { return versionWords(o.lay, r.of) }

// judgeCandidate returns the verdict on the block of candidate i: rowPast, or the
// reason why it is of no use. It does not check the key.
func (o *scanOp) judgeCandidate(i int, wr *rdma.WR) rowVerdict {
	if newer := o.past.rows[i].newer; newer != 0 {
		return judgeVersion(wr, newer, o.c.o.InOrder)
	}
	return judgePast(wr, o.c.o.InOrder)
}

// patched applies the patch in buf to the row or version of candidate i that points
// to it, and returns the payload.
func (o *scanOp) patched(i int, key index.Key, buf []uint64) (row []uint64, ok bool) {
	p := &o.past.rows[i]
	ok = patches(o.lay, buf, key, len(p.base)) && p.of.Apply(leaf.PatchWord, p.base, buf)
	return p.base, ok
}

// onward returns the verdict on candidate i, whose row or version is in buf, with the
// payload row. If that is of a later time, the next older version will be READ next.
func (o *scanOp) onward(i int, buf, row []uint64) rowVerdict {
	h := block.Header(buf[block.HeaderWord])
	see := pastOf(h, o.tick)
	if see != rowNewer {
		return see
	}
	of := olderIn(buf)
	switch {
	case of == 0:
		return rowAbsent
	case !validVersion(of):
		return rowReused
	}
	p, r := &o.past.rows[i], &o.apart.rows[i]
	whole := !p.of.IsPatch()
	p.of, p.newer, r.addr = of, bound(h), of.Addr()
	if of.IsPatch() && whole {
		p.base, r.buf = row, nil // the payload stays where it was READ
	}
	if words := o.wordsOf(p); words <= cap(r.buf) {
		r.buf = r.buf[:words]
	} else if r.buf = o.past.take(words); r.buf == nil {
		return rowNowhere
	}
	return rowAgain
}

// settle ends a scan when the rows of all candidates are known, unless it needs more
// candidates.
func (o *scanOp) settle(next *rdma.Batch) bool {
	p, n := &o.past, len(o.res.Entries)
	o.res.More = o.more
	if o.limit > 0 && n > o.limit {
		o.res.Entries, o.res.More = o.res.Entries[:o.limit], true
		n = o.limit
	}
	if !o.res.More || n == o.limit {
		return o.answer(index.Found)
	}
	if p.resumes++; p.resumes > resumesMax {
		return o.fallback()
	}
	p.settled, p.rows, p.cut = n, p.rows[:0], false
	o.goal, o.more, o.stalls = 2*o.goal, false, 0
	return o.findOn(next)
}

// nativePastScan has the steps of a scan of the past of native keys.
type nativePastScan struct {
	*nativeScan
	dead []leaf.Grave
	last uint64 // key of the last candidate
}

// deadEntry marks an entry that had no row at the tick.
const deadEntry = ^uint64(0)

func (s *nativePastScan) clear() {
	s.nativeScan.clear()
	s.o.clearPast()
}

func (s *nativePastScan) complete(l *leafRead, next *rdma.Batch) (asked, ok bool) {
	return s.o.askGraves(l, next), true
}

func (s *nativePastScan) onFences(done, next *rdma.Batch) bool { return s.o.onGraves(done, next) }

func (s *nativePastScan) have() int { return len(s.o.res.Entries) - s.o.past.settled }

func (s *nativePastScan) full() bool { return s.o.goal > 0 && s.have() >= s.o.goal }

func (s *nativePastScan) cover(l *leafRead) bool {
	if s.o.past.cut {
		s.cur = s.last + 1
		return false
	}
	return s.nativeScan.cover(l)
}

// add adds the candidates of a leaf in key order, up to the goal.
func (s *nativePastScan) add(l *leafRead, order []byte) (more, ok bool) {
	o, keys := s.o, l.view.Keys()
	order = s.inRange(l, order)
	s.sortDead(l)
	i, j := 0, 0
	for {
		key, slot := uint64(0), false
		switch {
		case i < len(order) && (j == len(s.dead) || keys[order[i]] <= s.dead[j].Key):
			key, slot = keys[order[i]], true
		case j < len(s.dead):
			key = s.dead[j].Key
		default:
			return false, true
		}
		if s.full() && key != s.last {
			o.past.cut = true
			return true, true
		}
		s.last = key
		if slot {
			s.addSlot(l, int(order[i]))
			i++
		} else {
			s.addVersion(key, s.dead[j].Older, s.dead[j].Deleted, nil)
			j++
		}
	}
}

// sortDead lists the graves of a leaf within the range, in key order. Of the graves of
// a key it lists only the one with the earliest deletion.
func (s *nativePastScan) sortDead(l *leafRead) {
	s.dead = s.dead[:0]
	s.o.gravesOf(s.o.indexOf(l), func(d leaf.Grave) {
		if d.Key >= s.cur && d.Key <= s.hi && sideOf(&l.view, d.Key) == seeHere {
			s.dead = append(s.dead, d)
		}
	})
	slices.SortFunc(s.dead, func(a, b leaf.Grave) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Deleted, b.Deleted))
	})
	s.dead = slices.CompactFunc(s.dead, func(a, b leaf.Grave) bool { return a.Key == b.Key })
}

func (s *nativePastScan) addSlot(l *leafRead, at int) {
	o, key := s.o, l.view.Key(at)
	if o.lay.Kind != leaf.Inline {
		s.addVersion(key, block.NewOlder(l.view.Head(at), 1), 0, nil)
		return
	}
	h := block.Header(l.view.Head(at))
	switch pastOf(h, o.tick) {
	case rowHere:
		o.res.Entries = append(o.res.Entries, index.Entry{Key: index.Num(key), Row: l.view.Row(at), Header: h.Unlock()})
	case rowNewer:
		older := l.view.Older(at)
		if older == 0 {
			break
		}
		var base []uint64
		if older.IsPatch() {
			if base = o.past.take(o.lay.RowWords); base != nil {
				copy(base, l.view.Row(at))
			}
		}
		s.addVersion(key, older, bound(h), base)
	}
}

// addVersion adds a candidate. base is the payload of the row that points to it, if
// it is a patch.
func (s *nativePastScan) addVersion(key uint64, of block.Older, newer block.CSN, base []uint64) {
	o := s.o
	o.past.candidate(pastRow{of: of, newer: newer, at: len(o.res.Entries), base: base})
	o.res.Entries = append(o.res.Entries, index.Entry{Key: index.Num(key)})
}

func (s *nativePastScan) list() bool { return s.o.listVersions() }

func (s *nativePastScan) judge(i int, wr *rdma.WR) rowVerdict {
	o := s.o
	see := o.judgeCandidate(i, wr)
	if see != rowPast {
		return see
	}
	p := &o.past.rows[i]
	e := &o.res.Entries[p.at]
	row, ok := []uint64(nil), o.lay.RowIs(wr.Buf, e.Key.Num)
	if p.of.IsPatch() {
		row, ok = o.patched(i, e.Key, wr.Buf)
	} else if ok {
		row = wr.Buf[leaf.RowWord : leaf.RowWord+o.lay.RowWords]
	}
	if !ok {
		return o.foreign(i)
	}
	switch see = o.onward(i, wr.Buf, row); see {
	case rowHere:
		e.Header, e.Row = block.Header(wr.Buf[block.HeaderWord]).Unlock(), row
	case rowAbsent:
		e.Addr, see = deadEntry, rowHere
	}
	return see
}

// foreign returns the verdict on a block of candidate i that has no row of its key.
func (o *scanOp) foreign(i int) rowVerdict {
	if o.past.rows[i].newer == 0 {
		return rowGone
	}
	return rowReused
}

func (s *nativePastScan) assemble(next *rdma.Batch) bool {
	o := s.o
	n := o.past.settled
	for _, e := range o.res.Entries[n:] {
		if e.Addr != deadEntry && (n == o.past.settled || e.Key != o.res.Entries[n-1].Key) {
			o.res.Entries[n] = e
			n++
		}
	}
	o.res.Entries = o.res.Entries[:n]
	return o.settle(next)
}

// stringPastScan has the steps of a scan of the past of string keys. A grave has only
// a hash of its key, so the graves of all leaves of the scan are candidates.
type stringPastScan struct {
	*stringScan
	dead  []candidate // of graves
	found []candidate
	begin string // the candidates begin here
	first []byte // begin
}

func (s *stringPastScan) clear() {
	s.stringScan.clear()
	s.o.clearPast()
	s.dead, s.begin = s.dead[:0], s.lo
}

func (s *stringPastScan) complete(l *leafRead, next *rdma.Batch) (asked, ok bool) {
	if asked, ok = s.stringScan.complete(l, next); ok && s.o.askGraves(l, next) {
		asked = true
	}
	return asked, ok
}

func (s *stringPastScan) onFences(done, next *rdma.Batch) bool {
	return s.takeFences(done) || s.o.onGraves(done, next)
}

func (s *stringPastScan) cover(l *leafRead) bool { return !s.o.past.cut && s.stringScan.cover(l) }

func (s *stringPastScan) add(l *leafRead, order []byte) (more, ok bool) {
	p, part := &s.o.past, s.o.indexOf(l)
	p.cut, _ = s.stringScan.add(l, order)
	s.o.gravesOf(part, func(d leaf.Grave) {
		s.dead = append(s.dead, candidate{p: leaf.Pointer(d.Older), digest: d.Key, part: part, header: block.Header(d.Deleted)})
	})
	return p.cut, true
}

// list makes candidates of the slots, and then of the graves.
func (s *stringPastScan) list() bool {
	p := &s.o.past
	p.rows = p.rows[:0]
	for i := range s.cands {
		ptr := s.cands[i].p
		p.candidate(pastRow{of: block.NewOlder(ptr.Addr(), ptr.Class())})
	}
	for i := range s.dead {
		d := &s.dead[i]
		p.candidate(pastRow{of: block.Older(d.p), newer: d.header.CSN(), hash: d.digest})
	}
	return s.o.listVersions()
}

func (s *stringPastScan) judge(i int, wr *rdma.WR) rowVerdict {
	o := s.o
	see := o.judgeCandidate(i, wr)
	if see != rowPast {
		return see
	}
	p := &o.past.rows[i]
	c, slot := s.candidateAt(i)
	key, row, ok := p.key, []uint64(nil), false
	if p.of.IsPatch() {
		row, ok = o.patched(i, index.Str(key), wr.Buf)
	} else if key, row, ok = o.lay.StrRow(wr.Buf); ok {
		hash := leaf.Hash(key)
		ok = (p.hash == 0 || hash == p.hash) && (!slot || s.fits(c, key))
		p.hash, p.key = hash, key
	}
	if !ok {
		return o.foreign(i)
	}
	if see = o.onward(i, wr.Buf, row); see == rowHere || see == rowAbsent {
		c.key, c.row, c.header = key, row, block.Header(wr.Buf[block.HeaderWord]).Unlock()
		if see == rowAbsent {
			c.header = leaf.Free
		}
		return rowHere
	}
	return see
}

// candidateAt returns candidate i, and whether it is a slot.
func (s *stringPastScan) candidateAt(i int) (*candidate, bool) {
	if i < len(s.cands) {
		return &s.cands[i], true
	}
	return &s.dead[i-len(s.cands)], false
}

// assemble puts the rows into the result in the order of their keys.
func (s *stringPastScan) assemble(next *rdma.Batch) bool {
	o, top := s.o, s.top()
	s.found = s.found[:0]
	for i := range len(s.cands) + len(s.dead) {
		c, slot := s.candidateAt(i)
		switch {
		case c.header == leaf.Free || c.key < s.begin || c.key > s.hi || o.past.cut && c.key > top:
		case !slot && sideOfFences(&o.leaves[c.part].fences, c.key) != seeHere:
		default:
			s.found = append(s.found, *c)
		}
	}
	slices.SortFunc(s.found, func(a, b candidate) int { return strings.Compare(a.key, b.key) })
	for i := range s.found {
		c := &s.found[i]
		if i > 0 && c.key == s.found[i-1].key {
			continue
		}
		o.res.Entries = append(o.res.Entries, index.Entry{Key: index.Str(c.key), Row: c.row, Header: c.header})
	}
	if o.past.cut {
		s.curKey = append(append(s.curKey[:0], top...), 0)
		s.cur = mem.String(s.curKey)
	}
	s.first = append(s.first[:0], s.cur...)
	s.begin = mem.String(s.first)
	s.cands, s.dead, s.sure, s.words = s.cands[:0], s.dead[:0], 0, 0
	return o.settle(next)
}

// top is the greatest key of a slot taken in. Where the last leaf was cut, the
// keys above are not covered.
func (s *stringPastScan) top() string {
	top := ""
	for i := range s.cands {
		top = max(top, s.cands[i].key)
	}
	return top
}
