package history

import (
	"cmp"
	"math"
	"slices"
)

// keyLives has the lives of a deleted key, each from a creation to a deletion,
// and whether their order is certain.
type keyLives struct {
	deletes []deletion // by considered transactions
	maybe   []deletion // by those of unknown outcome that are left out
	ordered bool       // lives are in the order in which they were
	lives   []life
}

// deletion is a transaction's delete of a version.
type deletion struct{ txn, node uint32 }

// life is what happens to a key from a creation to a deletion.
type life struct {
	top, leaf uint32   // first and longest version
	creator   uint32   // one more than the transaction, 0 if there is no proper one
	deleters  []uint32 // in a sound history at most one
	final     bool     // it was not deleted, surely, so it comes last
	born      int64    // the creation is before
	dies      int64    // the deletion is after; meaningless if final
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

// noteUnknownDeletes collects the deletes that transactions left out may have
// done. What they then deleted, they saw, so appends in it are not lost.
func (c *checker) noteUnknownDeletes() {
	for t := range uint32(len(c.txns)) {
		if c.included[t] || c.txns[t].outcome != Unknown {
			continue
		}
		for _, o := range c.opsOf(t) {
			if o.kind != OpDelete {
				continue
			}
			l := c.livesOf(o.key)
			l.maybe = append(l.maybe, deletion{t, uint32(o.arg)})
			for n := uint32(o.arg); n != 0; n = c.nodes[n].parent {
				c.appends[c.writer[n]].gone = true
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
	return c.txns[t].earliest()
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
			c.linkLife(l, i)
		}
	}
}

// linkLife orders the end of a life before its deletion, and that before the
// next life.
func (c *checker) linkLife(l *keyLives, i int) {
	g := &l.lives[i]
	writer, next := c.lastWriter(g.leaf), c.lifeAfter(l, i)
	for _, d := range g.deleters {
		if writer != 0 {
			c.edge(writer-1, d, WW)
		}
		if next != 0 {
			c.edge(d, next-1, WW)
		}
	}
	if len(g.deleters) == 0 && writer != 0 && next != 0 {
		c.edge(writer-1, next-1, WW) // the deletion between has an unknown outcome
	}
}

// lifeAfter returns one more than the transaction that began the next life, or
// a later one if that is all that is certain; 0 if there is none.
func (c *checker) lifeAfter(l *keyLives, i int) uint32 {
	last := &l.lives[len(l.lives)-1]
	switch {
	case i+1 == len(l.lives):
		return 0
	case l.ordered:
		return l.lives[i+1].creator
	case last.final:
		return last.creator
	}
	return 0
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
		g.final = len(g.deleters) == 0
		for _, d := range l.maybe {
			if c.isAncestor(top, d.node) {
				g.final = false
				g.dies = min(g.dies, c.invoked(d.txn))
			}
		}
		if g.final && g.creator != 0 {
			if undeleted != 0 {
				c.addBranches(undeleted, top)
			}
			undeleted = top
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
		if a.final != b.final {
			if a.final {
				return 1
			}
			return -1
		}
		return cmp.Or(cmp.Compare(a.dies, b.dies), cmp.Compare(a.top, b.top))
	})
	l.ordered = true
	born := int64(math.MinInt64)
	for i := range l.lives {
		g := &l.lives[i]
		certain := i == 0 || g.final || born < g.dies
		followed := i+1 == len(l.lives) || !g.final
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
		if next := c.lifeAfter(l, i); next != 0 && len(g.deleters) == 0 {
			c.edge(t, next-1, kind)
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
	kind := RW
	if byScan {
		kind = ScanRW
	}
	c.linkBeforeTails(t, key, kind-RW+LostRW) // they are there to stay, see linkLostTail
	for _, a := range c.appendsOf(t) {
		if a.key != key || a.node == 0 || a.base != c.roots[key] {
			continue
		}
		// The life that its own append is in tells when it found none.
		for i := range l.lives {
			if g := &l.lives[i]; g.creator != 0 && c.isAncestor(g.top, a.node) {
				c.edge(t, g.creator-1, kind)
			}
		}
		return
	}
	if !l.ordered {
		return
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
		open := i == 0 || !l.lives[i-1].final && c.completed(t) >= l.lives[i-1].dies
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
// everything that was seen of the key.
func (c *checker) linkLostTail(ap *appended, l *keyLives) {
	for i := range l.lives {
		g := &l.lives[i]
		for _, d := range g.deleters {
			c.edge(d, ap.txn, WW)
		}
		if w := c.lastWriter(g.leaf); len(g.deleters) == 0 && w != 0 {
			c.edge(w-1, ap.txn, WW)
		}
	}
}
