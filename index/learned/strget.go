package learned

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// rowsPerRound is how many rows with the digest and the tag of a key a lookup
// READs at a time: there is one but for chance.
const rowsPerRound = 8

// strGet is what a point lookup of a string key needs beside a getOp.
type strGet struct {
	o     *getOp
	key   string // in keyed
	keyed []byte
	tag   uint16

	leaf    leaf.Leaf
	covered bool           // the fences of the leaf are known, and cover the key
	all     []leaf.Pointer // of slots with digest and tag
	rows    []leaf.Pointer // of them, those not READ yet
	asked   []leaf.Pointer // READs under way
	rowWR   int            // of the first of them
	fence   []uint64
	fenceWR int
	// cleared is the header of a leaf in which every slot with digest and tag
	// was seen to lead to another key's row. Only if the leaf is still the same
	// after that were those rows the slots' own; 0 if there is none.
	cleared uint64
}

// States of a getOp with a string key.
const (
	getStrModel = getDone + 1 + iota
	getStrLeaf
	getStrRows
	getStrFence
)

// keep copies a key, whose memory is the caller's.
func (g *strGet) keep(key string) {
	g.keyed = append(g.keyed[:0], key...)
	g.key = mem.String(g.keyed)
}

// begin looks for the leaf of a string key.
func (g *strGet) begin(next *rdma.Batch) bool {
	g.tag, g.cleared = leaf.Tag(g.key), 0
	st, addr := g.o.findStr(g.key, next)
	return g.found(st, addr, next)
}

func (g *strGet) next(done, next *rdma.Batch) bool {
	switch g.o.state {
	case getStrModel:
		st, addr := g.o.resume(0, done, next)
		return g.found(st, addr, next)
	case getStrLeaf:
		return g.onLeaf(done, next)
	case getStrRows:
		return g.onRows(done, next)
	case getStrFence:
		return g.onFence(done, next)
	}
	return true
}

// found goes on from a step of the finder.
func (g *strGet) found(st step, addr uint64, next *rdma.Batch) bool {
	if st == stepLeaf {
		return g.readLeaf(addr, next)
	}
	finished := g.o.found(st, addr, next)
	if !finished {
		g.o.state = getStrModel
	}
	return finished
}

func (g *strGet) readLeaf(addr uint64, next *rdma.Batch) bool {
	finished := g.o.readLeaf(addr, next)
	if !finished {
		g.o.state = getStrLeaf
	}
	return finished
}

// ask counts one more round of so many READs, within the bound.
func (g *strGet) ask(state uint8, reads int) bool {
	o := g.o
	if o.reads += reads; o.reads > maxReads {
		return o.giveUp()
	}
	o.state = state
	o.n.rounds.Add(1)
	o.n.reads.Add(uint64(reads))
	return false
}

func (g *strGet) onLeaf(done, next *rdma.Batch) bool {
	o := g.o
	see, v := o.judgeStr(&done.WRs[o.wr])
	switch see {
	case seeHere:
	case seeBusy:
		o.n.retries.Add(1)
		return g.readLeaf(o.addr, next)
	case seeDown:
		o.res.Err = done.WRs[o.wr].Status.Err()
		return o.finish(index.Failed)
	default:
		return g.elsewhere(see, next)
	}
	g.leaf, g.covered = v, false
	if f, ok := v.Fences(); ok {
		if see := seeFences(&f, g.key); see != seeHere {
			return g.elsewhere(see, next)
		}
		g.inside(&f)
	}
	if g.cleared != v.Header() {
		g.cleared = 0
		if g.candidates(); len(g.rows) > 0 {
			return g.readRows(next)
		}
	}
	return g.absent(next)
}

// inside notes that the fences of the leaf cover the key.
func (g *strGet) inside(f *leaf.Fences) {
	g.covered = true
	g.o.res.Hint = g.o.addr
	switch o := g.o; {
	case o.lefts > 0:
		o.learnStr(f, o.addr, -1)
	case o.chases > 0:
		o.learnStr(f, o.addr, o.pred.Leaf)
	}
	g.o.chases, g.o.lefts = 0, 0
}

// elsewhere goes on from a leaf that does not cover the key.
func (g *strGet) elsewhere(see sight, next *rdma.Batch) bool {
	o := g.o
	g.cleared = 0
	o.c.missed(o.h, o.sub)
	switch see {
	case seeRight:
		if o.chases++; o.chases <= maxChase {
			o.n.chases.Add(1)
			return g.readLeaf(g.leaf.Right(), next)
		}
	case seeLeft, seeDead:
		if o.lefts++; o.lefts <= maxLeft {
			st, addr := o.back(0, next)
			return g.found(st, addr, next)
		}
	}
	return o.fallback()
}

// candidates lists the rows of slots with the key's digest and tag.
func (g *strGet) candidates() {
	g.all = g.all[:0]
	d := leaf.DigestAt(g.key, g.leaf.Prefix())
	for i, e := range g.leaf.Keys() {
		if e == d {
			if p := g.leaf.Pointer(i); p != 0 && p.Tag() == g.tag {
				g.all = append(g.all, p)
			}
		}
	}
	g.rows = g.all
}

