package learned

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Bounds of one operation. Past them a lookup falls back to the server.
const (
	maxReads  = 48 // READs of a leaf or row, over torn copies
	maxLocked = 4  // READs of a row found locked
	maxChase  = 16 // right links followed
	maxLeft   = 4  // steps to the left
	maxAsk    = 4  // READs of model parts
)

// finder is what GET and SCAN share: the way from a key to the leaf to READ.
type finder struct {
	c     *Client
	n     *counts
	h     *cache
	lay   *leaf.Layout
	sub   int      // sub-model the key was routed to
	held  *heldSub // nil if not held
	model *model.SubModel
	leaf  int // logical leaf predicted
	pred  model.Prediction

	win    []uint64 // TT entries, or a whole sub-model block, being READ
	winWR  int
	winLo  int      // first leaf of the entries
	winOf  *heldSub // whose entries they are, once they are there; nil if none were READ for this key
	headWR int
	head   [1]uint64
	asked  int
	turn   turn
	own    model.SubModel // the sub-model just fetched, if it is not held with its TT
	whole  bool           // ask for whole TTs: a scan needs many entries
	tick   uint32
	err    error
	str    string // a string key looked for; then the key given to steps does not count
}

// step says how a finder came on.
type step uint8

const (
	stepLeaf  step = iota // the address is known
	stepWait              // a READ was appended
	stepStuck             // no way to know
	stepDown              // the peer is gone; see finder.err
)

// find predicts the leaf of key. On stepWait, call resume with the next done.
func (f *finder) find(key uint64, next *rdma.Batch) (step, uint64) {
	f.winOf = nil
	if f.h.router == nil {
		f.held, f.model = nil, nil
		return stepLeaf, f.h.root.first
	}
	f.sub = f.h.router.Route(key)
	if f.held = f.h.held[f.sub].Load(); f.held == nil {
		return f.askSub(next)
	}
	f.model = &f.held.model
	f.pred = f.model.Predict(key)
	f.leaf = f.pred.Leaf
	if p := f.held.patch.Load(); p != nil {
		if addr, ok := p.find(key, f.leaf); ok {
			return stepLeaf, addr
		}
	}
	if f.pred.Knows == model.KnowsALN && f.c.o.Budget == Full { // translate, without a call
		return stepLeaf, f.lay.LeafAddr(f.pred.ALN)
	}
	return f.translate(next)
}

// findStr is find for a string key.
func (f *finder) findStr(key string, next *rdma.Batch) (step, uint64) {
	f.winOf, f.str = nil, key
	if f.h.strs == nil {
		f.held, f.model = nil, nil
		return stepLeaf, f.h.root.first
	}
	f.sub = f.h.strs.Route(key)
	if f.held = f.h.held[f.sub].Load(); f.held == nil {
		return f.askSub(next)
	}
	f.model = &f.held.model
	f.pred = f.model.Predict(leaf.DigestAfter(f.held.prefix, key))
	f.leaf = f.pred.Leaf
	if p := f.held.strPatch.Load(); p != nil {
		if addr, ok := p.find(key, f.leaf); ok {
			return stepLeaf, addr
		}
	}
	return f.translate(next)
}

// translate goes from a logical leaf predicted to its address.
func (f *finder) translate(next *rdma.Batch) (step, uint64) {
	if f.pred.Knows == model.KnowsALN {
		if f.c.o.Budget == PartTT {
			if f.tick++; f.tick%usedSample == 0 {
				f.h.subs[f.sub].used.Add(1)
			}
		}
		return stepLeaf, f.lay.LeafAddr(f.pred.ALN)
	}
	f.c.wantTT(f.h, f.sub)
	if f.whole {
		f.held = nil
		return f.askSub(next)
	}
	return f.askTT(next)
}

