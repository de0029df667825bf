package read

import (
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/rdma"
)

// tiedRowsMax is how many rows a lookup READs at a time. A native key has one
// candidate. A string key nearly always has one: others share its digest and its tag
// only by chance.
const tiedRowsMax = 8

// getOp is a point lookup; see index.GetOp. One state machine serves both kinds of
// key; the steps that differ are in a getKind:
//
//	start ─▶ model ─▶ leaf ─▶ rows ─▶ done
//	            ▲     │▲ ▲     │
//	            └─────┘▼ └─────┘ gone, or of other keys
//	                span │
//	                     └─▶ fence ─▶ done, absent
//
// A lookup of the past goes on from leaf, rows and fence:
//
//	     ┌─┐
//	──▶ older ─▶ graves ─▶ older ─▶ done
//
// A lookup is in state model while it READs parts of the models that the client does
// not keep. It is in state rows if rows have their own blocks. It is in state fence
// if no row was found and the fences, which must cover the key, are too long for the
// leaf. It is in state older while it walks to the version of its tick, and in state
// graves if the leaf leads to no version of that tick.
type getOp struct {
	finder
	kind   getKind
	res    index.GetResult
	proofs [1]index.Proof
	state  getState
	tick   clock.Tick // asked for; 0 is the present
	locked int
	asks   *index.Attempt // nil if the caller has not called Serve
	chases int
	lefts  int
	span   spanGet
	jumped uint64 // the last leaf to which a tail list led

	addr    uint64 // of the leaf
	wr      int    // of the leaf, or of the first row
	buf     []uint64
	view    leaf.Leaf // in buf, once accepted
	rows    []rowAt   // rows that may be the key's and were not READ yet
	reading []rowAt   // being READ
	row     []uint64  // their memory
	fenceWR int       // the READ of the leaf's fences, if it is in the batch of rows, else -1

	kindNow getKind // the kind for lookups of the present
	past    pastGet
	bins    *binGet // the kind for lookups in arrays with bins, once there was one
}

// rowAt is the place of a row block; words is 0 if the place is not valid.
type rowAt struct {
	addr  uint64
	words int
}

// getKind has the steps of a lookup that depend on the kind of key.
type getKind interface {
	// keep copies the key, whose memory belongs to the caller. It returns false for a
	// key of the other kind.
	keep(key index.Key) bool
	// search looks for the key in the leaf that was just accepted. If the fences in
	// the leaf do not cover the key, it returns on which side the key is.
	search(next *rdma.Batch) (see leafVerdict, finished bool)
	// side compares the key with the fences of a leaf.
	side(v *leaf.Leaf) leafVerdict
	// judge gives the verdict on a row block in done, and its payload.
	judge(done *rdma.Batch, wr int) (rowVerdict, []uint64)
	// others continues when all rows READ had other keys.
	others(next *rdma.Batch) bool
	// onFence continues with the leaf's fence block.
	onFence(done, next *rdma.Batch) bool
	// learn remembers that the search for the key, which began at logical leaf from,
	// ended at this leaf.
	learn(from int)
	// rowsMove reports whether a locked row may move to another block.
	rowsMove() bool
}

// getState says what a lookup waits for.
type getState uint8

const (
	getStart getState = iota
	getModel
	getLeaf
	getSpan
	getRows
	getFence
	getOlder
	getGraves
	getDone
)

// NewGet returns a point lookup for one goroutine.
func (c *Client) NewGet() index.GetOp {
	o := &getOp{}
	if c.o.Strings {
		g := &stringGet{o: o}
		o.kindNow, o.past.kind = g, stringPast{g}
	} else {
		g := &nativeGet{o: o}
		o.kindNow, o.past.kind = g, nativePast{g}
	}
	o.begins(c)
	return o
}

// Serve implements index.Serving.
func (o *getOp) Serve(a *index.Attempt) { o.asks = a }

// endsAtLock counts a row or a leaf that was found locked, and reports whether the lookup ends.
func (o *getOp) endsAtLock() bool {
	o.locked++
	return o.locked >= o.asks.LocksOr(lockedMax)
}

// Start implements index.GetOp.
func (o *getOp) Start(key index.Key) { o.StartAt(key, 0) }

