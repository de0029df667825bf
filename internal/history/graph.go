package history

// graph is a directed graph in compressed rows: the edges of node v are
// dst[off[v]:off[v+1]], each a target with its kind in the high bits. Targets
// beyond the transactions are helper nodes of real time.
type graph struct {
	off []uint32
	dst []uint32
}

const (
	kindShift  = 29
	targetMask = 1<<kindShift - 1
)

// The kinds fit the bits above a target, and helpers may double the nodes.
var (
	_ [8 - edgeKindCount]struct{}
	_ [targetMask - 2*maxTxns]struct{}
)

// packEdge encodes an edge as a word for newGraph.
func packEdge(from, to uint32, kind EdgeKind) uint64 {
	return uint64(from)<<32 | uint64(kind)<<kindShift | uint64(to)
}

func newGraph(nodes int, edges []uint64) *graph {
	g := &graph{off: make([]uint32, nodes+1), dst: make([]uint32, len(edges))}
	for _, e := range edges {
		g.off[e>>32]++
	}
	sum := uint32(0)
	for v, n := range g.off {
		sum += n
		g.off[v] = sum
	}
	for i := len(edges) - 1; i >= 0; i-- {
		from := edges[i] >> 32
		g.off[from]--
		g.dst[g.off[from]] = uint32(edges[i])
	}
	return g
}

func (g *graph) nodes() int { return len(g.off) - 1 }

func (g *graph) edgesOf(v uint32) []uint32 { return g.dst[g.off[v]:g.off[v+1]] }

// kindMask is a set of edge kinds.
type kindMask uint8

func maskOf(kinds ...EdgeKind) kindMask {
	m := kindMask(0)
	for _, k := range kinds {
		m |= 1 << k
	}
	return m
}

func (m kindMask) has(edge uint32) bool { return m>>(edge>>kindShift)&1 != 0 }

// components returns the strongly connected components of more than one node in
// the graph of the edges in the mask. It is Tarjan's algorithm with a stack of
// its own, since the paths are as long as the history.
func (g *graph) components(mask kindMask) [][]uint32 {
	t := tarjan{
		g: g, mask: mask,
		low:  make([]uint32, g.nodes()),
		next: make([]uint32, g.nodes()),
	}
	for v := range uint32(g.nodes()) {
		if t.low[v] == 0 {
			t.visit(v)
		}
	}
	return t.found
}

type tarjan struct {
	g     *graph
	mask  kindMask
	count uint32
	// low is 0 for a node not reached yet, done for one whose component is
	// complete, otherwise the least visiting number known to be reachable.
	low   []uint32
	next  []uint32 // by node: its next edge to follow
	path  []frame
	stack []uint32 // nodes whose component is not complete
	found [][]uint32
}

type frame struct{ node, number uint32 }

const done = ^uint32(0)

func (t *tarjan) enter(v uint32) {
	t.count++
	t.low[v] = t.count
	t.next[v] = t.g.off[v]
	t.path = append(t.path, frame{v, t.count})
	t.stack = append(t.stack, v)
}

func (t *tarjan) visit(root uint32) {
	t.enter(root)
	for len(t.path) > 0 {
		f := t.path[len(t.path)-1]
		v := f.node
		if i := t.next[v]; i < t.g.off[v+1] {
			t.next[v]++
			e := t.g.dst[i]
			if !t.mask.has(e) {
				continue
			}
			switch w := e & targetMask; t.low[w] {
			case 0:
				t.enter(w)
			case done:
			default:
				t.low[v] = min(t.low[v], t.low[w])
			}
			continue
		}
		t.path = t.path[:len(t.path)-1]
		if n := len(t.path); n > 0 {
			parent := t.path[n-1].node
			t.low[parent] = min(t.low[parent], t.low[v])
		}
		if t.low[v] == f.number {
			t.complete(v)
		}
	}
}

// complete takes the component that was entered through v off the stack.
func (t *tarjan) complete(v uint32) {
	at := len(t.stack) - 1
	for t.stack[at] != v {
		t.low[t.stack[at]] = done
		at--
	}
	t.low[v] = done
	if len(t.stack)-at > 1 {
		t.found = append(t.found, append([]uint32(nil), t.stack[at:]...))
	}
	t.stack = t.stack[:at]
}

// within returns the graph of the given nodes, renumbered in their order. at
// must hold a zero for every node of g and does so again afterwards.
func (g *graph) within(nodes, at []uint32) *graph {
	for i, v := range nodes {
		at[v] = uint32(i + 1)
	}
	sub := &graph{off: make([]uint32, 1, len(nodes)+1)}
	for _, v := range nodes {
		for _, e := range g.edgesOf(v) {
			if to := at[e&targetMask]; to != 0 {
				sub.dst = append(sub.dst, e&^targetMask|(to-1))
			}
		}
		sub.off = append(sub.off, uint32(len(sub.dst)))
	}
	for _, v := range nodes {
		at[v] = 0
	}
	return sub
}
