package xtree

import (
	"fmt"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// Options configure a tree.
type Options struct {
	Layout Layout
	// Locks is the partition's table of shared locks; nil means none are ever held.
	Locks index.SharedLocks
	// Quarantine is how long a freed leaf takes no moved rows: proofs and
	// one-sided results must not be validated when they are older.
	Quarantine time.Duration
	// Clock tells when leaves were freed; nil means clock.Now.
	Clock clock.Source
	// Changed, if set, is told the range of keys, both ends included, whose
	// leaf is another one since a split or an unlink.
	Changed func(low, high uint64)
}

// Tree is the server half's storage. The zero value is not usable; see New.
// Mutators (Load, LockWrite, Publish, PublishDelete, Release, Tidy) are
// serialised by the caller; Get and Scan may run beside one of them.
type Tree struct {
	a       *block.Arena
	lay     Layout
	locks   index.SharedLocks
	changed func(low, high uint64)
	leafs   *block.Slab
	rows    *block.Slab // rows apart

	root  atomic.Pointer[node]
	first uint64 // the leftmost leaf, for ever
	held  map[uint64]*index.Held

	isLeaf  []uint64 // bitmap by ALN of the leaves alive: what a hint may name
	finger  uint64   // leaf of the latest change
	empty   []uint64 // leaves that ran empty, to be unlinked unless they fill again
	freed   freeList
	reserve uint64   // leaves that extents hold ready
	scratch []uint64 // one row

	innerNodes atomic.Uint64
	leaves     atomic.Uint64
	live       atomic.Uint64 // rows
	splits     atomic.Uint64
	unlinks    atomic.Uint64

	faults faults // planted by tests
	atStep func(step string)
}

// faults are bugs that tests plant to see that they are caught.
type faults struct {
	shrinkBeforeLink  bool // the left leaf gives up its range before the right one is complete
	staleCopyValid    bool // slots whose rows moved keep their headers
	gapNotBumpedReuse bool // an insert that reuses a slot leaves the gap word
	narrowVersions    bool // gap versions wrap after 8 bits
}

// New makes a tree of one empty leaf.
func New(a *block.Arena, o Options) (*Tree, error) {
	t := &Tree{
		a: a, lay: o.Layout, locks: o.Locks, changed: o.Changed,
		leafs:   a.NewSlab(int(o.Layout.LeafBytes())),
		held:    make(map[uint64]*index.Held),
		scratch: make([]uint64, o.Layout.RowWords),
	}
	t.freed.quarantine, t.freed.clock = o.Quarantine, o.Clock.Or(clock.Now)
	if t.locks == nil {
		t.locks = noLocks{}
	}
	if t.changed == nil {
		t.changed = func(uint64, uint64) {}
	}
	if !t.lay.Inline {
		t.rows = a.NewSlab(t.lay.RowBlockWords * mem.WordBytes)
	}
	addr, err := t.newLeaf(apart, 0)
	if err != nil {
		return nil, err
	}
	e := t.blank(addr)
	e.Set(metaWord, t.lay.packMeta(meta{last: true, newest: noNewest}))
	e.Set(highWord, ^uint64(0))
	t.commitLeaf(&e)
	root := newNode(0)
	root.put(0, 0, addr, nil)
	root.n.Store(1)
	t.innerNodes.Store(1)
	t.root.Store(root)
	t.first = addr
	return t, nil
}

// noLocks is the table of no shared locks.
type noLocks struct{}

func (noLocks) Empty() bool                            { return true }
func (noLocks) SharedByOther(uint64, index.Owner) bool { return false }
func (noLocks) Move(uint64, uint64)                    {}
func (noLocks) Copy(uint64, uint64)                    {}

// Layout is the geometry of leaves and rows.
func (t *Tree) Layout() Layout { return t.lay }

// First is the leftmost leaf, which never changes.
func (t *Tree) First() uint64 { return t.first }

// Leaves is the number of leaves.
func (t *Tree) Leaves() uint64 { return t.leaves.Load() }

// Stats fills in what the tree knows of an index's statistics.
func (t *Tree) Stats(s *index.ServerStats) {
	s.Rows = t.live.Load()
	s.Leaves = t.leaves.Load()
	s.InnerBytes = t.innerNodes.Load() * nodeBytes
	s.RowBytes = t.leafs.Stats().Bytes
	if t.rows != nil {
		s.RowBytes += t.rows.Stats().Bytes
	}
}

// Changes counts the splits and unlinks so far.
func (t *Tree) Changes() (splits, unlinks uint64) { return t.splits.Load(), t.unlinks.Load() }

func (t *Tree) span(leaf uint64) mem.Span { return t.a.Span(leaf, t.lay.LeafWords) }

// nextGap takes a gap version.
func (t *Tree) nextGap() uint64 { return t.narrowed(t.a.NextVersion()) }

// narrowed is v, unless a bug is planted.
func (t *Tree) narrowed(v uint64) uint64 {
	if t.faults.narrowVersions {
		v &= 0xff
	}
	return v
}

// commitLeaf publishes an edit of a leaf under a new version.
func (t *Tree) commitLeaf(e *block.Edit) { e.Commit(block.Header(t.a.NextVersion())) }

// newLeaf takes memory for a leaf, near those around key if it is to hold rows
// of theirs or follow one of them. Moved rows need memory that no proof still
// knows; see the package comment.
func (t *Tree) newLeaf(p place, key uint64) (uint64, error) {
	addr, ok := t.freed.take(p == forMoved)
	if !ok && p != apart {
		addr, ok = t.fromExtent(key)
	}
	if !ok {
		var err error
		if addr, err = t.leafs.Alloc(); err != nil {
			if addr, ok = t.fromAnyExtent(t.root.Load()); !ok {
				return 0, fmt.Errorf("%w: %v", index.ErrFull, err)
			}
		}
	}
	aln := t.lay.ALN(addr)
	for int(aln/64) >= len(t.isLeaf) {
		t.isLeaf = append(t.isLeaf, make([]uint64, max(16, len(t.isLeaf)/4, int(aln/64)+1-len(t.isLeaf)))...)
	}
	t.isLeaf[aln/64] |= 1 << (aln % 64)
	t.leaves.Add(1)
	return addr, nil
}

// blank begins a leaf with all slots free. Only Commit makes it readable.
func (t *Tree) blank(addr uint64) block.Edit {
	e := t.a.Create(addr, t.lay.LeafWords)
	e.Set(GapWord, t.nextGap())
	if t.lay.Inline {
		for i := range t.lay.Slots {
			e.Set(t.lay.headAt+i, uint64(Free))
		}
	}
	return e
}

// kill makes a leaf unreadable for ever, or until its memory is a new leaf.
func (t *Tree) kill(addr uint64) {
	s := t.span(addr)
	s.Store(block.HeaderWord, uint64(Free))
	s.Store(GapWord, uint64(Free)|t.a.NextVersion())
	aln := t.lay.ALN(addr)
	t.isLeaf[aln/64] &^= 1 << (aln % 64)
	if t.finger == addr {
		t.finger = 0
	}
	t.leaves.Add(^uint64(0))
	t.freed.put(addr)
}

// alive reports whether addr, which may be anything, is a leaf of this tree.
func (t *Tree) alive(addr uint64) bool {
	aln := addr / t.lay.LeafBytes()
	return addr%t.lay.LeafBytes() == 0 && aln/64 < uint64(len(t.isLeaf)) && t.isLeaf[aln/64]>>(aln%64)&1 != 0
}

// freeList holds freed leaves, oldest first.
type freeList struct {
	quarantine time.Duration
	clock      clock.Source
	leaf       []uint64
	at         []time.Duration // when each was freed
	head       int
}

func (f *freeList) put(addr uint64) {
	f.leaf, f.at = append(f.leaf, addr), append(f.at, f.clock())
}

func (f *freeList) len() int { return len(f.leaf) - f.head }

func (f *freeList) take(forMoved bool) (uint64, bool) {
	n := len(f.leaf)
	if f.head == n {
		return 0, false
	}
	if !forMoved {
		addr := f.leaf[n-1]
		f.leaf, f.at = f.leaf[:n-1], f.at[:n-1]
		return addr, true
	}
	if f.clock()-f.at[f.head] <= f.quarantine {
		return 0, false
	}
	addr := f.leaf[f.head]
	f.head++
	if f.head >= 64 && f.head*2 >= n {
		f.leaf, f.at = append(f.leaf[:0], f.leaf[f.head:]...), append(f.at[:0], f.at[f.head:]...)
		f.head = 0
	}
	return addr, true
}
