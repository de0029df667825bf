package read

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/clock"
	"drtmx/rdma"
)

// Bounds of one scan.
const (
	leavesPerRoundMax = 32
	restartsMax       = 4
	// scanLeavesMax bounds one scan, whose leaves are all kept until the next.
	scanLeavesMax = 1 << 16
	// guessMax bounds the leaves that a round READs only because they are next, in
	// memory, to a leaf that a right link named; see scanOp.guess.
	guessMax = 8
	// guessWindow is the size of aligned memory that is certainly in the region if
	// one leaf in it is.
	guessWindow = 64 << 10
	// rowsPerLeafShare is the share of slots expected in use before a scan has seen
	// leaves, in 16ths.
	rowsPerLeafShare = 11
	// fillOne is one slot in use, in scanOp.fill.
	fillOne = 256
	// A leaf that is fuller than expected raises scanOp.fill by fillUp, in 64ths of
	// the difference, and one that is less full lowers it by fillDown. As fillDown is
	// the greater one, fill is below the mean if leaves differ, and at the mean if
	// they do not: a leaf READ in vain costs less than a further round.
	fillUp, fillDown = 4, 12
)

// leafRead is one leaf READ by a scan.
type leafRead struct {
	addr   uint64
	buf    []uint64
	wr     int // in the batch under way
	state  leafState
	view   leaf.Leaf // if readOK
	locked int       // how often a READ found a row of the range locked, or the whole leaf
	linked bool      // READ because a right link names the leaf
	guess  bool      // READ only because of its address
	// logical is the leaf's logical number, if it was READ for a span.
	logical int

	// Of string keys.
	fences  leaf.Fences
	known   bool // fences
	fence   []uint64
	fenceWR int

	// Of arrays: what is in the intervals that the range meets, from interval first on.
	first int
	below []belowRead

	forward uint64 // if readLost: the leaf that has its keys now, 0 if unknown
}

// indexOf returns the place of a leaf in the list of leaves READ.
func (o *scanOp) indexOf(l *leafRead) int {
	i := o.at
	for l != &o.leaves[i] {
		i++
	}
	return i
}

// lost marks the leaf as dead.
func (l *leafRead) lost(lay *leaf.Layout) { l.state, l.forward = readLost, lay.Forward(l.buf) }

type leafState uint8

const (
	readAsked leafState = iota
	readOK
	readBusy
	readLost // dead, foreign or no address
	readUsed // consumed, or not needed
)

// scanOp is a range scan; see index.ScanOp. It covers the keys from lo up, leaf by
// leaf: want is the leaf that should cover cur, the first key not covered yet. It
// READs ahead the leaves that the TT names; the right link of the leaf consumed last
// determines which of them is next. Each copy is correct about its range at the time
// of its READ; the proofs show whether the copies are a consistent snapshot.
type scanOp struct {
	finder
	kind  scanKind
	limit int
	goal  int // rows to find before the rows that are not in leaves are READ
	res   index.ScanResult
	state scanState
	tick  clock.Tick // as of which to read; 0 is the present

	want   uint64
	linked bool       // want is a right link
	leaves []leafRead // their buffers hold the rows of the result
	// long means that leaves are READ with the order of their slots. Scans of one leaf
	// or two sort instead, so that they READ no more bytes than without orders.
	long     bool
	sorted   [leaf.MaxSlots]byte // scratch
	at       int                 // index of the wanted leaf: those before it are used
	consumed int
	restarts int
	stalls   int // rounds since the last leaf was consumed
	chases   int // right links followed since the last leaf was consumed
	hops     int // those of them that cost a round
	lefts    int
	span     spanScan
	busy     bool // a row was locked
	more     bool // the range has rows after those added
	// guess is the number of leaves to READ after one that only a right link names.
	// The models do not have that leaf yet, so it was split off recently. If keys
	// ascend, the leaves that were split off later follow it in memory (package tree,
	// extent). guess doubles while that proves right.
	guess int
	// fill is the expected number of slots in use of a leaf, in parts of fillOne,
	// learnt from the leaves that this and earlier scans consumed; 0 before the first.
	fill int

	apart scanRows // blocks of rows, if these are apart

	kindNow scanKind // that of scans of the present
	past    pastScan
	bins    *binScan // that of scans of arrays with bins, once there was one

	aheadSub, aheadLeaf int         // the next leaf to READ ahead; aheadSub -1 if unknown
	endSub, endLeaf     int         // the last leaf to READ ahead; endSub -1 if not worked out yet
	cursor              freshCursor // the next leaf of a hot sub-model
	tip                 int         // the sub-model in which the scan has reached the last leaf of ascending keys; -1 if none
	jumped              uint64      // the leaf that a tail list led to last
}

