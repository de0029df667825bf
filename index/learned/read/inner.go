package read

import (
	"drtmx/index"

	"drtmx/index/learned/inner"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
	"drtmx/rdma"
)

// A client that caches inner nodes instead of models searches a tree, as a client of Cell
// does (Mitchell et al., USENIX ATC 2016, §3.2): it descends through the nodes that it
// holds, and READs those that it does not hold, a round each. Nodes are hints, as models
// are. A node that does not cover the key was reached through an old parent, which is READ
// again. A leaf that does not cover the key was reached through an old node: that is READ
// in the round of the right link, or by the next search.

// nodeReadsMax bounds the READs of nodes by one search: every node of the highest tree, and
// again from the bottom up.
const nodeReadsMax = 3 * inner.DepthMax

// walk is a finder's way through the inner nodes.
type walk struct {
	path  [inner.DepthMax]walked
	depth int // of the node that is being READ or searched
	wr    int
	reads int // of this operation

	ahead inner.Node // whose children a scan READs ahead

	fresh   []uint64 // the bottom node, READ again beside a leaf
	freshWR int      // -1 if it is not being READ
	asked   int      // how often it was READ again
}

// walked is a node on the way.
type walked struct {
	inner.Node
	addr uint64
	slot int       // of the child on the way
	held *heldNode // nil if the client does not hold the node
	buf  []uint64  // of a node that was READ
}

// freshMost is how often an operation READs bottom nodes again beside leaves.
const freshMost = 4

// walkFrom begins a search.
func (f *finder) walkFrom(next *rdma.Batch) (step, uint64) {
	w := f.way
	w.depth, w.reads, w.asked, w.freshWR = 0, 0, 0, -1
	return f.walkAgain(next)
}

// walkAgain begins a search from the root, which counts as a part of the same operation.
func (f *finder) walkAgain(next *rdma.Batch) (step, uint64) {
	root := f.c.nodes.root.Load()
	if root == nil || root.suspect.Load() {
		return f.readNode(0, f.h.root.Inner, next)
	}
	f.way.stand(0, root)
	return f.descend(next)
}

// stand makes a held node that of the way at a depth.
func (w *walk) stand(depth int, held *heldNode) {
	at := &w.path[depth]
	at.Node, at.addr, at.held, w.depth = held.Node, held.addr, held, depth
}

// isAddr reports whether a node may name a child at an address; 0 is a node that is not published.
func isAddr(addr uint64) bool { return addr != 0 && model.ValidAddr(addr) }

// descend goes down from the node at the way's depth.
func (f *finder) descend(next *rdma.Batch) (step, uint64) {
	w := f.way
	for {
		at := &w.path[w.depth]
		at.slot = at.Search(f.key.Num)
		child := at.Children[at.slot]
		if at.Level == 0 {
			if !isAddr(child) {
				f.c.nodes.doubt(at.held)
				return stepStuck, 0
			}
			return stepLeaf, child
		}
		var kid *heldNode
		if at.held != nil {
			kid = at.held.kids[at.slot].Load()
		}
		if kid == nil || kid.addr != child || kid.suspect.Load() || !kid.Covers(f.key.Num) {
			return f.readNode(w.depth+1, child, next)
		}
		kid.touch()
		w.stand(w.depth+1, kid)
	}
}

// readNode READs the node at a depth of the way.
func (f *finder) readNode(depth int, addr uint64, next *rdma.Batch) (step, uint64) {
	w := f.way
	if w.reads++; w.reads > nodeReadsMax || !isAddr(addr) {
		return stepStuck, 0
	}
	at := &w.path[depth]
	at.addr, at.held, at.buf, w.depth = addr, nil, grow(at.buf, inner.Words), depth
	w.wr = next.Read(f.c.rkey, addr, at.buf)
	f.reads++
	return stepWait, 0
}

// gotNode continues with the node that was READ.
func (f *finder) gotNode(done, next *rdma.Batch) (step, uint64) {
	w := f.way
	at, wr := &w.path[w.depth], &done.WRs[w.wr]
	switch f.acceptNode(wr, w.depth, &at.Node) {
	case nodeBusy:
		return f.readNode(w.depth, at.addr, next)
	case nodeDown:
		f.err = wr.Status.Err()
		return stepDown, 0
	case nodeOther:
		if w.depth == 0 {
			return stepStuck, 0
		}
		return f.readNode(w.depth-1, w.path[w.depth-1].addr, next)
	}
	f.keepNode(w.depth, wr.Buf)
	return f.descend(next)
}

