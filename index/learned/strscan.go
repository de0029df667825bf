package learned

import (
	"slices"
	"strings"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Bounds of one scan of string keys.
const (
	// rowWordsPerRound bounds the rows READ in one round: 1 MiB, or one row.
	rowWordsPerRound = 128 << 10
	// maxScanWords bounds the rows of one scan, which are kept until the next:
	// 32 MiB. Beyond it the server answers, page by page.
	maxScanWords = 4 << 20
)

// strScan is what a range scan of string keys needs beside a scanOp, which has
// the leaves. First all leaves of the range are READ, or as many as surely have
// as many rows as are asked for; then the rows.
type strScan struct {
	o           *scanOp
	strKey             // cur, while it is sought
	lo, hi, cur string // in the buffers below
	keyed       []byte
	curKey      []byte

	parts []scanPart // beside o.leafs
	cands []candidate
	sure  int // candidates known to be within the range
	words int // of all their blocks
	more  bool
	mem   [][]uint64 // blocks READ, one slice a round
	chunk int        // slices of mem in use
}

// scanPart is what else is known of a leaf READ.
type scanPart struct {
	leaf    leaf.Leaf
	fences  leaf.Fences
	known   bool // fences
	fence   []uint64
	fenceWR int
}

// candidate is a slot whose row may be within the range.
type candidate struct {
	p      leaf.Pointer
	digest uint64
	part   int
	buf    []uint64
	wr     int
	locked int
	done   bool
	key    string
	row    []uint64
}

// scanFences is the state of a scanOp that waits for fence blocks.
const scanFences = scanDone + 1

// start copies the bounds, whose memory is the caller's.
func (s *strScan) start(lo, hi string) {
	s.keyed = append(append(s.keyed[:0], lo...), hi...)
	both := mem.String(s.keyed)
	s.lo, s.hi = both[:len(lo)], both[len(lo):]
	s.clear()
}

// clear forgets what was gathered.
func (s *strScan) clear() {
	s.cur, s.cands, s.sure, s.words, s.more, s.chunk = s.lo, s.cands[:0], 0, 0, false, 0
}

func (s *strScan) next(done, next *rdma.Batch) bool {
	o := s.o
	switch o.state {
	case scanStart:
		if s.lo > s.hi {
			return o.finish(index.Found)
		}
		s.str = s.cur
		st, addr := o.find(next)
		return o.located(st, addr, next)
	case scanModel:
		st, addr := o.resume(done, next)
		return o.located(st, addr, next)
	case scanLeaves:
		return s.onLeaves(done, next)
	case scanFences:
		return s.onFences(done, next)
	case scanRows:
		return s.onRows(done, next)
	}
	return true
}

// again goes on from cur anew after the tree changed under the scan.
func (s *strScan) again(next *rdma.Batch) bool {
	o := s.o
	if o.restarts++; o.restarts > maxRestarts {
		return o.giveUp()
	}
	o.n.retries.Add(1)
	if !o.begin() {
		return o.fallback()
	}
	s.str = s.cur
	st, addr := o.find(next)
	return o.located(st, addr, next)
}

// onLeaves judges the leaves READ, and asks for fences that are apart.
func (s *strScan) onLeaves(done, next *rdma.Batch) bool {
	o, asked := s.o, 0
	for len(s.parts) < len(o.leafs) {
		s.parts = append(s.parts, scanPart{})
	}
	for i := o.at; i < len(o.leafs); i++ {
		l, p := &o.leafs[i], &s.parts[i]
		if l.state != readAsked {
			continue
		}
		see, v := o.judge(&done.WRs[l.wr])
		switch see {
		case seeDown:
			o.res.Err = done.WRs[l.wr].Status.Err()
			return o.finish(index.Failed)
		case seeBusy:
			l.state = readBusy
			continue
		case seeDead:
			l.lost(o.lay)
			continue
		case seeHere:
		default:
			l.state = readLost
			continue
		}
		l.state, p.leaf = readOK, v
		if p.fences, p.known = v.Fences(); p.known {
			continue
		}
		addr, words, ok := v.FenceBlock()
		if !ok {
			l.state = readLost
			continue
		}
		p.fence = grow(p.fence, words)
		p.fenceWR = next.Read(o.c.rkey, addr, p.fence)
		asked++
	}
	if asked == 0 {
		return s.consumeAll(next)
	}
	o.n.reads.Add(uint64(asked))
	finished := o.wait()
	if !finished {
		o.state = scanFences
	}
	return finished
}

func (s *strScan) onFences(done, next *rdma.Batch) bool {
	o := s.o
	for i := o.at; i < len(o.leafs); i++ {
		l, p := &o.leafs[i], &s.parts[i]
		if l.state != readOK || p.known {
			continue
		}
		wr := &done.WRs[p.fenceWR]
		var see sight
		switch p.fences, see = o.judgeFence(wr, &p.leaf, l.addr); see {
		case seeHere:
			p.known = true
		case seeDown:
			o.res.Err = wr.Status.Err()
			return o.finish(index.Failed)
		default:
			l.state = readBusy // the leaf has other fences by now
		}
	}
	return s.consumeAll(next)
}

func (s *strScan) consumeAll(next *rdma.Batch) bool {
	for {
		if act := s.consume(next); act != goOn {
			return act == ended
		}
	}
}

// consume deals with the leaf wanted.
func (s *strScan) consume(next *rdma.Batch) action {
	o := s.o
	l := o.wanted()
	if l == nil {
		if o.at < len(o.leafs) && o.h.strs != nil {
			o.c.missed(o.h, o.h.strs.Route(s.cur)) // what was READ ahead does not follow
		}
		return endIf(o.readOn(next))
	}
	var p *scanPart
	for i := o.at; i < len(o.leafs); i++ {
		if l == &o.leafs[i] {
			p = &s.parts[i]
		}
	}
	switch {
	case l.state == readBusy:
		o.n.retries.Add(1)
		o.reread(l, next)
		return endIf(o.wait())
	case l.forward != 0:
		return o.forward(l)
	case l.state == readLost || p.fences.Below(s.cur):
		o.c.missed(o.h, o.sub)
		l.state = readUsed
		if o.consumed > 0 {
			return endIf(s.again(next))
		}
		if o.lefts++; o.lefts <= maxLeft {
			st, addr := o.back(next)
			return endIf(o.located(st, addr, next))
		}
		return endIf(o.fallback())
	case p.fences.Above(s.cur):
		o.c.missed(o.h, o.sub)
		l.state = readUsed
		if o.chases++; o.chases > maxChase {
			return endIf(o.fallback())
		}
		o.n.chases.Add(1)
		o.want = p.leaf.Right()
		return goOn
	}
	return s.take(l, p, next)
}

// take adds the candidates of a leaf that covers cur.
func (s *strScan) take(l *leafRead, p *scanPart, next *rdma.Batch) action {
	o := s.o
	if o.chases > 0 && o.consumed == 0 {
		o.learnStr(&p.fences, l.addr, o.pred.Leaf)
	}
	dropped := s.add(p)
	o.res.Quick = append(o.res.Quick, index.Proof{Addr: l.addr, Word: p.leaf.Header()})
	o.res.Gaps = append(o.res.Gaps, index.Proof{Addr: leaf.GapAddr(l.addr), Word: p.leaf.Gap()})
	o.res.RestOn(p.leaf.LastDelete(), nil)
	l.state = readUsed
	for o.at < len(o.leafs) && o.leafs[o.at].state == readUsed {
		o.at++
	}
	o.consumed++
	o.stalls, o.chases = 0, 0
	full := o.limit > 0 && s.sure >= o.limit
	switch ends := p.leaf.Last() || !p.fences.Above(s.hi); {
	case s.words > maxScanWords || o.consumed >= maxScanLeaves:
		return endIf(o.fallback())
	case ends || full:
		s.more = dropped || !ends
		o.stalls = 0
		return endIf(s.readRows(next))
	}
	s.curKey = p.fences.AppendHigh(s.curKey[:0])
	s.cur, o.want = mem.String(s.curKey), p.leaf.Right()
	return goOn
}

// add lists the slots of a leaf whose digests may be within the range, in the
// order of digests, up to the limit and those that tie with the last; dropped
// says that it left out others.
func (s *strScan) add(p *scanPart) (dropped bool) {
	o, first, part := s.o, len(s.cands), s.partOf(p)
	from, to := leaf.DigestAfter(p.fences.Prefix, s.cur), leaf.DigestAfter(p.fences.Prefix, s.hi)
	for i, d := range p.leaf.Keys() {
		ptr := p.leaf.Pointer(i)
		if d < from || d > to || ptr == 0 {
			continue
		}
		if n := len(s.cands); n < cap(s.cands) {
			s.cands = s.cands[:n+1]
		} else {
			s.cands = append(s.cands, candidate{})
		}
		j := len(s.cands) - 1
		for ; j > first && s.cands[j-1].digest > d; j-- {
			s.cands[j] = s.cands[j-1]
		}
		s.cands[j] = candidate{p: ptr, digest: d, part: part}
	}
	lowSure, highSure := p.fences.StartsAt(s.cur), p.fences.Above(s.hi)
	for i := first; i < len(s.cands); i++ {
		c := &s.cands[i]
		if o.limit > 0 && s.sure >= o.limit && c.digest != s.cands[i-1].digest {
			s.cands = s.cands[:i]
			return true
		}
		if (lowSure || c.digest > from) && (highSure || c.digest < to) {
			s.sure++
		}
		s.words += c.p.Words()
	}
	return false
}

func (s *strScan) partOf(p *scanPart) int {
	for i := s.o.at; ; i++ {
		if p == &s.parts[i] {
			return i
		}
	}
}

// readRows appends READs of the rows still missing, within the bounds of a round.
func (s *strScan) readRows(next *rdma.Batch) bool {
	o, n, words, fresh := s.o, 0, 0, 0
	for i := range s.cands {
		c := &s.cands[i]
		if c.wr = -1; c.done {
			continue
		}
		if !c.p.Valid() || c.p.Addr() >= maxAddr {
			return o.fallback()
		}
		if n == maxRowsPerRound || n > 0 && words+c.p.Words() > rowWordsPerRound {
			continue
		}
		c.wr = n
		n, words = n+1, words+c.p.Words()
		if c.buf == nil {
			fresh += c.p.Words()
		}
	}
	if n == 0 {
		return s.assemble(next)
	}
	if o.stalls++; o.stalls > maxReads {
		return o.giveUp()
	}
	var buf []uint64
	if fresh > 0 {
		if s.chunk == len(s.mem) {
			s.mem = append(s.mem, nil)
		}
		buf = grow(s.mem[s.chunk], fresh)
		s.mem[s.chunk] = buf
		s.chunk++
	}
	for i := range s.cands {
		c := &s.cands[i]
		if c.wr < 0 {
			continue
		}
		if w := c.p.Words(); c.buf == nil {
			c.buf, buf = buf[:w:w], buf[w:]
		}
		c.wr = next.Read(o.c.rkey, c.p.Addr(), c.buf)
	}
	o.state = scanRows
	o.n.reads.Add(uint64(n))
	o.n.rounds.Add(1)
	return false
}

func (s *strScan) onRows(done, next *rdma.Batch) bool {
	o := s.o
	for i := range s.cands {
		c := &s.cands[i]
		if c.done || c.wr < 0 {
			continue
		}
		wr := &done.WRs[c.wr]
		see, key, row := judgeStrRow(wr, &o.h.root.lay, o.c.o.InOrder)
		if see == rowHere && !s.fits(c, key) {
			see = rowGone // the block is another row's by now
		}
		switch see {
		case rowHere:
			c.key, c.row, c.done = key, row, true
			o.stalls = 0
		case rowLocked:
			o.busy = true
			if c.locked++; c.locked >= maxLocked {
				return o.finish(index.Locked)
			}
			o.n.retries.Add(1)
		case rowTorn:
			o.n.retries.Add(1)
		case rowGone:
			// Moved or deleted since its leaf was READ: the leaves are not what they were.
			return s.restart(next)
		case rowNowhere:
			return o.fallback()
		case rowDown:
			o.res.Err = wr.Status.Err()
			return o.finish(index.Failed)
		}
	}
	return s.readRows(next)
}

// fits reports whether a row may be the one that the slot led to.
func (s *strScan) fits(c *candidate, key string) bool {
	f := &s.parts[c.part].fences
	return leaf.Tag(key) == c.p.Tag() && sideOfFences(f, key) == seeHere && leaf.DigestAt(key, len(f.Prefix)) == c.digest
}

func (s *strScan) restart(next *rdma.Batch) bool {
	s.o.clear()
	s.clear()
	return s.again(next)
}

// assemble ends a scan whose rows are all there.
func (s *strScan) assemble(next *rdma.Batch) bool {
	o := s.o
	for i := 0; i < len(s.cands); {
		j := i + 1
		for j < len(s.cands) && s.cands[j].part == s.cands[i].part && s.cands[j].digest == s.cands[i].digest {
			j++
		}
		if j > i+1 {
			slices.SortFunc(s.cands[i:j], func(a, b candidate) int { return strings.Compare(a.key, b.key) })
		}
		for ; i < j; i++ {
			c := &s.cands[i]
			if c.key < s.lo || c.key > s.hi {
				continue
			}
			n := len(o.res.Entries)
			if n > 0 && c.key <= o.res.Entries[n-1].Key.Str {
				return s.restart(next) // one row from two blocks: it moved between the READs
			}
			if o.limit > 0 && n == o.limit {
				o.res.More = true
				return o.finish(index.Found)
			}
			o.res.Entries = append(o.res.Entries, index.Entry{
				Key: index.Str(c.key), Row: c.row, Header: block.Header(c.buf[block.HeaderWord]), Addr: c.p.Addr(),
			})
		}
	}
	o.res.More = s.more
	return o.finish(index.Found)
}
