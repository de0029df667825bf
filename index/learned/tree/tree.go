package tree

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/invariants"
	"drtmx/internal/mem"
)

// The layout has room for every key that an index may have, and no more.
const (
	_ = uint(leaf.MaxKeyBytes - index.MaxKeyBytes)
	_ = uint(index.MaxKeyBytes - leaf.MaxKeyBytes)
)

// Options configure a tree.
type Options struct {
	Layout leaf.Layout
	// Locks is the partition's table of shared locks; nil means none are ever held.
	Locks index.SharedLocks
	// Quarantine is how long a freed leaf takes no rows moved from other leaves, if
	// rows are inline. It must be longer than index.MaxProofAge.
	Quarantine time.Duration
	// Clock is read when leaves are freed and reused; nil means clock.Now.
	Clock clock.Source
	// LoadSlots is how many slots of a leaf Load and Restore fill with ascending keys, so
	// that a later key finds room between them; 0 means all.
	LoadSlots int
	// Mirror publishes copies of the inner nodes. Keys must be native.
	Mirror bool
	// Changed, if set, is called after a split, a merge or an unlink with the range
	// of keys that are in another leaf now: from low up to but not including high, or
	// to the end if it is not bounded. If a split made that leaf, leaf is its
	// address, and rising says that it began empty, for ascending keys; else leaf is
	// 0. The keys are valid during the call.
	Changed func(low, high index.Key, bounded bool, leaf uint64, rising bool)
}

// Tree is the server half's storage. The zero value is not usable; see New. Mutators
// (Load, LockWrite, Reserve, Publish, PublishDelete, Release, Tidy) are serialised by
// the caller; Lookup, Scan and Keys may run concurrently with one of them.
type Tree struct {
	a        *block.Arena
	lay      leaf.Layout
	versions block.VersionWords
	keys     keys // hides the kind of keys
	rows     rows // hides where rows are
	locks    index.SharedLocks
	changed  func(low, high index.Key, bounded bool, leaf uint64, rising bool)
	leafSlab *block.Slab
	near     int // words of a leaf that are prefetched
	// loadSlots is Options.LoadSlots, or all slots.
	loadSlots int
	// tail is the low fence of the last leaf, or of an earlier last leaf; for native
	// keys.
	tail atomic.Uint64

	root   atomic.Pointer[node]
	mirror *mirror // nil if inner nodes are not published
	first  uint64  // the leftmost leaf, for ever
	held   heldTable
	helds  index.Helds

	isLeaf  []uint64 // bitmap by ALN of the live leaves, against which hints are checked
	finger  uint64   // leaf of the latest change
	rising  rising   // state of Restore
	untidy  untidy   // leaves that may be unlinked or merged
	freed   freeList
	reserve uint64    // leaves that extents hold ready
	sorted  []slotKey // scratch
	order   order     // scratch
	cursors sync.Pool // of scans
	yard    graveyard
	// Scratch.
	gathered []*graveBlock
	visited  []uint64

	innerNodes atomic.Uint64
	leaves     atomic.Uint64
	live       atomic.Uint64 // rows
	splits     atomic.Uint64
	unlinks    atomic.Uint64
	merges     atomic.Uint64

	atStep func(step string) // for tests, which read between two steps
}

// New makes a tree of one empty leaf.
func New(a *block.Arena, o Options) (*Tree, error) {
	t := &Tree{
		a: a, lay: o.Layout, versions: versionsOf(o.Layout.Kind), locks: o.Locks, changed: o.Changed,
		leafSlab: a.NewSlab(int(o.Layout.LeafBytes())), held: newHeldTable(),
	}
	t.near = nearWords(&t.lay)
	t.loadSlots = o.LoadSlots
	if t.loadSlots == 0 {
		t.loadSlots = t.lay.Slots
	}
	t.tail.Store(^uint64(0))
	t.yard.byLeaf = map[uint64]*graves{}
	t.cursors.New = func() any { return new(cursor) }
	t.freed.clock = o.Clock.Or(clock.Now)
	if t.locks == nil {
		t.locks = noLocks{}
	}
	if t.changed == nil {
		t.changed = func(index.Key, index.Key, bool, uint64, bool) {}
	}
	switch t.lay.Kind {
	case leaf.Inline:
		t.freed.quarantine = o.Quarantine
		t.keys, t.rows = &nativeKeys{t: t}, newInlineRows(t)
	case leaf.Apart:
		t.keys, t.rows = &nativeKeys{t: t}, newApartRows(t)
	case leaf.Strings:
		t.keys, t.rows = newStringKeys(t), newVariedRows(t)
	}
	f := &fences{last: true}
	if err := t.newLeaf(apart, f); err != nil {
		return nil, err
	}
	e := t.blank(f)
	e.Set(leaf.MetaWord, t.lay.Pack(leaf.Meta{Last: true, Newest: leaf.NoNewest}))
	t.commitLeaf(&e)
	root := newNode(0, t.lay.Kind == leaf.Strings)
	root.put(0, entry{f: f, leaf: f.addr})
	root.n.Store(1)
	t.innerNodes.Store(1)
	t.root.Store(root)
	t.first = f.addr
	if o.Mirror && t.lay.Kind != leaf.Strings {
		var err error
		if t.mirror, err = newMirror(t); err != nil {
			return nil, fmt.Errorf("%w: %v", index.ErrFull, err)
		}
		t.mirror.flush()
	}
	return t, nil
}

