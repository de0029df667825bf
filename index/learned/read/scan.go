package read

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/rdma"
)

// Bounds of one scan.
const (
	leavesPerRoundMax = 32
	restartsMax       = 4
	// scanLeavesMax bounds one scan, whose leaves are all kept until the next.
	scanLeavesMax = 1 << 16
	// guessMax bounds the leaves that a round READs only because they are
	// neighbours, in memory, of a leaf that a right link named; see
	// scanOp.guess.
	guessMax = 8
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
	locked int       // how often a row of the range was found locked
	guess  bool      // READ for no other reason than its address

	// Of string keys.
	fences  leaf.Fences
	known   bool // fences
	fence   []uint64
	fenceWR int

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
	readUsed // consumed, or not needed
)

// scanOp is a range scan; see index.ScanOp. It covers the keys from lo up, leaf
// by leaf: want is the leaf that should cover cur, the first key not covered
// yet. It READs ahead the leaves that the TT names; the right link of the leaf
// consumed last determines which of them is next. Each copy is right about its
// range at the time of its READ; the proofs show whether the copies are a
// consistent snapshot.
type scanOp struct {
	finder
	kind  scanKind
	limit int
	res   index.ScanResult
	state scanState

	want     uint64
	linked   bool       // want is a right link
	leaves   []leafRead // their buffers hold the rows of the result
	at       int        // the leaves before it are used
	consumed int
	restarts int
	stalls   int // rounds since the last leaf was consumed
	chases   int
	lefts    int
	busy     bool // a row was locked
	more     bool // the range has rows after those added
	// guess is the number of leaves to READ behind one that only a right link
	// names. The models do not have that leaf yet, so it was split off
	// recently. If keys rise, the leaves that were split off after it are
	// behind it in memory (package tree, extent). guess doubles while that is
	// right.
	guess int

	apart scanRows // blocks of rows, if these are apart

	aheadSub, aheadLeaf int // the next leaf to READ ahead; aheadSub -1 if unknown
	endSub, endLeaf     int // the leaf predicted to hold hi
}

// scanKind has the steps of a scan that depend on the kind of key. It keeps the
// bounds, the first key that is not covered yet, and the rows added so far.
type scanKind interface {
	// start copies the bounds, whose memory is the caller's.
	start(lo, hi index.Key)
	// clear drops the rows added so far.
	clear()
	// empty reports whether there is no key between the bounds.
	empty() bool
	// seek makes the first key not covered the one that is sought.
	seek()
	// complete READs what else the scan needs of a leaf just accepted; ok is
	// false if the leaf is invalid.
	complete(l *leafRead, next *rdma.Batch) (asked, ok bool)
	// onFences continues with the READs of complete.
	onFences(done, next *rdma.Batch) bool
	// side compares the first key that is not covered with the fences of a
	// leaf.
	side(l *leafRead) sight
	// learn remembers a leaf that a chase has reached.
	learn(l *leafRead)
	// add adds the rows of a leaf to the result. more reports that it left rows
	// out because of the limit. ok is false if a row is locked.
	add(l *leafRead) (more, ok bool)
	// cover notes that keys up to the leaf's high fence are covered, and
	// reports whether that is the whole range.
	cover(l *leafRead) bool
	// have returns the number of added rows that are certainly in the range,
	// and full reports whether these are enough.
	have() int
	full() bool
	// end returns the sub-model of the upper bound, and the leaf predicted for
	// it.
	end() (sub, leaf int)
	// list adds the blocks of the rows that are not in leaves to o.apart; false
	// if there is one that the client does not READ.
	list() bool
	// judge gives the verdict on the block of row i of o.apart, and takes the
	// row in if it is the one that was listed.
	judge(i int, wr *rdma.WR) rowSight
	// assemble ends a scan that has all its rows.
	assemble(next *rdma.Batch) bool
}

// scanState is what a scan waits for.
//
//	start ─▶ model ─▶ leaves ─▶ rows ─▶ done
//	            ▲      │  ▲
//	            └──────┘  └─▶ fences
//
// A scan is in state model while it READs parts of the models that the client
// does not keep, and again after the tree changed under it. In state leaves it
// takes in leaves from left to right until they cover the range. It is in state
// fences if fences are too long for the leaves just READ. Rows that have blocks
// of their own are READ last, all together, because only then it is known which
// of them the limit leaves.
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
		o.kind = &stringScan{o: o}
	} else {
		o.kind = &nativeScan{o: o}
	}
	o.c, o.n = c, &c.counts[c.nextOp.Add(1)%opStripes]
	return o
}

func (o *scanOp) Start(lo, hi index.Key, limit int) {
	o.limit, o.state, o.whole = limit, scanStart, true
	o.rounds, o.reads, o.restarts, o.busy, o.guess = 0, 0, 0, false, 1
	o.kind.start(lo, hi)
	o.clear()
}

