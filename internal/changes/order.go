package changes

import (
	"cmp"
	"container/heap"
	"slices"

	"drtmx/internal/placement"
	"drtmx/internal/wal"
)

// The order of a tick's transactions rests on the logs alone, so it is the same on each
// reading. A transaction is decided after each of its shares was prepared, and before
// any of them is applied. So if a share of T was applied before one of U was prepared,
// by the log of some server, then T was decided before U, and T comes first. That order
// has no cycle. It contains all pairs of which one overwrites what the other wrote,
// because a share locks its rows from its first record to its last, and all pairs that
// one server has committed by itself. Other pairs are ordered by server and position.

// spot is a transaction in the log of one server.
type spot struct {
	x        *node
	prepared wal.LSN // the last record that prepares a share
	applied  wal.LSN // the first record that applies one
}

// node is a transaction that is sorted.
type node struct {
	x       *transaction
	spots   []*spot
	servers []placement.Server
	waits   int // servers at which others come first
	done    bool
}

// line is the log of one server.
type line struct {
	applied  []*spot // by the position at which they were applied
	prepared []*spot // by the position at which they were prepared
}

// inOrder sorts the transactions of a tick.
func inOrder(all []*transaction) []*transaction {
	if len(all) < 2 {
		return all
	}
	nodes, lines := make([]*node, 0, len(all)), map[placement.Server]*line{}
	for _, x := range all {
		nodes = append(nodes, newNode(x, lines))
	}
	for _, l := range lines {
		slices.SortFunc(l.applied, func(a, b *spot) int { return cmp.Compare(a.applied, b.applied) })
		slices.SortFunc(l.prepared, func(a, b *spot) int { return cmp.Compare(a.prepared, b.prepared) })
	}
	slices.SortFunc(nodes, (*node).compare)
	var ready nodeHeap
	for _, l := range lines {
		l.release(&ready)
	}
	sorted := make([]*transaction, 0, len(all))
	for next := 0; len(sorted) < len(all); {
		var n *node
		if len(ready) > 0 {
			n = heap.Pop(&ready).(*node)
		} else { // the logs contradict each other
			for nodes[next].done {
				next++
			}
			n = nodes[next]
		}
		if n.done {
			continue
		}
		n.done = true
		sorted = append(sorted, n.x)
		for _, server := range n.servers {
			lines[server].release(&ready)
		}
	}
	return sorted
}

func newNode(x *transaction, lines map[placement.Server]*line) *node {
	n := &node{x: x}
	for i := range x.parts {
		p := &x.parts[i]
		at := slices.Index(n.servers, p.server)
		if at < 0 {
			at = len(n.servers)
			n.servers, n.spots = append(n.servers, p.server), append(n.spots, &spot{x: n, prepared: p.prepared, applied: p.done})
		}
		s := n.spots[at]
		s.prepared, s.applied = max(s.prepared, p.prepared), min(s.applied, p.done)
	}
	for i, server := range n.servers {
		l := lines[server]
		if l == nil {
			l = &line{}
			lines[server] = l
		}
		l.applied, l.prepared = append(l.applied, n.spots[i]), append(l.prepared, n.spots[i])
	}
	n.waits = len(n.servers)
	return n
}

// compare orders transactions by their first server, and then by the position there.
func (n *node) compare(m *node) int {
	a, b := slices.Index(n.servers, slices.Min(n.servers)), slices.Index(m.servers, slices.Min(m.servers))
	return cmp.Or(cmp.Compare(n.servers[a], m.servers[b]), cmp.Compare(n.spots[a].applied, m.spots[b].applied))
}

// release releases the transactions that no other one of this server precedes.
func (l *line) release(ready *nodeHeap) {
	for len(l.applied) > 0 && l.applied[0].x.done {
		l.applied = l.applied[1:]
	}
	for len(l.prepared) > 0 && (len(l.applied) == 0 || l.prepared[0].prepared <= l.applied[0].applied) {
		n := l.prepared[0].x
		l.prepared = l.prepared[1:]
		if n.waits--; n.waits == 0 && !n.done {
			heap.Push(ready, n)
		}
	}
}

type nodeHeap []*node

func (h nodeHeap) Len() int           { return len(h) }
func (h nodeHeap) Less(i, j int) bool { return h[i].compare(h[j]) < 0 }
func (h nodeHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *nodeHeap) Push(x any)        { *h = append(*h, x.(*node)) }
func (h *nodeHeap) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}