// noLocks is the table of no shared locks.
type noLocks struct{}

func (noLocks) Empty() bool                            { return true }
func (noLocks) SharedByOther(uint64, index.Owner) bool { return false }
func (noLocks) Move(uint64, uint64)                    {}
func (noLocks) Copy(uint64, uint64)                    {}

// Layout is the geometry of leaves and rows.
func (t *Tree) Layout() leaf.Layout { return t.lay }

// First is the leftmost leaf, which never changes.
func (t *Tree) First() uint64 { return t.first }

// Inner is the address of the published copy of the root, which never changes; 0 if
// inner nodes are not published.
func (t *Tree) Inner() uint64 {
	if t.mirror == nil {
		return 0
	}
	return t.mirror.at
}

// Leaves is the number of leaves.
func (t *Tree) Leaves() uint64 { return t.leaves.Load() }

// Stats fills in what the tree knows of an index's statistics.
func (t *Tree) Stats(s *index.ServerStats) {
	s.Rows = t.live.Load()
	s.Tombstones = t.yard.total.load()
	s.Leaves = t.leaves.Load()
	s.InnerBytes = t.innerNodes.Load()*nodeBytes + t.keys.innerBytes() + t.mirror.bytes()
	s.RowBytes = t.leafSlab.Stats().Bytes + t.keys.bytes() + t.rows.bytes()
	s.Splits, s.Merges, s.Unlinks = t.splits.Load(), t.merges.Load(), t.unlinks.Load()
	if v, ok := t.rows.(*variedRows); ok {
		s.Moves = v.moves.Load()
	}
}

func (t *Tree) span(leaf uint64) mem.Span { return t.a.Span(leaf, t.lay.LeafWords) }

func (t *Tree) step(name string) {
	if t.atStep != nil {
		t.atStep(name)
	}
}

// commitLeaf publishes an edit of a leaf under a new version.
func (t *Tree) commitLeaf(e *block.Edit) { e.Commit(block.Header(t.a.NextVersion())) }

// newLeaf allocates a leaf, and a fence block if its fences need one, and sets
// f.addr. The place says whether the leaf should lie near its neighbours. Moved rows
// need memory to which no proof still refers; see the package comment. The error is
// index.ErrFull; then nothing has changed.
func (t *Tree) newLeaf(p place, f *fences) error {
	if err := t.keys.reserve(f); err != nil {
		return err
	}
	addr, ok := t.freed.take(p == forMoved)
	if !ok && p != apart {
		addr, ok = t.fromExtent(f.low)
	}
	if !ok {
		var err error
		if addr, err = t.leafSlab.Alloc(); err != nil {
			if addr, ok = t.fromAnyExtent(t.root.Load()); !ok {
				t.keys.drop(f)
				return fmt.Errorf("%w: %v", index.ErrFull, err)
			}
		}
	}
	f.addr = addr
	aln := t.lay.ALN(addr)
	for int(aln/64) >= len(t.isLeaf) {
		t.isLeaf = append(t.isLeaf, make([]uint64, max(16, len(t.isLeaf)/4, int(aln/64)+1-len(t.isLeaf)))...)
	}
	t.isLeaf[aln/64] |= 1 << (aln % 64)
	t.leaves.Add(1)
	t.keys.enter(f)
	return nil
}