// clear drops the leaves and rows gathered so far.
func (o *scanOp) clear() {
	o.res = index.ScanResult{Entries: o.res.Entries[:0], Quick: o.res.Quick[:0], Gaps: o.res.Gaps[:0]}
	o.leaves = o.leaves[:0]
	o.at, o.consumed, o.stalls, o.chases, o.lefts, o.more = 0, 0, 0, 0, 0, false
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

// findOn looks for the leaf of the first key that is not covered.
func (o *scanOp) findOn(next *rdma.Batch) bool {
	if !o.begin() {
		return o.fallback()
	}
	o.kind.seek()
	st, addr := o.predictLeaf(next)
	return o.located(st, addr, next)
}

// again looks cur up again after the tree changed during the scan.
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

// located begins to READ at the leaf that the finder has found, and ahead of
// it.
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
		o.leaves[i].state = readUsed // READ ahead of another place
	}
	o.at = len(o.leaves)
	o.aheadSub = -1
	if o.model != nil && o.model.HasTT() {
		o.aheadSub, o.aheadLeaf = o.sub, o.leaf+1
		o.endSub, o.endLeaf = o.kind.end()
	}
	return o.readOn(next)
}

// modelOf returns a sub-model that the client has, nil if it has none.
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

// readGuessed appends READs of the n leaves that are behind the wanted one in
// memory.
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

// wait ends a round of leaves, within bounds.
func (o *scanOp) wait() bool {
	if o.stalls++; o.stalls > readsMax {
		return o.giveUp()
	}
	o.state = scanLeaves
	o.rounds++
	return false
}

// expected returns the expected number of leaves of the rest of the scan.
func (o *scanOp) expected() int {
	if o.limit <= 0 {
		return leavesPerRoundMax
	}
	per := max(o.lay.Slots*rowsPerLeafShare/16, 1)
	return min((o.limit-o.kind.have()+per-1)/per+1, leavesPerRoundMax)
}

// ahead returns the address of the next leaf according to the TT, not beyond
// that of hi.
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
	n := len(o.leaves)
	if n < cap(o.leaves) {
		o.leaves = o.leaves[:n+1]
	} else {
		o.leaves = append(o.leaves, leafRead{})
	}
	l := &o.leaves[n]
	l.addr, l.buf, l.locked, l.guess = addr, grow(l.buf, o.lay.LeafWords), 0, false
	o.reread(l, next)
}

func (o *scanOp) reread(l *leafRead, next *rdma.Batch) {
	l.wr, l.state, l.forward = next.Read(o.c.rkey, l.addr, l.buf), readAsked, 0
	o.reads++
}

// onLeaves judges the leaves READ and consumes those that are next in key
// order, unless it must READ fences first.
func (o *scanOp) onLeaves(done, next *rdma.Batch) bool {
	reads := 0
	for i := o.at; i < len(o.leaves); i++ {
		l := &o.leaves[i]
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

// consumeAll consumes leaves as far as they follow one another.
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

// wanted returns the record of the wanted leaf, nil if it was not READ.
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
	l := o.wanted()
	if l == nil {
		if o.at < len(o.leaves) && o.h.Trained() {
			o.kind.seek()
			o.c.missed(o.h, o.h.Route(o.key)) // the leaf READ ahead is not the next one
		}
		return endIf(o.readOn(next))
	}
	see := seeNowhere
	if l.state == readOK {
		see = o.kind.side(l)
	}
	switch {
	case l.state == readBusy:
		o.n.retries.Add(1)
		o.reread(l, next)
		return endIf(o.wait())
	case l.forward != 0:
		return o.forward(l)
	case l.state == readLost || see == seeLeft:
		o.c.missed(o.h, o.sub)
		l.state = readUsed
		if o.consumed > 0 {
			return endIf(o.again(next))
		}
		if o.lefts++; o.lefts <= leftsMax {
			st, addr := o.back(next)
			return endIf(o.located(st, addr, next))
		}
		return endIf(o.fallback())
	case see == seeRight:
		o.c.missed(o.h, o.sub)
		l.state = readUsed
		if o.chases++; o.chases > chasesMax {
			if o.consumed == 0 {
				o.kind.learn(l)
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
		o.kind.learn(l)
	}
	more, ok := o.kind.add(l)
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
	o.res.Quick = append(o.res.Quick, index.Proof{Addr: l.addr, Word: l.view.Header()})
	o.res.Gaps = append(o.res.Gaps, index.Proof{Addr: leaf.GapAddr(l.addr), Word: l.view.Gap()})
	o.res.Rests = max(o.res.Rests, l.view.LastDelete())
	l.state = readUsed
	for o.at < len(o.leaves) && o.leaves[o.at].state == readUsed {
		o.at++
	}
	o.consumed++
	o.stalls, o.chases = 0, 0
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

// follow goes to the leaf on the right.
func (o *scanOp) follow(l *leafRead) {
	if l.guess {
		o.guess = min(2*o.guess, guessMax)
	}
	o.want, o.linked = l.view.Right(), true
}

// forward goes to the leaf that a dead one names.
func (o *scanOp) forward(l *leafRead) action {
	o.c.missed(o.h, o.sub)
	l.state = readUsed
	if o.chases++; o.chases > chasesMax {
		return endIf(o.fallback())
	}
	o.n.chases.Add(1)
	o.want, o.linked = l.forward, true
	return goOn
}
