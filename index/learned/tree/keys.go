package tree

import (
	"bytes"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// fences are the bounds of a leaf and the server's other data about it. They are
// immutable once the leaf is published: a change of the bounds makes new ones.
type fences struct {
	addr      uint64
	low, high index.Key // high is the first key above; meaningless if last
	last      bool

	// Of string keys.
	prefix  int    // bytes of the common prefix of low and high
	version uint64 // the leaf's fence version
	block   uint64 // pointer of the fence block, 0 if the leaf holds its fences
}

func (t *Tree) newFences(addr uint64, low, high index.Key, last bool) *fences {
	f := t.keys.blank()
	*f = fences{addr: addr, low: low, high: high, last: last}
	if !last {
		f.prefix = leaf.Common(low.Str, high.Str)
	}
	return f
}

func (f *fences) covers(key index.Key) bool {
	return f.low.Compare(key) <= 0 && (f.last || key.Compare(f.high) < 0)
}

// keys hides the kind of a tree's keys. Only the mutator calls its methods, except
// look, see, find, ends, scan and those that say so, which may run concurrently with
// it.
type keys interface {
	// covers reports whether the key lies within the fences of a live leaf.
	covers(addr uint64, key index.Key) bool
	// blank returns memory for the fences of a leaf. For native keys it is reused
	// after the current change of the tree.
	blank() *fences
	// of returns the fences of a live leaf.
	of(addr uint64) *fences
	// slot returns the leaf's slot that holds the key, or -1.
	slot(addr uint64, key index.Key) int
	// lowAt returns the low fence of entry i of a bottom node, or the least key if a
	// mutator is changing the node. It may run concurrently with one.
	lowAt(nd *node, i int) index.Key
	// word returns the leaf's word for a key: the key, or its digest.
	word(addr uint64, key index.Key) uint64
	// carried returns the word of a slot after it moves from a leaf with fences from
	// to one with fences to.
	carried(sk slotKey, from, to *fences) uint64
	// compare orders the keys of two slots whose words are equal.
	compare(a, b slotKey) int
	// keyOf returns the key of a slot.
	keyOf(sk slotKey) index.Key
	// separator returns a key that is above a and not above b. The caller passes a
	// below b.
	separator(a, b index.Key) index.Key

	// reserve allocates the memory that fences need outside the leaf; drop frees it.
	reserve(f *fences) error
	drop(f *fences)
	// setFences enters fences in an edit of their leaf.
	setFences(e block.Edit, f *fences) block.Edit
	// enter records a new leaf, forget removes a dead one, and replace records new
	// fences of a live leaf.
	enter(f *fences)
	forget(f *fences)
	replace(old, f *fences)

	// look makes one attempt to look up a key and fills in res.
	look(key index.Key, res *index.GetResult) verdict
	// see returns the leaf that covers a key, or false if the caller must try again.
	// find returns the slot in that leaf that holds the key, or -1.
	see(key index.Key) (seen, bool)
	find(sn *seen, key index.Key) int
	// ends reports whether the range up to hi ends in a leaf, and returns the low
	// fence of the next leaf if not.
	ends(sn *seen, hi index.Key) (bool, index.Key)
	// prefetchRow prefetches the row of a key, if rows have their own blocks. It may
	// run concurrently with a mutator.
	prefetchRow(key index.Key)
	// scan adds the rows of the leaf that covers c.lo. It is at addr, or to the right
	// of it, if keys are native.
	scan(c *cursor, addr uint64) verdict

	bytes() uint64      // of registered memory
	innerBytes() uint64 // of private memory, besides inner nodes
	check(c *checker, f *fences, v *leaf.Leaf) error
}

// slotKey describes a slot in use.
type slotKey struct {
	word uint64 // key or digest
	slot int
	head uint64 // header, address or pointer of the row
}

// nativeKeys implements keys for numbers. A leaf holds them and its fences unchanged.
type nativeKeys struct {
	t    *Tree
	ring [runMax + 8]fences // more than one change of the tree needs
	next int
}

func (n *nativeKeys) blank() *fences {
	n.next = (n.next + 1) % len(n.ring)
	return &n.ring[n.next]
}

func (n *nativeKeys) covers(addr uint64, key index.Key) bool {
	s := n.t.span(addr)
	return key.Num >= s.Load(leaf.LowWord) && (key.Num < s.Load(leaf.HighWord) || leaf.IsLast(s.Load(leaf.MetaWord)))
}

func (n *nativeKeys) of(addr uint64) *fences {
	s := n.t.span(addr)
	return n.t.newFences(addr, index.Num(s.Load(leaf.LowWord)), index.Num(s.Load(leaf.HighWord)), leaf.IsLast(s.Load(leaf.MetaWord)))
}

func (n *nativeKeys) slot(addr uint64, key index.Key) int {
	t, s := n.t, n.t.span(addr)
	at, heads, free := t.lay.KeysAt, t.lay.HeadsAt, t.lay.FreeHead
	for i := range leaf.CountOf(s.Load(leaf.MetaWord)) {
		if s.Load(at+i) == key.Num && s.Load(heads+i) != free {
			return i
		}
	}
	return -1
}

func (n *nativeKeys) word(_ uint64, key index.Key) uint64     { return key.Num }
func (n *nativeKeys) carried(sk slotKey, _, _ *fences) uint64 { return sk.word }
func (n *nativeKeys) compare(_, _ slotKey) int                { return 0 }
func (n *nativeKeys) keyOf(sk slotKey) index.Key              { return index.Num(sk.word) }
func (n *nativeKeys) separator(_, b index.Key) index.Key      { return b }
func (n *nativeKeys) reserve(*fences) error                   { return nil }
func (n *nativeKeys) drop(*fences)                            {}
func (n *nativeKeys) enter(*fences)                           {}
func (n *nativeKeys) forget(*fences)                          {}
func (n *nativeKeys) replace(_, _ *fences)                    {}
func (n *nativeKeys) bytes() uint64                           { return 0 }
func (n *nativeKeys) innerBytes() uint64                      { return 0 }
func (n *nativeKeys) setFences(e block.Edit, f *fences) block.Edit {
	high := f.high.Num
	if f.last {
		high = ^uint64(0)
	}
	e.Set(leaf.LowWord, f.low.Num)
	e.Set(leaf.HighWord, high)
	return e
}

func (n *nativeKeys) check(_ *checker, f *fences, v *leaf.Leaf) error {
	high, bounded := v.High()
	return checkFences(f, index.Num(v.Low()), index.Num(high), bounded)
}

// stringKeys implements keys for byte strings. A leaf holds digests of them; the rows
// hold the keys. The server keeps the fences of leaves in private memory too.
type stringKeys struct {
	t      *Tree
	known  []*fences // of live leaves, by ALN
	blocks *block.Sized
	low    uint64Counter // bytes of all low fences
	words  []uint64
	buf    []byte
	other  []byte // of the second key of a comparison
}

func newStringKeys(t *Tree) *stringKeys { return &stringKeys{t: t, blocks: t.a.NewSized()} }

func (k *stringKeys) covers(addr uint64, key index.Key) bool { return k.of(addr).covers(key) }

func (k *stringKeys) blank() *fences { return new(fences) }

func (k *stringKeys) of(addr uint64) *fences { return k.known[k.t.lay.ALN(addr)] }

func (k *stringKeys) slot(addr uint64, key index.Key) int {
	t, s := k.t, k.t.span(addr)
	d, tag := leaf.DigestAt(key.Str, k.of(addr).prefix), leaf.Tag(key.Str)
	for i := range leaf.CountOf(s.Load(leaf.MetaWord)) {
		if s.Load(t.lay.KeysAt+i) != d {
			continue
		}
		p := leaf.Pointer(s.Load(t.lay.HeadsAt + i))
		if p != 0 && p.Tag() == tag && isRow(t.a.Span(p.Addr(), p.Words()), key.Str) {
			return i
		}
	}
	return -1
}

// isRow reports whether a row block has the key.
func isRow(s mem.Span, key string) bool {
	if s.Load(leaf.StrSizeWord)>>32 != uint64(len(key)) {
		return false
	}
	for i := range leaf.KeyWords(key) {
		if s.Load(leaf.StrKeyWord+i) != leaf.WordAt(key, i) {
			return false
		}
	}
	return true
}

func (k *stringKeys) word(addr uint64, key index.Key) uint64 {
	return leaf.DigestAt(key.Str, k.of(addr).prefix)
}

func (k *stringKeys) carried(sk slotKey, from, to *fences) uint64 {
	if from.prefix == to.prefix {
		return sk.word
	}
	k.buf = k.rowKey(sk.head, k.buf[:0])
	return leaf.DigestAt(mem.String(k.buf), to.prefix)
}

func (k *stringKeys) compare(a, b slotKey) int {
	k.buf, k.other = k.rowKey(a.head, k.buf[:0]), k.rowKey(b.head, k.other[:0])
	return bytes.Compare(k.buf, k.other)
}

func (k *stringKeys) keyOf(sk slotKey) index.Key {
	return index.Str(mem.String(k.rowKey(sk.head, nil)))
}

// rowKey appends the key of a row to a buffer.
func (k *stringKeys) rowKey(head uint64, dst []byte) []byte {
	p := leaf.Pointer(head)
	s := k.t.a.Span(p.Addr(), p.Words())
	n := int(s.Load(leaf.StrSizeWord) >> 32)
	k.words = append(k.words[:0], make([]uint64, (n+mem.WordBytes-1)/mem.WordBytes)...)
	s.Slice(leaf.StrKeyWord, len(k.words)).CopyOut(k.words)
	return append(dst, mem.Bytes(k.words)[:n]...)
}

func (k *stringKeys) separator(a, b index.Key) index.Key {
	return index.Str(leaf.Separator(a.Str, b.Str)).Clone()
}

func (f *fences) shape() leaf.Shape { return leaf.ShapeOf(f.prefix, len(f.low.Str), len(f.high.Str)) }

func (k *stringKeys) reserve(f *fences) error {
	sh := f.shape()
	if !sh.Apart {
		return nil
	}
	words := sh.BlockWords()
	addr, err := k.blocks.Alloc(words * mem.WordBytes)
	if err != nil {
		return full(err)
	}
	f.block = leaf.FencePointer(addr, words)
	return nil
}

func (k *stringKeys) drop(f *fences) {
	if addr, words := leaf.FenceBlockAt(f.block); f.block != 0 {
		k.blocks.Free(addr, words*mem.WordBytes)
	}
}

// setFences also gives the fences a new version. A fence block is complete before the
// leaf points to it.
func (k *stringKeys) setFences(e block.Edit, f *fences) block.Edit {
	t, sh := k.t, f.shape()
	f.version = t.a.NextVersion()
	k.buf = append(append(k.buf[:0], f.low.Str...), f.high.Str[f.prefix:]...)
	k.words = mem.AppendString(k.words[:0], mem.String(k.buf))
	e.Set(leaf.VersionWord, f.version)
	e.Set(leaf.ShapeWord, sh.Pack())
	if !sh.Apart {
		e.Write(leaf.FenceWord, k.words)
		return e
	}
	addr, words := leaf.FenceBlockAt(f.block)
	b := t.a.Create(addr, words)
	b.Set(leaf.IDWord, t.lay.FenceTag())
	b.Set(leaf.OwnerWord, f.addr)
	b.Write(leaf.FencesAtWord, k.words)
	b.Commit(block.Header(f.version))
	e.Set(leaf.FenceWord, f.block)
	return e
}

func (k *stringKeys) enter(f *fences) {
	k.low.add(len(f.low.Str))
	aln := int(k.t.lay.ALN(f.addr))
	if aln >= len(k.known) {
		k.known = append(k.known, make([]*fences, aln+1+len(k.known)/4-len(k.known)+16)...)
	}
	k.known[aln] = f
}

func (k *stringKeys) forget(f *fences) {
	k.known[k.t.lay.ALN(f.addr)] = nil
	k.low.add(-len(f.low.Str))
	k.drop(f)
}

// replace relies on equal low fences.
func (k *stringKeys) replace(old, f *fences) {
	k.drop(old)
	k.known[k.t.lay.ALN(f.addr)] = f
	k.t.replaceLeaf(f)
}

func (k *stringKeys) bytes() uint64 { return k.blocks.Stats().Bytes }

// knownBytes is the size of fences in the server's private memory, without their
// strings.
const knownBytes = 120

func (k *stringKeys) innerBytes() uint64 {
	return k.t.innerNodes.Load()*lowsBytes + k.t.leaves.Load()*knownBytes + k.low.load()
}

func (k *stringKeys) check(c *checker, f *fences, v *leaf.Leaf) error {
	var apart []uint64
	fs, ok := v.Fences()
	if !ok {
		addr, words, ok := v.FenceBlock()
		if !ok {
			return errorf("fence block %#x of %d words", addr, words)
		}
		var err error
		if apart, err = c.block(addr, words); err != nil {
			return err
		}
		if fs, ok = v.FencesApart(f.addr, apart); !ok {
			return errorf("fence block %#x is not the leaf's", addr)
		}
		c.fenceBlocks++
	}
	if c.buf[leaf.VersionWord] != f.version || v.Prefix() != f.prefix || !f.last && f.prefix != leaf.Common(f.low.Str, f.high.Str) {
		return errorf("fence version %#x, prefix of %d bytes; want %#x, %d", c.buf[leaf.VersionWord], v.Prefix(), f.version, f.prefix)
	}
	high, bounded := fs.High()
	return checkFences(f, index.Str(fs.Low()), index.Str(high), bounded)
}
