package read

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/mem"
	"drtmx/rdma"
)

// stringGet has the steps of a lookup of a string key.
type stringGet struct {
	o    *getOp
	kept []byte // the key
	tag  uint16

	fence []uint64

	covered bool    // the fences of the leaf are known, and cover the key
	all     []rowAt // of slots with digest and tag
	// cleared is the header of a leaf in which every slot with the key's digest and
	// tag pointed to a block with another key's row; 0 if there is none. Those blocks
	// may have been reused after the READ of the leaf. Only if another READ finds the
	// leaf with the same header did the slots belong to these rows, so that the key
	// is absent.
	cleared uint64
}

func (g *stringGet) keep(key index.Key) bool {
	g.kept = append(g.kept[:0], key.Str...)
	g.o.key = index.Str(mem.String(g.kept))
	g.tag, g.cleared, g.covered = leaf.Tag(key.Str), 0, false
	return key.Num == 0
}

func (g *stringGet) rowsMove() bool { return true }

// search looks for rows even while the fences of the leaf are unknown.
func (g *stringGet) search(next *rdma.Batch) (see leafVerdict, finished bool) {
	g.covered = false
	if f, ok := g.o.view.Fences(); ok {
		if see := sideOfFences(&f, g.o.key.Str); see != seeHere {
			g.cleared = 0
			return see, false
		}
		g.inside(&f)
	}
	return seeHere, g.searchLeaf(next)
}

// inside is called when the fences of the leaf cover the key.
func (g *stringGet) inside(f *leaf.Fences) {
	o := g.o
	g.covered = true
	o.res.Hint = o.addr
	switch {
	case o.lefts > 0:
		o.held.learnStrings(f, o.addr, -1)
	case o.chases > 0:
		o.held.learnStrings(f, o.addr, o.pred.Leaf)
	}
	o.chases, o.lefts = 0, 0
}

func (g *stringGet) learn(from int) {
	if f, ok := g.o.view.Fences(); ok {
		g.o.held.learnStrings(&f, g.o.addr, from)
	}
}

func (g *stringGet) searchLeaf(next *rdma.Batch) bool {
	o := g.o
	if g.cleared == o.view.Header() {
		return g.absent(next)
	}
	g.cleared = 0
	g.all = g.all[:0]
	d := leaf.DigestAt(g.o.key.Str, o.view.Prefix())
	for i, e := range o.view.Keys() {
		if e != d {
			continue
		}
		if p := o.view.Pointer(i); p != 0 && p.Tag() == g.tag {
			at := rowAt{p.Addr(), p.Words()}
			if !p.Valid() {
				at.words = 0
			}
			g.all = append(g.all, at)
		}
	}
	if o.rows = g.all; len(o.rows) == 0 {
		return g.absent(next)
	}
	if o.readRows(next) {
		return true
	}
	if addr, words, apart := o.view.FenceBlock(); apart && o.chases+o.lefts > 0 {
		// The row proves itself. The fences are for later lookups: see learn.
		g.readFence(addr, words, next)
	}
	return false
}

func (g *stringGet) readFence(addr uint64, words int, next *rdma.Batch) {
	g.fence = grow(g.fence, words)
	g.o.fenceWR = next.Read(g.o.c.rkey, addr, g.fence)
	g.o.reads++
}

func (g *stringGet) judge(done *rdma.Batch, i int) (rowVerdict, []uint64) {
	see, key, row := judgeStrRow(&done.WRs[i], g.o.lay, g.o.c.o.InOrder)
	if see == rowHere && key != g.o.key.Str {
		see = rowOther // if the block is still the slot's
	}
	if see == rowHere && g.o.fenceWR >= 0 {
		g.learnFence(done)
	}
	return see, row
}

// others READs the leaf again, to check whether the slots still belong to these rows.
func (g *stringGet) others(next *rdma.Batch) bool {
	g.cleared = g.o.view.Header()
	return g.o.readLeaf(g.o.addr, next)
}

// absent ends a lookup that found no row in the leaf, once its fences are
// known to cover the key.
func (g *stringGet) absent(next *rdma.Batch) bool {
	o := g.o
	if g.covered {
		if o.tick != 0 {
			return o.dig(next)
		}
		return o.absent()
	}
	addr, words, ok := o.view.FenceBlock()
	if !ok {
		g.cleared = 0
		return o.elsewhere(seeNowhere, next)
	}
	if o.awaitRound(getFence, 0) {
		return true
	}
	g.readFence(addr, words, next)
	return false
}

// learnFence learns the bounds of the leaf of the row that was found.
func (g *stringGet) learnFence(done *rdma.Batch) {
	f, see := g.o.judgeFence(&done.WRs[g.o.fenceWR], &g.o.view, g.o.addr)
	if see == seeHere && sideOfFences(&f, g.o.key.Str) == seeHere {
		g.inside(&f)
	}
}

// onFence checks the bounds of a leaf without the key's row.
func (g *stringGet) onFence(done, next *rdma.Batch) bool {
	o := g.o
	wr := &done.WRs[g.o.fenceWR]
	f, see := o.judgeFence(wr, &o.view, o.addr)
	switch see {
	case seeHere:
		if see = sideOfFences(&f, g.o.key.Str); see == seeHere {
			g.inside(&f)
			return g.absent(next)
		}
	case seeDown:
		return o.down(wr)
	case seeBusy, seeDead:
		// The leaf has other fences now.
		o.n.retries.Add(1)
		return o.readLeaf(o.addr, next)
	default:
		see = seeNowhere
	}
	g.cleared = 0
	return o.elsewhere(see, next)
}