// askTT READs the TT entries that the prediction spans, and the header of
// their block, which tells whether they still belong to the model.
func (f *finder) askTT(next *rdma.Batch) (step, uint64) {
	off, n := f.model.TTWindow(f.pred.Lo, f.pred.Hi)
	f.winLo = f.pred.Lo
	if f.asked++; f.asked > maxAsk {
		return stepStuck, 0
	}
	f.winWR = -1
	f.win = f.win[:0]
	if n > 0 {
		f.win = grow(f.win, n)
		f.winWR = next.Read(f.c.rkey, f.held.addr+uint64(f.held.at+off)*mem.WordBytes, f.win)
	}
	f.headWR = next.Read(f.c.rkey, f.held.addr, f.head[:])
	f.n.reads.Add(2)
	return stepWait, 0
}

// askSub READs the whole block of a sub-model that is not held.
func (f *finder) askSub(next *rdma.Batch) (step, uint64) {
	f.model = nil
	p := pointer(f.h.subs[f.sub].pointer.Load())
	if f.asked++; f.asked > maxAsk || !p.valid() {
		f.c.missed(f.h, f.sub)
		return stepStuck, 0
	}
	f.win = grow(f.win, p.words())
	f.winWR, f.headWR = next.Read(f.c.rkey, p.addr(), f.win), -1
	f.n.reads.Add(1)
	return stepWait, 0
}

// askPointer READs the pointer of the sub-model, whose block was not there.
func (f *finder) askPointer(next *rdma.Batch) (step, uint64) {
	if f.asked++; f.asked > maxAsk {
		f.c.missed(f.h, f.sub)
		return stepStuck, 0
	}
	f.winWR = -1
	f.headWR = next.Read(f.c.rkey, f.h.pointerAddr(f.sub), f.head[:])
	f.n.reads.Add(1)
	return stepWait, 0
}

// resume goes on with the parts that were READ.
func (f *finder) resume(key uint64, done, next *rdma.Batch) (step, uint64) {
	for _, i := range [...]int{f.winWR, f.headWR} {
		if i < 0 {
			continue
		}
		if st := done.WRs[i].Status; st != rdma.StatusOK && st != rdma.StatusAccess {
			f.err = st.Err()
			return stepDown, 0
		}
	}
	switch {
	case f.held != nil:
		return f.gotTT(key, done)
	case f.winWR < 0:
		if done.WRs[f.headWR].Status == rdma.StatusOK {
			f.h.subs[f.sub].pointer.Store(f.head[0])
		}
		return f.askSub(next)
	}
	wr := &done.WRs[f.winWR]
	if accepted(wr, f.c.o.InOrder) == block.OK {
		if head, err := f.h.decode(f.lay.ID, f.sub, wr.Buf, &f.own); err == nil {
			if f.h.strs != nil {
				key = leaf.DigestAfter(head.prefix, f.str)
			}
			return f.fetchedSub(key)
		}
	}
	return f.askPointer(next)
}

// gotTT completes a prediction with the entries READ.
func (f *finder) gotTT(key uint64, done *rdma.Batch) (step, uint64) {
	if f.h.strs != nil {
		key = leaf.DigestAfter(f.held.prefix, f.str)
	}
	if h := &done.WRs[f.headWR]; h.Status == rdma.StatusOK && f.head[0] != f.held.header {
		f.c.missed(f.h, f.sub) // trained again since; the entries may still do
	}
	if f.winWR >= 0 && done.WRs[f.winWR].Status != rdma.StatusOK {
		return stepStuck, 0
	}
	p, err := f.model.Resolve(key, f.pred, f.win)
	if err != nil || p.ALN < f.held.low || p.ALN > f.held.high {
		f.c.missed(f.h, f.sub)
		return stepStuck, 0
	}
	f.pred, f.leaf, f.winOf = p, p.Leaf, f.held
	return stepLeaf, f.lay.LeafAddr(p.ALN)
}

