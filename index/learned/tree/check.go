package tree

import (
	"fmt"
	"iter"
	"maps"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Check verifies the whole tree: fences, links, slots, rows, checksums, inner nodes,
// locks and the accounting of memory. It returns index.ErrCorrupt for the first
// fault. No mutator may run.
func (t *Tree) Check() error {
	c := checker{t: t, buf: make([]uint64, t.lay.LeafWords), graves: map[*graveBlock]int{}}
	for addr := t.first; addr != 0; {
		right, err := c.leaf(addr)
		if err != nil {
			return fmt.Errorf("%w: leaf %#x: %v", index.ErrCorrupt, addr, err)
		}
		addr = right
	}
	if err := c.totals(); err != nil {
		return fmt.Errorf("%w: %v", index.ErrCorrupt, err)
	}
	nodes, entries, err := t.checkNode(t.root.Load(), index.Key{})
	switch {
	case err != nil:
		return fmt.Errorf("%w: inner nodes: %v", index.ErrCorrupt, err)
	case nodes != t.innerNodes.Load():
		return fmt.Errorf("%w: %d inner nodes, counted %d", index.ErrCorrupt, nodes, t.innerNodes.Load())
	case entries != c.leaves:
		return fmt.Errorf("%w: inner nodes know %d leaves of %d", index.ErrCorrupt, entries, c.leaves)
	}
	if err := c.checkMirror(); err != nil {
		return fmt.Errorf("%w: published inner nodes: %v", index.ErrCorrupt, err)
	}
	return nil
}

type checker struct {
	t            *Tree
	buf          []uint64
	leaves, rows uint64
	placeholders uint64
	fenceBlocks  uint64
	graves       map[*graveBlock]int // how many leaves refer to the block
	lowBytes     uint64
	heldSeen     int
	next         index.Key // the low fence that the next leaf must have
	ended        bool
}

// block copies a block, locked or not, and verifies it.
func (c *checker) block(addr uint64, words int) ([]uint64, error) {
	b := make([]uint64, words)
	if !c.t.a.Region().Read(addr, b) {
		return nil, fmt.Errorf("block %#x is not in the region", addr)
	}
	h := b[0]
	b[0] = uint64(block.Header(h).Unlock())
	if v := block.Accept(b, b[0], addr, !c.t.a.Checksums()); v != block.OK {
		return nil, fmt.Errorf("block %#x is %v", addr, v)
	}
	b[0] = h
	return b, nil
}

// checkFences compares the server's fences of a leaf with those in the leaf.
func checkFences(f *fences, low, high index.Key, bounded bool) error {
	if low != f.low || bounded == f.last || bounded && (high != f.high || high.Compare(low) <= 0) {
		return fmt.Errorf("fences %v to %v (bounded %v), want %v to %v (last %v)", low, high, bounded, f.low, f.high, f.last)
	}
	return nil
}

func (c *checker) leaf(addr uint64) (right uint64, err error) {
	t := c.t
	if !t.alive(addr) {
		return 0, fmt.Errorf("not known as a leaf")
	}
	if c.buf, err = c.block(addr, t.lay.LeafWords); err != nil {
		return 0, err
	}
	v, ok := t.lay.View(c.buf)
	if !ok || block.Header(c.buf[0]).Locked() {
		return 0, fmt.Errorf("malformed or locked")
	}
	f := t.keys.of(addr)
	if f == nil || f.addr != addr || f.low != c.next || c.ended {
		return 0, fmt.Errorf("known as %+v, want low fence %v", f, c.next)
	}
	if err := t.keys.check(c, f, &v); err != nil {
		return 0, err
	}
	if got := t.descend(f.low); got != addr {
		return 0, fmt.Errorf("inner nodes lead to %#x", got)
	}
	if block.Header(v.Gap())&leaf.Free != 0 {
		return 0, fmt.Errorf("gap word %#x", v.Gap())
	}
	c.next, c.ended = f.high, f.last
	c.leaves++
	c.lowBytes += uint64(len(f.low.Str))
	if err := c.slots(f, &v); err != nil {
		return 0, err
	}
	if err := c.order(addr, &v); err != nil {
		return 0, err
	}
	return v.Right(), c.gravesOf(f, &v)
}

// order checks that the order of a leaf names each slot once, those in use first and in
// the order of their keys.
func (c *checker) order(addr uint64, v *leaf.Leaf) error {
	t := c.t
	live, ok := v.Order()
	all := t.loadOrder(t.span(addr))
	if !ok {
		return fmt.Errorf("order %v is not that of the slots", all)
	}
	seen := make(map[byte]bool)
	for i, b := range all {
		if seen[b] || int(b) >= t.lay.Slots {
			return fmt.Errorf("order %v names slot %d twice, or it is none", all, b)
		}
		seen[b] = true
		if at, last := int(b), int(all[max(i-1, 0)]); i > 0 && i < len(live) && v.Key(at) == v.Key(last) &&
			t.keys.compare(slotKey{v.Key(last), last, v.Head(last)}, slotKey{v.Key(at), at, v.Head(at)}) >= 0 {
			return fmt.Errorf("order %v: slot %d does not follow slot %d", all, at, last)
		}
	}
	return nil
}

func (c *checker) slots(f *fences, v *leaf.Leaf) error {
	t, m := c.t, leaf.Unpack(c.buf[leaf.MetaWord])
	seen := make(map[index.Key]bool)
	for i := range t.lay.Slots {
		if !v.InUse(i) {
			continue
		}
		if i >= m.Count {
			return fmt.Errorf("slot %d in use beyond count %d", i, m.Count)
		}
		if t.lay.Kind == leaf.Strings && !v.Pointer(i).Valid() {
			return fmt.Errorf("slot %d: pointer %#x", i, v.Pointer(i))
		}
		k := t.keys.keyOf(slotKey{v.Key(i), i, v.Head(i)})
		switch {
		case seen[k]:
			return fmt.Errorf("key %v twice", k)
		case !f.covers(k):
			return fmt.Errorf("key %v outside the fences", k)
		case v.Key(i) != t.keys.word(f.addr, k):
			return fmt.Errorf("key %v has %#x in the leaf", k, v.Key(i))
		}
		seen[k] = true
		head, err := t.rows.check(c, k, v, i)
		if err != nil {
			return err
		}
		if err := c.lock(f.addr, i, k, head); err != nil {
			return err
		}
		older, words := block.Older(0), t.lay.RowWords
		if t.lay.Kind == leaf.Inline {
			older = v.Older(i)
		} else {
			older = t.olderOf(t.rows.header(f.addr, t.span(f.addr), i))
		}
		if t.lay.Kind == leaf.Strings {
			words = int(uint32(t.a.Span(v.Pointer(i).Addr(), leaf.StrSizeWord+1).Load(leaf.StrSizeWord)))
		}
		if err := c.versions(k, head.CSN(), older, words); err != nil {
			return err
		}
	}
	if len(seen) != m.Live || m.Newest != leaf.NoNewest && (m.Newest >= t.lay.Slots || !v.InUse(m.Newest)) {
		return fmt.Errorf("%d slots in use, live %d, newest %d", len(seen), m.Live, m.Newest)
	}
	return nil
}

// lock checks a header against the table of locks.
func (c *checker) lock(addr uint64, slot int, key index.Key, head block.Header) error {
	h := c.t.held.get(key)
	if head.IsAbsent() && (!head.Locked() || h == nil || h.Existed) {
		return fmt.Errorf("key %v: header %v without a row", key, head)
	}
	if !head.IsAbsent() {
		c.rows++
	} else {
		c.placeholders++
	}
	if head.Locked() != (h != nil) {
		return fmt.Errorf("key %v: header %v, lock held %v", key, head, h != nil)
	}
	if h == nil {
		return nil
	}
	c.heldSeen++
	if h.Home != addr || h.Slot != slot || h.Addr != c.t.rows.header(addr, c.t.span(addr), slot) || h.Key != key {
		return fmt.Errorf("key %v: lock says leaf %#x slot %d, header at %#x", key, h.Home, h.Slot, h.Addr)
	}
	return nil
}

func (c *checker) totals() error {
	t := c.t
	used, rooms := t.leafSlab.Stats().Used, uint64(0)
	for _, held := range []iter.Seq[*index.Held]{maps.Values(t.held.num), maps.Values(t.held.str)} {
		for h := range held {
			if h.Room.Addr != 0 {
				rooms++
			}
		}
	}
	needed := c.rows + c.placeholders + rooms
	switch {
	case !c.ended:
		return fmt.Errorf("the last leaf has a bound")
	case c.leaves != t.leaves.Load() || used != c.leaves+uint64(t.freed.len())+t.reserve:
		return fmt.Errorf("%d leaves, counted %d, slab %d, freed %d, in extents %d",
			c.leaves, t.leaves.Load(), used, t.freed.len(), t.reserve)
	case c.rows != t.live.Load():
		return fmt.Errorf("%d rows, counted %d", c.rows, t.live.Load())
	case c.heldSeen != t.held.len():
		return fmt.Errorf("%d locks seen of %d", c.heldSeen, t.held.len())
	case t.lay.Kind != leaf.Inline && (t.rows.used() < needed || t.rows.used() > needed+t.a.History().Stats().Rows):
		return fmt.Errorf("%d row blocks for %d rows, %d placeholders, %d rooms and up to %d versions",
			t.rows.used(), c.rows, c.placeholders, rooms, t.a.History().Stats().Rows)
	}
	if err := c.yard(); err != nil {
		return err
	}
	if k, ok := t.keys.(*stringKeys); ok && (k.blocks.Stats().Used != c.fenceBlocks || k.low.load() != c.lowBytes) {
		return fmt.Errorf("%d fence blocks, want %d; %d bytes of low fences, counted %d",
			k.blocks.Stats().Used, c.fenceBlocks, c.lowBytes, k.low.load())
	}
	for i := t.freed.head; i < len(t.freed.leaf); i++ {
		addr := t.freed.leaf[i]
		s := t.a.Region().MustSpan(addr, mem.LineBytes)
		if block.Header(s.Load(block.HeaderWord)) != leaf.Free || t.alive(addr) {
			return fmt.Errorf("freed leaf %#x can be read", addr)
		}
	}
	return nil
}

// checkNode verifies nd and everything below it, and counts nodes, including nd, and
// leaves.
func (t *Tree) checkNode(nd *node, low index.Key) (nodes, leaves uint64, err error) {
	n := int(nd.n.Load())
	if n < 1 || n > fanout {
		return 0, 0, fmt.Errorf("node of %d entries", n)
	}
	if nd.low(0) != low {
		return 0, 0, fmt.Errorf("node begins at %v, its parent says %v", nd.low(0), low)
	}
	for i := range fanout {
		w := nd.words[i].Load()
		if i >= n && w != unused || i > 0 && i%group == 0 && nd.tops[i/group-1].Load() != w {
			return 0, 0, fmt.Errorf("entry %d of %d has word %#x, and a search would not find that", i, n, w)
		}
	}
	nodes = 1
	for i := range n {
		k := nd.low(i)
		if i > 0 && k.Compare(nd.low(i-1)) <= 0 || i > 1 && nd.words[i].Load() < nd.words[i-1].Load() {
			return 0, 0, fmt.Errorf("entry %d does not rise", i)
		}
		if nd.level == 0 {
			f := t.keys.of(nd.addrs[i].Load())
			if f == nil || f.low != k || nd.str != nil && nd.str.lows[i].Load() != f {
				return 0, 0, fmt.Errorf("leaf %#x is known as %+v, its parent says %v", nd.addrs[i].Load(), f, k)
			}
			leaves++
			continue
		}
		sub := nd.subs[i].Load()
		if sub == nil || sub.level != nd.level-1 {
			return 0, 0, fmt.Errorf("entry %d is not a node of the level below", i)
		}
		a, b, err := t.checkNode(sub, k)
		if err != nil {
			return 0, 0, err
		}
		nodes, leaves = nodes+a, leaves+b
	}
	return nodes, leaves, nil
}
