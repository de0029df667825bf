package tree

import (
	"runtime"
	"slices"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Bounds on the attempts of a reader concurrent with a mutator. An edit of a leaf
// takes well under a microsecond. A reader that runs out of attempts therefore
// concludes that the mutator's goroutine is not running, and answers Locked.
const (
	readTries  = 4096
	chasesMax  = 16
	spinsShort = 8
)

// yield lets the mutator run, after a few short spins.
func yield(try int) {
	if try >= spinsShort {
		runtime.Gosched()
	}
}

// verdict is the result of a racy read of a leaf.
type verdict uint8

const (
	again   verdict = iota // the read was torn, or the leaf is locked, dead or not the key's
	present                // the row was copied
	absent
	locked
	gone // the version that a reader of the past needs is no longer kept
)

// Lookup looks up a committed row. It overwrites res, but reuses the memory of its
// Proofs and Row. It may run concurrently with one mutator.
func (t *Tree) Lookup(key index.Key, res *index.GetResult) {
	row := res.Row[:0]
	*res = index.GetResult{Status: index.Locked, Proofs: res.Proofs[:0], Row: row}
	for try := range readTries {
		switch t.keys.look(key, res) {
		case again:
			yield(try)
			continue
		case present:
			res.Status = index.Found
			return
		case absent:
			res.Status = index.NotFound
		}
		res.Row = row
		return
	}
	res.Row = row
}

// look is see and lookNum in one function, because it is the server's most frequent
// operation.
func (n *nativeKeys) look(key index.Key, res *index.GetResult) verdict {
	t := n.t
	addr := t.descend(key)
	for range chasesMax {
		if addr == 0 {
			return again
		}
		s := t.span(addr)
		t.prefetch(s)
		h := s.Load(block.HeaderWord)
		if block.Header(h).Locked() || key.Num < s.Load(leaf.LowWord) {
			return again
		}
		m, high, right := s.Load(leaf.MetaWord), s.Load(leaf.HighWord), s.Load(leaf.RightWord)
		if key.Num >= high && !leaf.IsLast(m) {
			if s.Load(block.HeaderWord) != h {
				return again
			}
			addr = right
			continue
		}
		v := t.lookNum(s, addr, leaf.CountOf(m), key.Num, res)
		if s.Load(block.HeaderWord) != h {
			return again
		}
		return v
	}
	return again
}

func (n *nativeKeys) see(key index.Key) (sn seen, ok bool) {
	addr := n.t.descend(key)
	for range chasesMax {
		if addr == 0 {
			return sn, false
		}
		s := n.t.span(addr)
		n.t.prefetch(s)
		h := s.Load(block.HeaderWord)
		if block.Header(h).Locked() || key.Num < s.Load(leaf.LowWord) {
			return sn, false
		}
		m, high, right := s.Load(leaf.MetaWord), s.Load(leaf.HighWord), s.Load(leaf.RightWord)
		if key.Num < high || leaf.IsLast(m) {
			return seen{addr: addr, s: s, h: h}, true
		}
		if s.Load(block.HeaderWord) != h {
			return sn, false
		}
		addr = right
	}
	return sn, false
}

func (n *nativeKeys) find(sn *seen, key index.Key) int {
	t := n.t
	for i := range min(leaf.CountOf(sn.s.Load(leaf.MetaWord)), t.lay.Slots) {
		if sn.s.Load(t.lay.KeysAt+i) == key.Num && t.inUse(sn.s, i) {
			return i
		}
	}
	return -1
}

func (n *nativeKeys) ends(sn *seen, hi index.Key) (bool, index.Key) {
	high := sn.s.Load(leaf.HighWord)
	return high > hi.Num || leaf.IsLast(sn.s.Load(leaf.MetaWord)), index.Num(high)
}

// lookNum reads the slot of a native key. The caller checks that the leaf did not change.
func (t *Tree) lookNum(s mem.Span, addr uint64, count int, key uint64, res *index.GetResult) verdict {
	res.Hint, res.Proofs = addr, res.Proofs[:0]
	inline, free := t.lay.Kind == leaf.Inline, t.lay.FreeHead
	at, heads := t.lay.KeysAt, t.lay.HeadsAt
	for i := range min(count, t.lay.Slots) {
		if s.Load(at+i) != key {
			continue
		}
		w := s.Load(heads + i)
		if w == free {
			continue
		}
		res.Row = slices.Grow(res.Row[:0], t.lay.RowWords)[:t.lay.RowWords]
		word, head := t.lay.HeadAddr(addr, i), block.Header(w)
		if !inline {
			word = w
			var v verdict
			if v, head = t.readRow(word, key, res.Row); v != present {
				return v
			}
		} else {
			s.Slice(t.lay.RowsAt+i*t.lay.RowWords, t.lay.RowWords).CopyOut(res.Row)
		}
		if head.Locked() {
			return locked
		}
		res.Header, res.Rests = head, head.CSN()
		res.Proofs = append(res.Proofs, index.Proof{Addr: word, Word: uint64(head)})
		return present
	}
	return t.lookGap(s, addr, res)
}

// lookGap fills in the answer for a key that the leaf does not have.
func (t *Tree) lookGap(s mem.Span, addr uint64, res *index.GetResult) verdict {
	res.Rests = block.CSN(s.Load(t.lay.DeleteAt))
	res.Proofs = append(res.Proofs, index.Proof{Addr: leaf.GapAddr(addr), Word: s.Load(leaf.GapWord)})
	return absent
}

// readRow copies the payload of a native key's row block to dst and returns the
// header.
func (t *Tree) readRow(addr, key uint64, dst []uint64) (verdict, block.Header) {
	s, ok := t.a.Region().Span(addr, uint64(t.lay.RowBlockWords)*mem.WordBytes)
	if !ok {
		return again, 0 // the slot was read in the middle of an edit
	}
	h := block.Header(s.Load(block.HeaderWord))
	if h == leaf.Free || s.Load(leaf.RowKeyWord) != key {
		return again, 0
	}
	if h.Locked() {
		return locked, 0
	}
	s.Slice(leaf.RowWord, t.lay.RowWords).CopyOut(dst)
	if block.Header(s.Load(block.HeaderWord)) != h {
		return again, 0
	}
	return present, h
}

// seen is a leaf that a reader has found, and its header at that time.
type seen struct {
	addr uint64
	f    *fences // of string keys
	s    mem.Span
	h    uint64 // header
}

// see may read inner nodes that are stale or half changed. The leaf's fence version
// shows whether the fences found there are current.
func (k *stringKeys) see(key index.Key) (sn seen, ok bool) {
	nd, i := k.t.bottom(key)
	if nd == nil {
		return sn, false
	}
	if sn.f = nd.str.lows[i].Load(); sn.f == nil || sn.f.addr == 0 || !sn.f.covers(key) {
		return sn, false
	}
	sn.addr = sn.f.addr
	sn.s = k.t.span(sn.addr)
	k.t.prefetch(sn.s)
	sn.h = sn.s.Load(block.HeaderWord)
	ok = !block.Header(sn.h).Locked() && sn.s.Load(leaf.VersionWord) == sn.f.version
	return sn, ok
}

// changed reports whether the leaf has changed since see: then reads of it may be
// torn.
func (sn *seen) changed() bool { return sn.s.Load(block.HeaderWord) != sn.h }

func (k *stringKeys) find(sn *seen, key index.Key) int {
	t := k.t
	d, tag := leaf.DigestAt(key.Str, sn.f.prefix), leaf.Tag(key.Str)
	for i := range min(leaf.CountOf(sn.s.Load(leaf.MetaWord)), t.lay.Slots) {
		if p := leaf.Pointer(sn.s.Load(t.lay.HeadsAt + i)); p != 0 && p.Tag() == tag && sn.s.Load(t.lay.KeysAt+i) == d {
			if s, ok := t.rowSpan(p); ok && isRow(s, key.Str) {
				return i
			}
		}
	}
	return -1
}

func (k *stringKeys) ends(sn *seen, hi index.Key) (bool, index.Key) {
	return sn.f.last || sn.f.high.Str > hi.Str, sn.f.high
}

func (k *stringKeys) look(key index.Key, res *index.GetResult) verdict {
	sn, ok := k.see(key)
	if !ok {
		return again
	}
	v := k.lookStr(&sn, key.Str, res)
	if sn.changed() {
		return again
	}
	return v
}

// lookStr reads the slot of a string key. The caller checks that the leaf did not change.
func (k *stringKeys) lookStr(sn *seen, key string, res *index.GetResult) verdict {
	t, s := k.t, sn.s
	res.Hint, res.Proofs = sn.f.addr, res.Proofs[:0]
	d, tag := leaf.DigestAt(key, sn.f.prefix), leaf.Tag(key)
	for i := range min(leaf.CountOf(s.Load(leaf.MetaWord)), t.lay.Slots) {
		if s.Load(t.lay.KeysAt+i) != d {
			continue
		}
		p := leaf.Pointer(s.Load(t.lay.HeadsAt + i))
		if p == 0 || p.Tag() != tag {
			continue
		}
		row, ok := t.rowSpan(p)
		if !ok {
			return again
		}
		if !isRow(row, key) {
			continue // of another key with that tag, or of a reused block: then the leaf has changed
		}
		var v verdict
		if v, res.Row, res.Header = readStrRow(row, len(key), res.Row[:0]); v != present {
			return v
		}
		res.Rests = res.Header.CSN()
		res.Proofs = append(res.Proofs, index.Proof{Addr: p.Addr(), Word: uint64(res.Header)})
		return present
	}
	return t.lookGap(s, sn.f.addr, res)
}

// rowSpan returns the block that a pointer refers to. The pointer was read racily:
// false if it is not valid.
func (t *Tree) rowSpan(p leaf.Pointer) (mem.Span, bool) {
	if !p.Valid() {
		return mem.Span{}, false
	}
	return t.a.Region().Span(p.Addr(), uint64(p.Words())*mem.WordBytes)
}

// readStrRow appends the payload of a row with a key of so many bytes to dst.
func readStrRow(s mem.Span, keyBytes int, dst []uint64) (verdict, []uint64, block.Header) {
	h := block.Header(s.Load(block.HeaderWord))
	if h == leaf.Free {
		return again, dst, 0
	}
	if h.Locked() {
		return locked, dst, 0
	}
	size := s.Load(leaf.StrSizeWord)
	at, n := leaf.StrKeyWord+(keyBytes+mem.WordBytes-1)/mem.WordBytes, int(uint32(size))
	if size>>32 != uint64(keyBytes) || at+n > s.Words() {
		return again, dst, 0
	}
	m := len(dst)
	dst = slices.Grow(dst, n)[:m+n]
	s.Slice(at, n).CopyOut(dst[m:])
	if block.Header(s.Load(block.HeaderWord)) != h {
		return again, dst[:m], 0
	}
	return present, dst, h
}

// Keys appends the keys of a leaf's rows, or the digests of string keys, in ascending
// order, for training. prefix is the length in bytes of the prefix that the digests
// follow. Keys may run concurrently with a mutator; ok is false if the leaf was being
// changed.
func (t *Tree) Keys(addr uint64, dst []uint64) (words []uint64, prefix int, ok bool) {
	s := t.span(addr)
	h, n := s.Load(block.HeaderWord), len(dst)
	if block.Header(h).Locked() {
		return dst, 0, false
	}
	if t.lay.Kind == leaf.Strings {
		sh, ok := leaf.UnpackShape(s.Load(leaf.ShapeWord))
		if !ok {
			return dst, 0, false
		}
		prefix = int(sh.Prefix)
	}
	for i := range min(leaf.CountOf(s.Load(leaf.MetaWord)), t.lay.Slots) {
		if !t.inUse(s, i) {
			continue
		}
		w := s.Load(t.lay.KeysAt + i)
		dst = append(dst, w)
		for j := len(dst) - 1; j > n && dst[j-1] > w; j-- {
			dst[j], dst[j-1] = dst[j-1], w
		}
	}
	if s.Load(block.HeaderWord) != h {
		return dst[:n], 0, false
	}
	return dst, prefix, true
}
