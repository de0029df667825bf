package history

import (
	"cmp"
	"slices"
)

// tailsMax bounds the appends to one key that nobody saw and that every reader
// of the key's last version is linked to: those that completed first, since
// those are missed most blatantly. Without a bound a key that is often appended
// to and read only at first would cost a product.
const tailsMax = 16

// buildGraph collects the dependencies between considered transactions, and
// real time.
func (c *checker) buildGraph() *graph {
	c.edges = make([]uint64, 0, 3*len(c.seen)+3*len(c.txns))
	c.findTails()
	c.linkVersions()
	c.linkLives()
	c.linkTails()
	for t := range uint32(len(c.txns)) {
		for _, o := range c.seen[c.seenRange[t].from:c.seenRange[t].to] {
			c.linkRead(t, o>>1, o&1 != 0)
		}
	}
	nodes := len(c.txns)
	if !c.o.Serializable {
		nodes += c.linkTime()
	}
	g := newGraph(nodes, c.edges)
	c.edges = nil
	return g
}

func (c *checker) edge(from, to uint32, kind EdgeKind) {
	if from != to {
		c.edges = append(c.edges, packEdge(from, to, kind))
	}
}

// lastWriter returns one more than the transaction that made the version, or
// the longest prefix of it that has a proper writer; 0 if none has.
func (c *checker) lastWriter(n uint32) uint32 {
	for ; c.nodes[n].parent != 0; n = c.nodes[n].parent {
		if w := c.writerTxn(n); w != 0 {
			return w
		}
	}
	return 0
}

// linkVersions orders the writers of successive versions.
func (c *checker) linkVersions() {
	for n := uint32(1); n < uint32(len(c.nodes)); n++ {
		if !c.live(n) || c.writer[n] == 0 {
			continue
		}
		if before := c.lastWriter(c.nodes[n].parent); before != 0 {
			c.edge(before-1, c.appends[c.writer[n]].txn, WW)
		}
	}
}

// linkRead orders a read after the writer of what it found, and before the
// writers of what comes next.
func (c *checker) linkRead(t, n uint32, byScan bool) {
	key, absent := c.nodes[n].key, c.nodes[n].parent == 0
	writer := c.writerTxn(n)
	lives := c.lives[key]
	if absent && lives != nil {
		c.linkAbsent(t, key, lives, byScan)
		return
	}
	if writer != 0 {
		c.edge(writer-1, t, WR)
	}
	kind := RW
	if byScan && absent {
		kind = ScanRW
	}
	longest := true
	for b := c.nodes[n].child; b != 0; b = c.nodes[b].sibling {
		if !c.live(b) {
			continue
		}
		longest = false
		// Within one transaction this is an intermediate read, already reported.
		if next := c.writerTxn(b); next != 0 && next != writer {
			c.edge(t, next-1, kind)
		}
	}
	switch {
	case !longest:
	case lives != nil:
		c.linkBeforeDelete(t, n, lives, byScan)
	case c.leaf[key] == n:
		c.linkBeforeTails(t, key, kind-RW+LostRW)
	}
}

// linkBeforeTails orders a read before the appends that nobody saw.
func (c *checker) linkBeforeTails(t, key uint32, kind EdgeKind) {
	s := c.tailOf[key]
	tails := c.tails[s.from:s.to]
	for _, a := range tails[:min(len(tails), tailsMax)] {
		c.edge(t, c.appends[a].txn, kind)
	}
}

