package tree

import (
	"math/bits"
	"strings"
	"sync/atomic"

	"drtmx/index"
	"drtmx/index/learned/inner"
	"drtmx/index/learned/leaf"
	"drtmx/internal/mem"
)

const (
	fanout   = inner.Fanout // a power of two
	depthMax = inner.DepthMax
	// nodeBytes is the size of an inner node, full or not: words, children and other
	// fields.
	nodeBytes = fanout*16 + 96
	// A group is a set of children whose words are in one cache line.
	groupShift = 3
	group      = 1 << groupShift
	groups     = fanout / group
	// unused is the word of an entry without a child.
	unused = ^uint64(0)
	// lowsBytes is the additional size of a node of string keys, without the bytes of
	// the low fences.
	lowsBytes = fanout*8 + 24
)

// node is an inner node: the low fences of its children and the children. The mutator
// changes it in place while readers read it racily. A reader may see any mix of old
// and new entries and so reach a wrong leaf, which it recognises by the fences. Nodes
// are never reused, only dropped.
//
// Nodes are searched by words: native keys, or digests of string keys after the
// common prefix of all low fences but the first. Strings with equal digests are
// compared with the low fences themselves. A search takes two steps of seven
// comparisons, each on one cache line: first among the first words of the groups of
// children, then among the words of one group. The order of fields serves that: tops
// and the word that the Go runtime puts before an object of this size fill one line.
type node struct {
	tops  [groups - 1]atomic.Uint64 // the first word of each group but the first
	words [fanout]atomic.Uint64     // unused from n on
	addrs [fanout]atomic.Uint64     // children that are leaves
	subs  *[fanout]atomic.Pointer[node]
	level int // of its children: 0 means leaves
	n     atomic.Int32
	copy  copied
	ext   *extent // where new leaves come from, if level is 0; only the mutator uses it
	str   *strNode
}

// strNode holds the additional fields of a node of string keys.
type strNode struct {
	prefix atomic.Pointer[string]
	// lows hold the low fences of the children. If the children are leaves, these are
	// their complete fences.
	lows [fanout]atomic.Pointer[fences]
}

// entry is a child and its low fence.
type entry struct {
	f    *fences // of the leaf, or of a leaf with the node's low fence
	leaf uint64
	sub  *node
}

var noPrefix = ""

func newNode(level int, strs bool) *node {
	nd := &node{level: level}
	for i := range fanout {
		nd.setWord(i, unused)
	}
	if level > 0 {
		nd.subs = new([fanout]atomic.Pointer[node])
	}
	if strs {
		nd.str = new(strNode)
		nd.str.prefix.Store(&noPrefix)
	}
	return nd
}

// search returns the last child whose low fence is at or below key, or the first.
func (nd *node) search(key index.Key) int {
	if nd.str == nil {
		return nd.searchWord(key.Num)
	}
	d := leaf.DigestAfter(*nd.str.prefix.Load(), key.Str)
	to := nd.searchWord(d)
	if to == 0 || nd.words[to].Load() != d {
		return to
	}
	from := 0 // not above key, and left of all children with this digest
	if d > 0 {
		from = nd.searchWord(d - 1)
	}
	for from < to {
		mid := (from + to + 1) / 2
		if f := nd.str.lows[mid&(fanout-1)].Load(); f == nil || f.low.Str <= key.Str {
			from = mid
		} else {
			to = mid - 1
		}
	}
	return from & (fanout - 1)
}

// setWord sets the word of child i.
func (nd *node) setWord(i int, w uint64) {
	nd.words[i].Store(w)
	if i > 0 && i%group == 0 {
		nd.tops[i/group-1].Store(w)
	}
}

// searchWord returns the last child whose word is at or below w, or the first. Its
// comparisons do not branch.
func (nd *node) searchWord(w uint64) int {
	if w == unused {
		return max(int(nd.n.Load())-1, 0) & (fanout - 1)
	}
	return nd.searchGroup(nd.groupOf(w), w)
}

