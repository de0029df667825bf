package stree

import (
	"fmt"
	"sync/atomic"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Options configure a tree.
type Options struct {
	Layout Layout
	// Locks is the partition's table of shared locks; nil means none are ever held.
	Locks index.SharedLocks
	// Changed, if set, is told the range of keys, high excluded unless it is
	// "", whose leaf is another one since a split or an unlink.
	Changed func(low, high string)
}

// Tree is the server half's storage. The zero value is not usable; see New.
// Mutators (Load, LockWrite, Reserve, Publish, PublishDelete, Release, Tidy)
// are serialised by the caller; Get, Scan and Digests may run beside one of them.
type Tree struct {
	a       *block.Arena
	lay     Layout
	locks   index.SharedLocks
	changed func(low, high string)
	leafs   *block.Slab
	fences  *block.Sized
	rows    *block.Varied

	root  atomic.Pointer[node]
	first uint64 // the leftmost leaf, for ever
	held  map[string]*index.Held

	refs   []*ref // by ALN; nil where no leaf is alive
	finger *ref   // leaf of the latest change
	empty  []*ref // leaves that ran empty, to be unlinked unless they fill again
	guess  int    // words of the row published last: what a placeholder makes room for
	words  []uint64
	keys   []byte
	sorted []slotKey

	leaves   atomic.Uint64
	live     atomic.Uint64 // rows
	lowBytes atomic.Uint64 // of all low fences
	moves    atomic.Uint64 // rows that moved to another block

	faults faults // planted by tests
	atStep func(step string)
}

// faults are bugs that tests plant to see that they are caught.
type faults struct {
	shrinkBeforeLink bool // the left leaf gives up its range before the right one is complete
	keepGapWord      bool // an insert leaves the gap word
	swapFirst        bool // the slot points to a row's new block before that is complete
	oldBlockValid    bool // the block that a row has left keeps its header
	firstTie         bool // the first slot with the digest is taken for the key's
}

// New makes a tree of one empty leaf.
func New(a *block.Arena, o Options) (*Tree, error) {
	t := &Tree{
		a: a, lay: o.Layout, locks: o.Locks, changed: o.Changed,
		leafs: a.NewSlab(int(o.Layout.LeafBytes())), fences: a.NewSized(),
		held: make(map[string]*index.Held),
	}
	if t.locks == nil {
		t.locks = noLocks{}
	}
	if t.changed == nil {
		t.changed = func(string, string) {}
	}
	t.rows = a.NewVaried(rowKeyWord + index.MaxKeyBytes/mem.WordBytes + t.lay.MaxRowWords)
	r := newRef(0, "", "", true)
	if err := t.newLeaf(r); err != nil {
		return nil, err
	}
	e := t.blank(r, 0)
	e.Set(metaWord, t.lay.packMeta(meta{last: true, newest: noNewest}))
	t.commitLeaf(&e)
	t.root.Store(newBottom([]*ref{r}))
	t.first = r.addr
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

// Moves is how many rows have moved to a block of another size.
func (t *Tree) Moves() uint64 { return t.moves.Load() }

// Stats fills in what the tree knows of an index's statistics.
func (t *Tree) Stats(s *index.ServerStats) {
	s.Rows = t.live.Load()
	s.Leaves = t.leaves.Load()
	s.InnerBytes = s.Leaves*refBytes + t.lowBytes.Load()
	s.RowBytes = t.leafs.Stats().Bytes + t.fences.Stats().Bytes + t.rows.Stats().Bytes
}

func (t *Tree) span(leaf uint64) mem.Span { return t.a.Span(leaf, t.lay.LeafWords) }

// commitLeaf publishes an edit of a leaf under a new version.
func (t *Tree) commitLeaf(e *block.Edit) { e.Commit(block.Header(t.a.NextVersion())) }

// newLeaf takes memory for a leaf, and for its fences if they are long.
func (t *Tree) newLeaf(r *ref) error {
	fence, err := t.newFences(r)
	if err != nil {
		return err
	}
	if r.addr, err = t.leafs.Alloc(); err != nil {
		t.freeFences(fence)
		return fmt.Errorf("%w: %v", index.ErrFull, err)
	}
	r.fence = fence
	t.know(r)
	t.leaves.Add(1)
	t.lowBytes.Add(uint64(len(r.low)))
	return nil
}

// know enters what is known of a leaf now.
func (t *Tree) know(r *ref) {
	aln := int(t.lay.ALN(r.addr))
	if aln >= len(t.refs) {
		t.refs = append(t.refs, make([]*ref, aln+1+len(t.refs)/4-len(t.refs)+16)...)
	}
	t.refs[aln] = r
}

// refOf is the leaf at addr, which may be anything; nil if there is none.
func (t *Tree) refOf(addr uint64) *ref {
	aln := addr / t.lay.LeafBytes()
	if addr%t.lay.LeafBytes() != 0 || aln >= uint64(len(t.refs)) {
		return nil
	}
	return t.refs[aln]
}

// shape is how a ref's fences are laid out.
func (r *ref) shape() shape {
	s := shape{prefix: r.prefix, low: len(r.low), high: len(r.high)}
	s.apart = s.bytes() > InlineFenceBytes
	return s
}

// newFences allocates a fence block for a leaf, if it needs one; 0 if not.
func (t *Tree) newFences(r *ref) (uint64, error) {
	s := r.shape()
	if !s.apart {
		return 0, nil
	}
	words := wholeLines(fencesAtWord + (s.bytes()+7)/8)
	addr, err := t.fences.Alloc(words * mem.WordBytes)
	if err != nil {
		return 0, fmt.Errorf("%w: %v", index.ErrFull, err)
	}
	return fencePointer(addr, words), nil
}

func (t *Tree) freeFences(p uint64) {
	if addr, words := fenceBlock(p); p != 0 {
		t.fences.Free(addr, words*mem.WordBytes)
	}
}

// setFences enters new fences, and a new version of them, in an edit of the
// leaf. A fence block is complete before the leaf names it.
func (t *Tree) setFences(e *block.Edit, r *ref) {
	r.version = t.a.NextVersion()
	s := r.shape()
	t.keys = append(append(t.keys[:0], r.low...), r.high[r.prefix:]...)
	t.words = mem.AppendString(t.words[:0], mem.String(t.keys))
	e.Set(GapWord, t.a.NextVersion())
	e.Set(versionWord, r.version)
	e.Set(shapeWord, s.pack())
	if !s.apart {
		e.Write(fenceWord, t.words)
		return
	}
	addr, words := fenceBlock(r.fence)
	f := t.a.Create(addr, words)
	f.Set(idWord, tagWord(fenceMagic, t.lay.ID))
	f.Set(ownerWord, r.addr)
	f.Write(fencesAtWord, t.words)
	f.Commit(block.Header(r.version))
	e.Set(fenceWord, r.fence)
}

// blank begins a leaf with all slots free. Only Commit makes it readable.
func (t *Tree) blank(r *ref, right uint64) block.Edit {
	e := t.a.Create(r.addr, t.lay.LeafWords)
	e.Set(rightWord, right)
	t.setFences(&e, r)
	return e
}

// kill makes a leaf unreadable until its memory is a new leaf.
func (t *Tree) kill(r *ref) {
	s := t.span(r.addr)
	s.Store(block.HeaderWord, uint64(Free))
	s.Store(GapWord, uint64(Free)|t.a.NextVersion())
	t.refs[t.lay.ALN(r.addr)] = nil
	if t.finger == r {
		t.finger = nil
	}
	t.leaves.Add(^uint64(0))
	t.lowBytes.Add(^uint64(len(r.low)) + 1)
	t.leafs.Free(r.addr)
	t.freeFences(r.fence)
}

// newRow makes a row block with room for words of payload, of which row is the
// beginning, and returns what points to it.
func (t *Tree) newRow(key string, words int, head block.Header, row []uint64) (Pointer, error) {
	c := block.ClassFor(rowBlockWords(key, words))
	addr, err := t.rows.Alloc(c)
	if err != nil {
		return 0, fmt.Errorf("%w: %v", index.ErrFull, err)
	}
	p := newPointer(Tag(key), c, addr)
	t.fillRow(p, key, head, row)
	return p, nil
}

func (t *Tree) fillRow(p Pointer, key string, head block.Header, row []uint64) {
	e := t.a.Create(p.Addr(), p.Words())
	e.Set(idWord, tagWord(rowMagic, t.lay.ID))
	e.Set(rowSizeWord, uint64(len(key))<<32|uint64(len(row)))
	t.words = mem.AppendString(t.words[:0], key)
	e.Write(rowKeyWord, t.words)
	e.Write(rowKeyWord+len(t.words), row)
	e.Commit(head)
}

func (t *Tree) freeRow(p Pointer) { t.rows.Free(p.Addr(), p.class()) }

// rowKey appends the key of a row to a buffer.
func (t *Tree) rowKey(p Pointer, dst []byte) []byte {
	s := t.a.Span(p.Addr(), p.Words())
	n := int(s.Load(rowSizeWord) >> 32)
	t.words = append(t.words[:0], make([]uint64, (n+mem.WordBytes-1)/mem.WordBytes)...)
	s.Slice(rowKeyWord, len(t.words)).CopyOut(t.words)
	return append(dst, mem.Bytes(t.words)[:n]...)
}