// back goes to the leaf before the one predicted last. It moves the prediction.
func (f *finder) back(key uint64, next *rdma.Batch) (step, uint64) {
	switch {
	case f.model == nil:
		return stepStuck, 0
	case !f.model.HasTT():
		if addr, ok := f.leftInWindow(key); ok {
			return stepLeaf, addr
		}
		f.held, f.turn = nil, turnLeft
		return f.askSub(next)
	case f.leaf > 0:
		f.leaf--
		return stepLeaf, f.lay.LeafAddr(f.model.ALN(f.leaf))
	case f.sub == 0:
		return stepLeaf, f.h.root.first
	}
	f.sub--
	if held := f.h.held[f.sub].Load(); held != nil && held.model.HasTT() {
		f.held, f.model = held, &held.model
		f.leaf = f.model.Leaves() - 1
		return stepLeaf, f.lay.LeafAddr(f.model.ALN(f.leaf))
	}
	f.held, f.turn = nil, turnLast
	return f.askSub(next)
}

// turn is what a finder does with a sub-model that it had to fetch.
type turn uint8

const (
	turnPredict turn = iota
	turnLeft         // go to the leaf before the one predicted
	turnLast         // go to the last leaf
)

// fetchedSub goes on with the sub-model just fetched whole.
func (f *finder) fetchedSub(key uint64) (step, uint64) {
	f.model = &f.own
	f.pred = f.own.Predict(key)
	f.leaf = f.pred.Leaf
	switch f.turn {
	case turnLeft:
		f.leaf = max(f.leaf-1, 0)
	case turnLast:
		f.leaf = f.own.Leaves() - 1
	}
	f.turn = turnPredict
	return stepLeaf, f.lay.LeafAddr(f.own.ALN(f.leaf))
}

// leftInWindow is back with no more of the TT than was READ for the prediction.
func (f *finder) leftInWindow(key uint64) (uint64, bool) {
	if f.h.strs != nil && f.held != nil {
		key = leaf.DigestAfter(f.held.prefix, f.str)
	}
	if f.held == nil || f.winOf != f.held || f.leaf <= f.winLo {
		return 0, false
	}
	f.leaf--
	from, _ := f.model.TTWindow(f.winLo, f.winLo)
	at, n := f.model.TTWindow(f.leaf, f.leaf)
	p, err := f.model.Resolve(key, model.Prediction{Lo: f.leaf, Hi: f.leaf}, f.win[at-from:at-from+n])
	if err != nil || p.ALN < f.held.low || p.ALN > f.held.high {
		return 0, false
	}
	return f.lay.LeafAddr(p.ALN), true
}

// begin takes the cache as it is now; false if nothing is loaded.
func (f *finder) begin() bool {
	f.h = f.c.cur.Load()
	f.asked, f.turn = 0, turnPredict
	if f.h == nil {
		return false
	}
	f.lay = &f.h.root.lay
	return true
}

func grow(b []uint64, n int) []uint64 {
	if cap(b) < n {
		return make([]uint64, n)
	}
	return b[:n]
}

// sight is what one READ of a leaf came to, as seen from a key.
type sight uint8

const (
	seeHere    sight = iota // the leaf's fences cover the key
	seeRight                // it lies to the right
	seeLeft                 // it lies to the left
	seeDead                 // not a leaf now
	seeBusy                 // being changed: read again
	seeNowhere              // not a leaf of this index, or no such address
	seeDown                 // the peer is gone
)

// judge looks at the copy of a leaf.
func (f *finder) judge(wr *rdma.WR, key uint64) (sight, leaf.Leaf) {
	switch wr.Status {
	case rdma.StatusOK:
	case rdma.StatusAccess:
		return seeNowhere, leaf.Leaf{}
	default:
		return seeDown, leaf.Leaf{}
	}
	if block.Header(wr.Buf[block.HeaderWord]) == leaf.Free {
		return seeDead, leaf.Leaf{}
	}
	if block.Accept(wr.Buf, wr.Tail, wr.Addr, f.c.o.InOrder) != block.OK {
		return seeBusy, leaf.Leaf{}
	}
	v, ok := f.lay.View(wr.Buf)
	switch {
	case !ok:
		return seeNowhere, v
	case key < v.Low():
		return seeLeft, v
	case v.Above(key):
		return seeRight, v
	}
	return seeHere, v
}