// keepNode adds the node at a depth of the way to those that the client holds, if there is
// room, and if its parent is held.
func (f *finder) keepNode(depth int, words []uint64) {
	w := f.way
	at := &w.path[depth]
	var parent *walked
	if depth > 0 {
		if parent = &w.path[depth-1]; parent.held == nil {
			return
		}
	}
	at.held = f.c.nodes.keep(parent, at.addr, words, f.h.root.Layout.ID)
	if at.held != nil {
		at.Node = at.held.Node
	}
}

// nodeVerdict is the verdict on the copy of a node.
type nodeVerdict uint8

const (
	nodeHere  nodeVerdict = iota // the node that the search needs
	nodeBusy                     // being changed
	nodeOther                    // no node, or one that does not belong here
	nodeDown                     // the peer is gone
)

// acceptNode judges a copy of the node at a depth of the way, and decodes it.
func (f *finder) acceptNode(wr *rdma.WR, depth int, n *inner.Node) nodeVerdict {
	switch wr.Status {
	case rdma.StatusOK:
	case rdma.StatusAccess:
		return nodeOther
	default:
		return nodeDown
	}
	if block.Header(wr.Buf[block.HeaderWord]).IsAbsent() {
		return nodeOther // freed
	}
	if accepted(wr, f.c.o.InOrder) != block.OK {
		return nodeBusy
	}
	got, err := inner.Decode(wr.Buf, f.h.root.Layout.ID)
	if err != nil || depth > 0 && got.Level != f.way.path[depth-1].Level-1 || !got.Covers(f.key.Num) {
		return nodeOther
	}
	*n = got
	return nodeHere
}

// askFresh READs the bottom node of the way again, beside a leaf, because the leaf to which
// it has led does not cover the key.
func (f *finder) askFresh(next *rdma.Batch) {
	w := f.way
	if w.freshWR >= 0 || w.asked == freshMost || w.path[w.depth].Level != 0 {
		return
	}
	w.asked++
	w.fresh = grow(w.fresh, inner.Words)
	w.freshWR = next.Read(f.c.rkey, w.path[w.depth].addr, w.fresh)
	f.reads++
}

// takeFresh takes the bottom node that was READ again, if one was.
func (f *finder) takeFresh(done *rdma.Batch) {
	w := f.way
	if w.freshWR < 0 {
		return
	}
	wr, at := &done.WRs[w.freshWR], &w.path[w.depth]
	w.freshWR = -1
	switch f.acceptNode(wr, w.depth, &at.Node) {
	case nodeHere:
		at.buf, w.fresh = w.fresh, at.buf // the node is decoded in place
		f.keepNode(w.depth, at.buf)
	case nodeOther:
		f.c.nodes.doubt(at.held)
	}
}

// fresher returns the leaf that covers the key according to the bottom node of the way. ok is
// false if the node does not cover the key, or if the leaf is one of the two given ones.
func (f *finder) fresher(not, nor uint64) (addr uint64, ok bool) {
	if !f.covers() {
		return 0, false
	}
	at := &f.way.path[f.way.depth]
	addr = at.Children[at.Search(f.key.Num)]
	return addr, addr != not && addr != nor && isAddr(addr)
}

// covers reports whether the bottom node of the way covers the key.
func (f *finder) covers() bool {
	at := &f.way.path[f.way.depth]
	return at.Level == 0 && at.Covers(f.key.Num)
}

// doubtWay makes the next search READ the bottom node of the way again.
func (f *finder) doubtWay() { f.c.nodes.doubt(f.way.path[f.way.depth].held) }

// backTrack searches again after a leaf that lies to the right of the key, or is dead: it
// READs the node that led there, and those above it as far as they are old.
func (f *finder) backTrack(next *rdma.Batch) (step, uint64) {
	w := f.way
	return f.readNode(w.depth, w.path[w.depth].addr, next)
}

