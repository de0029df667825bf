package read

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"drtmx/index"
	"drtmx/index/learned/inner"
	"drtmx/internal/mem"
)

// ErrNoInner means that a client is to cache inner nodes, which the data server does not
// publish.
var ErrNoInner = errors.New("read: the data server does not publish the inner nodes of its ordered indexes")

// nodeCache has the inner nodes that a client holds, as a tree: a node is held only while its
// parent is. Searches take no lock. If there is a bound and no room, the nodes that were not
// used lately go first, of the lowest level that is held: CLOCK, an approximation of LRU. No node
// makes way for one of a lower level, so the top of the tree stays, as in Cell.
type nodeCache struct {
	bound int // in bytes; 0: none
	root  atomic.Pointer[heldNode]

	mu    sync.Mutex
	all   []*heldNode
	hand  int
	bytes atomic.Int64
}

// heldNode is a node that the client holds. Only its children and marks change.
type heldNode struct {
	inner.Node
	addr    uint64
	kids    []atomic.Pointer[heldNode] // nil if the children are leaves
	used    atomic.Bool
	suspect atomic.Bool // it led to a wrong leaf, and must be READ again

	// Under nodeCache.mu.
	parent *heldNode // nil of the root
	slot   int       // in the parent
	at     int       // in nodeCache.all; -1 if it is no longer held
}

// bytesHeld is the memory of a held node.
func (n *heldNode) bytesHeld() int { return inner.Words*mem.WordBytes + len(n.kids)*8 + heldNodeBytes }

// heldNodeBytes is the size of a heldNode, and of the pointer to it.
const heldNodeBytes = 144

// touch records a use.
func (n *heldNode) touch() {
	if !n.used.Load() { // most often it is set: no write to shared memory
		n.used.Store(true)
	}
}

// doubt makes the next search through a node READ it again.
func (c *nodeCache) doubt(n *heldNode) {
	if n != nil && !n.suspect.Load() {
		n.suspect.Store(true)
	}
}

// keep adds a copy of a node below its parent, in place of the one that is held there; without
// a parent it is the root. Children that the new copy names as well stay. It returns nil if
// the node is not held: its parent is no longer, or there is no room.
func (c *nodeCache) keep(parent *walked, addr uint64, words []uint64, id uint32) *heldNode {
	own := slices.Clone(words)
	n, err := inner.Decode(own, id)
	if err != nil {
		return nil // it was decoded before
	}
	nd := &heldNode{Node: n, addr: addr, at: -1}
	if n.Level > 0 {
		nd.kids = make([]atomic.Pointer[heldNode], len(n.Children))
	}
	nd.touch()
	c.mu.Lock()
	defer c.mu.Unlock()
	place := &c.root
	if parent != nil {
		if parent.held.at < 0 || parent.held.Children[parent.slot] != addr {
			return nil
		}
		nd.parent, nd.slot = parent.held, parent.slot
		place = &parent.held.kids[parent.slot]
	}
	if old := place.Load(); old != nil {
		c.inherit(nd, old)
		c.remove(old)
	}
	if c.bound > 0 && !c.room(nd) {
		for i := range nd.kids {
			if kid := nd.kids[i].Load(); kid != nil {
				c.removeAll(kid)
			}
		}
		return nil
	}
	nd.at = len(c.all)
	c.all = append(c.all, nd)
	c.bytes.Add(int64(nd.bytesHeld()))
	place.Store(nd)
	return nd
}

// inherit moves the children of an old copy of a node to a new one, as far as that names them,
// and removes the others.
func (c *nodeCache) inherit(nd, old *heldNode) {
	for i := range old.kids {
		kid := old.kids[i].Load()
		if kid == nil {
			continue
		}
		old.kids[i].Store(nil)
		to := nd.Search(kid.Lows[0])
		if nd.Level != old.Level || nd.Children[to] != kid.addr || nd.kids[to].Load() != nil {
			c.removeAll(kid)
			continue
		}
		kid.parent, kid.slot = nd, to
		nd.kids[to].Store(kid)
	}
}

// remove removes a node without children.
func (c *nodeCache) remove(nd *heldNode) {
	place := &c.root
	if nd.parent != nil {
		place = &nd.parent.kids[nd.slot]
	}
	place.CompareAndSwap(nd, nil)
	last := len(c.all) - 1
	c.all[nd.at] = c.all[last]
	c.all[nd.at].at = nd.at
	c.all[last], c.all = nil, c.all[:last]
	nd.at = -1
	c.bytes.Add(-int64(nd.bytesHeld()))
}

// removeAll removes a node and all below it.
func (c *nodeCache) removeAll(nd *heldNode) {
	for i := range nd.kids {
		if kid := nd.kids[i].Load(); kid != nil {
			c.removeAll(kid)
		}
	}
	c.remove(nd)
}

// room makes room for a node, and returns false if that is not possible.
func (c *nodeCache) room(nd *heldNode) bool {
	need := int64(nd.bytesHeld())
	for level := 0; level <= nd.Level; level++ {
		for tries := 2 * len(c.all); tries >= 0; tries-- {
			if c.bytes.Load()+need <= int64(c.bound) {
				return true
			}
			if len(c.all) == 0 {
				return false
			}
			if c.hand++; c.hand >= len(c.all) {
				c.hand = 0
			}
			victim := c.all[c.hand]
			if victim.Level == level && !victim.used.Swap(false) && victim != nd.parent && !victim.hasKids() {
				c.remove(victim)
			}
		}
	}
	return false
}

func (n *heldNode) hasKids() bool {
	for i := range n.kids {
		if n.kids[i].Load() != nil {
			return true
		}
	}
	return false
}

// bottom returns the held bottom node that covers a key, nil if it is not held. It makes no
// round.
func (c *nodeCache) bottom(key uint64) *heldNode {
	nd := c.root.Load()
	for nd != nil && nd.Level > 0 {
		nd = nd.kids[nd.Search(key)].Load()
	}
	if nd == nil || nd.suspect.Load() || !nd.Covers(key) {
		return nil
	}
	nd.touch()
	return nd
}

// before returns the low fence of the leaf n leaves before that of a key, as far back as the
// held nodes tell.
func (c *nodeCache) before(key uint64, n int) index.Key {
	root := c.root.Load()
	if root == nil {
		return index.Key{}
	}
	for {
		nd := root
		for nd.Level > 0 {
			slot := nd.Search(key)
			kid := nd.kids[slot].Load()
			if kid == nil {
				return index.Num(min(nd.Lows[slot], key))
			}
			nd = kid
		}
		slot, low := nd.Search(key), nd.Lows[0]
		if n <= slot || low == 0 || low > key { // the last only if nodes are old
			return index.Num(min(nd.Lows[max(slot-n, 0)], key))
		}
		n, key = n-slot-1, low-1
	}
}
