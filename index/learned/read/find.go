package read

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// Bounds of one operation. Past them a lookup falls back to the server.
const (
	readsMax      = 48 // READs of a leaf or row, over torn copies
	lockedMax     = 4  // READs of a row found locked
	chasesMax     = 16 // right links followed
	leftsMax      = 4  // steps to the left
	modelReadsMax = 4  // READs of model parts
)

// finder finds the leaf to READ for a key. GET and SCAN share it.
type finder struct {
	c *Client
	n *counts
	// Of the operation under way, counted when it ends.
	rounds, reads int
	extra         int // READs of spans and graves beyond the first of each round
	h             *cache
	lay           *leaf.Layout
	sub           int      // sub-model the key was routed to
	held          *heldSub // nil if not held
	model         *model.SubModel
	leaf          int // logical leaf predicted
	pred          model.Prediction

	win        []uint64 // TT entries, or a whole sub-model block, being READ
	winWR      int
	winLo      int      // first leaf of the entries
	winOf      *heldSub // the sub-model of these entries, once they have arrived; nil if none were READ for this key
	headWR     int
	head       [1]uint64
	modelReads int
	turn       turn
	own        model.SubModel // the sub-model just fetched, if it is not held with its TT
	whole      bool           // ask for whole TTs: a scan needs many entries
	tick       uint32
	err        error
	key        index.Key // sought
	listed     *leafList // the list that has the predicted leaf, if that is of a hot sub-model and covers the key; else nil
	listedAt   int       // the leaf's place in the list
	patch      *patch    // of the sub-model, when the key was predicted
	placed     place     // the key's place in patch
	news       *news     // state of READs of tail lists; nil before the first
	way        *walk     // through inner nodes, if the client caches those; else nil
}

// step is the finder's next state.
type step uint8

const (
	stepLeaf  step = iota // the address is known
	stepWait              // a READ was appended
	stepStuck             // the finder cannot find the leaf
	stepDown              // the peer is gone; see finder.err
)

// predictLeaf predicts the leaf of the key. On stepWait, call resume with the next done.
func (f *finder) predictLeaf(next *rdma.Batch) (step, uint64) {
	if f.way != nil {
		return f.walkFrom(next)
	}
	f.winOf, f.listed, f.patch = nil, nil, nil
	if !f.h.Trained() {
		f.held, f.model = nil, nil
		return stepLeaf, f.h.root.First
	}
	f.sub = f.h.Route(f.key)
	if f.held = f.h.held[f.sub].Load(); f.held == nil {
		return f.readSub(next)
	}
	f.model = &f.held.model
	p := f.held.patch.Load()
	if p != nil {
		f.patch, f.placed = p, p.place(f.key)
		if f.held.tail != nil {
			if addr, ok := f.listedLeaf(&p.before, f.placed.before-1); ok {
				return stepLeaf, addr
			}
		}
	}
	f.pred = f.model.Predict(f.h.Input(f.key, f.held.prefix))
	f.leaf = f.pred.Leaf
	if p != nil {
		if addr, ok := p.leafFor(f.placed, f.key, f.leaf); ok {
			return stepLeaf, addr
		}
	}
	if f.pred.Knows == model.KnowsALN && f.c.o.Budget != PartTT { // translate, without a call
		return stepLeaf, f.lay.LeafAddr(f.pred.ALN)
	}
	return f.translate(next)
}

// listedLeaf returns leaf i of a list, the last one that begins at or before the key, if
// it covers the key. ok is false if it does not, and a prediction is needed.
func (f *finder) listedLeaf(s *leafList, i int) (addr uint64, ok bool) {
	if i < 0 || s.briefs[i].from < 0 || s.endsBefore(i, f.key) {
		return 0, false
	}
	l := s.leaves[i]
	if !l.reaches(f.key) {
		return 0, false
	}
	f.listed, f.listedAt, f.leaf = s, i, l.from
	f.pred.Leaf, f.pred.Lo, f.pred.Hi, f.pred.Knows = l.from, l.from, l.from, model.KnowsLeaf
	return l.addr, true
}

