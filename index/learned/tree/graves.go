package tree

import (
	"cmp"
	"slices"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/clock"
)

// Graves record deletions for readers of the past; leaf/graves.go has the format.
// While the server adds deletions to a block of graves, the block is open and belongs
// to one leaf. A block is sealed when it is full, or when a split leaves it to
// several leaves. A sealed block belongs to the history, which frees it when no
// reader needs its newest deletion. A list of blocks that was replaced by another
// also belongs to the history: only readers that need the last deletion of the leaf
// still follow it.

// Sizes.
const (
	// graveWordsMin and graveWordsMax are the sizes of the first and of the largest
	// block of graves. A full block that is smaller is followed by one twice as large.
	graveWordsMin = 16
	graveWordsMax = 128
	// gravesMax bounds the blocks of graves of leaves that are merged into one.
	gravesMax = 64
)

// graveBlock is the server's record of a block of graves.
type graveBlock struct {
	at        block.Older
	n         int
	newest    block.CSN // of the deletions; readers at its tick or a later one do not need the block
	low, high index.Key // of the keys
	leaves    int       // number of leaves that refer to it
}

// graves are the blocks of one leaf.
type graves struct {
	blocks []*graveBlock
	open   *graveBlock // the one of blocks to which deletions are added; nil if there is none
	word   block.Older // the leaf's word graves: the open block alone, or a list
	listed bool        // word is a list
	leaf   uint64
	place  int // in graveyard.all
}

// graveyard has the graves of all leaves.
type graveyard struct {
	byLeaf map[uint64]*graves
	all    []*graves
	floor  clock.Tick
	at     int           // index in all; the one before it is pruned next
	left   int           // how many have not been pruned since the floor rose
	total  uint64Counter // graves
	spare  []*graves
	blocks []*graveBlock // spare
}

// add returns new graves for a leaf that has none.
func (y *graveyard) add(leaf uint64) *graves {
	g := pop(&y.spare)
	g.leaf, g.place = leaf, len(y.all)
	y.byLeaf[leaf] = g
	y.all = append(y.all, g)
	return g
}

// pop takes one of the spare values, or makes one.
func pop[T any](spare *[]*T) *T {
	n := len(*spare)
	if n == 0 {
		return new(T)
	}
	v := (*spare)[n-1]
	*spare = (*spare)[:n-1]
	return v
}

// forget drops a leaf's reference to a block.
func (y *graveyard) forget(b *graveBlock) {
	if b.leaves--; b.leaves == 0 {
		y.total.add(-b.n)
		*b = graveBlock{}
		y.blocks = append(y.blocks, b)
	}
}

// remove forgets the graves of a leaf and keeps their memory for reuse.
func (y *graveyard) remove(g *graves) {
	delete(y.byLeaf, g.leaf)
	last := y.all[len(y.all)-1]
	y.all[g.place], last.place = last, g.place
	y.all = y.all[:len(y.all)-1]
	y.left = min(y.left, len(y.all))
	*g = graves{blocks: g.blocks[:0]}
	y.spare = append(y.spare, g)
}

// lastDelete returns the CSN of the newest deletion in a leaf. Readers at its tick or
// a later one do not follow the leaf's word graves.
func (t *Tree) lastDelete(leaf uint64) block.CSN { return block.CSN(t.span(leaf).Load(t.lay.DeleteAt)) }

// gravesWord returns the word graves that a leaf should have.
func (t *Tree) gravesWord(addr uint64) uint64 {
	if g := t.yard.byLeaf[addr]; g != nil {
		return uint64(g.word)
	}
	return 0
}