// scanKind has the steps of a scan that depend on the kind of key. It keeps the
// bounds, the first key that is not covered yet, and the rows added so far.
type scanKind interface {
	// start copies the bounds, whose memory belongs to the caller.
	start(lo, hi index.Key)
	// clear drops the rows added so far.
	clear()
	// empty reports whether there is no key between the bounds.
	empty() bool
	// seek sets the finder's key to the first key that is not covered.
	seek()
	// complete READs the other blocks that the scan needs for a leaf that was just
	// accepted: fences or graves. ok is false if the leaf is invalid.
	complete(l *leafRead, next *rdma.Batch) (asked, ok bool)
	// onFences continues with the READs of complete.
	onFences(done, next *rdma.Batch) bool
	// side compares the first key that is not covered with the fences of a
	// leaf.
	side(l *leafRead) leafVerdict
	// learn makes a sub-model remember a leaf at which a search ended that began at
	// logical leaf from; see patchLeaf.
	learn(of *heldSub, l *leafRead, from int)
	// keys returns the keys or digests of the slots of a leaf that may be in the range
	// and are not covered.
	keys(l *leafRead) (from, to uint64)
	// add adds the rows of a leaf to the result. The order has those of the leaf's slots
	// in use that may be in the range, and perhaps others. more reports that it left rows
	// out because of the limit. ok is false if a row is locked.
	add(l *leafRead, order []byte) (more, ok bool)
	// cover records that keys up to the leaf's high fence are covered, and reports
	// whether that is the whole range.
	cover(l *leafRead) bool
	// have returns the number of added rows that are certainly in the range,
	// and full reports whether these are enough.
	have() int
	full() bool
	// end returns the sub-model of the upper bound, and the last leaf to READ ahead
	// for it.
	end() (sub, leaf int)
	// beyond reports whether a key is above the upper bound.
	beyond(key index.Key) bool
	// list adds the blocks of the rows that are not in leaves to o.apart. It returns
	// false if one of them is not valid, or if there are too many to READ.
	list() bool
	// judge returns the verdict on the block of row i of o.apart, and adds the row if
	// it is the one that was listed.
	judge(i int, wr *rdma.WR) rowVerdict
	// assemble ends a scan that has all its rows.
	assemble(next *rdma.Batch) bool
}

// scanState says what a scan waits for.
//
//	start ─▶ model ─▶ leaves ─▶ rows ─▶ done
//	            ▲      │  ▲
//	            └──────┘  └─▶ fences
//
// A scan is in state model while it READs parts of the models that the client does
// not keep, and again after the tree changed under it. In state leaves it consumes
// leaves from left to right until they cover the range. It is in state fences if
// fences are too long for the leaves just READ. Rows that have their own blocks are
// READ last, all together, because only then it is known which of them are within the
// limit.
type scanState uint8

const (
	scanStart scanState = iota
	scanModel
	scanLeaves
	scanFences
	scanReadsRows
	scanDone
)

// NewScan returns a range scan for one goroutine.
func (c *Client) NewScan() index.ScanOp {
	o := &scanOp{}
	if c.o.Strings {
		s := &stringScan{o: o}
		o.kindNow, o.past.kind = s, &stringPastScan{stringScan: s}
	} else {
		s := &nativeScan{o: o}
		o.kindNow, o.past.kind = s, &nativePastScan{nativeScan: s}
	}
	o.begins(c)
	return o
}

// Start implements index.ScanOp.
func (o *scanOp) Start(lo, hi index.Key, limit int) { o.StartAt(lo, hi, limit, 0) }

// StartAt implements index.ScanOp.
func (o *scanOp) StartAt(lo, hi index.Key, limit int, at clock.Tick) {
	o.limit, o.goal, o.state, o.whole, o.tick = limit, limit, scanStart, true, at
	if o.kind = o.kindNow; at != 0 {
		o.kind = o.past.kind
	}
	o.rounds, o.reads, o.restarts, o.busy, o.guess = 0, 0, 0, false, 1
	o.kind.start(lo, hi)
	o.clear()
}

