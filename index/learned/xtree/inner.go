package xtree

import (
	"math/bits"
	"sync/atomic"
)

const (
	fanout   = 64 // a power of two
	maxDepth = 12 // 32^12 leaves: more than a region can hold
	// nodeBytes is what an inner node takes: keys and children, full or not, and its words of housekeeping.
	nodeBytes = fanout*16 + 40
)

// node is an inner node: the lowest keys of its children and the children.
// It is changed in place by the one mutator and read racily meanwhile: a
// reader may see any mix of old and new entries and so reach a wrong leaf,
// whose fences tell. Nodes are never reused, only dropped.
type node struct {
	level int // of its children: 0 means leaves
	n     atomic.Int32
	keys  [fanout]atomic.Uint64
	leafs *[fanout]atomic.Uint64
	subs  *[fanout]atomic.Pointer[node]
	ext   *extent // where new leaves come from, if level is 0; the mutator's
}

func newNode(level int) *node {
	nd := &node{level: level}
	if level == 0 {
		nd.leafs = new([fanout]atomic.Uint64)
	} else {
		nd.subs = new([fanout]atomic.Pointer[node])
	}
	return nd
}

// search returns the last child whose lowest key is at or below key, or the
// first. Its steps do not depend on a branch.
func (nd *node) search(key uint64) int {
	from, n := 0, int(nd.n.Load())
	for n > 1 {
		half := n >> 1
		_, below := bits.Sub64(key, nd.keys[(from+half)&(fanout-1)].Load(), 0)
		from += half & (int(below) - 1)
		n -= half
	}
	return from & (fanout - 1)
}

// move copies entry i of src to j of nd.
func (nd *node) move(j int, src *node, i int) {
	nd.keys[j].Store(src.keys[i].Load())
	if nd.level == 0 {
		nd.leafs[j].Store(src.leafs[i].Load())
	} else {
		nd.subs[j].Store(src.subs[i].Load())
	}
}

// put sets entry i.
func (nd *node) put(i int, key, leaf uint64, sub *node) {
	nd.keys[i].Store(key)
	if nd.level == 0 {
		nd.leafs[i].Store(leaf)
	} else {
		nd.subs[i].Store(sub)
	}
}

// truncate drops the entries from n on.
func (nd *node) truncate(n int) {
	old := int(nd.n.Load())
	nd.n.Store(int32(n))
	for i := n; i < old; i++ {
		if nd.level > 0 {
			nd.subs[i].Store(nil)
		}
	}
}

// descend returns the leaf that should hold key: certainly for the mutator,
// as a hint for readers beside it; 0 if a reader met a node being changed.
func (t *Tree) descend(key uint64) uint64 {
	nd := t.root.Load()
	for nd.level > 0 {
		nd = nd.subs[nd.search(key)].Load()
		if nd == nil {
			return 0
		}
	}
	return nd.leafs[nd.search(key)].Load()
}

// Descend is the way through the inner nodes alone: the leaf that should hold
// key, 0 if a mutator was in the way. Measurements compare models with it.
func (t *Tree) Descend(key uint64) uint64 { return t.descend(key) }

// path is the way from the root to a bottom node, for the mutator.
type path struct {
	nodes [maxDepth]*node
	at    [maxDepth]int
	depth int // of the bottom node
}

func (t *Tree) find(key uint64, p *path) uint64 {
	nd := t.root.Load()
	for d := 0; ; d++ {
		i := nd.search(key)
		p.nodes[d], p.at[d] = nd, i
		if nd.level == 0 {
			p.depth = d
			return nd.leafs[i].Load()
		}
		nd = nd.subs[i].Load()
	}
}

// addLeaf enters a new leaf whose lowest key is key.
func (t *Tree) addLeaf(key, leaf uint64) {
	var p path
	t.find(key, &p)
	t.insertAt(&p, p.depth, key, leaf, nil)
}

// insertAt enters a child right of the path's place in the node at depth d.
func (t *Tree) insertAt(p *path, d int, key, leaf uint64, sub *node) {
	nd, at := p.nodes[d], p.at[d]+1
	n := int(nd.n.Load())
	if n < fanout {
		for i := n; i > at; i-- {
			nd.move(i, nd, i-1)
		}
		nd.put(at, key, leaf, sub)
		nd.n.Store(int32(n + 1))
		return
	}
	right := newNode(nd.level)
	right.ext = nd.ext
	t.innerNodes.Add(1)
	half := fanout / 2
	if at == n { // keys that only rise leave full nodes behind
		half = fanout
	}
	for i := half; i < n; i++ {
		right.move(i-half, nd, i)
	}
	right.n.Store(int32(n - half))
	if at > half || half == fanout {
		m := n - half
		for i := m; i > at-half; i-- {
			right.move(i, right, i-1)
		}
		right.put(at-half, key, leaf, sub)
		right.n.Store(int32(m + 1))
	}
	t.linkNode(p, d, right)
	nd.truncate(half)
	if at <= half && half < fanout {
		for i := half; i > at; i-- {
			nd.move(i, nd, i-1)
		}
		nd.put(at, key, leaf, sub)
		nd.n.Store(int32(half + 1))
	}
}

