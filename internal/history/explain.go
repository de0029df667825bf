package history

import (
	"fmt"
	"slices"
)

// reason describes why one transaction precedes another.
type reason struct {
	text       string
	alsoWrites bool // of an anti-dependency: the first transaction writes the key too
	unseen     bool // the second transaction's append was never seen
}

// explain recomputes the reason of an edge. Graphs do not store reasons: they
// have tens of millions of edges, and few are ever shown.
func (c *checker) explain(from, to uint32, kind EdgeKind) reason {
	f, t := c.txns[from].id, c.txns[to].id
	switch kind {
	case RealTimeOrder:
		text := fmt.Sprintf("%v completed at %d, %v was invoked at %d", f, c.txns[from].complete, t, c.txns[to].invoke)
		if stale := c.txns[to].stale; stale > 0 {
			text += fmt.Sprintf(" and may read what was there %d ns before", stale)
		}
		return reason{text: text}
	case ProcessOrder:
		return reason{text: fmt.Sprintf("process %d ran %v, then %v", f.Process(), f, t)}
	case WW:
		return c.explainWW(from, to)
	case WR:
		return c.explainWR(from, to)
	}
	return c.explainRW(from, to)
}

func (c *checker) appendsOf(t uint32) []appended {
	return c.appends[c.appendsStart[t]:c.appendsStart[t+1]]
}

// deleted returns the version of the key that a transaction deleted, or 0.
func (c *checker) deleted(t, key uint32) uint32 {
	if l := c.lives[key]; l != nil {
		for _, d := range l.deletes {
			if d.txn == t {
				return d.node
			}
		}
	}
	return 0
}

func (c *checker) writes(t, key uint32) bool {
	return c.deleted(t, key) != 0 ||
		slices.ContainsFunc(c.appendsOf(t), func(a appended) bool { return a.key == key })
}

func (c *checker) explainWW(from, to uint32) reason {
	f, t := c.txns[from].id, c.txns[to].id
	for _, a := range c.appendsOf(to) {
		if a.node != 0 && c.nodes[a.node].depth > 1 && c.lastWriter(c.nodes[a.node].parent) == from+1 {
			return reason{text: fmt.Sprintf("key %d: %v appended %d right after what %v appended: %s",
				c.keys[a.key], t, a.value, f, listString(c.list(a.node)))}
		}
	}
	for _, a := range c.appendsOf(to) {
		if a.node == 0 && c.writes(from, a.key) {
			return reason{unseen: true, text: fmt.Sprintf("key %d: nobody ever saw %d, which %v appended, so it can only be later than what %v did",
				c.keys[a.key], a.value, t, f)}
		}
	}
	for _, o := range c.opsOf(from) {
		if (o.kind == OpAppend || o.kind == OpDelete) && c.writes(to, o.key) {
			return reason{text: fmt.Sprintf("key %d: %v ended or began a life of the key after what %v did", c.keys[o.key], t, f)}
		}
	}
	return reason{text: "both wrote a key"}
}

func (c *checker) explainWR(from, to uint32) reason {
	f, t := c.txns[from].id, c.txns[to].id
	for _, o := range c.seen[c.seenRange[to].from:c.seenRange[to].to] {
		n := o >> 1
		key := c.nodes[n].key
		switch {
		case c.writerTxn(n) == from+1:
			return reason{text: fmt.Sprintf("key %d: %v found %d, which %v appended", c.keys[key], t, c.nodes[n].value, f)}
		case c.nodes[n].parent == 0 && c.deleted(from, key) != 0:
			return reason{text: fmt.Sprintf("key %d: %v found it absent after %v deleted it", c.keys[key], t, f)}
		}
	}
	return reason{text: "the second read what the first wrote"}
}

// explainRW prefers a key that the first transaction writes as well: then an
// update is lost.
func (c *checker) explainRW(from, to uint32) reason {
	best := reason{text: "the first read what the second overwrote"}
	found := false
	for _, o := range c.seen[c.seenRange[from].from:c.seenRange[from].to] {
		text := c.missed(from, to, o>>1)
		if text == "" {
			continue
		}
		r := reason{text: text, alsoWrites: c.writes(from, c.nodes[o>>1].key)}
		if !found || r.alsoWrites && !best.alsoWrites {
			best, found = r, true
		}
	}
	return best
}

// missed returns how a transaction that saw version n missed what another one
// did to the key, or nothing if it did not.
func (c *checker) missed(from, to, n uint32) string {
	f, t := c.txns[from].id, c.txns[to].id
	key := c.nodes[n].key
	state := listString(c.list(n))
	for _, a := range c.appendsOf(to) {
		if a.key != key {
			continue
		}
		extends := a.node != 0 && c.nodes[a.node].parent == n
		unseen := a.node == 0 && (c.leaf[key] == n || c.lives[key] != nil)
		if extends || unseen {
			return fmt.Sprintf("key %d: %v found %s, without %d, which %v appended", c.keys[key], f, state, a.value, t)
		}
	}
	if c.nodes[n].parent != 0 && c.deleted(to, key) != 0 {
		return fmt.Sprintf("key %d: %v found %s, which %v deleted", c.keys[key], f, state, t)
	}
	return ""
}