// clear drops the leaves and rows collected so far.
func (o *scanOp) clear() {
	r := &o.res // field by field: the processor stalls if it copies a result that it has just made
	r.Entries, r.Quick, r.Gaps = r.Entries[:0], r.Quick[:0], r.Gaps[:0]
	r.Status, r.More, r.Rests, r.Err = 0, false, 0, nil
	o.leaves, o.long = o.leaves[:0], false
	o.at, o.consumed, o.stalls, o.chases, o.hops, o.lefts, o.jumped, o.more = 0, 0, 0, 0, 0, 0, 0, false
	o.span = spanScan{}
	o.kind.clear()
}

func (o *scanOp) Result() *index.ScanResult { return &o.res }

func (o *scanOp) Next(done, next *rdma.Batch) bool {
	switch o.state {
	case scanStart:
		if o.kind.empty() {
			return o.finish(index.Found)
		}
		return o.findOn(next)
	case scanModel:
		st, addr := o.resume(done, next)
		return o.located(st, addr, next)
	case scanLeaves:
		return o.onLeaves(done, next)
	case scanFences:
		return o.kind.onFences(done, next)
	case scanReadsRows:
		return o.onRows(done, next)
	}
	return true
}

// findOn continues with the search for the leaf of the first key that is not covered.
func (o *scanOp) findOn(next *rdma.Batch) bool {
	if !o.begin() {
		return o.fallback()
	}
	if o.tick != 0 && o.lay.OnlyPresent() {
		return o.answer(index.Gone)
	}
	if o.lay.Kind == leaf.Frozen && o.bins == nil {
		o.withBins()
	}
	if o.fill == 0 {
		o.fill = o.lay.Slots * fillOne * rowsPerLeafShare / 16
	}
	o.kind.seek()
	st, addr := o.predictLeaf(next)
	return o.located(st, addr, next)
}

// again searches for cur again, after the tree changed during the scan.
func (o *scanOp) again(next *rdma.Batch) bool {
	if o.restarts++; o.restarts > restartsMax {
		return o.giveUp()
	}
	o.n.retries.Add(1)
	return o.findOn(next)
}

