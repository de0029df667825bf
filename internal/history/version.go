package history

import "fmt"

// live reports whether a considered transaction saw the version or a longer one
// that extends it.
func (c *checker) live(n uint32) bool { return c.witness[n] != 0 }

// real reports whether a transaction that can have effects appended the
// version's last value.
func (c *checker) real(n uint32) bool {
	w := c.writerTxn(n)
	return w != 0 && c.txns[w-1].outcome != Aborted
}

func (c *checker) isAncestor(a, n uint32) bool {
	for c.nodes[n].depth > c.nodes[a].depth {
		n = c.nodes[n].parent
	}
	return a == n
}

// checkVersions checks the lists that were seen: every value was appended by a
// transaction that can have effects, once, and all lists of a key agree on the
// order. It ties each append to the version it made, and takes the writer from
// versions that have no proper one, so that they yield no dependencies.
func (c *checker) checkVersions() {
	for n := uint32(1); n < uint32(len(c.nodes)); n++ {
		if c.live(n) {
			c.checkBranches(n)
		}
	}
	for n := uint32(1); n < uint32(len(c.nodes)); n++ {
		if c.live(n) && c.nodes[n].parent != 0 {
			c.checkWriter(n)
		}
	}
	for a := 1; a < len(c.appends); a++ {
		c.checkOwnOrder(&c.appends[a])
	}
}

// checkBranches looks for two versions that extend n differently. Values that
// should not be there at all are reported elsewhere; and a deleted key may
// start again.
func (c *checker) checkBranches(n uint32) {
	if c.nodes[n].parent == 0 && c.lives[c.nodes[n].key] != nil {
		return
	}
	first := uint32(0)
	for b := c.nodes[n].child; b != 0; b = c.nodes[b].sibling {
		switch {
		case !c.live(b) || !c.real(b):
		case first == 0:
			first = b
		default:
			c.addBranches(first, b)
		}
	}
}

func (c *checker) addBranches(a, b uint32) {
	c.add(IncompatibleOrder, fmt.Sprintf("key %d is both %s and %s", c.keys[c.nodes[a].key],
		listString(c.list(a)), listString(c.list(b))), c.witness[a]-1, c.witness[b]-1)
}

func (c *checker) checkWriter(n uint32) {
	key, reader := c.keys[c.nodes[n].key], c.witness[n]-1
	a := c.writer[n]
	if a == 0 {
		c.add(Unwritten, fmt.Sprintf("%v found %d in key %d, which nothing appended",
			c.txns[reader].id, c.nodes[n].value, key), reader)
		return
	}
	ap := &c.appends[a]
	writer := c.txns[ap.txn].id
	switch {
	case c.txns[ap.txn].outcome == Aborted:
		c.add(G1a, fmt.Sprintf("%v found %d in key %d, which %v appended and aborted",
			c.txns[reader].id, ap.value, key, writer), reader, ap.txn)
	case ap.dead:
		c.add(G1b, fmt.Sprintf("%v found %d in key %d, which %v appended before it deleted the key",
			c.txns[reader].id, ap.value, key, writer), reader, ap.txn)
	case ap.node == 0:
		ap.node = n
		return
	case c.isAncestor(ap.node, n):
		c.add(Duplicate, fmt.Sprintf("%v found %d in key %d twice: %s",
			c.txns[reader].id, ap.value, key, listString(c.list(n))), reader, ap.txn)
	case c.lives[c.nodes[n].key] != nil:
		c.addBranches(ap.node, n) // two lives that share a value; checkBranches allows lives
	}
	c.writer[n] = 0
}

// checkOwnOrder checks that two appends of one transaction to one key appear in
// its order. If a third transaction's appears in between, a G0 cycle will show.
func (c *checker) checkOwnOrder(a *appended) {
	if a.node == 0 || a.prev == 0 {
		return
	}
	p, key, writer := &c.appends[a.prev], c.keys[a.key], c.txns[a.txn].id
	switch {
	case p.node == 0:
		c.add(LostWrite, fmt.Sprintf("key %d has %d, but not %d, which %v appended before it",
			key, a.value, p.value, writer), c.witness[a.node]-1, a.txn)
	case c.isAncestor(a.node, p.node):
		c.add(IncompatibleOrder, fmt.Sprintf("key %d has %d before %d, but %v appended them the other way round",
			key, a.value, p.value, writer), c.witness[p.node]-1, a.txn)
	}
}

// checkReads looks for reads that ended in the middle of another transaction,
// and for those that found the transaction's own appends where only those of
// others can be: before they were made, or twice.
func (c *checker) checkReads() {
	for t := range uint32(len(c.txns)) {
		for _, o := range c.seen[c.seenRange[t].from:c.seenRange[t].to] {
			n := o >> 1
			if a := &c.appends[c.writer[n]]; c.writer[n] != 0 && !a.final && a.txn != t {
				c.add(G1b, fmt.Sprintf("%v found key %d to end in %d, which %v went on to change",
					c.txns[t].id, c.keys[a.key], a.value, c.txns[a.txn].id), t, a.txn)
			}
			for _, own := range c.appendsOf(t) {
				if own.key == c.nodes[n].key && own.node != 0 && c.isAncestor(own.node, n) {
					c.add(Internal, fmt.Sprintf("%v found its own append %d in key %d among those of others: %s",
						c.txns[t].id, own.value, c.keys[own.key], listString(c.list(n))), t)
				}
			}
		}
	}
}
