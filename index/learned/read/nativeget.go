package read

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/rdma"
)

// nativeGet has the steps of a lookup of a native key.
type nativeGet struct {
	o   *getOp
	one [1]rowAt
}

func (g *nativeGet) keep(key index.Key) bool {
	g.o.key = key
	return key.Str == ""
}

func (g *nativeGet) rowsMove() bool { return false }

func (g *nativeGet) learn(from int) { g.o.held.learnNative(&g.o.view, g.o.addr, from) }

func (g *nativeGet) search(next *rdma.Batch) (see leafVerdict, finished bool) {
	if see := sideOf(&g.o.view, g.o.key.Num); see != seeHere {
		return see, false
	}
	return seeHere, g.searchLeaf(next)
}

// inside is called when the leaf covers the key, and may remember the leaf. A leaf
// next to the predicted one is not worth the memory, because keys near the fences of
// most leaves miss by one leaf.
func (g *nativeGet) inside() {
	o := g.o
	switch {
	case o.lefts > 0:
		if o.span.wide() {
			g.learn(-1)
		}
	case o.chases > 0:
		g.learn(o.pred.Leaf)
	}
	o.chases, o.lefts = 0, 0
}

// searchLeaf looks for the key in the leaf that covers it.
func (g *nativeGet) searchLeaf(next *rdma.Batch) bool {
	o := g.o
	v := &o.view
	o.res.Hint = o.addr
	g.inside()
	i := v.Find(g.o.key.Num)
	if i < 0 {
		return o.absent()
	}
	if o.lay.Whole() {
		return o.present(v.Row(i), block.Header(v.Header()), o.proofAddr(o.addr))
	}
	if o.lay.Kind != leaf.Inline {
		g.one[0] = rowAt{v.Head(i), o.lay.RowBlockWords}
		o.rows = g.one[:]
		return o.readRows(next)
	}
	head := block.Header(v.Head(i))
	if head.Locked() {
		if o.endsAtLock() {
			return o.finish(index.Locked)
		}
		o.n.retries.Add(1)
		return o.readLeaf(o.addr, next)
	}
	return o.present(v.Row(i), head, o.lay.HeadAddr(o.addr, i))
}

func (g *nativeGet) judge(done *rdma.Batch, i int) (rowVerdict, []uint64) {
	wr := &done.WRs[i]
	see := judgeNumRow(wr, g.o.lay, g.o.key.Num, g.o.c.o.InOrder)
	if see != rowHere {
		return see, nil
	}
	return rowHere, wr.Buf[leaf.RowWord : leaf.RowWord+g.o.lay.RowWords]
}

// others is never called: the row of a native key has its key or is gone.
func (g *nativeGet) others(*rdma.Batch) bool { return g.o.fallback() }

// onFence is never called: a leaf of native keys holds its fences.
func (g *nativeGet) onFence(_, _ *rdma.Batch) bool { return g.o.fallback() }