func (o *scanOp) finish(s index.Status) bool {
	o.res.Status, o.state = s, scanDone
	o.count()
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

// located begins to READ at the leaf that the finder has found.
func (o *scanOp) located(st step, addr uint64, next *rdma.Batch) bool {
	switch st {
	case stepWait:
		o.state = scanModel
		o.rounds++
		return false
	case stepStuck:
		return o.fallback()
	case stepDown:
		o.res.Err = o.err
		return o.finish(index.Failed)
	}
	o.want, o.linked = addr, false
	for i := o.at; i < len(o.leaves); i++ {
		o.leaves[i].state = readUsed // it was READ ahead of another leaf
	}
	o.at = len(o.leaves)
	o.aheadSub, o.tip = -1, -1
	if o.model != nil && o.model.HasTT() {
		o.aheadSub, o.aheadLeaf, o.endSub, o.cursor = o.sub, o.leaf+1, -1, freshCursor{o.patch, o.placed}
	}
	alone := false
	if f := o.listed; f != nil {
		alone = o.beginFresh(f)
	}
	return o.readOn(alone, next)
}

// modelOf returns the model of a sub-model, nil if the client does not have it.
func (o *scanOp) modelOf(sub int) *model.SubModel {
	if sub == o.sub {
		return o.model
	}
	if held := o.h.held[sub].Load(); held != nil {
		return &held.model
	}
	return nil
}

// readOn appends READs of the wanted leaf and, unless alone is set, of the leaves
// predicted to follow.
func (o *scanOp) readOn(alone bool, next *rdma.Batch) bool {
	n := o.expected() - 1
	if alone {
		n = 0
	} else if n > 0 && o.aheadSub >= 0 && o.endSub < 0 {
		o.endSub, o.endLeaf = o.kind.end()
	}
	o.long = n > 1 && (o.aheadSub < 0 || o.aheadSub != o.endSub || o.endLeaf > o.aheadLeaf)
	if o.way != nil {
		o.seekNodes(next)
	}
	from := len(o.leaves)
	o.readLeaf(o.want, next)
	o.leaves[from].linked = o.linked
	for ; n > 0; n-- {
		addr, ok := o.ahead()
		if !ok {
			break
		}
		if addr != o.want && !o.isRead(addr, from) {
			o.readLeaf(addr, next)
		}
	}
	sub := o.tip // the range goes on to the place where leaves are split off
	if o.linked || o.jumped != 0 {
		sub = o.here()
	}
	if o.linked && o.way == nil {
		// The longer the chain of right links, the more leaves without rows of the range
		// are likely to follow.
		o.readGuessed(min(max(n, o.chases-1), o.guess), next)
	}
	o.askNews(sub, next)
	return o.wait()
}

// here seeks the first key that is not covered, and returns its sub-model, -1 if
// there are no models.
func (o *scanOp) here() int {
	o.kind.seek()
	if !o.h.Trained() {
		return -1
	}
	return o.h.Route(o.key)
}

// isRead reports whether a leaf is among those before index before that are READ and
// not yet used.
func (o *scanOp) isRead(addr uint64, before int) bool {
	for i := o.at; i < before; i++ {
		if l := &o.leaves[i]; l.addr == addr && l.state != readUsed {
			return true
		}
	}
	return false
}

// readGuessed appends READs of the n leaves that follow the wanted one in memory.
func (o *scanOp) readGuessed(n int, next *rdma.Batch) {
	for i := range n {
		addr := o.want + uint64(i+1)*o.lay.LeafBytes()
		if addr/guessWindow != o.want/guessWindow {
			return
		}
		o.readLeaf(addr, next)
		o.leaves[len(o.leaves)-1].guess = true
	}
}

// wait counts a round of leaves and waits for it. Beyond the bounds the scan falls
// back.
func (o *scanOp) wait() bool {
	if o.stalls++; o.stalls > readsMax {
		return o.giveUp()
	}
	o.state = scanLeaves
	o.rounds++
	return false
}

// expected returns the expected number of leaves of the rest of the scan. The first
// and the last one of them count as one together, because only a part of each is in
// the range.
func (o *scanOp) expected() int {
	if o.goal <= 0 {
		return leavesPerRoundMax
	}
	rest := (o.goal - o.kind.have()) * fillOne
	return min((rest+o.fill-1)/o.fill+1, leavesPerRoundMax)
}

// learnFill adjusts the expected number of slots in use to those of a leaf.
func (o *scanOp) learnFill(l *leafRead) {
	d, share := l.view.Live()*fillOne-o.fill, fillUp
	if d < 0 {
		share = fillDown
	}
	o.fill = max(o.fill+d*share/64, 1)
}

// lastOf returns the last leaf worth READing ahead for the prediction p of a range's
// upper bound: the leaf after the predicted one, if the bound may be there.
func lastOf(p model.Prediction) int { return min(p.Hi, p.Leaf+1) }

// ahead returns the address of the next leaf to READ ahead, according to the TT and
// the known splits, not beyond the leaf of hi. It returns false if there is none.
func (o *scanOp) ahead() (uint64, bool) {
	if o.way != nil {
		return o.aheadInNodes()
	}
	for o.aheadSub >= 0 && o.aheadSub <= o.endSub {
		m := o.modelOf(o.aheadSub)
		if m == nil || !m.HasTT() {
			o.aheadSub = -1
			break
		}
		left := o.aheadLeaf < m.Leaves() && (o.aheadSub < o.endSub || o.aheadLeaf <= o.endLeaf)
		if addr, ok := o.freshAhead(left); ok {
			return addr, true
		}
		switch {
		case left:
			o.aheadLeaf++
			return o.lay.LeafAddr(m.ALN(o.aheadLeaf - 1)), true
		case o.aheadSub == o.endSub:
			return 0, false // there may be more once splits become known
		}
		o.aheadSub, o.aheadLeaf = o.aheadSub+1, 0
	}
	return 0, false
}

// readLeaf appends the READ of one more leaf.
func (o *scanOp) readLeaf(addr uint64, next *rdma.Batch) {
	n := len(o.leaves)
	if n < cap(o.leaves) {
		o.leaves = o.leaves[:n+1]
	} else {
		o.leaves = append(o.leaves, leafRead{})
	}
	l := &o.leaves[n]
	present := o.lay.LookupWords
	if o.long {
		present = o.lay.PresentWords
	}
	l.addr, l.buf, l.locked, l.linked, l.guess = addr, grow(l.buf, o.leafWords(o.tick, present)), 0, false, false
	o.reread(l, next)
}

func (o *scanOp) reread(l *leafRead, next *rdma.Batch) {
	l.wr, l.state, l.forward = next.Read(o.c.o.Leaves, l.addr, l.buf), readAsked, 0
	o.reads++
}

// onLeaves judges the leaves that were READ and consumes those that are next in key
// order, unless it must READ fences first.
func (o *scanOp) onLeaves(done, next *rdma.Batch) bool {
	reads := 0
	o.takeNews(done)
	for i := o.at; i < len(o.leaves); i++ {
		l := &o.leaves[i]
		if l.state != readAsked {
			continue
		}
		var see leafVerdict
		switch see, l.view = o.judge(&done.WRs[l.wr]); see {
		case seeDown:
			o.res.Err = done.WRs[l.wr].Status.Err()
			return o.finish(index.Failed)
		case seeHeld:
			l.state = readBusy
			l.locked++
		case seeBusy:
			l.state = readBusy
		case seeDead:
			l.lost(o.lay)
		case seeNowhere:
			l.state = readLost
		default:
			l.state = readOK
			asked, ok := o.kind.complete(l, next)
			if asked {
				reads++
			} else if !ok {
				l.state = readLost
			}
		}
	}
	if reads == 0 {
		return o.consumeAll(next)
	}
	o.reads += reads
	finished := o.wait()
	if !finished {
		o.state = scanFences
	}
	return finished
}

// consumeAll consumes leaves as long as the next one in key order has been READ.
func (o *scanOp) consumeAll(next *rdma.Batch) bool {
	for {
		if act := o.consume(next); act != goOn {
			return act == ended
		}
	}
}

// action is the next action of a scan.
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

// wanted returns the wanted leaf, nil if it was not READ.
func (o *scanOp) wanted() *leafRead {
	for i := o.at; i < len(o.leaves); i++ {
		if l := &o.leaves[i]; l.addr == o.want && l.state != readUsed {
			return l
		}
	}
	return nil
}

// consume handles the wanted leaf.
func (o *scanOp) consume(next *rdma.Batch) action {
	if o.span.to > o.span.from {
		return o.seekSpan(next)
	}
	l := o.wanted()
	if l == nil {
		if o.at < len(o.leaves) && o.h.Trained() {
			o.kind.seek()
			if sub := o.h.Route(o.key); !o.covered(sub) {
				o.missed(sub) // the leaf that was READ ahead is not the next one
			}
		}
		if o.way != nil && !o.inNodes() {
			return endIf(o.findOn(next))
		}
		return endIf(o.readOn(false, next))
	}
	see := seeNowhere
	if l.state == readOK {
		see = o.kind.side(l)
	}
	switch {
	case l.state == readBusy && l.locked >= lockedMax:
		return endIf(o.finish(index.Locked))
	case l.state == readBusy:
		o.n.retries.Add(1)
		o.reread(l, next)
		return endIf(o.wait())
	case l.forward != 0:
		return o.forward(l)
	case l.state == readLost || see == seeLeft:
		o.missed(o.sub)
		if o.consumed > 0 {
			l.state = readUsed
			return endIf(o.again(next))
		}
		if o.readBounds(seeLeft, l, next) {
			o.lefts++
			return endIf(o.wait())
		}
		l.state = readUsed
		return o.stepLeft(next)
	case see == seeRight:
		return o.chase(l, next)
	}
	return o.take(l, next)
}

// chase continues to the right of a leaf that ends before cur.
func (o *scanOp) chase(l *leafRead, next *rdma.Batch) action {
	if o.chases > 0 || !o.covered(o.sub) {
		o.missed(o.sub)
	}
	l.state = readUsed
	addr, ok := o.known(o.here(), l.addr, o.jumped)
	if !ok && o.readBounds(seeRight, l, next) {
		o.chases++
		o.n.chases.Add(1)
		return endIf(o.wait())
	}
	if !ok && o.consumed == 0 && o.needsTT(o.chases) {
		o.chases, o.hops = 0, 0
		st, addr := o.translate(next)
		return endIf(o.located(st, addr, next))
	}
	o.chases++
	if ok {
		o.want, o.linked, o.jumped = addr, false, addr
	} else {
		o.n.chases.Add(1)
		o.follow(l)
	}
	// A chain of leaves that are next to each other in memory may be longer: few rounds
	// READ it.
	if !o.isRead(o.want, len(o.leaves)) {
		if o.hops++; o.hops > chasesMax {
			if o.consumed == 0 {
				o.kind.learn(o.held, l, o.pred.Leaf)
			}
			return endIf(o.fallback())
		}
	}
	return goOn
}

// take adds the rows of a leaf that covers cur.
func (o *scanOp) take(l *leafRead, next *rdma.Batch) action {
	before := len(o.res.Entries)
	switch {
	case o.consumed > 0:
		if l.linked || l.guess {
			o.note(l)
		}
	case o.lefts == 0 && o.chases > 0:
		o.kind.learn(o.held, l, o.pred.Leaf)
	case o.lefts > 0 && o.span.wide():
		o.kind.learn(o.held, l, -1)
	}
	order, ok := o.orderOf(l)
	if !ok {
		return endIf(o.fallback())
	}
	more, ok := o.kind.add(l, order)
	if !ok {
		o.res.Entries = o.res.Entries[:before]
		o.busy = true
		if l.locked++; l.locked >= lockedMax {
			return endIf(o.finish(index.Locked))
		}
		o.n.retries.Add(1)
		o.reread(l, next)
		return endIf(o.wait())
	}
	o.res.Quick = append(o.res.Quick, index.Proof{Addr: o.proofAddr(l.addr), Word: l.view.Header()})
	o.res.Gaps = append(o.res.Gaps, o.gapProof(&l.view, l.addr))
	o.res.Rests = max(o.res.Rests, l.view.LastDelete())
	l.state = readUsed
	for o.at < len(o.leaves) && o.leaves[o.at].state == readUsed {
		o.at++
	}
	o.consumed++
	o.learnFill(l)
	o.stalls, o.chases, o.hops = 0, 0, 0
	ends := o.kind.cover(l)
	switch {
	case ends || o.kind.full():
		o.more = more || !ends
		o.stalls = 0
		return endIf(o.rows(next))
	case o.consumed >= scanLeavesMax:
		return endIf(o.fallback())
	}
	o.follow(l)
	return goOn
}

// orderOf returns the slots of a leaf in key order, for kind.add: as they were READ with
// the leaf, or sorted here. ok is false if the order that was READ is invalid.
func (o *scanOp) orderOf(l *leafRead) (order []byte, ok bool) {
	if l.view.HasOrder() {
		return l.view.Order()
	}
	from, to := o.kind.keys(l)
	return l.view.Sorted(o.sorted[:0], from, to), true
}

// note remembers a leaf to which only right links have led, if the models do not name
// it. So a later lookup can begin there, and a reverse scan knows of leaves after
// those that the models cover.
func (o *scanOp) note(l *leafRead) {
	sub := o.here()
	if sub < 0 {
		return
	}
	// A tail list names the leaf, now or soon.
	held := o.h.held[sub].Load()
	if held == nil || held.tail != nil || !held.model.HasTT() {
		return
	}
	p := held.model.Predict(o.h.Input(o.key, held.prefix))
	if o.lay.LeafAddr(p.ALN) == l.addr {
		return
	}
	if known := held.patch.Load(); known != nil {
		if k := known.leaf(known.place(o.key)); k != nil && k.addr == l.addr && k.reaches(o.key) {
			return
		}
	}
	o.missed(sub)
	o.kind.learn(held, l, p.Lo)
}

// follow makes the right sibling the wanted leaf.
func (o *scanOp) follow(l *leafRead) {
	if l.guess {
		o.guess = min(2*o.guess, guessMax)
	}
	o.want, o.linked = l.view.Right(), true
}

// forward makes the leaf that a dead one names the wanted leaf.
func (o *scanOp) forward(l *leafRead) action {
	o.missed(o.sub)
	l.state = readUsed
	o.chases++
	if o.hops++; o.hops > chasesMax {
		return endIf(o.fallback())
	}
	o.n.chases.Add(1)
	o.want, o.linked = l.forward, true
	return goOn
}
