package learned

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
	"drtmx/rdma"
)

// Bounds of one scan.
const (
	maxLeavesPerRound = 32
	maxRowsPerRound   = 1024
	maxRestarts       = 4
	// maxScanLeaves bounds one scan, whose leaves are all kept until the next.
	maxScanLeaves = 1 << 16
	// maxGuess bounds the leaves READ in a round because they lie next to one
	// that a right link named; see scanOp.guess.
	maxGuess = 8
	// guessWindow is aligned memory that certainly is the region's if one leaf in it is.
	guessWindow = 64 << 10
	// rowsPerLeafShare is the share of slots expected in use, in 16ths.
	rowsPerLeafShare = 11
)

// leafRead is one leaf READ by a scan.
type leafRead struct {
	addr   uint64
	buf    []uint64
	wr     int // in the batch under way
	state  leafState
	view   leaf.Leaf // if readOK
	locked int       // times a row of the range was found locked
	guess  bool      // READ for no other reason than its address

	forward uint64 // if readLost: the leaf that has the keys of this dead one, 0 if unknown
}

// lost notes that the leaf is dead.
func (l *leafRead) lost(lay *leaf.Layout) { l.state, l.forward = readLost, lay.Forward(l.buf) }

type leafState uint8

const (
	readAsked leafState = iota
	readOK
	readBusy
	readLost // dead, foreign or no address
	readUsed // consumed, or of no use
)

// rowRead is one row block READ by a scan.
type rowRead struct {
	buf    []uint64
	wr     int
	locked int
	done   bool
}

// scanOp is a range scan; see index.ScanOp. It covers the keys from lo up, leaf
// by leaf: want is the leaf that should cover cur, the first key not covered
// yet. Leaves that the TT names are READ ahead; the right link of the leaf
// consumed last says which of them comes next. Each leaf tells the truth about
// its range at the time it was READ; the proofs tell whether these agree.
type scanOp struct {
	finder
	lo, hi, cur uint64
	limit       int
	res         index.ScanResult
	state       uint8

	want     uint64
	linked   bool       // want is a right link
	leafs    []leafRead // their buffers hold the rows of the result
	at       int        // leafs before it are used
	consumed int
	rows     []rowRead
	sorted   []slot
	restarts int
	stalls   int // rounds since the last leaf was consumed
	chases   int
	lefts    int
	busy     bool // a lock was in the way
	// guess is how many leaves to READ behind one that only a right link
	// names. The models do not know it yet, so it was split off lately, and
	// the leaves split off after it, where keys rise, lie behind it in memory
	// (package tree, extent). It doubles while that proves right.
	guess int

	aheadSub, aheadLeaf int // the next leaf to READ ahead; aheadSub -1 if unknown
	endSub, endLeaf     int // the leaf predicted to hold hi

	num numKey   // cur, while it is sought
	str *strScan // of string keys
}

// slot is a slot in use within the range.
type slot struct {
	key uint64
	at  int
}

// States of a scanOp.
const (
	scanStart uint8 = iota
	scanModel
	scanLeaves
	scanRows
	scanDone
)

// NewScan makes a range scan for one goroutine.
func (c *Client) NewScan() index.ScanOp {
	o := &scanOp{}
	o.str = &strScan{o: o}
	if o.k = &o.num; c.o.Strings {
		o.k = &o.str.strKey
	}
	o.c, o.n = c, &c.counts[c.nextOp.Add(1)%opStripes]
	return o
}

func (o *scanOp) Start(lo, hi index.Key, limit int) {
	o.lo, o.hi, o.limit, o.state, o.whole = lo.Num, hi.Num, limit, scanStart, true
	o.restarts, o.busy, o.guess = 0, false, 1
	o.clear()
	o.str.start(lo.Str, hi.Str)
}