// dig adds a deletion to a leaf's graves. older is the deleted row's version; 0 says
// that readers of the past do not need the deletion. The leaf still has the row.
// Without memory for the grave, dig raises the history's floor to the deletion.
func (t *Tree) dig(h *index.Held, deleted block.CSN, older block.Older) {
	g := t.yard.byLeaf[h.Home]
	// Readers at ticks below the leaf's last delete follow its word to the open
	// block.
	needed := max(deleted, t.lastDelete(h.Home))
	if older == 0 {
		if g != nil && g.open != nil {
			g.open.newest = max(g.open.newest, needed)
		}
		return
	}
	if g == nil {
		g = t.yard.add(h.Home)
	}
	if g.open == nil || g.open.n == leaf.GraveRoom(g.open.at.Words()) {
		if !t.openGraves(g) {
			t.a.History().Lose(deleted.Tick())
			t.pruneGraves(g, t.a.History().Floor())
			t.listGraves(g)
			return
		}
	}
	b := g.open
	e := t.a.Begin(b.at.Addr(), b.at.Words())
	at := leaf.GraveAt(b.n)
	e.Set(at, t.graveKey(h.Key))
	e.Set(at+1, uint64(deleted))
	e.Set(at+2, uint64(older))
	e.Set(leaf.GraveCountWord, uint64(b.n+1)) // written last: see leaf.GravesOf
	e.Commit(block.Header(t.a.NextVersion()).Lock())
	if b.n == 0 || h.Key.Compare(b.low) < 0 {
		b.low = h.Key
	}
	if b.n == 0 || h.Key.Compare(b.high) > 0 {
		b.high = h.Key
	}
	b.n++
	b.newest = max(b.newest, needed)
	t.yard.total.add(1)
	t.step("dug")
}

// graveKey returns the word that stands for a key in a grave: the key, or its hash.
func (t *Tree) graveKey(key index.Key) uint64 {
	if t.lay.Kind == leaf.Strings {
		return leaf.Hash(key.Str)
	}
	return key.Num
}

// openGraves makes room for one more grave: in a new block, or in a larger one that
// replaces the open one. It returns false if there is no memory.
func (t *Tree) openGraves(g *graves) bool {
	hist, old, words := t.a.History(), g.open, graveWordsMin
	if old != nil {
		if words = 2 * old.at.Words(); words > graveWordsMax {
			t.sealGraves(g)
			old, words = nil, graveWordsMin
		}
	}
	at, ok := hist.Reserve(words)
	if !ok {
		return false
	}
	e := t.a.Create(at.Addr(), words)
	e.Set(leaf.IDWord, t.lay.GravesTag())
	if old == nil {
		b := pop(&t.yard.blocks)
		*b = graveBlock{at: at, leaves: 1}
		g.blocks, g.open = append(g.blocks, b), b
	} else {
		s := t.a.Span(old.at.Addr(), old.at.Words())
		for i := leaf.GraveCountWord; i < leaf.GraveAt(old.n); i++ {
			e.Set(i, s.Load(i))
		}
		hist.Retain(old.at, old.newest.Tick())
		old.at = at
	}
	e.Commit(block.Header(t.a.NextVersion()).Lock())
	return t.listGraves(g)
}

// sealGraves hands a leaf's open block to the history.
func (t *Tree) sealGraves(g *graves) {
	if b := g.open; b != nil {
		t.a.History().Retain(b.at, b.newest.Tick())
		g.open = nil
	}
}

// pruneGraves forgets the blocks that no reader above the floor needs.
func (t *Tree) pruneGraves(g *graves, floor clock.Tick) {
	needed := func(b *graveBlock) bool { return b.newest.Tick() > floor }
	if g.open != nil && !slices.ContainsFunc(g.blocks, needed) {
		t.sealGraves(g)
	}
	kept := g.blocks[:0]
	for _, b := range g.blocks {
		if needed(b) || b == g.open { // a list always names the open block
			kept = append(kept, b)
		} else {
			t.yard.forget(b)
		}
	}
	clear(g.blocks[len(kept):])
	g.blocks = kept
}

// dropList hands the list of a leaf's graves to the history. The caller gives the
// leaf another word, or the leaf is dead, or readers do not follow the word any more.
func (t *Tree) dropList(g *graves) {
	if g.listed {
		t.a.History().Retain(g.word, t.lastDelete(g.leaf).Tick())
	}
	g.word, g.listed = 0, false
}

