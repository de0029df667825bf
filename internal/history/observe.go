package history

import (
	"fmt"
	"slices"
)

// keyStates has the knowledge of the observed transaction about the keys that
// it touched. It is cleared in constant time between transactions.
type keyStates struct {
	slot  []uint32 // by key: index into all, valid if stamp matches
	stamp []uint32
	now   uint32
	all   []keyState
}

type keyState struct {
	base    uint32 // version read that others made, 0 if not known
	last    uint32 // the transaction's own last append since, 0 if none
	count   uint32 // its own appends since
	deleted bool   // it deleted the key; base is then the absent version
}

func (s *keyStates) of(key uint32) *keyState {
	if s.stamp[key] != s.now {
		s.stamp[key] = s.now
		s.slot[key] = uint32(len(s.all))
		s.all = append(s.all, keyState{})
	}
	return &s.all[s.slot[key]]
}

// observeAll collects what considered transactions saw of others.
func (c *checker) observeAll() {
	c.witness = make([]uint32, len(c.nodes))
	c.included = make([]bool, len(c.txns))
	c.seen = make([]uint32, 0, len(c.ops))
	c.seenRange = make([]span, len(c.txns))
	c.states.slot = make([]uint32, len(c.keys))
	c.states.stamp = make([]uint32, len(c.keys))
	for t := range uint32(len(c.txns)) {
		if c.txns[t].outcome == Committed {
			c.include(t)
		}
	}
	for len(c.pending) > 0 {
		t := c.pending[len(c.pending)-1]
		c.pending = c.pending[:len(c.pending)-1]
		if !c.included[t] {
			c.include(t)
		}
	}
	c.states = keyStates{}
	c.noteUnknownDeletes()
}

// include considers a transaction: it follows the operations, checks them
// against each other, and notes which versions made by others they saw.
func (c *checker) include(t uint32) {
	c.included[t] = true
	c.report.Considered++
	c.states.now++
	c.states.all = c.states.all[:0]
	c.seenRange[t].from = uint32(len(c.seen))
	next := c.appendsStart[t]
	ops := c.opsOf(t)
	for i := 0; i < len(ops); i++ {
		o := ops[i]
		switch o.kind {
		case OpAppend:
			c.ownAppend(next)
			next++
		case OpRead:
			c.observe(t, o.key, uint32(o.arg), 0)
		case OpDelete:
			c.observe(t, o.key, uint32(o.arg), 0)
			c.ownDelete(t, o.key)
		case OpScan:
			rows := int(c.scans[o.arg].rows)
			c.observeScan(t, &c.scans[o.arg], ops[i+1:i+1+rows])
			i += rows
		}
	}
	c.seenRange[t].to = uint32(len(c.seen))
}

func (c *checker) ownAppend(a uint32) {
	s := c.states.of(c.appends[a].key)
	if s.count == 0 && !s.deleted {
		c.appends[a].base = s.base
	}
	s.last = a
	s.count++
}

func (c *checker) ownDelete(t, key uint32) {
	s := c.states.of(key)
	if !s.deleted && s.base != 0 && s.base != c.roots[key] {
		c.noteDelete(t, key, s.base)
	}
	*s = keyState{base: c.roots[key], deleted: true}
}

// observeScan takes a scan apart into one read for each key of the history in
// its range.
func (c *checker) observeScan(t uint32, s *scanRange, rows []op) {
	for i, row := range rows {
		k := c.keys[row.key]
		if k < s.lo || k > s.hi || i > 0 && k <= c.keys[rows[i-1].key] {
			c.add(ScanOrder, fmt.Sprintf("%v scanned keys %d to %d and got key %d at position %d",
				c.txns[t].id, s.lo, s.hi, k, i), t)
			return
		}
	}
	at, _ := slices.BinarySearchFunc(c.byKey, s.lo, func(n uint32, k Key) int {
		if c.keys[n] < k {
			return -1
		}
		return 1
	})
	for _, key := range c.byKey[at:] {
		if c.keys[key] > s.hi {
			break
		}
		if len(rows) > 0 && rows[0].key == key {
			c.observe(t, key, uint32(rows[0].arg), 1)
			rows = rows[1:]
		} else if c.touched[key] {
			c.observe(t, key, c.roots[key], 1)
		}
	}
}

// observe checks one result against what the transaction knows of the key, and
// notes it if it is the first.
func (c *checker) observe(t, key, n, byScan uint32) {
	s := c.states.of(key)
	base, own := c.stripOwn(n, s)
	switch {
	case own && s.base == 0:
		s.base = base
		if s.count > 0 {
			c.firstOwn(s).base = base
		}
		c.saw(t, base, byScan)
	case own && s.base == base:
	default:
		c.add(Internal, c.internalDetail(t, key, n, s), t)
		if s.count == 0 && !s.deleted {
			c.saw(t, n, byScan) // a second version of others: it may show a cycle too
		}
	}
}

// stripOwn returns the version that is left of n without the transaction's own
// appends, and whether n ends with exactly these.
func (c *checker) stripOwn(n uint32, s *keyState) (uint32, bool) {
	a := s.last
	for range s.count {
		if c.writer[n] != a {
			return 0, false
		}
		n = c.nodes[n].parent
		a = c.appends[a].prev
	}
	return n, true
}

func (c *checker) firstOwn(s *keyState) *appended {
	a := s.last
	for range s.count - 1 {
		a = c.appends[a].prev
	}
	return &c.appends[a]
}

func (c *checker) internalDetail(t, key, n uint32, s *keyState) string {
	own := make([]Value, s.count)
	a := s.last
	for i := len(own) - 1; i >= 0; i-- {
		own[i] = c.appends[a].value
		a = c.appends[a].prev
	}
	want := "a list that ends in " + listString(own)
	if s.base != 0 {
		want = listString(append(c.list(s.base), own...))
	}
	return fmt.Sprintf("%v found key %d = %s where its own operations before lead to %s",
		c.txns[t].id, c.keys[key], listString(c.list(n)), want)
}

// saw notes that t saw a version made by others.
func (c *checker) saw(t, n, byScan uint32) {
	c.seen = append(c.seen, n<<1|byScan)
	for ; n != 0 && c.witness[n] == 0; n = c.nodes[n].parent {
		c.witness[n] = t + 1
		w := c.writerTxn(n)
		if w != 0 && c.txns[w-1].outcome == Unknown && !c.included[w-1] {
			c.pending = append(c.pending, w-1)
		}
	}
}