// groupOf returns the first child of the group that searchGroup must search for w.
func (nd *node) groupOf(w uint64) int {
	g := groups - 1
	for i := range nd.tops {
		_, below := bits.Sub64(w, nd.tops[i].Load(), 0)
		g -= int(below)
	}
	return g << groupShift & (fanout - group)
}

func (nd *node) searchGroup(g int, w uint64) int {
	words, at := (*[group]atomic.Uint64)(nd.words[g:]), g+group-1
	for i := 1; i < group; i++ {
		_, below := bits.Sub64(w, words[i].Load(), 0)
		at -= int(below)
	}
	return at & (fanout - 1)
}

// low returns the low fence of child i.
func (nd *node) low(i int) index.Key {
	if nd.str != nil {
		return nd.str.lows[i].Load().low
	}
	return index.Num(nd.words[i].Load())
}

// entry returns child i.
func (nd *node) entry(i int) entry {
	var e entry
	if nd.str != nil {
		e.f = nd.str.lows[i].Load()
	} else {
		e.f = &fences{low: nd.low(i)}
	}
	if nd.level == 0 {
		e.leaf = nd.addrs[i].Load()
	} else {
		e.sub = nd.subs[i].Load()
	}
	return e
}

// move copies child i of src to j of nd. With string keys its word is right only if
// both nodes have the same prefix: see settle.
func (nd *node) move(j int, src *node, i int) {
	nd.setWord(j, src.words[i].Load())
	if nd.level == 0 {
		nd.addrs[j].Store(src.addrs[i].Load())
	} else {
		nd.subs[j].Store(src.subs[i].Load())
	}
	if nd.str != nil {
		nd.str.lows[j].Store(src.str.lows[i].Load())
	}
}

// put sets child i. settle must follow once the node has all its children.
func (nd *node) put(i int, e entry) {
	if nd.level == 0 {
		nd.addrs[i].Store(e.leaf)
	} else {
		nd.subs[i].Store(e.sub)
	}
	nd.setLow(i, e.f)
}

// setLow sets the low fence of child i.
func (nd *node) setLow(i int, f *fences) {
	if nd.str == nil {
		nd.setWord(i, f.low.Num)
		return
	}
	nd.str.lows[i].Store(f)
	nd.setWord(i, leaf.DigestAfter(*nd.str.prefix.Load(), f.low.Str))
}

// settle adapts the prefix of a node of string keys after child at has changed. The
// words of a node are digests of what follows the prefix in each low fence. Any common
// prefix of the fences gives correct words. The longest one gives the fewest equal
// words. A prefix that could be longer is kept unless the new word equals a
// neighbour's.
func (nd *node) settle(at int) {
	if nd.str == nil || nd.n.Load() < 2 {
		return
	}
	have, prefix := *nd.str.prefix.Load(), nd.common()
	if have != prefix && (!strings.HasPrefix(prefix, have) || nd.ties(at)) {
		nd.rebase(prefix)
	}
}

// resettle recomputes the prefix and all words, after children of another node have
// moved in.
func (nd *node) resettle() {
	if nd.str != nil && nd.n.Load() > 0 {
		nd.rebase(nd.common())
	}
}

// common returns the longest common prefix of all low fences but the first.
func (nd *node) common() string {
	n := int(nd.n.Load())
	if n < 2 {
		return ""
	}
	first, last := nd.low(1).Str, nd.low(n-1).Str
	return first[:leaf.Common(first, last)]
}

// rebase sets the prefix and recomputes all words.
func (nd *node) rebase(prefix string) {
	nd.str.prefix.Store(&prefix)
	for i := range int(nd.n.Load()) {
		nd.setWord(i, leaf.DigestAfter(prefix, nd.low(i).Str))
	}
}

// ties reports whether the words of child i and of a neighbour are equal.
func (nd *node) ties(i int) bool {
	w := nd.words[i].Load()
	return i > 1 && nd.words[i-1].Load() == w || i+1 < int(nd.n.Load()) && nd.words[i+1].Load() == w
}

// truncate drops the children from n on.
func (nd *node) truncate(n int) {
	old := int(nd.n.Load())
	nd.n.Store(int32(n))
	for i := n; i < old; i++ {
		nd.setWord(i, unused)
		if nd.level > 0 {
			nd.subs[i].Store(nil)
		}
		if nd.str != nil {
			nd.str.lows[i].Store(nil)
		}
	}
}