// StartAt implements index.GetOp.
func (o *getOp) StartAt(key index.Key, at clock.Tick) {
	o.state, o.tick = getStart, at
	if o.kind = o.kindNow; at != 0 {
		o.kind = o.past.kind
	}
	o.rounds, o.reads, o.extra, o.locked, o.chases, o.lefts, o.jumped = 0, 0, 0, 0, 0, 0, 0
	o.span.span = span{}
	o.res = index.GetResult{Status: index.Pending}
	if !o.kind.keep(key) {
		o.res.Err = fmt.Errorf("%w: %v is of the wrong kind", index.ErrKey, key.Clone())
		o.finish(index.Failed)
	}
}

// Result implements index.GetOp.
func (o *getOp) Result() *index.GetResult { return &o.res }

// Leaf implements index.LeafGetter.
func (o *getOp) Leaf() (addr uint64, words []uint64) {
	if !o.lay.Whole() {
		return 0, nil
	}
	return o.addr, o.view.Words()
}

// Next implements index.Op.
func (o *getOp) Next(done, next *rdma.Batch) bool {
	switch o.state {
	case getStart:
		if !o.begin() {
			return o.fallback()
		}
		if o.tick != 0 && o.lay.OnlyPresent() {
			return o.finish(index.Gone)
		}
		if o.lay.Kind == leaf.Frozen {
			o.kind = o.inBins()
		}
		st, addr := o.predictLeaf(next)
		return o.located(st, addr, next)
	case getModel:
		st, addr := o.resume(done, next)
		return o.located(st, addr, next)
	case getLeaf:
		return o.onLeaf(done, next)
	case getSpan:
		return o.onSpan(done, next)
	case getRows:
		return o.onRows(done, next)
	case getFence:
		return o.kind.onFence(done, next)
	case getOlder:
		return o.onOlder(done, next)
	case getGraves:
		return o.onGraves(done, next)
	}
	return true
}

// located continues after a step of the finder.
func (o *getOp) located(st step, addr uint64, next *rdma.Batch) bool {
	switch st {
	case stepLeaf:
		return o.readLeaf(addr, next)
	case stepWait:
		o.state = getModel
		o.rounds++
		return false
	case stepDown:
		o.res.Err = o.err
		return o.finish(index.Failed)
	}
	return o.fallback()
}

func (o *getOp) finish(s index.Status) bool {
	o.res.Status, o.state = s, getDone
	o.count()
	return true
}

func (o *getOp) fallback() bool {
	o.n.fallbacks.Add(1)
	if o.h == nil {
		o.c.doubtful.Store(true)
	}
	return o.finish(index.Fallback)
}

// down ends a lookup whose peer is gone.
func (o *getOp) down(wr *rdma.WR) bool {
	o.res.Err = wr.Status.Err()
	return o.finish(index.Failed)
}

// awaitRound counts a round of so many READs and waits for it. Beyond the bound the
// lookup falls back.
func (o *getOp) awaitRound(s getState, reads int) bool {
	if o.reads += reads; o.reads > readsMax {
		if o.locked > 0 {
			return o.finish(index.Locked)
		}
		return o.fallback()
	}
	o.state = s
	o.rounds++
	return false
}

func (o *getOp) readLeaf(addr uint64, next *rdma.Batch) bool {
	if o.awaitRound(getLeaf, 1) {
		return true
	}
	o.addr = addr
	o.buf = grow(o.buf, o.leafWords(o.tick, o.lay.LookupWords))
	o.wr = next.Read(o.c.o.Leaves, addr, o.buf)
	return false
}

func (o *getOp) onLeaf(done, next *rdma.Batch) bool {
	wr := &done.WRs[o.wr]
	o.takeNews(done)
	var see leafVerdict
	if see, o.view = o.finder.judge(wr); see == seeHere {
		var finished bool
		if see, finished = o.kind.search(next); see == seeHere {
			return finished
		}
	}
	switch see {
	case seeHeld, seeBusy:
		if see == seeHeld && o.endsAtLock() {
			return o.finish(index.Locked)
		}
		o.n.retries.Add(1)
		return o.readLeaf(o.addr, next)
	case seeDown:
		return o.down(wr)
	}
	return o.elsewhere(see, next)
}