// findTails collects the appends that must have happened but that nobody saw,
// and the longest version of each key. On a key that is never deleted, they
// come after it: it would hold them otherwise.
func (c *checker) findTails() {
	c.leaf = make([]uint32, len(c.keys))
	several := make([]bool, len(c.keys))
	for n := uint32(len(c.nodes)) - 1; n > 0 && len(c.nodes) > 0; n-- {
		if c.live(n) && !c.hasLiveChild(n) {
			key := c.nodes[n].key
			several[key] = several[key] || c.leaf[key] != 0
			c.leaf[key] = n
		}
	}
	for key := range several {
		if several[key] {
			c.leaf[key] = 0
		}
	}
	for a := uint32(1); a < uint32(len(c.appends)); a++ {
		if ap := &c.appends[a]; ap.node == 0 && !ap.dead && !ap.gone && c.included[ap.txn] {
			c.tails = append(c.tails, a)
		}
	}
	slices.SortFunc(c.tails, func(a, b uint32) int {
		x, y := &c.appends[a], &c.appends[b]
		return cmp.Or(cmp.Compare(x.key, y.key), cmp.Compare(c.completed(x.txn), c.completed(y.txn)), cmp.Compare(a, b))
	})
	c.tailOf = make([]span, len(c.keys))
	for i, a := range c.tails {
		s := &c.tailOf[c.appends[a].key]
		if s.to == 0 {
			s.from = uint32(i)
		}
		s.to = uint32(i + 1)
	}
}

func (c *checker) hasLiveChild(n uint32) bool {
	for b := c.nodes[n].child; b != 0; b = c.nodes[b].sibling {
		if c.live(b) {
			return true
		}
	}
	return false
}

// linkTails orders appends that nobody saw after what shows that it precedes
// them.
func (c *checker) linkTails() {
	for _, a := range c.tails {
		ap := &c.appends[a]
		if lives := c.lives[ap.key]; lives != nil {
			c.linkLostTail(ap, lives)
			continue
		}
		if n := c.leaf[ap.key]; n != 0 {
			if before := c.lastWriter(n); before != 0 {
				c.edge(before-1, ap.txn, WW)
			}
		}
	}
}

// linkTime adds an edge from each transaction to those invoked after it
// completed, through a chain of helper nodes in the order of time: as many
// edges as transactions, not as pairs. It returns the number of helpers.
func (c *checker) linkTime() int {
	var ended []uint32 // by completion
	for t := range uint32(len(c.txns)) {
		if c.included[t] && c.txns[t].outcome == Committed {
			ended = append(ended, t)
		}
	}
	slices.SortFunc(ended, func(a, b uint32) int {
		return cmp.Compare(c.txns[a].complete, c.txns[b].complete)
	})
	first := uint32(len(c.txns))
	helpers := uint32(0)
	for _, t := range c.byEarliest() {
		x := &c.txns[t]
		if len(ended) > 0 && c.txns[ended[0]].complete < x.earliest() {
			if helpers > 0 {
				c.edge(first+helpers-1, first+helpers, RealTimeOrder)
			}
			for len(ended) > 0 && c.txns[ended[0]].complete < x.earliest() {
				c.edge(ended[0], first+helpers, RealTimeOrder)
				ended = ended[1:]
			}
			helpers++
		}
		if helpers > 0 {
			c.edge(first+helpers-1, t, RealTimeOrder)
		}
	}
	c.linkProcesses()
	return int(helpers)
}

// byEarliest returns the considered transactions in the order of the times from
// which on they may take effect. Without stale snapshots these are their
// invocations.
func (c *checker) byEarliest() []uint32 {
	order := make([]uint32, 0, c.report.Considered)
	stale := false
	for t := range uint32(len(c.txns)) {
		if c.included[t] {
			order = append(order, t)
			stale = stale || c.txns[t].stale > 0
		}
	}
	if stale {
		slices.SortFunc(order, func(a, b uint32) int {
			return cmp.Or(cmp.Compare(c.txns[a].earliest(), c.txns[b].earliest()), cmp.Compare(a, b))
		})
	}
	return order
}

// linkProcesses orders the transactions of each process. Real time says the same
// unless the clock did not advance.
func (c *checker) linkProcesses() {
	last := make(map[uint32]uint32) // by process: the last that committed
	for t := range uint32(len(c.txns)) {
		if !c.included[t] {
			continue
		}
		x := &c.txns[t]
		if before, ok := last[x.id.Process()]; ok && c.txns[before].complete == x.invoke && x.stale == 0 {
			c.edge(before, t, ProcessOrder)
		}
		if x.outcome == Committed {
			last[x.id.Process()] = t
		}
	}
}