// bottom returns the node above the leaf that should hold key, and the leaf's place
// in it. For the mutator this is exact; for concurrent readers it is a hint, or nil
// if a node was being changed.
func (t *Tree) bottom(key index.Key) (*node, int) {
	nd := t.root.Load()
	if t.lay.Kind == leaf.Strings || key.Num == unused {
		for nd.level > 0 {
			if nd = nd.subs[nd.search(key)].Load(); nd == nil {
				return nil, 0
			}
		}
		return nd, nd.search(key)
	}
	// The same search for native keys, which reads fewer cache lines of each node.
	for level := nd.level; level > 0; level-- {
		if nd = nd.subs[nd.searchWord(key.Num)].Load(); nd == nil {
			return nil, 0
		}
	}
	g := nd.groupOf(key.Num)
	mem.PrefetchObject(&nd.addrs[g]) // else it would be a cache miss after those of the words
	return nd, nd.searchGroup(g, key.Num)
}

// descend returns the leaf that should hold key, as bottom finds it; 0 if a node was
// being changed.
func (t *Tree) descend(key index.Key) uint64 {
	nd, i := t.bottom(key)
	if nd == nil {
		return 0
	}
	return nd.addrs[i].Load()
}

// Descend returns the leaf that should hold key, 0 if a mutator was changing an inner
// node. It reads only inner nodes. Measurements compare models with it.
func (t *Tree) Descend(key index.Key) uint64 { return t.descend(key) }

// path is the path from the root to a bottom node. Only the mutator uses it.
type path struct {
	nodes [depthMax]*node
	at    [depthMax]int
	depth int // of the bottom node
}

func (t *Tree) pathTo(key index.Key, p *path) {
	nd := t.root.Load()
	for d := 0; ; d++ {
		i := nd.search(key)
		p.nodes[d], p.at[d] = nd, i
		if nd.level == 0 {
			p.depth = d
			return
		}
		nd = nd.subs[i].Load()
	}
}

// addLeaf adds a new leaf to the inner nodes.
func (t *Tree) addLeaf(f *fences) {
	var p path
	t.pathTo(f.low, &p)
	t.insertAt(&p, p.depth, entry{f: f, leaf: f.addr})
}

// insertAt inserts a child right of the path's place in the node at depth d, and
// splits the node if it is full.
func (t *Tree) insertAt(p *path, d int, e entry) {
	nd, at := p.nodes[d], p.at[d]+1
	n := int(nd.n.Load())
	t.mirror.mark(nd)
	if n < fanout {
		nd.insert(at, e)
		return
	}
	right := newNode(nd.level, nd.str != nil)
	right.ext = nd.ext
	t.mirror.mark(right)
	t.innerNodes.Add(1)
	half := fanout / 2
	if at == n { // ascending keys leave full nodes behind
		half = fanout
	}
	for i := half; i < n; i++ {
		right.move(i-half, nd, i)
	}
	right.n.Store(int32(n - half))
	right.resettle()
	if at > half || half == fanout {
		right.insert(at-half, e)
	}
	t.linkNode(p, d, right)
	nd.truncate(half)
	if at <= half && half < fanout {
		nd.insert(at, e)
	}
}

// insert inserts a child into a node with room.
func (nd *node) insert(at int, e entry) {
	n := int(nd.n.Load())
	for i := n; i > at; i-- {
		nd.move(i, nd, i-1)
	}
	nd.put(at, e)
	nd.n.Store(int32(n + 1))
	nd.settle(at)
}

// linkNode adds right, the new right neighbour of the node at depth d, to the parent,
// and makes a new root if there is no parent.
func (t *Tree) linkNode(p *path, d int, right *node) {
	e := right.entry(0)
	e.leaf, e.sub = 0, right
	if d > 0 {
		t.insertAt(p, d-1, e)
		return
	}
	left := p.nodes[0]
	root := newNode(left.level+1, left.str != nil)
	t.mirror.mark(root)
	t.innerNodes.Add(1)
	root.put(0, entry{f: left.entry(0).f, sub: left})
	root.put(1, e)
	root.n.Store(2)
	root.resettle()
	t.root.Store(root)
}

