package xtree

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Check verifies the whole tree: fences, links, slots, headers, checksums,
// inner nodes, locks and the accounting of memory. No mutator may run.
func (t *Tree) Check() error {
	c := checker{t: t, buf: make([]uint64, t.lay.LeafWords), row: make([]uint64, t.lay.RowBlockWords)}
	leaf := t.first
	for leaf != 0 {
		right, err := c.leaf(leaf)
		if err != nil {
			return fmt.Errorf("%w: leaf %#x: %v", index.ErrCorrupt, leaf, err)
		}
		leaf = right
	}
	if err := c.totals(); err != nil {
		return fmt.Errorf("%w: %v", index.ErrCorrupt, err)
	}
	nodes, entries, err := t.checkNode(t.root.Load(), 0, true)
	switch {
	case err != nil:
		return fmt.Errorf("%w: inner nodes: %v", index.ErrCorrupt, err)
	case nodes != t.innerNodes.Load():
		return fmt.Errorf("%w: %d inner nodes, counted %d", index.ErrCorrupt, nodes, t.innerNodes.Load())
	case entries != c.leaves:
		return fmt.Errorf("%w: inner nodes know %d leaves of %d", index.ErrCorrupt, entries, c.leaves)
	}
	return nil
}

type checker struct {
	t            *Tree
	buf, row     []uint64
	leaves, rows uint64
	placeholders uint64
	heldSeen     int
	next         uint64 // the low fence to come
	ended        bool
}

func (c *checker) leaf(addr uint64) (right uint64, err error) {
	t := c.t
	if !t.alive(addr) {
		return 0, fmt.Errorf("not known as a leaf")
	}
	t.span(addr).CopyOut(c.buf)
	if v := block.Accept(c.buf, c.buf[0], addr, !t.a.Checksums()); v != block.OK {
		return 0, fmt.Errorf("not accepted: %v", v)
	}
	v, ok := t.lay.View(c.buf)
	if !ok {
		return 0, fmt.Errorf("malformed")
	}
	if v.Low() != c.next || c.ended {
		return 0, fmt.Errorf("low fence %#x, want %#x", v.Low(), c.next)
	}
	if got := t.descend(v.Low()); got != addr {
		return 0, fmt.Errorf("inner nodes lead to %#x", got)
	}
	high, bounded := v.High()
	c.next, c.ended = high, !bounded
	if block.Header(v.Gap())&Free != 0 {
		return 0, fmt.Errorf("gap word %#x", v.Gap())
	}
	c.leaves++
	return v.Right(), c.slots(addr, &v)
}

func (c *checker) slots(addr uint64, v *Leaf) error {
	t, m := c.t, unpackMeta(c.buf[metaWord])
	seen := make(map[uint64]bool)
	for i := range t.lay.Slots {
		if !v.InUse(i) {
			continue
		}
		k := c.buf[keysWord+i]
		switch {
		case i >= m.count:
			return fmt.Errorf("slot %d in use beyond count %d", i, m.count)
		case seen[k]:
			return fmt.Errorf("key %#x twice", k)
		case k < v.Low() || v.Above(k):
			return fmt.Errorf("key %#x outside the fences", k)
		}
		seen[k] = true
		head, err := c.header(addr, v, i, k)
		if err != nil {
			return err
		}
		if err := c.lock(addr, i, k, head); err != nil {
			return err
		}
	}
	if len(seen) != m.live || m.newest != noNewest && (m.newest >= t.lay.Slots || !v.InUse(m.newest)) {
		return fmt.Errorf("%d slots in use, live %d, newest %d", len(seen), m.live, m.newest)
	}
	return nil
}

// header is the header of a row, after a check of its block.
func (c *checker) header(leaf uint64, v *Leaf, i int, key uint64) (block.Header, error) {
	t := c.t
	if t.lay.Inline {
		return block.Header(v.Head(i)), nil
	}
	addr := v.Head(i)
	if !t.a.Region().Read(addr, c.row) || !t.lay.RowIs(c.row, key) {
		return 0, fmt.Errorf("slot %d: block %#x is not key %#x's row", i, addr, key)
	}
	h := block.Header(c.row[0])
	c.row[0] = uint64(h.Unlock())
	if t.a.Checksums() && block.Accept(c.row, 0, addr, false) != block.OK {
		return 0, fmt.Errorf("row block %#x has a wrong checksum", addr)
	}
	return h, nil
}

