package stree

import (
	"fmt"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Check verifies the whole tree: fences, links, slots, rows, checksums, inner
// nodes, locks and the accounting of memory. No mutator may run.
func (t *Tree) Check() error {
	c := checker{t: t, buf: make([]uint64, t.lay.LeafWords)}
	var err error
	leaf := t.first
	t.root.Load().walk("", func(r *ref) bool {
		if r.addr != leaf {
			err = fmt.Errorf("inner nodes lead to leaf %#x, links to %#x", r.addr, leaf)
		} else if leaf, err = c.leaf(r); err != nil {
			err = fmt.Errorf("leaf %#x: %v", r.addr, err)
		}
		return err == nil
	})
	if err == nil && leaf != 0 {
		err = fmt.Errorf("links go on at %#x after the last leaf", leaf)
	}
	if err == nil {
		err = c.totals()
	}
	if err != nil {
		return fmt.Errorf("%w: %v", index.ErrCorrupt, err)
	}
	return nil
}

type checker struct {
	t            *Tree
	buf          []uint64
	leaves, rows uint64
	placeholders uint64
	apart        uint64
	lowBytes     uint64
	heldSeen     int
	next         string // the low fence to come
	ended        bool
}

// block copies a block whose header is h, locked or not, and verifies it.
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

func (c *checker) leaf(r *ref) (right uint64, err error) {
	t := c.t
	if t.refOf(r.addr) != r {
		return 0, fmt.Errorf("not the leaf known at its address")
	}
	if c.buf, err = c.block(r.addr, t.lay.LeafWords); err != nil {
		return 0, err
	}
	v, ok := t.lay.View(c.buf)
	if !ok || block.Header(c.buf[0]).Locked() {
		return 0, fmt.Errorf("malformed or locked")
	}
	f, ok := v.Fences()
	if !ok {
		addr, words, ok := v.FenceBlock()
		if !ok {
			return 0, fmt.Errorf("fence block %#x of %d words", addr, words)
		}
		b, err := c.block(addr, words)
		if err != nil {
			return 0, err
		}
		if f, ok = v.FencesApart(r.addr, b); !ok {
			return 0, fmt.Errorf("fence block %#x is not the leaf's", addr)
		}
		c.apart++
	}
	high, bounded := f.High()
	switch {
	case f.Low() != c.next || f.Low() != r.low || c.ended:
		return 0, fmt.Errorf("low fence %q, want %q and %q", f.Low(), c.next, r.low)
	case bounded == r.last || bounded && (high != r.high || high <= f.Low()):
		return 0, fmt.Errorf("high fence %q %v, want %q %v", high, bounded, r.high, !r.last)
	case c.buf[versionWord] != r.version || v.Prefix() != r.prefix || bounded && r.prefix != Common(r.low, r.high):
		return 0, fmt.Errorf("fence version %#x, prefix of %d bytes; want %#x, %d", c.buf[versionWord], v.Prefix(), r.version, r.prefix)
	case block.Header(v.Gap())&Free != 0:
		return 0, fmt.Errorf("gap word %#x", v.Gap())
	}
	c.next, c.ended = high, !bounded
	c.leaves++
	c.lowBytes += uint64(len(r.low))
	return v.Right(), c.slots(r, &v)
}

func (c *checker) slots(r *ref, v *Leaf) error {
	t, m := c.t, unpackMeta(c.buf[metaWord])
	seen := make(map[string]bool)
	for i := range t.lay.Slots {
		p := v.Pointer(i)
		if p == 0 {
			continue
		}
		if i >= m.count {
			return fmt.Errorf("slot %d in use beyond count %d", i, m.count)
		}
		if !p.Valid() {
			return fmt.Errorf("slot %d: pointer %#x", i, p)
		}
		b, err := c.block(p.Addr(), p.Words())
		if err != nil {
			return err
		}
		k, _, ok := t.lay.Row(b)
		switch {
		case !ok || p.Tag() != Tag(k):
			return fmt.Errorf("slot %d: block %#x is no row, or of another tag", i, p.Addr())
		case seen[k]:
			return fmt.Errorf("key %q twice", k)
		case !r.covers(k) || v.words[digestWord+i] != DigestAt(k, r.prefix):
			return fmt.Errorf("key %q outside the fences, or of digest %#x", k, v.words[digestWord+i])
		}
		seen[k] = true
		if err := c.lock(r, i, k, block.Header(b[0]), p); err != nil {
			return err
		}
	}
	if len(seen) != m.live || m.newest != noNewest && (m.newest >= t.lay.Slots || v.Pointer(m.newest) == 0) {
		return fmt.Errorf("%d slots in use, live %d, newest %d", len(seen), m.live, m.newest)
	}
	return nil
}

// lock checks a header against the list of locks.
func (c *checker) lock(r *ref, slot int, key string, head block.Header, p Pointer) error {
	h := c.t.held[key]
	if head.IsAbsent() && (!head.Locked() || h == nil || h.Existed) {
		return fmt.Errorf("key %q: header %v without a row", key, head)
	}
	if !head.IsAbsent() {
		c.rows++
	} else {
		c.placeholders++
	}
	if head.Locked() != (h != nil) {
		return fmt.Errorf("key %q: header %v, lock held %v", key, head, h != nil)
	}
	if h == nil {
		return nil
	}
	c.heldSeen++
	if h.Home != r.addr || h.Slot != slot || h.Addr != p.Addr() || h.Key.Str != key {
		return fmt.Errorf("key %q: lock says leaf %#x slot %d, header at %#x", key, h.Home, h.Slot, h.Addr)
	}
	return nil
}

func (c *checker) totals() error {
	t := c.t
	rooms, rows := uint64(0), t.rows.Stats().Used
	for _, h := range t.held {
		if h.Room.Addr != 0 {
			rooms++
		}
	}
	switch {
	case !c.ended:
		return fmt.Errorf("the last leaf has a bound")
	case c.leaves != t.leaves.Load() || t.leafs.Stats().Used != c.leaves:
		return fmt.Errorf("%d leaves, counted %d, slab %d", c.leaves, t.leaves.Load(), t.leafs.Stats().Used)
	case t.fences.Stats().Used != c.apart:
		return fmt.Errorf("%d fence blocks, want %d", t.fences.Stats().Used, c.apart)
	case c.lowBytes != t.lowBytes.Load():
		return fmt.Errorf("%d bytes of low fences, counted %d", c.lowBytes, t.lowBytes.Load())
	case c.rows != t.live.Load():
		return fmt.Errorf("%d rows, counted %d", c.rows, t.live.Load())
	case c.heldSeen != len(t.held):
		return fmt.Errorf("%d locks seen of %d", c.heldSeen, len(t.held))
	case rows != c.rows+c.placeholders+rooms:
		return fmt.Errorf("%d row blocks for %d rows, %d placeholders and %d rooms", rows, c.rows, c.placeholders, rooms)
	}
	return t.checkNode(t.root.Load(), 0)
}

// checkNode verifies the low fences that inner nodes search by.
func (t *Tree) checkNode(nd *node, depth int) error {
	if n := nd.children(); n < 1 || n > fanout || len(nd.rest.Keys) != n-1 || depth > 64 {
		return fmt.Errorf("inner node of %d entries and %d keys", n, len(nd.rest.Keys))
	}
	for i, k := range nd.kids {
		if i > 0 && nd.rest.Keys[i-1] != k.low || i == 0 && nd.low != k.low {
			return fmt.Errorf("inner node begins at %q", k.low)
		}
		if err := t.checkNode(k, depth+1); err != nil {
			return err
		}
	}
	for i, r := range nd.refs {
		if i > 0 && nd.rest.Keys[i-1] != r.low || i == 0 && nd.low != r.low {
			return fmt.Errorf("leaf begins at %q", r.low)
		}
		if t.a.Span(r.addr, mem.LineBytes/mem.WordBytes).Load(versionWord) != r.version {
			return fmt.Errorf("leaf of %q is of another version", r.low)
		}
	}
	return nil
}