// aheadInNodes returns the next leaf to READ ahead, within the range: the child after the last
// one returned, of the bottom node or of those after it that the client holds.
func (o *scanOp) aheadInNodes() (uint64, bool) {
	n := &o.way.ahead
	if o.aheadLeaf >= len(n.Children) {
		if len(n.Children) == 0 || !n.Bounded || o.kind.beyond(index.Num(n.High)) {
			return 0, false
		}
		next := o.c.nodes.bottom(n.High)
		if next == nil {
			return 0, false
		}
		*n, o.aheadLeaf = next.Node, 0
	}
	if o.kind.beyond(index.Num(n.Lows[o.aheadLeaf])) {
		return 0, false
	}
	addr := n.Children[o.aheadLeaf]
	o.aheadLeaf++
	return addr, isAddr(addr)
}

// inNodes reports whether the bottom node of the way covers the first key that is not
// covered. If not, a search must find that which does.
func (o *scanOp) inNodes() bool {
	o.kind.seek()
	return o.covers()
}

// seekNodes sets the next leaf to READ ahead. It READs the bottom node again if that does not
// name the leaf to which a right link has led.
func (o *scanOp) seekNodes(next *rdma.Batch) {
	o.way.ahead = inner.Node{}
	if !o.inNodes() {
		return
	}
	at := &o.way.path[o.way.depth]
	slot := at.Search(o.key.Num)
	o.way.ahead, o.aheadLeaf = at.Node, slot+1
	if o.linked && at.Children[slot] != o.want {
		o.askFresh(next)
	}
}

// loadNodes is load for a client that caches inner nodes: it READs the root block, and, if
// there is no bound, all nodes.
func (f *fetcher) loadNodes(old *cache) error {
	if old != nil {
		return nil // nothing else in the root block changes
	}
	h, err := f.rootBlock()
	if h == nil || err != nil {
		f.c.doubtful.Store(true)
		return err
	}
	if h.root.Inner == 0 {
		return ErrNoInner
	}
	f.c.refreshes.Add(1)
	f.c.cur.Store(h)
	if f.c.nodes.bound > 0 {
		return nil
	}
	return f.allNodes(h)
}

// allNodes READs all inner nodes, level by level. Those that change meanwhile are left to
// lookups.
func (f *fetcher) allNodes(h *cache) error {
	c := f.c
	root, err := f.block(model.NewPointer(h.root.Inner, inner.Words))
	if root == nil || err != nil {
		return err
	}
	held := c.nodes.keep(nil, h.root.Inner, root, h.root.Layout.ID)
	if held == nil {
		return nil
	}
	for level := []*heldNode{held}; len(level) > 0 && level[0].Level > 0; {
		var below []*heldNode
		for _, nd := range level {
			kids, err := f.kidsOf(h, nd)
			if err != nil {
				return err
			}
			below = append(below, kids...)
		}
		level = below
	}
	return nil
}

// kidsOf READs the children of a node and returns those that it now holds.
func (f *fetcher) kidsOf(h *cache, nd *heldNode) (kids []*heldNode, err error) {
	buf := make([]uint64, len(nd.Children)*inner.Words)
	f.b.Reset()
	for i, addr := range nd.Children {
		if !isAddr(addr) {
			addr = h.root.Inner // it will not be accepted as a child
		}
		f.b.Read(f.c.rkey, addr, buf[i*inner.Words:(i+1)*inner.Words:(i+1)*inner.Words])
	}
	if err := f.post(); err != nil {
		return nil, err
	}
	for i := range f.b.WRs {
		wr := &f.b.WRs[i]
		n, err := inner.Decode(wr.Buf, h.root.Layout.ID)
		if accepted(wr, f.c.o.InOrder) != block.OK || err != nil || n.Level != nd.Level-1 || n.Lows[0] != nd.Lows[i] {
			continue
		}
		parent := &walked{Node: nd.Node, addr: nd.addr, held: nd, slot: i}
		if kid := f.c.nodes.keep(parent, wr.Addr, wr.Buf, h.root.Layout.ID); kid != nil {
			kids = append(kids, kid)
		}
	}
	return kids, nil
}