// linkNode enters right, the new neighbour of the node at depth d, above it.
func (t *Tree) linkNode(p *path, d int, right *node) {
	if d > 0 {
		t.insertAt(p, d-1, right.keys[0].Load(), 0, right)
		return
	}
	left := p.nodes[0]
	root := newNode(left.level + 1)
	t.innerNodes.Add(1)
	root.put(0, left.keys[0].Load(), 0, left)
	root.put(1, right.keys[0].Load(), 0, right)
	root.n.Store(2)
	t.root.Store(root)
}

// removeLeaf forgets the leaf whose low fence is key, which is not the first.
func (t *Tree) removeLeaf(key uint64) {
	var p path
	t.find(key, &p)
	t.removeAt(&p, p.depth)
	for r := t.root.Load(); r.level > 0 && r.n.Load() == 1; r = t.root.Load() {
		t.root.Store(r.subs[0].Load())
		t.innerNodes.Add(^uint64(0))
	}
}

func (t *Tree) removeAt(p *path, d int) {
	nd, at := p.nodes[d], p.at[d]
	n := int(nd.n.Load())
	if n == 1 {
		// Only the very first leaf has no left sibling to fall to, and it
		// stays: an empty node is never the first of its level.
		t.innerNodes.Add(^uint64(0))
		t.closeExtent(nd)
		t.removeAt(p, d-1)
		return
	}
	for i := at; i < n-1; i++ {
		nd.move(i, nd, i+1)
	}
	nd.truncate(n - 1)
	if at == 0 {
		t.raise(p, d, nd.keys[0].Load())
	}
	if d > 0 && n-1 < fanout/4 {
		t.mergeNode(p, d)
	}
}

// raise tells the ancestors that the lowest key of the node at depth d is key.
func (t *Tree) raise(p *path, d int, key uint64) {
	for d--; d >= 0; d-- {
		p.nodes[d].keys[p.at[d]].Store(key)
		if p.at[d] > 0 {
			return
		}
	}
}

// mergeNode moves the entries of a thin node to its left sibling, if there is
// one under the same parent with room.
func (t *Tree) mergeNode(p *path, d int) {
	nd, parent, at := p.nodes[d], p.nodes[d-1], p.at[d-1]
	if at == 0 {
		return
	}
	left := parent.subs[at-1].Load()
	m, n := int(left.n.Load()), int(nd.n.Load())
	if m+n > fanout*3/4 {
		return
	}
	for i := range n {
		left.move(m+i, nd, i)
	}
	left.n.Store(int32(m + n))
	t.innerNodes.Add(^uint64(0))
	t.closeExtent(nd)
	t.removeAt(p, d-1)
}

// Fences appends the low fences and addresses of the leaves from the one that
// holds from, up to but not including those whose low fence is at or above to
// (if bounded), at most limit of them. next is the low fence of the leaf after
// the last one appended, if more is true. It is for the mutator's side: the
// caller keeps mutators out.
func (t *Tree) Fences(from, to uint64, bounded bool, limit int, lows, addrs []uint64) (l, a []uint64, next uint64, more bool) {
	for {
		var p path
		t.find(from, &p)
		nd, i := p.nodes[p.depth], p.at[p.depth]
		for ; i < int(nd.n.Load()); i++ {
			low := nd.keys[i].Load()
			if bounded && low >= to {
				return lows, addrs, low, true
			}
			if limit == 0 {
				return lows, addrs, low, true
			}
			limit--
			lows, addrs = append(lows, low), append(addrs, nd.leafs[i].Load())
		}
		var ok bool
		if from, ok = p.following(); !ok {
			return lows, addrs, 0, false
		}
	}
}

// following is the lowest key right of the path's bottom node.
func (p *path) following() (uint64, bool) {
	for d := p.depth - 1; d >= 0; d-- {
		if i := p.at[d] + 1; i < int(p.nodes[d].n.Load()) {
			return p.nodes[d].keys[i].Load(), true
		}
	}
	return 0, false
}