// elsewhere continues after a leaf that does not cover the key.
func (o *getOp) elsewhere(see leafVerdict, next *rdma.Batch) bool {
	if see != seeRight || o.chases > 0 || !o.covered(o.sub) {
		o.missed(o.sub)
	}
	switch see {
	case seeRight:
		o.chases++
		to, ok := o.known(o.sub, o.addr, o.jumped)
		if !ok && (o.chases > 1 || !o.covered(o.sub)) {
			if asked, finished := o.toRight(next); asked {
				return finished
			}
			if o.way != nil && o.chases > 1 && !o.covers() {
				st, addr := o.walkAgain(next)
				return o.located(st, addr, next)
			}
			if o.needsTT(o.chases) {
				o.chases = 0
				st, addr := o.translate(next)
				return o.located(st, addr, next)
			}
		}
		if o.chases <= chasesMax {
			if ok {
				o.jumped = to
			} else {
				o.n.chases.Add(1)
				to = o.view.Right()
			}
			if o.readLeaf(to, next) {
				return true
			}
			if o.way != nil {
				o.askFresh(next)
			} else {
				o.askNews(o.sub, next)
			}
			return false
		}
		o.kind.learn(o.pred.Leaf) // this leaf does not cover the key, but the next lookup can begin here
	case seeDead:
		if to := o.lay.Forward(o.buf); to != 0 { // the leaf was merged: leaf to has its keys
			if o.chases++; o.chases <= chasesMax {
				o.n.chases.Add(1)
				return o.readLeaf(to, next)
			}
			return o.fallback()
		}
		return o.toLeft(next)
	case seeLeft:
		return o.toLeft(next)
	}
	return o.fallback()
}

// absent ends a lookup that found no row in a leaf whose fences cover the key.
func (o *getOp) absent() bool {
	o.res.Rests = o.view.LastDelete()
	o.proofs[0] = o.gapProof(&o.view, o.addr)
	o.res.Proofs = o.proofs[:]
	return o.finish(index.NotFound)
}

func (o *getOp) present(row []uint64, head block.Header, addr uint64) bool {
	o.res.Row, o.res.Header = row, head
	if !o.lay.Whole() {
		o.res.Rests = head.CSN()
	}
	o.proofs[0] = index.Proof{Addr: addr, Word: uint64(head)}
	o.res.Proofs = o.proofs[:]
	return o.finish(index.Found)
}

// readRows appends READs of the next rows that may be the key's.
func (o *getOp) readRows(next *rdma.Batch) bool {
	n, words := 0, 0
	for ; n < min(len(o.rows), tiedRowsMax); n++ {
		if r := o.rows[n]; r.words == 0 || !model.ValidAddr(r.addr) {
			o.missed(o.sub)
			return o.fallback()
		}
		words += o.rows[n].words
	}
	o.reading, o.rows = o.rows[:n], o.rows[n:]
	if o.awaitRound(getRows, n) {
		return true
	}
	o.row, o.fenceWR = grow(o.row, words), -1
	buf := o.row
	for i, r := range o.reading {
		wr := next.Read(o.c.rkey, r.addr, buf[:r.words:r.words])
		if buf = buf[r.words:]; i == 0 {
			o.wr = wr
		}
	}
	return false
}

func (o *getOp) onRows(done, next *rdma.Batch) bool {
	for i, r := range o.reading {
		see, row := o.kind.judge(done, o.wr+i)
		wr := &done.WRs[o.wr+i]
		switch see {
		case rowHere:
			o.res.Hint = o.addr
			return o.present(row, block.Header(wr.Buf[block.HeaderWord]), r.addr)
		case rowOther:
			continue
		case rowPast:
			return o.onPast(row, block.Header(wr.Buf[block.HeaderWord]), olderIn(wr.Buf), next)
		case rowLocked:
			if o.endsAtLock() {
				return o.finish(index.Locked)
			}
		case rowNowhere:
			o.missed(o.sub)
			return o.fallback()
		case rowDown:
			return o.down(wr)
		}
		o.n.retries.Add(1)
		if see != rowGone && !o.kind.rowsMove() {
			o.rows = o.reading
			return o.readRows(next)
		}
		// The row was moved or deleted since the leaf was READ, or is about to be.
		return o.readLeaf(o.addr, next)
	}
	if len(o.rows) > 0 {
		return o.readRows(next)
	}
	return o.kind.others(next)
}