// lock checks a header against the list of locks.
func (c *checker) lock(leaf uint64, slot int, key uint64, head block.Header) error {
	h := c.t.held[key]
	if head.IsAbsent() && (!head.Locked() || h == nil || h.Existed) {
		return fmt.Errorf("key %#x: header %v without a row", key, head)
	}
	if !head.IsAbsent() {
		c.rows++
	} else {
		c.placeholders++
	}
	if head.Locked() != (h != nil) {
		return fmt.Errorf("key %#x: header %v, lock held %v", key, head, h != nil)
	}
	if h == nil {
		return nil
	}
	c.heldSeen++
	if h.Home != leaf || h.Slot != slot || h.Addr != c.t.headerAddr(c.t.span(leaf), leaf, slot) || h.Key.Num != key {
		return fmt.Errorf("key %#x: lock says leaf %#x slot %d, header at %#x", key, h.Home, h.Slot, h.Addr)
	}
	return nil
}

func (c *checker) totals() error {
	t := c.t
	used := t.leafs.Stats().Used
	switch {
	case !c.ended:
		return fmt.Errorf("the last leaf has a bound")
	case c.leaves != t.leaves.Load() || used != c.leaves+uint64(t.freed.len())+t.reserve:
		return fmt.Errorf("%d leaves, counted %d, slab %d, freed %d, in extents %d",
			c.leaves, t.leaves.Load(), used, t.freed.len(), t.reserve)
	case c.rows != t.live.Load():
		return fmt.Errorf("%d rows, counted %d", c.rows, t.live.Load())
	case c.heldSeen != len(t.held):
		return fmt.Errorf("%d locks seen of %d", c.heldSeen, len(t.held))
	case t.rows != nil && t.rows.Stats().Used != c.rows+c.placeholders:
		return fmt.Errorf("%d row blocks for %d rows", t.rows.Stats().Used, c.rows+c.placeholders)
	}
	for i := t.freed.head; i < len(t.freed.leaf); i++ {
		addr := t.freed.leaf[i]
		s := t.a.Region().MustSpan(addr, mem.LineBytes)
		if block.Header(s.Load(block.HeaderWord)) != Free || t.alive(addr) {
			return fmt.Errorf("freed leaf %#x can be read", addr)
		}
	}
	return nil
}

// checkNode counts nodes and leaves below nd.
func (t *Tree) checkNode(nd *node, low uint64, leftmost bool) (nodes, leaves uint64, err error) {
	n := int(nd.n.Load())
	if n < 1 || n > fanout {
		return 0, 0, fmt.Errorf("node of %d entries", n)
	}
	if nd.keys[0].Load() != low {
		return 0, 0, fmt.Errorf("node begins at %#x, its parent says %#x", nd.keys[0].Load(), low)
	}
	nodes = 1
	for i := range n {
		k := nd.keys[i].Load()
		if i > 0 && k <= nd.keys[i-1].Load() {
			return 0, 0, fmt.Errorf("entry %d does not rise", i)
		}
		if nd.level == 0 {
			if s := t.span(nd.leafs[i].Load()); s.Load(lowWord) != k {
				return 0, 0, fmt.Errorf("leaf begins at %#x, its parent says %#x", s.Load(lowWord), k)
			}
			leaves++
			continue
		}
		sub := nd.subs[i].Load()
		if sub == nil || sub.level != nd.level-1 {
			return 0, 0, fmt.Errorf("entry %d is not a node of the level below", i)
		}
		a, b, err := t.checkNode(sub, k, leftmost && i == 0)
		if err != nil {
			return 0, 0, err
		}
		nodes, leaves = nodes+a, leaves+b
	}
	return nodes, leaves, nil
}