// clear forgets what was gathered.
func (o *scanOp) clear() {
	o.res = index.ScanResult{Entries: o.res.Entries[:0], Quick: o.res.Quick[:0], Gaps: o.res.Gaps[:0]}
	o.leafs, o.rows = o.leafs[:0], o.rows[:0]
	o.cur, o.at, o.consumed, o.stalls, o.chases, o.lefts = o.lo, 0, 0, 0, 0, 0
}

func (o *scanOp) Result() *index.ScanResult { return &o.res }

func (o *scanOp) Next(done, next *rdma.Batch) bool {
	if o.state == scanStart {
		o.n.lookups.Add(1)
		if loaded := o.begin(); !loaded && o.lo <= o.hi && o.str.lo <= o.str.hi {
			return o.fallback()
		}
	}
	if o.c.o.Strings {
		return o.str.next(done, next)
	}
	switch o.state {
	case scanStart:
		if o.lo > o.hi {
			return o.finish(index.Found)
		}
		o.num.num = o.cur
		st, addr := o.find(next)
		return o.located(st, addr, next)
	case scanModel:
		st, addr := o.resume(done, next)
		return o.located(st, addr, next)
	case scanLeaves:
		return o.onLeaves(done, next)
	case scanRows:
		return o.onRows(done, next)
	}
	return true
}

// again goes on from cur anew after the tree changed under the scan.
func (o *scanOp) again(next *rdma.Batch) bool {
	if o.restarts++; o.restarts > maxRestarts {
		return o.giveUp()
	}
	o.n.retries.Add(1)
	if !o.begin() {
		return o.fallback()
	}
	o.num.num = o.cur
	st, addr := o.find(next)
	return o.located(st, addr, next)
}

func (o *scanOp) finish(s index.Status) bool {
	if s == index.Found {
		o.res.RestOn(0, o.res.Entries)
	}
	o.res.Status, o.state = s, scanDone
	return true
}

func (o *scanOp) giveUp() bool {
	if o.busy {
		return o.finish(index.Locked)
	}
	return o.fallback()
}

func (o *scanOp) fallback() bool {
	o.n.fallbacks.Add(1)
	if o.h == nil {
		o.c.doubtful.Store(true)
	}
	return o.finish(index.Fallback)
}

// located begins to READ at the leaf the finder came to, and ahead of it.
func (o *scanOp) located(st step, addr uint64, next *rdma.Batch) bool {
	switch st {
	case stepWait:
		o.state = scanModel
		o.n.rounds.Add(1)
		return false
	case stepStuck:
		return o.fallback()
	case stepDown:
		o.res.Err = o.err
		return o.finish(index.Failed)
	}
	o.want, o.linked = addr, false
	for i := o.at; i < len(o.leafs); i++ {
		o.leafs[i].state = readUsed // READ ahead of another place
	}
	o.at = len(o.leafs)
	o.aheadSub = -1
	if o.model != nil && o.model.HasTT() {
		o.aheadSub, o.aheadLeaf = o.sub, o.leaf+1
		o.end()
	}
	return o.readOn(next)
}

// end predicts where the range ends.
func (o *scanOp) end() {
	o.endLeaf = 0
	if o.h.strs == nil {
		o.endSub = o.h.router.Route(o.hi)
		if m := o.modelOf(o.endSub); m != nil {
			o.endLeaf = m.Predict(o.hi).Leaf
		}
		return
	}
	o.endSub = o.h.strs.Route(o.str.hi)
	m := o.modelOf(o.endSub)
	switch held := o.h.held[o.endSub].Load(); {
	case held != nil && m == &held.model:
		o.endLeaf = m.Predict(leaf.DigestAfter(held.prefix, o.str.hi)).Leaf
	case m != nil:
		o.endLeaf = m.Leaves() - 1 // fetched for this scan: its prefix is not at hand
	}
}

// modelOf is a sub-model at hand, nil if there is none.
func (o *scanOp) modelOf(sub int) *model.SubModel {
	if sub == o.sub {
		return o.model
	}
	if held := o.h.held[sub].Load(); held != nil {
		return &held.model
	}
	return nil
}