// getOp is a point lookup; see index.GetOp.
type getOp struct {
	finder
	key    uint64
	res    index.GetResult
	proofs [1]index.Proof
	state  uint8
	addr   uint64 // of the leaf
	rowAt  uint64 // of the row block
	wr     int
	buf    []uint64 // the leaf
	row    []uint64 // the row block
	reads  int
	locked int
	chases int
	lefts  int
	text   bool    // str has had a key that is not empty
	str    *strGet // of string keys
}

// States of a getOp: what it waits for.
const (
	getStart uint8 = iota
	getModel
	getLeaf
	getRow
	getDone
)

// NewGet makes a point lookup for one goroutine.
func (c *Client) NewGet() index.GetOp {
	o := &getOp{}
	o.str = &strGet{o: o}
	o.c, o.n = c, &c.counts[c.nextOp.Add(1)%opStripes]
	return o
}

func (o *getOp) Start(key index.Key) {
	o.key, o.state = key.Num, getStart
	o.reads, o.locked, o.chases, o.lefts = 0, 0, 0, 0
	o.res = index.GetResult{Status: index.Pending}
	if key.Str != "" || o.text {
		o.text = true
		o.str.keep(key.Str)
	}
}

func (o *getOp) Result() *index.GetResult { return &o.res }

func (o *getOp) Next(done, next *rdma.Batch) bool {
	switch o.state {
	case getStart:
		o.n.lookups.Add(1)
		if !o.begin() {
			return o.fallback()
		}
		if o.h.root.strings() {
			return o.str.begin(next)
		}
		st, addr := o.find(o.key, next)
		return o.found(st, addr, next)
	case getModel:
		st, addr := o.resume(o.key, done, next)
		return o.found(st, addr, next)
	case getLeaf:
		return o.onLeaf(done, next)
	case getRow:
		return o.onRow(done, next)
	case getDone:
		return true
	}
	return o.str.next(done, next)
}

// found goes on from a step of the finder.
func (o *getOp) found(st step, addr uint64, next *rdma.Batch) bool {
	switch st {
	case stepLeaf:
		return o.readLeaf(addr, next)
	case stepWait:
		o.state = getModel
		o.n.rounds.Add(1)
		return false
	case stepDown:
		o.res.Err = o.err
		return o.finish(index.Failed)
	}
	return o.fallback()
}

func (o *getOp) finish(s index.Status) bool {
	o.res.Status, o.state = s, getDone
	return true
}

func (o *getOp) fallback() bool {
	o.n.fallbacks.Add(1)
	if o.h == nil {
		o.c.doubtful.Store(true)
	}
	return o.finish(index.Fallback)
}

func (o *getOp) readLeaf(addr uint64, next *rdma.Batch) bool {
	if o.reads++; o.reads > maxReads {
		return o.giveUp()
	}
	o.addr, o.state = addr, getLeaf
	o.buf = grow(o.buf, o.lay.LeafWords)
	o.wr = next.Read(o.c.rkey, addr, o.buf)
	o.n.rounds.Add(1)
	o.n.reads.Add(1)
	return false
}

// giveUp ends an operation that has used up its READs.
func (o *getOp) giveUp() bool {
	if o.locked > 0 {
		return o.finish(index.Locked)
	}
	return o.fallback()
}

func (o *getOp) onLeaf(done, next *rdma.Batch) bool {
	see, v := o.judge(&done.WRs[o.wr], o.key)
	switch see {
	case seeHere:
		return o.search(&v, next)
	case seeBusy:
		o.n.retries.Add(1)
		return o.readLeaf(o.addr, next)
	case seeRight:
		o.c.missed(o.h, o.sub)
		if o.chases++; o.chases <= maxChase {
			o.n.chases.Add(1)
			return o.readLeaf(v.Right(), next)
		}
		o.learn(&v, o.addr)
	case seeLeft, seeDead:
		o.c.missed(o.h, o.sub)
		if o.lefts++; o.lefts <= maxLeft {
			st, addr := o.back(o.key, next)
			return o.found(st, addr, next)
		}
	case seeNowhere:
		o.c.missed(o.h, o.sub)
	case seeDown:
		o.res.Err = done.WRs[o.wr].Status.Err()
		return o.finish(index.Failed)
	}
	return o.fallback()
}

