package tree

import (
	"errors"
	"fmt"
	"sync/atomic"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// rows hides where the rows of a tree are. Only the mutator calls its methods. An
// edit is passed by value and returned, which keeps it off the heap.
type rows interface {
	// header returns the address of the header of the row in a slot.
	header(addr uint64, s mem.Span, slot int) uint64
	// lock locks the row in a slot, in an edit of its leaf, and returns the header that it had.
	lock(e block.Edit, slot int) (block.Edit, block.Header)
	// unlock restores the header that the row had before it was locked.
	unlock(h *index.Held)
	// guess returns the payload size, in words, for which a placeholder reserves
	// room.
	guess() int
	// newRow allocates a block for a new row with a payload of so many words and
	// returns its head; drop frees it. Inline rows need none: then the head is 0.
	newRow(key index.Key, words int, h block.Header, row []uint64) (head uint64, err error)
	drop(head uint64)
	// enter puts a new row into a slot, in an edit of the leaf, and returns the address of its header.
	enter(e block.Edit, addr uint64, slot int, head uint64, h block.Header, row []uint64) (block.Edit, uint64)
	// carry copies the leaf's part of a row to a slot of another leaf.
	carry(e block.Edit, to int, s mem.Span, from int) block.Edit
	// reserve and publish implement the methods of index.Server; unreserve frees what
	// reserve allocated.
	reserve(h *index.Held, words int) error
	unreserve(h *index.Held)
	publish(h *index.Held, row []uint64, head block.Header)
	// last returns the version that a deletion under head leaves of a row, 0 if
	// readers of the past need none. It is not a patch, because no row remains to
	// apply it to.
	last(h *index.Held, head block.Header) block.Older
	// place returns the block of a head, 0 if rows are inline.
	place(head uint64) block.Older
	// size returns index.ErrRowSize for a size that the index does not support.
	size(words int) error
	bytes() uint64
	// visit reads the row in a slot of a leaf. Its key and payload are valid until
	// the next call.
	visit(s mem.Span, sk slotKey) index.Entry
	check(c *checker, key index.Key, v *leaf.Leaf, slot int) (block.Header, error)
	used() uint64 // blocks
}

func errorf(format string, args ...any) error { return fmt.Errorf(format, args...) }

// full turns block.ErrFull into index.ErrFull.
func full(err error) error {
	if errors.Is(err, block.ErrFull) {
		return fmt.Errorf("%w: %w", index.ErrFull, err)
	}
	return err
}

type uint64Counter struct{ n atomic.Uint64 }

func (c *uint64Counter) add(d int)    { c.n.Add(uint64(d)) }
func (c *uint64Counter) load() uint64 { return c.n.Load() }

// oneSize implements the methods of rows that concern sizes, for rows of one size.
type oneSize struct{ words int }

func (o oneSize) guess() int { return o.words }

func (o oneSize) size(words int) error {
	if words != o.words {
		return fmt.Errorf("%w: %d words, want %d", index.ErrRowSize, words, o.words)
	}
	return nil
}

func (o oneSize) reserve(_ *index.Held, words int) error { return o.size(words) }
func (o oneSize) unreserve(*index.Held)                  {}

// inlineRows implements rows for rows that are in the leaf.
type inlineRows struct {
	oneSize
	t       *Tree
	scratch []uint64 // one row
	body    []uint64 // scratch for one version
}

func newInlineRows(t *Tree) *inlineRows {
	return &inlineRows{
		oneSize{t.lay.RowWords},
		t, make([]uint64, t.lay.RowWords),
		make([]uint64, t.lay.RowBlockWords-block.BodyWord),
	}
}

func (r *inlineRows) header(addr uint64, _ mem.Span, slot int) uint64 {
	return r.t.lay.HeadAddr(addr, slot)
}

func (r *inlineRows) lock(e block.Edit, slot int) (block.Edit, block.Header) {
	h := block.Header(e.Load(r.t.lay.HeadsAt + slot))
	e.Set(r.t.lay.HeadsAt+slot, uint64(h.Lock()))
	if r.t.a.History().Keeps() {
		e.Prefetch(r.t.lay.OldersAt+slot, 1)
	}
	e.Prefetch(r.payload(slot), r.words) // the commit is going to change it
	return e, h
}

func (r *inlineRows) unlock(h *index.Held) {
	e := r.t.a.Begin(h.Home, r.t.lay.LeafWords)
	e.Set(r.t.lay.HeadsAt+h.Slot, uint64(h.Prev))
	r.t.commitLeaf(&e)
}

func (r *inlineRows) newRow(index.Key, int, block.Header, []uint64) (uint64, error) { return 0, nil }
func (r *inlineRows) drop(uint64)                                                   {}
func (r *inlineRows) bytes() uint64                                                 { return 0 }
func (r *inlineRows) used() uint64                                                  { return 0 }

func (r *inlineRows) enter(e block.Edit, addr uint64, slot int, _ uint64, h block.Header, row []uint64) (block.Edit, uint64) {
	e.Set(r.t.lay.HeadsAt+slot, uint64(h))
	e.Set(r.t.lay.OldersAt+slot, 0)
	if row != nil {
		e.Write(r.payload(slot), row)
	}
	return e, r.t.lay.HeadAddr(addr, slot)
}

func (r *inlineRows) payload(slot int) int { return r.t.lay.RowsAt + slot*r.words }

func (r *inlineRows) carry(e block.Edit, to int, s mem.Span, from int) block.Edit {
	e.Set(r.t.lay.HeadsAt+to, s.Load(r.t.lay.HeadsAt+from))
	e.Set(r.t.lay.OldersAt+to, s.Load(r.t.lay.OldersAt+from))
	s.Slice(r.payload(from), r.words).CopyOut(r.scratch)
	e.Write(r.payload(to), r.scratch)
	return e
}

func (r *inlineRows) publish(h *index.Held, row []uint64, head block.Header) {
	t, s := r.t, r.t.span(h.Home)
	c := block.Change{Words: len(row)}
	c.Lo, c.Hi = s.Slice(r.payload(h.Slot), r.words).Differ(row)
	older := block.Older(s.Load(t.lay.OldersAt + h.Slot))
	keeps, whole := t.versions.Leaves(older, t.overwrites(h, head), c)
	if keeps {
		older = r.version(h, c, whole, head.CSN().Tick())
	}
	e := t.a.Begin(h.Home, t.lay.LeafWords)
	if keeps {
		e.Set(t.lay.OldersAt+h.Slot, uint64(older))
	}
	e.Write(r.payload(h.Slot)+c.Lo, row[c.Lo:c.Hi])
	e.Set(t.lay.HeadsAt+h.Slot, uint64(head))
	t.commitLeaf(&e)
}

// version copies a locked row, as it is before a commit at the tick, into a new
// version and returns that. The version may be a patch unless it must be whole. It is
// 0 if there is no memory.
func (r *inlineRows) version(h *index.Held, c block.Change, whole bool, tick clock.Tick) block.Older {
	t := r.t
	o := t.a.History().ReserveVersion(t.versions, t.lay.RowBlockWords, c, whole, tick)
	if o == 0 {
		return 0
	}
	first, n := 0, r.words
	b := r.body
	if o.IsPatch() {
		first, n = o.Extent(t.versions.PatchWord)
		b = b[:o.Words()-block.BodyWord]
	}
	s := t.span(h.Home)
	b[leaf.RowKeyWord-block.BodyWord], b[leaf.RowIDWord-block.BodyWord] = h.Key.Num, t.lay.IDTag()
	b[leaf.RowOlderWord-block.BodyWord] = s.Load(t.lay.OldersAt + h.Slot)
	s.Slice(r.payload(h.Slot)+first, n).CopyOut(b[leaf.RowWord-block.BodyWord:][:n])
	e := t.a.CreateOf(o.Addr(), b)
	e.Commit(h.Prev.Lock())
	t.step("copied")
	t.a.History().Retain(o, tick)
	return o
}

func (r *inlineRows) check(_ *checker, _ index.Key, v *leaf.Leaf, slot int) (block.Header, error) {
	return block.Header(v.Head(slot)), nil
}

func (r *inlineRows) last(h *index.Held, head block.Header) block.Older {
	older := block.Older(r.t.span(h.Home).Load(r.t.lay.OldersAt + h.Slot))
	if older.IsPatch() || r.t.overwrites(h, head) {
		return r.version(h, block.Change{}, true, head.CSN().Tick())
	}
	return older
}

func (r *inlineRows) place(uint64) block.Older { return 0 }

// lockBlock locks a row that has its own block and returns the header that it had.
func lockBlock(a *block.Arena, addr uint64) block.Header {
	s := a.Span(addr, 1)
	h := block.Header(s.Load(block.HeaderWord))
	s.Store(block.HeaderWord, uint64(h.Lock()))
	return h
}

// apartRows implements rows for rows in blocks of one size.
type apartRows struct {
	oneSize
	t      *Tree
	blocks *block.Rows
}

func newApartRows(t *Tree) *apartRows {
	return &apartRows{oneSize{t.lay.RowWords}, t, t.a.NewRows(t.lay.RowBlockWords * mem.WordBytes)}
}

func (r *apartRows) header(_ uint64, s mem.Span, slot int) uint64 {
	return s.Load(r.t.lay.HeadsAt + slot)
}

func (r *apartRows) lock(e block.Edit, slot int) (block.Edit, block.Header) {
	addr := e.Load(r.t.lay.HeadsAt + slot)
	r.t.a.Span(addr, r.t.lay.RowBlockWords).Prefetch() // the commit is going to change it
	return e, lockBlock(r.t.a, addr)
}

func (r *apartRows) unlock(h *index.Held) {
	r.t.a.Span(h.Addr, 1).Store(block.HeaderWord, uint64(h.Prev))
}

func (r *apartRows) newRow(key index.Key, _ int, h block.Header, row []uint64) (uint64, error) {
	addr, err := r.blocks.Alloc()
	if err != nil {
		return 0, full(err)
	}
	e := r.t.a.Create(addr, r.t.lay.RowBlockWords)
	e.Set(leaf.RowKeyWord, key.Num)
	e.Set(leaf.RowIDWord, r.t.lay.IDTag())
	if row != nil {
		e.Write(leaf.RowWord, row)
	}
	e.Commit(h)
	return addr, nil
}

func (r *apartRows) drop(head uint64) { r.blocks.Free(head) }
func (r *apartRows) bytes() uint64    { return r.blocks.Stats().Bytes }
func (r *apartRows) used() uint64     { return r.blocks.Stats().Used }

func (r *apartRows) enter(e block.Edit, _ uint64, slot int, head uint64, _ block.Header, _ []uint64) (block.Edit, uint64) {
	e.Set(r.t.lay.HeadsAt+slot, head)
	return e, head
}

func (r *apartRows) carry(e block.Edit, to int, s mem.Span, from int) block.Edit {
	e.Set(r.t.lay.HeadsAt+to, s.Load(r.t.lay.HeadsAt+from))
	return e
}

func (r *apartRows) publish(h *index.Held, row []uint64, head block.Header) {
	e := r.t.a.Begin(h.Addr, r.t.lay.RowBlockWords)
	c := block.Change{Words: len(row)}
	c.Lo, c.Hi = e.Differ(leaf.RowWord, row)
	r.t.keepVersion(&e, h, leaf.RowWord, c, head)
	e.Write(leaf.RowWord+c.Lo, row[c.Lo:c.Hi])
	e.Commit(head)
}

func (r *apartRows) last(h *index.Held, head block.Header) block.Older {
	older := r.t.olderOf(h.Addr)
	if older.IsPatch() || r.t.overwrites(h, head) {
		return r.place(h.Addr)
	}
	return older
}

func (r *apartRows) place(head uint64) block.Older {
	return block.NewOlder(head, block.ClassFor(r.t.lay.RowBlockWords))
}

func (r *apartRows) check(c *checker, key index.Key, v *leaf.Leaf, slot int) (block.Header, error) {
	b, err := c.block(v.Head(slot), r.t.lay.RowBlockWords)
	if err != nil {
		return 0, err
	}
	if !r.t.lay.RowIs(b, key.Num) {
		return 0, errorf("slot %d: block %#x is not key %#x's row", slot, v.Head(slot), key.Num)
	}
	return block.Header(b[0]), nil
}

// variedRows implements rows for rows of string keys and any size, in blocks of size
// classes.
type variedRows struct {
	t      *Tree
	blocks *block.Varied
	latest int // words of the row published last
	words  []uint64
	moves  atomic.Uint64 // rows that moved to another block
}

func newVariedRows(t *Tree) *variedRows {
	return &variedRows{t: t, blocks: t.a.NewVaried(leaf.StrBlockWordsMax(t.lay.RowWords))}
}

func (r *variedRows) header(_ uint64, s mem.Span, slot int) uint64 {
	return leaf.Pointer(s.Load(r.t.lay.HeadsAt + slot)).Addr()
}

func (r *variedRows) lock(e block.Edit, slot int) (block.Edit, block.Header) {
	return e, lockBlock(r.t.a, leaf.Pointer(e.Load(r.t.lay.HeadsAt+slot)).Addr())
}

func (r *variedRows) unlock(h *index.Held) {
	r.t.a.Span(h.Addr, 1).Store(block.HeaderWord, uint64(h.Prev))
}

func (r *variedRows) guess() int { return r.latest }

func (r *variedRows) size(words int) error {
	if words < 0 || words > r.t.lay.RowWords {
		return fmt.Errorf("%w: %d words, at most %d", index.ErrRowSize, words, r.t.lay.RowWords)
	}
	return nil
}

// newRow allocates a block with room for a payload of so many words, of which row is
// the beginning.
func (r *variedRows) newRow(key index.Key, words int, h block.Header, row []uint64) (uint64, error) {
	addr, c, err := r.blocks.AllocNear(block.ClassFor(leaf.StrBlockWords(key.Str, words)))
	if err != nil {
		return 0, full(err)
	}
	p := leaf.NewPointer(leaf.Tag(key.Str), c, addr)
	r.fill(p, key.Str, h, row, 0)
	return uint64(p), nil
}

func (r *variedRows) fill(p leaf.Pointer, key string, h block.Header, row []uint64, older block.Older) {
	e := r.t.a.Create(p.Addr(), p.Words())
	e.Set(leaf.IDWord, r.t.lay.StrTag())
	e.Set(leaf.StrSizeWord, uint64(len(key))<<32|uint64(len(row)))
	e.Set(leaf.StrOlderWord, uint64(older))
	r.words = mem.AppendString(r.words[:0], key)
	e.Write(leaf.StrKeyWord, r.words)
	e.Write(leaf.StrKeyWord+len(r.words), row)
	e.Commit(h)
}

func (r *variedRows) drop(head uint64) {
	p := leaf.Pointer(head)
	r.blocks.Free(p.Addr(), p.Class())
}

func (r *variedRows) bytes() uint64 { return r.blocks.Stats().Bytes }
func (r *variedRows) used() uint64  { return r.blocks.Stats().Used }

func (r *variedRows) enter(e block.Edit, _ uint64, slot int, head uint64, _ block.Header, _ []uint64) (block.Edit, uint64) {
	e.Set(r.t.lay.HeadsAt+slot, head)
	return e, leaf.Pointer(head).Addr()
}

func (r *variedRows) carry(e block.Edit, to int, s mem.Span, from int) block.Edit {
	e.Set(r.t.lay.HeadsAt+to, s.Load(r.t.lay.HeadsAt+from))
	return e
}

func (r *variedRows) pointer(h *index.Held) leaf.Pointer {
	return leaf.Pointer(r.t.span(h.Home).Load(r.t.lay.HeadsAt + h.Slot))
}

// reserve keeps a row in its block if the new row fits and fills more than half of
// it.
func (r *variedRows) reserve(h *index.Held, words int) error {
	if err := r.size(words); err != nil {
		return err
	}
	need := leaf.StrBlockWords(h.Key.Str, words)
	c := block.ClassFor(need)
	cur := r.pointer(h).Words()
	if need <= cur && 2*c.Words() > cur {
		r.unreserve(h)
		return nil
	}
	if h.Room.Addr != 0 && need <= h.Room.Words && 2*c.Words() > h.Room.Words {
		return nil
	}
	addr, c, err := r.blocks.AllocNear(c)
	switch {
	case err == nil:
		r.unreserve(h)
		h.Room = index.Room{Addr: addr, Words: c.Words()}
	case need > cur:
		return full(err)
	}
	return nil
}

func (r *variedRows) unreserve(h *index.Held) {
	if h.Room.Addr != 0 {
		r.blocks.Free(h.Room.Addr, block.ClassFor(h.Room.Words))
		h.Room = index.Room{}
	}
}

func (r *variedRows) publish(h *index.Held, row []uint64, head block.Header) {
	need := leaf.StrBlockWords(h.Key.Str, len(row))
	p := r.pointer(h)
	switch {
	case h.Room.Addr != 0 && need <= h.Room.Words:
		r.move(h, p, row, head)
	case need <= p.Words():
		r.unreserve(h)
		e := r.t.a.Begin(h.Addr, p.Words())
		at, size := need-len(row), uint64(len(h.Key.Str))<<32|uint64(len(row))
		c := block.Change{Hi: len(row), Words: len(row), Resized: e.Load(leaf.StrSizeWord) != size}
		if !c.Resized {
			c.Lo, c.Hi = e.Differ(at, row)
		}
		r.t.keepVersion(&e, h, at, c, head)
		e.Set(leaf.StrSizeWord, size)
		e.Write(at+c.Lo, row[c.Lo:c.Hi])
		e.Commit(head)
	default:
		panic(fmt.Sprintf("tree: publish a row of %d words, for which no room was reserved", len(row)))
	}
	r.latest = len(row)
}

// move publishes a row in the reserved block. The new block is complete before the
// slot points to it. The old block is locked: it is freed afterwards and stays locked
// until another row reuses it, or it becomes the older version.
func (r *variedRows) move(h *index.Held, old leaf.Pointer, row []uint64, head block.Header) {
	t := r.t
	p := leaf.NewPointer(old.Tag(), block.ClassFor(h.Room.Words), h.Room.Addr)
	older := t.olderOf(old.Addr())
	if older.IsPatch() || t.overwrites(h, head) { // a patch applies to the old block
		older = r.place(uint64(old))
	}
	r.fill(p, h.Key.Str, head, row, older)
	t.step("filled")
	e := t.a.Begin(h.Home, t.lay.LeafWords)
	e.Set(t.lay.HeadsAt+h.Slot, uint64(p))
	t.commitLeaf(&e)
	t.step("swapped")
	if !t.locks.Empty() {
		t.locks.Move(old.Addr(), p.Addr())
	}
	if h.Existed && t.a.History().Keeps() { // even if it is no version: see vacate
		t.a.History().RetainRow(r.place(uint64(old)), head.CSN().Tick())
	} else {
		r.drop(uint64(old))
	}
	h.Addr, h.Room = p.Addr(), index.Room{}
	r.moves.Add(1)
}

func (r *variedRows) last(h *index.Held, head block.Header) block.Older {
	older := r.t.olderOf(h.Addr)
	if older.IsPatch() || r.t.overwrites(h, head) {
		return r.place(uint64(r.pointer(h)))
	}
	return older
}

func (r *variedRows) place(head uint64) block.Older {
	p := leaf.Pointer(head)
	return block.NewOlder(p.Addr(), p.Class())
}

func (r *variedRows) check(c *checker, key index.Key, v *leaf.Leaf, slot int) (block.Header, error) {
	p := v.Pointer(slot)
	if !p.Valid() {
		return 0, errorf("slot %d: pointer %#x", slot, p)
	}
	b, err := c.block(p.Addr(), p.Words())
	if err != nil {
		return 0, err
	}
	if k, _, ok := r.t.lay.StrRow(b); !ok || k != key.Str || p.Tag() != leaf.Tag(k) {
		return 0, errorf("slot %d: block %#x is not key %v's row, or of another tag", slot, p.Addr(), key)
	}
	return block.Header(b[0]), nil
}