// translate returns the address of the predicted logical leaf.
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
		return f.readSub(next)
	}
	return f.readTT(next)
}

// readTT READs the TT entries that the prediction spans, and the header of their
// block, which shows whether they still belong to the model.
func (f *finder) readTT(next *rdma.Batch) (step, uint64) {
	off, n := f.model.TTWindow(f.pred.Lo, f.pred.Hi)
	f.winLo = f.pred.Lo
	if f.modelReads++; f.modelReads > modelReadsMax {
		return stepStuck, 0
	}
	f.winWR = -1
	f.win = f.win[:0]
	if n > 0 {
		f.win = grow(f.win, n)
		f.winWR = next.Read(f.c.rkey, f.held.addr+uint64(f.held.at+off)*mem.WordBytes, f.win)
	}
	f.headWR = next.Read(f.c.rkey, f.held.addr, f.head[:])
	f.reads += 2
	return stepWait, 0
}

// readSub READs the whole block of a sub-model that is not held.
func (f *finder) readSub(next *rdma.Batch) (step, uint64) {
	f.model = nil
	p := model.Pointer(f.h.subs[f.sub].pointer.Load())
	if f.modelReads++; f.modelReads > modelReadsMax || !p.Valid() {
		f.c.missed(f.h, f.sub)
		return stepStuck, 0
	}
	f.win = grow(f.win, p.Words())
	f.winWR, f.headWR = next.Read(f.c.rkey, p.Addr(), f.win), -1
	f.reads++
	return stepWait, 0
}

// readPointer READs the pointer of the sub-model, whose block was not where the
// client expected it.
func (f *finder) readPointer(next *rdma.Batch) (step, uint64) {
	if f.modelReads++; f.modelReads > modelReadsMax {
		f.c.missed(f.h, f.sub)
		return stepStuck, 0
	}
	f.winWR = -1
	f.headWR = next.Read(f.c.rkey, f.h.pointerAddr(f.sub), f.head[:])
	f.reads++
	return stepWait, 0
}

// resume continues with the parts that were READ.
func (f *finder) resume(done, next *rdma.Batch) (step, uint64) {
	if f.way != nil {
		return f.gotNode(done, next)
	}
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
		return f.gotTT(done)
	case f.winWR < 0:
		if done.WRs[f.headWR].Status == rdma.StatusOK {
			f.h.subs[f.sub].pointer.Store(f.head[0])
		}
		return f.readSub(next)
	}
	wr := &done.WRs[f.winWR]
	if accepted(wr, f.c.o.InOrder) == block.OK {
		if head, err := f.h.Sub(f.sub, wr.Buf, &f.own); err == nil {
			return f.fetchedSub(f.h.Input(f.key, head.Prefix))
		}
	}
	return f.readPointer(next)
}

// gotTT completes a prediction with the entries READ.
func (f *finder) gotTT(done *rdma.Batch) (step, uint64) {
	if h := &done.WRs[f.headWR]; h.Status == rdma.StatusOK && f.head[0] != f.held.header {
		f.c.missed(f.h, f.sub) // trained again since; the entries may still do
	}
	if f.winWR >= 0 && done.WRs[f.winWR].Status != rdma.StatusOK {
		return stepStuck, 0
	}
	p, err := f.model.Resolve(f.h.Input(f.key, f.held.prefix), f.pred, f.win)
	if err != nil || p.ALN < f.held.low || p.ALN > f.held.high {
		f.c.missed(f.h, f.sub)
		return stepStuck, 0
	}
	f.pred, f.leaf, f.winOf = p, p.Leaf, f.held
	return stepLeaf, f.lay.LeafAddr(p.ALN)
}

