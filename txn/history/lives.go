package history

import (
	"cmp"
	"math"
	"slices"
)

// keyLives tell of a key that is deleted: its lives, each from a creation to a
// deletion, and whether their order is certain.
type keyLives struct {
	deletes []deletion
	doubt   bool // a delete of unknown outcome may have happened
	ordered bool // lives are in the order in which they were
	lives   []life
}

// deletion is a considered transaction's delete of a version made by others.
type deletion struct{ txn, node uint32 }

// life is what happens to a key from a creation to a deletion.
type life struct {
	top, leaf uint32   // first and longest version
	creator   uint32   // one more than the transaction, 0 if there is no proper one
	deleters  []uint32 // in a sound history at most one
	final     bool     // it was never deleted, so it comes last
	born      int64    // the creation is before
	dies      int64    // the deletion is after; meaningless without one
}

func (c *checker) livesOf(key uint32) *keyLives {
	if c.lives == nil {
		c.lives = make(map[uint32]*keyLives)
	}
	l := c.lives[key]
	if l == nil {
		l = &keyLives{}
		c.lives[key] = l
	}
	return l
}

func (c *checker) noteDelete(t, key, n uint32) {
	l := c.livesOf(key)
	l.deletes = append(l.deletes, deletion{t, n})
}

// noteUnknownDeletes marks the keys that a transaction left out may have
// deleted.
func (c *checker) noteUnknownDeletes() {
	for t := range uint32(len(c.txns)) {
		if c.included[t] || c.txns[t].outcome != Unknown {
			continue
		}
		for _, o := range c.opsOf(t) {
			if o.kind == OpDelete {
				c.livesOf(o.key).doubt = true
			}
		}
	}
}

// invoked returns a time before which a transaction has no effect, completed
// one after which it has none. When real time does not count they are infinite.
func (c *checker) invoked(t uint32) int64 {
	if c.o.Serializable {
		return math.MinInt64
	}
	return c.txns[t].invoke
}

func (c *checker) completed(t uint32) int64 {
	if c.o.Serializable || c.txns[t].outcome != Committed {
		return math.MaxInt64
	}
	return c.txns[t].complete
}

// linkLives finds the lives of each deleted key and orders what is certain.
func (c *checker) linkLives() {
	if len(c.lives) == 0 {
		return
	}
	for _, key := range c.byKey {
		l := c.lives[key]
		if l == nil {
			continue
		}
		c.findLives(key, l)
		c.orderLives(l)
		for i := range l.lives {
			g := &l.lives[i]
			for _, d := range g.deleters {
				if w := c.lastWriter(g.leaf); w != 0 {
					c.edge(w-1, d, WW)
				}
				if l.ordered && i+1 < len(l.lives) {
					c.edge(d, l.lives[i+1].creator-1, WW)
				}
				if last := &l.lives[len(l.lives)-1]; last.final {
					c.edge(d, last.creator-1, WW)
				}
			}
		}
	}
}

func (c *checker) findLives(key uint32, l *keyLives) {
	undeleted := uint32(0)
	for top := c.nodes[c.roots[key]].child; top != 0; top = c.nodes[top].sibling {
		if !c.live(top) {
			continue
		}
		g := life{top: top, leaf: top, creator: c.writerTxn(top), born: math.MaxInt64, dies: math.MaxInt64}
		for b := top; b != 0; b = c.liveChild(b) {
			g.leaf = b
		}
		if g.creator != 0 {
			g.born = c.completed(g.creator - 1)
		}
		for _, d := range l.deletes {
			if c.isAncestor(top, d.node) && !slices.Contains(g.deleters, d.txn) {
				g.deleters = append(g.deleters, d.txn)
				g.born = min(g.born, c.completed(d.txn))
				g.dies = min(g.dies, c.invoked(d.txn))
			}
		}
		if len(g.deleters) == 0 && !l.doubt && g.creator != 0 {
			if undeleted != 0 {
				c.addBranches(undeleted, top)
			}
			undeleted, g.final = top, true
		}
		l.lives = append(l.lives, g)
	}
}

func (c *checker) liveChild(n uint32) uint32 {
	for b := c.nodes[n].child; b != 0; b = c.nodes[b].sibling {
		if c.live(b) {
			return b
		}
	}
	return 0
}