// readOn appends READs of the leaf wanted and of those predicted to follow.
func (o *scanOp) readOn(next *rdma.Batch) bool {
	o.readLeaf(o.want, next)
	n := o.expected() - 1
	for ; n > 0; n-- {
		addr, ok := o.ahead()
		if !ok {
			break
		}
		if addr != o.want {
			o.readLeaf(addr, next)
		}
	}
	if o.linked {
		o.readGuessed(min(n, o.guess), next)
	}
	return o.wait()
}

// readGuessed appends READs of the n leaves behind the one wanted in memory.
func (o *scanOp) readGuessed(n int, next *rdma.Batch) {
	for i := range n {
		addr := o.want + uint64(i+1)*o.lay.LeafBytes()
		if addr/guessWindow != o.want/guessWindow {
			return
		}
		o.readLeaf(addr, next)
		o.leafs[len(o.leafs)-1].guess = true
	}
}

// wait ends a round of leaves, within bounds.
func (o *scanOp) wait() bool {
	if o.stalls++; o.stalls > maxReads {
		return o.giveUp()
	}
	o.state = scanLeaves
	o.n.rounds.Add(1)
	return false
}

// expected is how many leaves the rest of the scan should take.
func (o *scanOp) expected() int {
	if o.limit <= 0 {
		return maxLeavesPerRound
	}
	have := len(o.res.Entries) + o.str.sure
	per := max(o.lay.Slots*rowsPerLeafShare/16, 1)
	return min((o.limit-have+per-1)/per+1, maxLeavesPerRound)
}

// ahead is the address of the next leaf by the TT, not beyond that of hi.
func (o *scanOp) ahead() (uint64, bool) {
	for o.aheadSub >= 0 && (o.aheadSub < o.endSub || o.aheadSub == o.endSub && o.aheadLeaf <= o.endLeaf) {
		m := o.modelOf(o.aheadSub)
		if m == nil || !m.HasTT() {
			break
		}
		if o.aheadLeaf < m.Leaves() {
			o.aheadLeaf++
			return o.lay.LeafAddr(m.ALN(o.aheadLeaf - 1)), true
		}
		o.aheadSub, o.aheadLeaf = o.aheadSub+1, 0
	}
	o.aheadSub = -1
	return 0, false
}

// readLeaf appends the READ of one more leaf.
func (o *scanOp) readLeaf(addr uint64, next *rdma.Batch) {
	n := len(o.leafs)
	if n < cap(o.leafs) {
		o.leafs = o.leafs[:n+1]
	} else {
		o.leafs = append(o.leafs, leafRead{})
	}
	l := &o.leafs[n]
	*l = leafRead{addr: addr, buf: grow(l.buf, o.lay.LeafWords)}
	o.reread(l, next)
}

func (o *scanOp) reread(l *leafRead, next *rdma.Batch) {
	l.wr, l.state, l.forward = next.Read(o.c.rkey, l.addr, l.buf), readAsked, 0
	o.n.reads.Add(1)
}

// onLeaves judges the leaves READ and consumes those that follow on.
func (o *scanOp) onLeaves(done, next *rdma.Batch) bool {
	for i := o.at; i < len(o.leafs); i++ {
		l := &o.leafs[i]
		if l.state != readAsked {
			continue
		}
		var see sight
		switch see, l.view = o.judge(&done.WRs[l.wr]); see {
		case seeDown:
			o.res.Err = done.WRs[l.wr].Status.Err()
			return o.finish(index.Failed)
		case seeBusy:
			l.state = readBusy
		case seeDead:
			l.lost(o.lay)
		case seeNowhere:
			l.state = readLost
		default:
			l.state = readOK
		}
	}
	for {
		if act := o.consume(next); act != goOn {
			return act == ended
		}
	}
}

// action is what a scan does next.
type action uint8

