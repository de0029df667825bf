package read

import (
	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/rdma"
)

// belowReader READs what is in intervals of arrays. The copy of a bin, or of a root, whose fences cover
// a key is right about that key, however the reader has come there.
type belowReader struct {
	f    *finder
	lay  *leaf.Layout // for which bins was made
	bins leaf.Layout
}

// of returns the layout of the bins of an index.
func (b *belowReader) of(lay *leaf.Layout) *leaf.Layout {
	if b.lay != lay {
		b.lay, b.bins = lay, lay.Bins()
	}
	return &b.bins
}

// words is the size of a block.
func (b *belowReader) words(to leaf.Below) int {
	if to.IsRoot() {
		return leaf.RootBlockWords
	}
	return b.bins.LeafWords
}

// judgeBin judges the copy of a bin.
func (b *belowReader) judgeBin(wr *rdma.WR) (leafVerdict, leaf.Leaf) {
	if see := b.accept(wr); see != seeHere {
		return see, leaf.Leaf{}
	}
	v, ok := b.bins.View(wr.Buf)
	if !ok {
		return seeNowhere, v
	}
	return seeHere, v
}

// judgeRoot judges the copy of a root.
func (b *belowReader) judgeRoot(wr *rdma.WR) (leafVerdict, leaf.Root) {
	if see := b.accept(wr); see != seeHere {
		return see, leaf.Root{}
	}
	r, ok := b.lay.ViewRoot(wr.Buf)
	if !ok {
		return seeNowhere, r
	}
	return seeHere, r
}

func (b *belowReader) accept(wr *rdma.WR) leafVerdict {
	switch wr.Status {
	case rdma.StatusOK:
	case rdma.StatusAccess:
		return seeNowhere
	default:
		return seeDown
	}
	if h := block.Header(wr.Buf[block.HeaderWord]); h == leaf.Free || h.IsAbsent() && !h.Locked() {
		return seeDead
	}
	if block.Accept(wr.Buf, wr.Tail, wr.Addr, b.f.c.o.InOrder) != block.OK {
		return seeBusy
	}
	return seeHere
}

// binGet has the steps of a lookup in arrays with bins. The state getFence is for what is below
// an array:
//
//	leaf ─▶ bin ─▶ rows ─▶ done
//	  │      ▲└───────────▶ done, absent
//	  │     root
//	  │      ▲
//	  └──────┘
type binGet struct {
	nativeGet
	belowReader
	at  leaf.Below // being READ
	buf []uint64
	wr  int
}

// inBins returns the lookup's kind for arrays, after it has kept the key.
func (o *getOp) inBins() getKind {
	if o.bins == nil {
		o.bins = &binGet{nativeGet: nativeGet{o: o}, belowReader: belowReader{f: &o.finder}}
	}
	o.bins.of(o.lay)
	return o.bins
}

func (g *binGet) search(next *rdma.Batch) (see leafVerdict, finished bool) {
	o := g.o
	v := &o.view
	if see := sideOf(v, o.key.Num); see != seeHere {
		return see, false
	}
	if !v.Ascending() {
		return seeNowhere, false
	}
	o.res.Hint = o.addr
	g.inside()
	i, found := v.Interval(o.key.Num)
	if found {
		if v.Head(i) == 0 { // deleted
			return seeHere, o.absent()
		}
		return seeHere, g.row(v.Head(i), next)
	}
	if g.at = v.Below(i); g.at == 0 {
		return seeHere, o.absent()
	}
	return seeHere, g.readBelow(next)
}

func (g *binGet) row(addr uint64, next *rdma.Batch) bool {
	g.one[0] = rowAt{addr, g.o.lay.RowBlockWords}
	g.o.rows = g.one[:]
	return g.o.readRows(next)
}

// readBelow READs a bin or a root.
func (g *binGet) readBelow(next *rdma.Batch) bool {
	if !g.at.Valid() {
		return g.o.fallback()
	}
	if g.o.awaitRound(getFence, 1) {
		return true
	}
	g.buf = grow(g.buf, g.words(g.at))
	g.wr = next.Read(g.o.c.o.Leaves, g.at.Addr(), g.buf)
	return false
}

// onFence goes on with what is below the array.
func (g *binGet) onFence(done, next *rdma.Batch) bool {
	o, wr := g.o, &done.WRs[g.wr]
	var see leafVerdict
	if g.at.IsRoot() {
		var r leaf.Root
		if see, r = g.judgeRoot(wr); see == seeHere && r.Covers(o.key.Num) {
			g.at = leaf.ToBin(r.Child(r.Find(o.key.Num)))
			return g.readBelow(next)
		}
	} else {
		var v leaf.Leaf
		if see, v = g.judgeBin(wr); see == seeHere && sideOf(&v, o.key.Num) == seeHere {
			if i := v.Find(o.key.Num); i >= 0 {
				return g.row(v.Head(i), next)
			}
			o.res.Rests = v.LastDelete()
			o.proofs[0] = o.gapProof(&v, g.at.Addr())
			o.res.Proofs = o.proofs[:]
			return o.finish(index.NotFound)
		}
	}
	switch see {
	case seeBusy:
		o.n.retries.Add(1)
		return g.readBelow(next)
	case seeDown:
		return o.down(wr)
	case seeNowhere:
		o.missed(o.sub)
		return o.fallback()
	}
	o.n.retries.Add(1) // it was divided or merged since the array was READ
	return o.readLeaf(o.addr, next)
}