// readRows appends READs of the next candidates.
func (g *strGet) readRows(next *rdma.Batch) bool {
	o := g.o
	n, words := 0, 0
	for ; n < min(len(g.rows), rowsPerRound); n++ {
		if p := g.rows[n]; !p.Valid() || p.Addr() >= maxAddr {
			o.c.missed(o.h, o.sub)
			return o.fallback()
		}
		words += g.rows[n].Words()
	}
	o.row = grow(o.row, words)
	buf := o.row
	for i, p := range g.rows[:n] {
		wr := next.Read(o.c.rkey, p.Addr(), buf[:p.Words():p.Words()])
		if buf = buf[p.Words():]; i == 0 {
			g.rowWR = wr
		}
	}
	g.asked, g.rows = g.rows[:n], g.rows[n:]
	g.fenceWR = -1
	if addr, words, ok := g.leaf.FenceBlock(); ok && o.chases+o.lefts > 0 {
		// The row proves itself. The fences are for those who look next: see learn.
		g.fence = grow(g.fence, words)
		g.fenceWR = next.Read(o.c.rkey, addr, g.fence)
		n++
	}
	return g.ask(getStrRows, n)
}

func (g *strGet) onRows(done, next *rdma.Batch) bool {
	o := g.o
	for i, p := range g.asked {
		wr := &done.WRs[g.rowWR+i]
		see, key, row := judgeStrRow(wr, &o.h.root.lay, o.c.o.InOrder)
		switch see {
		case rowHere:
			if key == g.key {
				o.res.Hint = o.addr
				g.learn(done)
				return o.present(row, block.Header(wr.Buf[block.HeaderWord]), p.Addr())
			}
			continue // of another key, if the block is still the slot's
		case rowLocked:
			if o.locked++; o.locked >= maxLocked {
				return o.finish(index.Locked)
			}
		case rowNowhere:
			o.c.missed(o.h, o.sub)
			return o.fallback()
		case rowDown:
			o.res.Err = wr.Status.Err()
			return o.finish(index.Failed)
		}
		// Moved or deleted since the leaf was read, or about to be.
		o.n.retries.Add(1)
		return g.readLeaf(o.addr, next)
	}
	if len(g.rows) > 0 {
		return g.readRows(next)
	}
	g.cleared = g.leaf.Header()
	return g.readLeaf(o.addr, next)
}

// learn remembers the leaf of a row found, if its fences were READ with the row.
func (g *strGet) learn(done *rdma.Batch) {
	if g.fenceWR < 0 {
		return
	}
	if f, see := g.o.judgeFence(&done.WRs[g.fenceWR], &g.leaf, g.o.addr); see == seeHere && seeFences(&f, g.key) == seeHere {
		g.inside(&f)
	}
}

// absent ends a lookup that found no row in the leaf, once its fences are
// known to cover the key.
func (g *strGet) absent(next *rdma.Batch) bool {
	o := g.o
	if g.covered {
		o.res.Rests = g.leaf.LastDelete()
		o.proofs[0] = index.Proof{Addr: leaf.GapAddr(o.addr), Word: g.leaf.Gap()}
		o.res.Proofs = o.proofs[:]
		return o.finish(index.NotFound)
	}
	addr, words, ok := g.leaf.FenceBlock()
	if !ok {
		return g.elsewhere(seeNowhere, next)
	}
	g.fence = grow(g.fence, words)
	g.fenceWR = next.Read(o.c.rkey, addr, g.fence)
	return g.ask(getStrFence, 1)
}

func (g *strGet) onFence(done, next *rdma.Batch) bool {
	o := g.o
	wr := &done.WRs[g.fenceWR]
	f, see := o.judgeFence(wr, &g.leaf, o.addr)
	switch see {
	case seeHere:
	case seeDown:
		o.res.Err = wr.Status.Err()
		return o.finish(index.Failed)
	case seeBusy, seeDead:
		// The leaf has other fences by now.
		o.n.retries.Add(1)
		return g.readLeaf(o.addr, next)
	default:
		return g.elsewhere(seeNowhere, next)
	}
	if see := seeFences(&f, g.key); see != seeHere {
		return g.elsewhere(see, next)
	}
	g.inside(&f)
	return g.absent(next)
}

// judgeStr looks at the copy of a leaf: seeHere says that it is one.
func (f *finder) judgeStr(wr *rdma.WR) (sight, leaf.Leaf) {
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
	v, ok := f.h.root.lay.View(wr.Buf)
	if !ok {
		return seeNowhere, v
	}
	return seeHere, v
}

// judgeFence looks at the copy of a leaf's fence block: seeDead says that it is
// not that of the leaf any more.
func (f *finder) judgeFence(wr *rdma.WR, v *leaf.Leaf, addr uint64) (leaf.Fences, sight) {
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

// seeFences says where a key lies.
func seeFences(f *leaf.Fences, key string) sight {
	switch {
	case f.Below(key):
		return seeLeft
	case f.Above(key):
		return seeRight
	}
	return seeHere
}

// judgeStrRow looks at the copy of a row block. rowHere says that it is the
// row of some key of this index.
func judgeStrRow(wr *rdma.WR, lay *leaf.Layout, inOrder bool) (see rowSight, key string, row []uint64) {
	switch wr.Status {
	case rdma.StatusOK:
	case rdma.StatusAccess:
		return rowNowhere, "", nil
	default:
		return rowDown, "", nil
	}
	h := block.Header(wr.Buf[block.HeaderWord])
	if h == leaf.Free {
		return rowGone, "", nil
	}
	switch block.Accept(wr.Buf, wr.Tail, wr.Addr, inOrder) {
	case block.Busy:
		return rowLocked, "", nil
	case block.Torn:
		return rowTorn, "", nil
	}
	key, row, ok := lay.StrRow(wr.Buf)
	if !ok || h.IsAbsent() {
		return rowGone, "", nil
	}
	return rowHere, key, row
}