// replaceLeaf replaces the leaf with the same low fence, or only its fences.
func (t *Tree) replaceLeaf(f *fences) {
	nd, i := t.bottom(f.low)
	t.mirror.mark(nd)
	nd.addrs[i].Store(f.addr)
	if nd.str != nil {
		nd.str.lows[i].Store(f)
	}
}

// removeLeaf removes the leaf whose low fence is key from the inner nodes. It must
// not be the first leaf.
func (t *Tree) removeLeaf(key index.Key) {
	var p path
	t.pathTo(key, &p)
	t.removeAt(&p, p.depth)
	for r := t.root.Load(); r.level > 0 && r.n.Load() == 1; r = t.root.Load() {
		t.root.Store(r.subs[0].Load())
		t.dropNode(r)
	}
}

func (t *Tree) removeAt(p *path, d int) {
	nd, at := p.nodes[d], p.at[d]
	n := int(nd.n.Load())
	if n == 1 {
		// The range of a removed leaf goes to its left sibling. Only the first leaf
		// has none, and it is never removed. So an empty node is never the first of
		// its level.
		t.closeExtent(nd)
		t.mirror.markLeft(p, d)
		t.dropNode(nd)
		t.removeAt(p, d-1)
		return
	}
	t.mirror.mark(nd)
	for i := at; i < n-1; i++ {
		nd.move(i, nd, i+1)
	}
	nd.truncate(n - 1)
	if at == 0 {
		t.raise(p, d)
	}
	if d > 0 && n-1 < fanout/4 {
		t.mergeNode(p, d)
	}
}

// raise updates the ancestors after the first low fence of the node at depth d has
// changed.
func (t *Tree) raise(p *path, d int) {
	f := p.nodes[d].entry(0).f
	t.mirror.markLeft(p, d)
	for d--; d >= 0; d-- {
		t.mirror.mark(p.nodes[d])
		p.nodes[d].setLow(p.at[d], f)
		p.nodes[d].settle(p.at[d])
		if p.at[d] > 0 {
			return
		}
	}
}

// mergeNode moves the entries of a node that has few to its left sibling, if that has
// the same parent and room for them.
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
	left.resettle()
	t.mirror.mark(left)
	t.closeExtent(nd)
	t.dropNode(nd)
	t.removeAt(p, d-1)
}

// dropNode counts a node that leaves the tree.
func (t *Tree) dropNode(nd *node) {
	t.innerNodes.Add(^uint64(0))
	t.mirror.drop(nd)
}

// Walk calls f for the leaves from the one that covers from on, with low fence and
// address, until f returns false. The caller keeps mutators out. A low fence is valid
// as long as the tree.
func (t *Tree) Walk(from index.Key, f func(low index.Key, leaf uint64) bool) {
	for {
		var p path
		t.pathTo(from, &p)
		nd, i := p.nodes[p.depth], p.at[p.depth]
		for ; i < int(nd.n.Load()); i++ {
			if !f(nd.low(i), nd.addrs[i].Load()) {
				return
			}
		}
		var ok bool
		if from, ok = p.following(); !ok {
			return
		}
	}
}

// following returns the lowest key right of the path's bottom node, or false if there
// is none.
func (p *path) following() (index.Key, bool) {
	for d := p.depth - 1; d >= 0; d-- {
		if i := p.at[d] + 1; i < int(p.nodes[d].n.Load()) {
			return p.nodes[d].low(i), true
		}
	}
	return index.Key{}, false
}

// before returns the leaf left of the one whose low fence is key, which must not be
// the first.
func (t *Tree) before(key index.Key) uint64 {
	var p path
	t.pathTo(key, &p)
	d := p.depth
	for p.at[d] == 0 {
		d--
	}
	nd, i := p.nodes[d], p.at[d]-1
	for nd.level > 0 {
		nd = nd.subs[i].Load()
		i = int(nd.n.Load()) - 1
	}
	return nd.addrs[i].Load()
}