// orderLives sorts the lives and decides whether no other order is possible: a
// later life cannot have ended before an earlier one began.
func (c *checker) orderLives(l *keyLives) {
	slices.SortFunc(l.lives, func(a, b life) int {
		return cmp.Or(cmp.Compare(min(len(b.deleters), 1), min(len(a.deleters), 1)), cmp.Compare(a.dies, b.dies), cmp.Compare(a.top, b.top))
	})
	l.ordered = !l.doubt
	born := int64(math.MinInt64)
	for i := range l.lives {
		g := &l.lives[i]
		certain := i == 0 || len(g.deleters) == 0 || born < g.dies
		followed := i+1 == len(l.lives) || len(g.deleters) > 0
		l.ordered = l.ordered && g.creator != 0 && certain && followed
		born = max(born, g.born)
	}
}

// linkBeforeDelete orders a read of a life's last version before the deletion,
// or if there is none before the appends that nobody saw.
func (c *checker) linkBeforeDelete(t, n uint32, l *keyLives, byScan bool) {
	kind := RW
	if byScan {
		kind = ScanRW
	}
	for i := range l.lives {
		g := &l.lives[i]
		if g.leaf != n {
			continue
		}
		for _, d := range g.deleters {
			c.edge(t, d, kind)
		}
		if g.final {
			c.linkBeforeTails(t, c.nodes[n].key, LostRW)
		}
	}
}

// linkAbsent orders a transaction that found the key absent: after the deletion
// before the first gap between lives that it can have read, and before the
// creation after the last such gap.
func (c *checker) linkAbsent(t, key uint32, l *keyLives, byScan bool) {
	if !l.doubt {
		lost := LostRW
		if byScan {
			lost = LostScanRW
		}
		c.linkBeforeTails(t, key, lost) // they are there to stay, see linkLostTail
	}
	if !l.ordered || slices.ContainsFunc(l.lives, func(g life) bool { return g.creator == t+1 }) {
		return // its own creation tells the gap, and the writers on both sides are ordered
	}
	kind := RW
	if byScan {
		kind = ScanRW
	}
	first, last := c.gaps(t, l)
	if first > last {
		// The key was alive all the time. Then the read missed the creation.
		began := 0
		for began < len(l.lives) && l.lives[began].born < c.invoked(t) {
			began++
		}
		if began > 0 {
			c.edge(t, l.lives[began-1].creator-1, kind)
		}
		return
	}
	if first > 0 {
		for _, d := range l.lives[first-1].deleters {
			c.edge(d, t, WR)
		}
	}
	if last < len(l.lives) {
		c.edge(t, l.lives[last].creator-1, kind)
	}
}

// gaps returns the first and last gap that the transaction can have read, gap i
// being that before lives[i]; first > last if there is none.
func (c *checker) gaps(t uint32, l *keyLives) (first, last int) {
	first, last = len(l.lives)+1, -1
	for i := 0; i <= len(l.lives); i++ {
		open := i == 0 || len(l.lives[i-1].deleters) > 0 && c.completed(t) >= l.lives[i-1].dies
		if i < len(l.lives) {
			open = open && l.lives[i].born >= c.invoked(t)
		}
		if open {
			first, last = min(first, i), max(last, i)
		}
	}
	return first, last
}

// linkLostTail orders an append that nobody saw on a key that is deleted. A
// deletion shows the list that it ends, so a life that nobody saw, and an end of
// a list that nobody saw, were never deleted. That puts the append after
// everything that was seen of the key, unless a deletion is in doubt.
func (c *checker) linkLostTail(ap *appended, l *keyLives) {
	if l.doubt {
		c.linkLostBase(ap, l)
		return
	}
	for i := range l.lives {
		g := &l.lives[i]
		for _, d := range g.deleters {
			c.edge(d, ap.txn, WW)
		}
		if w := c.lastWriter(g.leaf); g.final && w != 0 {
			c.edge(w-1, ap.txn, WW)
		}
	}
}

// linkLostBase is what remains of linkLostTail when a deletion is in doubt: if
// the append's transaction read the version it extended, then whoever extended
// or deleted that version did not see the append, and so came first.
func (c *checker) linkLostBase(ap *appended, l *keyLives) {
	if ap.base == 0 || c.nodes[ap.base].parent == 0 {
		return
	}
	for b := c.nodes[ap.base].child; b != 0; b = c.nodes[b].sibling {
		if w := c.writerTxn(b); c.live(b) && w != 0 {
			c.edge(w-1, ap.txn, WW)
		}
	}
	for i := range l.lives {
		if c.isAncestor(l.lives[i].top, ap.base) {
			for _, d := range l.lives[i].deleters {
				c.edge(d, ap.txn, WW)
			}
		}
	}
}