// listGraves computes g.word for a leaf whose blocks have changed. The caller's next
// edit of the leaf must store it. It returns false if there is no memory: then the
// deletions are lost for readers of the past.
func (t *Tree) listGraves(g *graves) bool {
	hist := t.a.History()
	t.dropList(g)
	ok := true
	switch {
	case len(g.blocks) == 0:
	case len(g.blocks) == 1 && g.open != nil:
		g.word = g.open.at
	default:
		words := leaf.GraveListBlockWords(len(g.blocks))
		if g.word, ok = hist.Reserve(words); !ok {
			newest := slices.MaxFunc(g.blocks, func(a, b *graveBlock) int { return cmp.Compare(a.newest, b.newest) }).newest.Tick()
			hist.Lose(newest)
			t.pruneGraves(g, newest)
			g.word = 0
			break
		}
		g.listed = true
		e := t.a.Create(g.word.Addr(), g.word.Words())
		e.Set(leaf.IDWord, t.lay.GraveListTag())
		e.Set(leaf.GraveCountWord, uint64(len(g.blocks)))
		for i, b := range g.blocks {
			newest := b.newest
			if b == g.open {
				newest = leaf.GravesOpen
			}
			e.Set(leaf.GraveListAt(i), uint64(b.at))
			e.Set(leaf.GraveListAt(i)+1, uint64(newest))
		}
		e.Commit(block.Header(t.a.NextVersion()).Lock())
	}
	return ok
}

// gather removes and returns the graves of leaves that a split, a merge or an unlink
// changes. The caller passes them to divide. They are valid until the next gather.
func (t *Tree) gather(from ...*fences) []*graveBlock {
	all := t.gathered[:0]
	for _, f := range from {
		g := t.yard.byLeaf[f.addr]
		if g == nil {
			continue
		}
		t.pruneGraves(g, t.a.History().Floor())
		t.sealGraves(g)
		for _, b := range g.blocks {
			if slices.Contains(all, b) {
				t.yard.forget(b)
			} else {
				all = append(all, b)
			}
		}
		t.dropList(g)
		t.yard.remove(g)
	}
	t.gathered = all
	return all
}

// divide gives each leaf the gathered blocks whose range of keys meets its own, and
// forgets the others.
func (t *Tree) divide(all []*graveBlock, to ...*fences) {
	for _, f := range to {
		var g *graves
		for _, b := range all {
			if b.high.Compare(f.low) < 0 || !f.last && b.low.Compare(f.high) >= 0 {
				continue
			}
			if g == nil {
				g = t.yard.add(f.addr)
			}
			b.leaves++
			g.blocks = append(g.blocks, b)
		}
		if g != nil {
			t.listGraves(g)
		}
	}
	for _, b := range all {
		t.yard.forget(b)
	}
	clear(all)
}

// crowded reports whether the leaves have too many blocks of graves for one leaf.
func (t *Tree) crowded(run ...*fences) bool {
	n := 0
	for _, f := range run {
		if g := t.yard.byLeaf[f.addr]; g != nil {
			n += len(g.blocks)
		}
	}
	return n > gravesMax
}

// buryLooks bounds the leaves that Bury looks at for each grave that it may forget.
const buryLooks = 4

// Bury implements index.Server. It forgets whole blocks of graves.
func (t *Tree) Bury(floor clock.Tick, most int) (done int) {
	y := &t.yard
	if floor > y.floor {
		y.floor, y.left = floor, len(y.all)
	}
	before := y.total.load()
	for looks := 0; y.left > 0 && looks < buryLooks*most && done < most; looks++ {
		y.left--
		if y.at == 0 || y.at > len(y.all) {
			y.at = len(y.all)
		}
		y.at--
		g := y.all[y.at]
		t.pruneGraves(g, floor)
		done = int(before - y.total.load())
		if len(g.blocks) > 0 {
			continue
		}
		t.dropList(g)
		addr := g.leaf
		y.remove(g)
		if t.sparse(t.liveOf(addr)) {
			t.untidy.put(addr) // it may have had too many graves to be merged
		}
	}
	return min(done, most)
}
