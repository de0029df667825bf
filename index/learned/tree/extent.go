package tree

import "drtmx/index"

// Splits take new leaves from extents. An extent is a short run of leaves that serves
// one inner node, and the nodes that it splits into until the extent is used up. So
// the leaves of a range of keys lie in few runs, and a client's translation table
// needs few bits to name them.
const (
	extentLeaves = 8
	// extentMin is the least number of leaves of a tree that uses extents: the
	// addresses of a small tree are close together anyway.
	extentMin = 1024
	// reserveShare bounds the unused leaves in extents: one per reserveShare leaves
	// in use. Random inserts cause about one per twenty.
	reserveShare = 8
)

// place says where a new leaf should lie, and whether it takes rows of other leaves.
type place uint8

const (
	apart    place = iota // after the leaf allocated last; begins empty
	nearby                // near its neighbours; begins empty
	forMoved              // near its neighbours; takes some of their rows
)

// extent is a run of leaves of which those from next on are unused. Only the mutator
// uses it.
type extent struct{ next, end uint64 }

func (e *extent) open() bool { return e != nil && e.next < e.end }

// fromExtent takes a leaf of the extent that serves the inner node of key.
func (t *Tree) fromExtent(key index.Key) (uint64, bool) {
	if t.leaves.Load() < extentMin {
		return 0, false
	}
	var p path
	t.pathTo(key, &p)
	nd := p.nodes[p.depth]
	if !nd.ext.open() && !t.newExtent(nd) {
		return 0, false
	}
	return t.takeFrom(nd.ext), true
}

func (t *Tree) takeFrom(e *extent) uint64 {
	addr := e.next
	e.next += t.lay.LeafBytes()
	t.reserve--
	return addr
}

// newExtent gives a bottom node an extent. It returns false if extents hold too many
// unused leaves already, or if there is no memory.
func (t *Tree) newExtent(nd *node) bool {
	if (t.reserve+extentLeaves)*reserveShare > t.leaves.Load() {
		return false
	}
	addr, err := t.leafSlab.AllocRun(extentLeaves)
	if err != nil {
		return false
	}
	t.reserve += extentLeaves
	nd.ext = &extent{next: addr, end: addr + extentLeaves*t.lay.LeafBytes()}
	return true
}

// fromAnyExtent takes a leaf from any extent below nd, for a tree that can allocate
// no more.
func (t *Tree) fromAnyExtent(nd *node) (uint64, bool) {
	switch {
	case t.reserve == 0:
		return 0, false
	case nd.level == 0 && nd.ext.open():
		return t.takeFrom(nd.ext), true
	case nd.level == 0:
		return 0, false
	}
	for i := range int(nd.n.Load()) {
		if addr, ok := t.fromAnyExtent(nd.subs[i].Load()); ok {
			return addr, true
		}
	}
	return 0, false
}

// closeExtent frees the unused leaves of a node's extent, which other nodes may
// share. The caller is about to remove the node.
func (t *Tree) closeExtent(nd *node) {
	for nd.ext.open() {
		t.leafSlab.Free(t.takeFrom(nd.ext))
	}
}