const (
	goOn    action = iota // consume the next leaf
	waiting               // READs were appended
	ended
)

func endIf(finished bool) action {
	if finished {
		return ended
	}
	return waiting
}

// wanted is the record of the leaf wanted, nil if it was not READ.
func (o *scanOp) wanted() *leafRead {
	for i := o.at; i < len(o.leafs); i++ {
		if l := &o.leafs[i]; l.addr == o.want && l.state != readUsed {
			return l
		}
	}
	return nil
}

// consume deals with the leaf wanted.
func (o *scanOp) consume(next *rdma.Batch) action {
	l := o.wanted()
	if l == nil {
		if o.at < len(o.leafs) && o.h.router != nil {
			o.c.missed(o.h, o.h.router.Route(o.cur)) // what was READ ahead does not follow
		}
		return endIf(o.readOn(next))
	}
	switch {
	case l.state == readBusy:
		o.n.retries.Add(1)
		o.reread(l, next)
		return endIf(o.wait())
	case l.forward != 0:
		return o.forward(l)
	case l.state == readLost || o.cur < l.view.Low():
		o.c.missed(o.h, o.sub)
		l.state = readUsed
		if o.consumed > 0 {
			return endIf(o.again(next))
		}
		if o.lefts++; o.lefts <= maxLeft {
			st, addr := o.back(next)
			return endIf(o.located(st, addr, next))
		}
		return endIf(o.fallback())
	case l.view.Above(o.cur):
		o.c.missed(o.h, o.sub)
		l.state = readUsed
		if o.chases++; o.chases > maxChase {
			if o.consumed == 0 {
				o.learn(&l.view, l.addr, o.pred.Leaf)
			}
			return endIf(o.fallback())
		}
		o.n.chases.Add(1)
		o.follow(l)
		return goOn
	}
	return o.take(l, next)
}

// take adds the rows of a leaf that covers cur.
func (o *scanOp) take(l *leafRead, next *rdma.Batch) action {
	before := len(o.res.Entries)
	if o.chases > 0 && o.consumed == 0 {
		o.learn(&l.view, l.addr, o.pred.Leaf)
	}
	more, ok := o.addRows(l)
	if !ok {
		o.res.Entries = o.res.Entries[:before]
		o.busy = true
		if l.locked++; l.locked >= maxLocked {
			return endIf(o.finish(index.Locked))
		}
		o.n.retries.Add(1)
		locked := l.locked
		o.reread(l, next)
		l.locked = locked
		return endIf(o.wait())
	}
	o.res.Quick = append(o.res.Quick, index.Proof{Addr: l.addr, Word: l.view.Header()})
	o.res.Gaps = append(o.res.Gaps, index.Proof{Addr: leaf.GapAddr(l.addr), Word: l.view.Gap()})
	o.res.RestOn(l.view.LastDelete(), nil)
	l.state = readUsed
	for o.at < len(o.leafs) && o.leafs[o.at].state == readUsed {
		o.at++
	}
	o.consumed++
	o.stalls, o.chases = 0, 0
	high, bounded := l.view.High()
	switch {
	case !bounded || high > o.hi:
		o.res.More = more
		return endIf(o.complete(next))
	case o.limit > 0 && len(o.res.Entries) == o.limit:
		o.res.More = true
		return endIf(o.complete(next))
	}
	if o.consumed >= maxScanLeaves {
		return endIf(o.fallback())
	}
	o.cur = high
	o.follow(l)
	return goOn
}

// follow goes to the leaf on the right.
func (o *scanOp) follow(l *leafRead) {
	if l.guess {
		o.guess = min(2*o.guess, maxGuess)
	}
	o.want, o.linked = l.view.Right(), true
}

// forward goes to the leaf that a dead one names.
func (o *scanOp) forward(l *leafRead) action {
	o.c.missed(o.h, o.sub)
	l.state = readUsed
	if o.chases++; o.chases > maxChase {
		return endIf(o.fallback())
	}
	o.n.chases.Add(1)
	o.want, o.linked = l.forward, true
	return goOn
}