// back moves the prediction to the previous leaf.
func (f *finder) back(next *rdma.Batch) (step, uint64) {
	f.listed = nil
	switch {
	case f.way != nil:
		return f.backTrack(next)
	case f.model == nil:
		return stepStuck, 0
	case !f.model.HasTT():
		if addr, ok := f.leafAddr(f.leaf - 1); ok {
			f.leaf--
			return stepLeaf, addr
		}
		f.held, f.turn = nil, turnLeft
		return f.readSub(next)
	case f.leaf > 0:
		f.leaf--
		return stepLeaf, f.lay.LeafAddr(f.model.ALN(f.leaf))
	case f.sub == 0:
		return stepLeaf, f.h.root.First
	}
	f.sub--
	if held := f.h.held[f.sub].Load(); held != nil && held.model.HasTT() {
		f.held, f.model = held, &held.model
		f.leaf = f.model.Leaves() - 1
		f.pred.Lo, f.pred.Hi = f.leaf, f.leaf // the old bounds are of another sub-model
		return stepLeaf, f.lay.LeafAddr(f.model.ALN(f.leaf))
	}
	f.held, f.turn = nil, turnLast
	return f.readSub(next)
}

// turn is the action of a finder after it has fetched a sub-model.
type turn uint8

const (
	turnPredict turn = iota
	turnLeft         // go to the leaf before the one predicted
	turnLast         // go to the last leaf
)

// fetchedSub continues with the sub-model that was just fetched whole.
func (f *finder) fetchedSub(digest uint64) (step, uint64) {
	f.model = &f.own
	f.pred = f.own.Predict(digest)
	f.leaf = f.pred.Leaf
	switch f.turn {
	case turnLeft:
		f.leaf = max(f.leaf-1, 0)
	case turnLast:
		f.leaf = f.own.Leaves() - 1
		f.pred.Lo, f.pred.Hi = f.leaf, f.leaf
	}
	f.turn = turnPredict
	return stepLeaf, f.lay.LeafAddr(f.own.ALN(f.leaf))
}

// missed records that what the client holds of sub-model sub, or the inner node that led
// to a leaf, is old.
func (f *finder) missed(sub int) {
	if f.way != nil {
		f.doubtWay()
		return
	}
	f.c.missed(f.h, sub)
}

// begin takes the current cache; it returns false if none is loaded.
func (f *finder) begin() bool {
	f.h = f.c.cur.Load()
	f.modelReads, f.turn = 0, turnPredict
	f.resetNews()
	if f.h == nil {
		return false
	}
	f.lay = &f.h.root.Layout
	return true
}

// leafWords returns how many words of a leaf to READ for a tick, 0 for the present, of
// which a reader of the present needs the first few. If READs are not in order, every
// reader READs the whole leaf, because it needs the checksum over it.
func (f *finder) leafWords(at clock.Tick, present int) int {
	if at == 0 && f.c.o.InOrder {
		return present
	}
	return f.lay.LeafWords
}

// count adds a finished operation to the statistics.
func (f *finder) count() {
	if f.rounds == 1 && f.reads == 1 {
		f.n.plain.Add(1)
	} else {
		f.n.lookups.Add(1)
		f.n.rounds.Add(uint64(f.rounds))
		f.n.reads.Add(uint64(f.reads + f.extra))
	}
}

func grow(b []uint64, n int) []uint64 {
	if cap(b) < n {
		return make([]uint64, n)
	}
	return b[:n]
}

// leafVerdict is the verdict on a leaf copy for one key.
type leafVerdict uint8

const (
	seeHere    leafVerdict = iota // the leaf's fences cover the key, as far as the copy shows them
	seeRight                      // the key lies to the right
	seeLeft                       // the key lies to the left
	seeDead                       // no longer a leaf
	seeBusy                       // being changed: READ it again
	seeHeld                       // a lock on all that is in it
	seeNowhere                    // not a leaf of this index, or no such address
	seeDown                       // the peer is gone
)