// blank begins a leaf with all slots free, or to be filled from the first one on in
// the order of their keys. Only Commit makes it readable.
func (t *Tree) blank(f *fences) block.Edit {
	e := t.a.Create(f.addr, t.lay.LeafWords)
	t.setFences(&e, f)
	if t.lay.FreeHead != 0 {
		for i := range t.lay.Slots {
			e.Set(t.lay.HeadsAt+i, t.lay.FreeHead)
		}
	}
	t.blankOrder(&e)
	return e
}

// setFences writes the fences and a new gap version to an edit of the leaf.
func (t *Tree) setFences(e *block.Edit, f *fences) {
	if invariants.Enabled && !f.last && f.low.Compare(f.high) >= 0 {
		invariants.Failf("tree: leaf %#x gets fences %v to %v", f.addr, f.low, f.high)
	}
	e.Set(leaf.GapWord, t.a.NextVersion())
	*e = t.keys.setFences(*e, f)
}

// kill makes a leaf unreadable and frees it. Its right link then points to the leaf
// that has its keys now, for readers with an old address: see leaf.Forward.
func (t *Tree) kill(f *fences, to uint64) {
	if invariants.Enabled && (!t.alive(f.addr) || f.addr == t.first) {
		invariants.Failf("tree: leaf %#x dies, and is dead already or the first", f.addr)
	}
	s := t.span(f.addr)
	s.Store(block.HeaderWord, uint64(leaf.Free))
	s.Store(leaf.RightWord, to)
	s.Store(leaf.GapWord, uint64(leaf.Free)|t.a.NextVersion())
	if t.lay.Kind == leaf.Inline { // the rows have moved: their old headers must not validate a proof
		for i := range t.lay.Slots {
			s.Store(t.lay.HeadsAt+i, t.lay.FreeHead)
		}
	}
	aln := t.lay.ALN(f.addr)
	t.isLeaf[aln/64] &^= 1 << (aln % 64)
	if t.finger == f.addr {
		t.finger = 0
	}
	t.rising.leaf = 0
	t.leaves.Add(^uint64(0))
	t.freed.put(f.addr)
	t.keys.forget(f)
}

// alive reports whether addr, which may be any number, is a live leaf of this tree.
func (t *Tree) alive(addr uint64) bool {
	aln := addr / t.lay.LeafBytes()
	return addr%t.lay.LeafBytes() == 0 && aln/64 < uint64(len(t.isLeaf)) && t.isLeaf[aln/64]>>(aln%64)&1 != 0
}

// freeList holds freed leaves, oldest first.
type freeList struct {
	quarantine time.Duration // 0 if moved rows may use any freed leaf
	clock      clock.Source
	leaf       []uint64
	at         []time.Duration // when each was freed, if there is a quarantine
	head       int
}

func (f *freeList) put(addr uint64) {
	at := time.Duration(0)
	if f.quarantine > 0 {
		at = f.clock()
	}
	f.leaf, f.at = append(f.leaf, addr), append(f.at, at)
}

func (f *freeList) len() int { return len(f.leaf) - f.head }

func (f *freeList) take(forMoved bool) (uint64, bool) {
	n := len(f.leaf)
	if f.head == n {
		return 0, false
	}
	if !forMoved || f.quarantine == 0 {
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

// heldTable holds the write locks held, by key.
type heldTable struct {
	num map[uint64]*index.Held
	str map[string]*index.Held
}

func newHeldTable() heldTable {
	return heldTable{map[uint64]*index.Held{}, map[string]*index.Held{}}
}

func (h *heldTable) len() int { return len(h.num) + len(h.str) }

func (h *heldTable) get(k index.Key) *index.Held {
	if k.Str != "" {
		return h.str[k.Str]
	}
	if len(h.num) == 0 {
		return nil
	}
	return h.num[k.Num]
}

func (h *heldTable) put(held *index.Held) {
	if k := held.Key; k.Str != "" {
		h.str[k.Str] = held
	} else {
		h.num[k.Num] = held
	}
}

// end removes a lock from the table. It panics if the lock is not in it: it has been
// released already.
func (h *heldTable) end(held *index.Held) {
	if h.get(held.Key) != held {
		panic(fmt.Sprintf("tree: lock on key %v is not held", held.Key))
	}
	if k := held.Key; k.Str != "" {
		delete(h.str, k.Str)
	} else {
		delete(h.num, k.Num)
	}
}