// search looks for the key in the leaf that covers it.
func (o *getOp) search(v *leaf.Leaf, next *rdma.Batch) bool {
	o.res.Hint = o.addr
	if o.chases > 0 {
		o.learn(v, o.addr)
		o.chases = 0
	}
	i := v.Find(o.key)
	if i < 0 {
		o.res.Rests = v.LastDelete()
		o.proofs[0] = index.Proof{Addr: leaf.GapAddr(o.addr), Word: v.Gap()}
		o.res.Proofs = o.proofs[:]
		return o.finish(index.NotFound)
	}
	if o.lay.Kind != leaf.Inline {
		o.rowAt = v.Head(i)
		return o.readRow(next)
	}
	head := block.Header(v.Head(i))
	if head.Locked() {
		if o.locked++; o.locked >= maxLocked {
			return o.finish(index.Locked)
		}
		o.n.retries.Add(1)
		return o.readLeaf(o.addr, next)
	}
	return o.present(v.Row(i), head, o.lay.HeadAddr(o.addr, i))
}

func (o *getOp) present(row []uint64, head block.Header, addr uint64) bool {
	o.res.Row, o.res.Header, o.res.Rests = row, head, head.CSN()
	o.proofs[0] = index.Proof{Addr: addr, Word: uint64(head)}
	o.res.Proofs = o.proofs[:]
	return o.finish(index.Found)
}

func (o *getOp) readRow(next *rdma.Batch) bool {
	if o.reads++; o.reads > maxReads {
		return o.giveUp()
	}
	if bad(o.rowAt) {
		o.c.missed(o.h, o.sub)
		return o.fallback()
	}
	o.state = getRow
	o.row = grow(o.row, o.lay.RowBlockWords)
	o.wr = next.Read(o.c.rkey, o.rowAt, o.row)
	o.n.rounds.Add(1)
	o.n.reads.Add(1)
	return false
}

func (o *getOp) onRow(done, next *rdma.Batch) bool {
	switch judgeRow(&done.WRs[o.wr], o.lay, o.key, o.c.o.InOrder) {
	case rowGone:
		// Deleted since the leaf was read, and perhaps another key's by now.
		o.n.retries.Add(1)
		return o.readLeaf(o.addr, next)
	case rowLocked:
		if o.locked++; o.locked >= maxLocked {
			return o.finish(index.Locked)
		}
		fallthrough
	case rowTorn:
		o.n.retries.Add(1)
		return o.readRow(next)
	case rowNowhere:
		o.c.missed(o.h, o.sub)
		return o.fallback()
	case rowDown:
		o.res.Err = done.WRs[o.wr].Status.Err()
		return o.finish(index.Failed)
	}
	row := o.row[leaf.RowWord : leaf.RowWord+o.lay.RowWords]
	return o.present(row, block.Header(o.row[block.HeaderWord]), o.rowAt)
}

// rowSight is what one READ of a row block came to.
type rowSight uint8

const (
	rowHere rowSight = iota
	rowLocked
	rowTorn
	rowGone
	rowNowhere
	rowDown
)

func judgeRow(wr *rdma.WR, lay *leaf.Layout, key uint64, inOrder bool) rowSight {
	switch wr.Status {
	case rdma.StatusOK:
	case rdma.StatusAccess:
		return rowNowhere
	default:
		return rowDown
	}
	h := block.Header(wr.Buf[block.HeaderWord])
	if h == leaf.Free {
		return rowGone
	}
	switch block.Accept(wr.Buf, wr.Tail, wr.Addr, inOrder) {
	case block.Busy:
		return rowLocked
	case block.Torn:
		return rowTorn
	}
	if !lay.RowIs(wr.Buf, key) || h.IsAbsent() {
		return rowGone
	}
	return rowHere
}