// judge checks that the copy is a leaf of the index. It returns seeHere, or the
// reason why not, whatever the key.
func (f *finder) judge(wr *rdma.WR) (leafVerdict, leaf.Leaf) {
	switch wr.Status {
	case rdma.StatusOK:
	case rdma.StatusAccess:
		return seeNowhere, leaf.Leaf{}
	default:
		return seeDown, leaf.Leaf{}
	}
	if h := block.Header(wr.Buf[block.HeaderWord]); h == leaf.Free || h.IsAbsent() && !h.Locked() {
		return seeDead, leaf.Leaf{}
	} else if h.Locked() && f.lay.Whole() {
		return seeHeld, leaf.Leaf{}
	}
	if block.Accept(wr.Buf, wr.Tail, wr.Addr, f.c.o.InOrder) != block.OK {
		return seeBusy, leaf.Leaf{}
	}
	v, ok := f.lay.View(wr.Buf)
	if !ok {
		return seeNowhere, v
	}
	return seeHere, v
}

// gapProof is the proof that a leaf has no rows but those in the copy.
func (f *finder) gapProof(v *leaf.Leaf, addr uint64) index.Proof {
	if v.Whole() {
		return index.Proof{Addr: f.proofAddr(addr), Word: v.Header()}
	}
	return index.Proof{Addr: f.proofAddr(leaf.GapAddr(addr)), Word: v.Gap()}
}

// proofAddr is the address of a word of a leaf, in proofs.
func (f *finder) proofAddr(addr uint64) uint64 { return index.InRegion(f.c.o.Region, addr) }

// sideOf compares a native key with the fences of a leaf.
func sideOf(v *leaf.Leaf, key uint64) leafVerdict {
	switch {
	case key < v.Low():
		return seeLeft
	case v.Above(key):
		return seeRight
	}
	return seeHere
}

// sideOfFences compares a string key with the fences of a leaf.
func sideOfFences(f *leaf.Fences, key string) leafVerdict {
	switch {
	case f.Below(key):
		return seeLeft
	case f.Above(key):
		return seeRight
	}
	return seeHere
}

// judgeFence checks that the copy is the fence block of the leaf. seeDead means
// that the block has been reused.
func (f *finder) judgeFence(wr *rdma.WR, v *leaf.Leaf, addr uint64) (leaf.Fences, leafVerdict) {
	switch wr.Status {
	case rdma.StatusOK:
	case rdma.StatusAccess:
		return leaf.Fences{}, seeNowhere
	default:
		return leaf.Fences{}, seeDown
	}
	if block.Accept(wr.Buf, wr.Tail, wr.Addr, f.c.o.InOrder) != block.OK {
		return leaf.Fences{}, seeBusy
	}
	fences, ok := v.FencesApart(addr, wr.Buf)
	if !ok {
		return fences, seeDead
	}
	return fences, seeHere
}

// rowVerdict is the verdict on the copy of a row block.
type rowVerdict uint8

const (
	rowHere  rowVerdict = iota // the row that the operation needs
	rowOther                   // the row of another key
	rowLocked
	rowTorn
	rowGone    // no longer a row of the index
	rowNowhere // no such address
	rowDown    // the peer is gone

	// To a reader of the past.
	rowPast   // a row, of any time
	rowNewer  // of a later time
	rowAbsent // no row at the time
	rowReused // memory that is reused or free
	rowAgain  // undecided: READ it again
)

// judgeRow checks that the copy is accepted and unlocked. It returns rowHere, or the
// reason why not. It does not check the key.
func judgeRow(wr *rdma.WR, inOrder bool) rowVerdict {
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
	if h.IsAbsent() {
		return rowGone
	}
	return rowHere
}

// judgeNumRow also checks that the row is that of a native key.
func judgeNumRow(wr *rdma.WR, lay *leaf.Layout, key uint64, inOrder bool) rowVerdict {
	see := judgeRow(wr, inOrder)
	if see == rowHere && !lay.RowIs(wr.Buf, key) {
		return rowGone
	}
	return see
}

// judgeStrRow also checks that the row is that of a string key, and decodes it.
func judgeStrRow(wr *rdma.WR, lay *leaf.Layout, inOrder bool) (see rowVerdict, key string, row []uint64) {
	if see = judgeRow(wr, inOrder); see != rowHere {
		return see, "", nil
	}
	key, row, ok := lay.StrRow(wr.Buf)
	if !ok {
		return rowGone, "", nil
	}
	return rowHere, key, row
}