// addRows adds the rows of a leaf, in key order, up to the limit; more says
// that it has others. It reports false if one of them is locked.
func (o *scanOp) addRows(l *leafRead) (more, ok bool) {
	sorted := o.sorted[:0]
	for i, k := range l.view.Keys() {
		if k < o.cur || k > o.hi || !l.view.InUse(i) {
			continue
		}
		s := slot{k, i}
		sorted = append(sorted, s)
		for j := len(sorted) - 1; j > 0 && sorted[j-1].key > k; j-- {
			sorted[j], sorted[j-1] = sorted[j-1], s
		}
	}
	o.sorted = sorted
	for _, s := range sorted {
		if o.limit > 0 && len(o.res.Entries) == o.limit {
			return true, true
		}
		e := index.Entry{Key: index.Num(s.key)}
		if o.lay.Kind == leaf.Inline {
			e.Header = block.Header(l.view.Head(s.at))
			if e.Header.Locked() {
				return false, false
			}
			e.Addr, e.Row = o.lay.HeadAddr(l.addr, s.at), l.view.Row(s.at)
		} else {
			e.Addr = l.view.Head(s.at)
		}
		o.res.Entries = append(o.res.Entries, e)
	}
	return false, true
}

// complete ends a scan whose leaves are all there, or goes on to the rows.
func (o *scanOp) complete(next *rdma.Batch) bool {
	if o.lay.Kind == leaf.Inline || len(o.res.Entries) == 0 {
		return o.finish(index.Found)
	}
	o.stalls = 0
	for n := len(o.res.Entries); len(o.rows) < n; {
		if len(o.rows) < cap(o.rows) {
			o.rows = o.rows[:len(o.rows)+1]
		} else {
			o.rows = append(o.rows, rowRead{})
		}
		r := &o.rows[len(o.rows)-1]
		*r = rowRead{buf: grow(r.buf, o.lay.RowBlockWords), wr: -1}
	}
	return o.readRows(next)
}

// readRows appends READs of the rows still missing.
func (o *scanOp) readRows(next *rdma.Batch) bool {
	n := 0
	for i := range o.rows {
		r := &o.rows[i]
		if r.wr = -1; r.done || n == maxRowsPerRound {
			continue
		}
		addr := o.res.Entries[i].Addr
		if bad(addr) {
			return o.fallback()
		}
		r.wr = next.Read(o.c.rkey, addr, r.buf)
		n++
	}
	if n == 0 {
		return o.finish(index.Found)
	}
	if o.stalls++; o.stalls > maxReads {
		return o.giveUp()
	}
	o.state = scanRows
	o.n.reads.Add(uint64(n))
	o.n.rounds.Add(1)
	return false
}

func (o *scanOp) onRows(done, next *rdma.Batch) bool {
	for i := range o.rows {
		r, e := &o.rows[i], &o.res.Entries[i]
		if r.wr < 0 {
			continue
		}
		switch judgeNumRow(&done.WRs[r.wr], o.lay, e.Key.Num, o.c.o.InOrder) {
		case rowHere:
			e.Header = block.Header(r.buf[block.HeaderWord])
			e.Row = r.buf[leaf.RowWord : leaf.RowWord+o.lay.RowWords]
			r.done = true
			o.stalls = 0
		case rowLocked:
			o.busy = true
			if r.locked++; r.locked >= maxLocked {
				return o.finish(index.Locked)
			}
		case rowGone:
			// Deleted since its leaf was READ: the leaves are not what they were.
			o.clear()
			return o.again(next)
		case rowNowhere:
			return o.fallback()
		case rowDown:
			o.res.Err = done.WRs[r.wr].Status.Err()
			return o.finish(index.Failed)
		}
	}
	return o.readRows(next)
}
