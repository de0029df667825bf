package tree

import (
	"fmt"
	"slices"

	"drtmx/index/learned/inner"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// mirror keeps a copy of each inner node in the region, for clients that cache inner
// nodes; see package inner. A node that has changed is marked, and flush writes the copies
// of all marked nodes at the end of a change of the tree, children before their parents.
// A nil mirror does nothing. Only the mutator uses it.
//
// The copy of the root has a fixed address. So a client finds the root again after the
// tree has become higher or lower.
type mirror struct {
	t    *Tree
	slab *block.Slab
	at   uint64  // of the copy of the root
	root *node   // whose copy is there; nil if the root was dropped
	list []*node // that are marked, and some that are no longer
	body []uint64
	lows []uint64 // scratch
	kids []uint64
	used uint64 // copies
}

// copied is the state of a node's copy.
type copied struct {
	at     uint64 // its address, 0 if there is none
	marked bool
}

func newMirror(t *Tree) (*mirror, error) {
	m := &mirror{t: t, slab: t.a.NewSlab(inner.Words * mem.WordBytes)}
	var err error
	m.at, err = m.slab.Alloc()
	return m, err
}

// bytes is the size of all copies.
func (m *mirror) bytes() uint64 {
	if m == nil {
		return 0
	}
	return m.slab.Stats().Bytes
}

// mark makes flush write the copy of a node.
func (m *mirror) mark(nd *node) {
	if m != nil && !nd.copy.marked {
		nd.copy.marked = true
		m.list = append(m.list, nd)
	}
}

// markLeft marks the nodes whose high fence is the low fence of the path's node at depth
// d, after that has changed or has left the tree.
func (m *mirror) markLeft(p *path, d int) {
	if m == nil {
		return
	}
	e := d - 1
	for e >= 0 && p.at[e] == 0 {
		e--
	}
	if e < 0 {
		return
	}
	nd := p.nodes[e].subs[p.at[e]-1].Load()
	for depth := e + 1; ; depth++ {
		m.mark(nd)
		if depth == d {
			return
		}
		nd = nd.subs[max(int(nd.n.Load())-1, 0)].Load()
	}
}

// drop frees the copy of a node that has left the tree.
func (m *mirror) drop(nd *node) {
	if m == nil {
		return
	}
	if nd.copy.at != 0 {
		m.used--
	}
	if m.root == nd {
		m.root = nil
	} else if nd.copy.at != 0 {
		m.slab.Free(nd.copy.at)
	}
	nd.copy = copied{}
}

// flush writes the copies of all marked nodes. Nodes for which there is no memory stay
// marked, and their parents name no copy of them: clients ask the server there.
func (m *mirror) flush() {
	if m == nil || len(m.list) == 0 && m.root == m.t.root.Load() {
		return
	}
	m.moveRoot()
	var failed []*node
	for level := 0; level <= m.root.level; level++ {
		for i := 0; i < len(m.list); i++ { // placing a node may mark its parent
			if nd := m.list[i]; nd.level == level && nd.copy.marked && !m.write(nd) {
				failed = append(failed, nd)
			}
		}
	}
	clear(m.list)
	m.list = append(m.list[:0], failed...)
}

// moveRoot gives the fixed address to the copy of the root.
func (m *mirror) moveRoot() {
	root := m.t.root.Load()
	if root == m.root {
		return
	}
	if m.root != nil { // it is below the root now
		m.used--
		m.root.copy.at = 0
		m.mark(m.root)
	}
	if root.copy.at != 0 {
		m.slab.Free(root.copy.at)
		m.used--
	}
	root.copy.at, m.root = m.at, root
	m.used++
	m.mark(root)
}

// write writes the copy of a node. It returns false if there is no memory for it.
func (m *mirror) write(nd *node) bool {
	var p path
	m.t.pathTo(nd.low(0), &p)
	depth := p.nodes[0].level - nd.level
	if nd.copy.at == 0 {
		addr, err := m.slab.Alloc()
		if err != nil {
			return false
		}
		nd.copy.at = addr
		m.used++
		m.mark(p.nodes[depth-1])
	}
	nd.copy.marked = false
	above := p
	above.depth = depth
	high, bounded := above.following()
	n := inner.Node{Level: nd.level, High: high.Num, Bounded: bounded, Lows: m.lows[:0], Children: m.kids[:0]}
	for i := range int(nd.n.Load()) {
		n.Lows = append(n.Lows, nd.words[i].Load())
		n.Children = append(n.Children, m.child(nd, i))
	}
	m.lows, m.kids = n.Lows, n.Children
	m.body = n.AppendBody(m.body[:0], m.t.lay.ID)
	a := m.t.a
	if block.Header(a.Span(nd.copy.at, 1).Load(block.HeaderWord)).IsAbsent() {
		e := a.CreateOf(nd.copy.at, m.body)
		m.t.commitLeaf(&e)
		return true
	}
	e := a.Begin(nd.copy.at, inner.Words)
	e.Write(block.BodyWord, m.body)
	m.t.commitLeaf(&e)
	return true
}

// child is the address of a child for clients: of a leaf, or of a node's copy.
func (m *mirror) child(nd *node, i int) uint64 {
	if nd.level == 0 {
		return nd.addrs[i].Load()
	}
	return nd.subs[i].Load().copy.at
}

// check verifies the copies of all nodes from nd down. There must be no marked ones.
func (m *mirror) check(c *checker, p *path, d int) (nodes uint64, err error) {
	nd := p.nodes[d]
	if nd.copy.marked {
		return 0, fmt.Errorf("node %v at level %d is not published", nd.low(0), nd.level)
	}
	b, err := c.block(nd.copy.at, inner.Words)
	if err != nil {
		return 0, err
	}
	got, err := inner.Decode(b, m.t.lay.ID)
	if err != nil {
		return 0, err
	}
	above := *p
	above.depth = d
	high, bounded := above.following()
	want := inner.Node{Level: nd.level, High: high.Num, Bounded: bounded}
	for i := range int(nd.n.Load()) {
		want.Lows, want.Children = append(want.Lows, nd.words[i].Load()), append(want.Children, m.child(nd, i))
	}
	if got.Level != want.Level || got.High != want.High || got.Bounded != want.Bounded ||
		!slices.Equal(got.Lows, want.Lows) || !slices.Equal(got.Children, want.Children) {
		return 0, fmt.Errorf("node %v at level %d is published as %+v, want %+v", nd.low(0), nd.level, got, want)
	}
	nodes = 1
	for i := range int(nd.n.Load()) {
		if nd.level == 0 {
			break
		}
		p.nodes[d+1], p.at[d] = nd.subs[i].Load(), i
		n, err := m.check(c, p, d+1)
		if err != nil {
			return 0, err
		}
		nodes += n
	}
	return nodes, nil
}

// checkMirror verifies the published nodes, if there is room for all of them.
func (c *checker) checkMirror() error {
	m := c.t.mirror
	if m == nil || len(m.list) > 0 {
		return nil
	}
	var p path
	p.nodes[0] = c.t.root.Load()
	nodes, err := m.check(c, &p, 0)
	if err != nil {
		return err
	}
	if used := m.slab.Stats().Used; nodes != m.used || used != nodes || p.nodes[0].copy.at != m.at {
		return fmt.Errorf("%d nodes are published, counted %d, blocks %d", nodes, m.used, used)
	}
	return nil
}
