package finestore

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/btree"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/index/learned/train"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// bufferedIndex is a learned index with delta buffers: the rival of FineStore in BenchmarkEngines.
// Keys that come later go to one ordered buffer for each array, or for the arrays of each model. A
// full buffer is merged with its arrays, in one of two ways:
//
//   - LI+Δ: the insert that fills the buffer merges it, and takes a turn of the trainer. Its caller
//     waits for both.
//   - XIndex: Maintain merges it. Meanwhile the full buffer stays as it is, and inserts go to a second
//     one, which has no bound. XIndex then copies values from old arrays to new ones; here rows do not
//     move, so there is nothing to copy.
//
// The comparison is fair in these ways:
//
//   - Rows have the same blocks, in the same arena. The code of Server writes them (newRow, Reserve,
//     Publish), and its table has their locks.
//   - Arrays have the same size, and keys and addresses have the same places in them. A B-tree of the
//     same degree leads to arrays, and the search in an array is the same.
//   - Scans copy rows by the code of Server.
//   - A merge divides rows among arrays as FineStore's does (divideRows). The same trainer trains
//     models on the arrays, with the same rests between two trainings.
//   - Buffers are B-trees of google/btree, which take their nodes from one list of free ones.
//
// In these ways it is easier for the rival: arrays and buffers have no gap words, no versions and no
// headers for one-sided readers. So an insert writes less, and scans give no proofs of gaps. Rows are
// never deleted. In these it is harder: buffers are in Go's heap, so the garbage collector goes
// through their nodes. One goroutine writes, so what threads cost each other is not compared.
type bufferedIndex struct {
	o       bufferedOptions
	s       *Server // has the rows, their locks and the memory of arrays; its own index stays empty
	trainer *train.Trainer
	arrays  *btree.BTreeG[*trained] // by low fence; guarded by s.mu, as what follows
	byAddr  map[uint64]*trained
	first   *trained // always the same
	free    *btree.FreeListG[rowAt]
	due     []*group      // with a full buffer that waits for Maintain
	now     time.Duration // of the last Maintain, for LI+Δ

	merges  uint64
	copied  uint64        // rows that merges have copied
	blocked time.Duration // for which inserts have merged and trained
}

// bufferedOptions configure a rival. RowWords is required.
type bufferedOptions struct {
	Options
	// Arrays is how many arrays share a buffer: so many, or fewer than twice as many; 0 means 1.
	Arrays int
	// Limit is how many rows fill a buffer; 0 means as many as an array may have keys. With one array
	// for each buffer, that is where FineStore's array is due.
	Limit int
	// Background lets Maintain merge, as in XIndex. Otherwise inserts do, as in LI+Δ.
	Background bool
}

// trained is an array, with its fences.
type trained struct {
	low, high, addr uint64
	last            bool // there is no high fence
	g               *group
}

func (t *trained) before(u *trained) bool { return t.low < u.low }

// group has the arrays of one buffer, in order.
type group struct {
	arrays []*trained
	buf    *btree.BTreeG[rowAt] // nil until the first row comes
	old    *btree.BTreeG[rowAt] // a full one, until Maintain merges it; else nil
}

// bufferDegree is the degree of the B-trees of buffers, as of those of arrays.
const bufferDegree = 32

func (r rowAt) before(o rowAt) bool { return r.key < o.key }

// newBuffered makes an empty rival.
func newBuffered(a *block.Arena, o bufferedOptions) (*bufferedIndex, error) {
	s, err := NewServer(a, o.Options)
	if err != nil {
		return nil, err
	}
	o.Arrays, o.Limit = cmp.Or(o.Arrays, 1), cmp.Or(o.Limit, s.lay.Slots)
	x := &bufferedIndex{
		o: o, s: s, arrays: btree.NewG(bufferDegree, (*trained).before), byAddr: map[uint64]*trained{},
		free: btree.NewFreeListG[rowAt](1024),
	}
	x.first = &trained{addr: s.first.addr, last: true}
	x.first.g = &group{arrays: []*trained{x.first}}
	x.put(x.first.addr, nil)
	x.enrol(x.first)
	published := a.NewSized()
	root, err := published.Alloc(model.RootWords * mem.WordBytes)
	if err != nil {
		return nil, err
	}
	x.trainer, err = train.New(train.Options{
		Arena: a, Mem: published, Root: root, Tree: trainedArrays{x}, Family: o.Family,
		LeavesPerSubModel: cmp.Or(o.LeavesPerSubModel, 512), RetrainInterval: cmp.Or(o.RetrainInterval, 2*time.Millisecond),
	})
	return x, err
}

func (x *bufferedIndex) enrol(t *trained) {
	x.arrays.ReplaceOrInsert(t)
	x.byAddr[t.addr] = t
}

// put writes the rows of an array.
func (x *bufferedIndex) put(addr uint64, rows []rowAt) {
	w := x.s.span(addr)
	for i, r := range rows {
		w.Put(x.s.lay.KeysAt+i, r.key)
		w.Put(x.s.lay.HeadsAt+i, r.addr)
	}
	w.Put(leaf.MetaWord, uint64(len(rows)))
}

// arrayAt returns the array that covers a key. The hint is the address of the array that may, or any
// number.
func (x *bufferedIndex) arrayAt(key, hint uint64) (at *trained) {
	if t := x.byAddr[hint]; t != nil && key >= t.low && (t.last || key < t.high) {
		return t
	}
	x.arrays.DescendLessOrEqual(&trained{low: key}, func(t *trained) bool {
		at = t
		return false
	})
	return at
}

// slot returns how many keys of an array are below a key, and how many it has.
func (x *bufferedIndex) slot(w mem.Span, key uint64) (slot, n int) {
	n = leaf.CountOf(w.Load(leaf.MetaWord))
	lo, hi := 0, n
	for lo < hi {
		if m := (lo + hi) / 2; w.Load(x.s.lay.KeysAt+m) < key {
			lo = m + 1
		} else {
			hi = m
		}
	}
	return lo, n
}

// find returns the array that covers a key, and the address of the key's row, 0 if there is none.
func (x *bufferedIndex) find(key, hint uint64) (t *trained, row uint64) {
	t = x.arrayAt(key, hint)
	w := x.s.span(t.addr)
	if i, n := x.slot(w, key); i < n && w.Load(x.s.lay.KeysAt+i) == key {
		return t, w.Load(x.s.lay.HeadsAt + i)
	}
	for _, b := range [...]*btree.BTreeG[rowAt]{t.g.buf, t.g.old} {
		if b == nil {
			continue
		}
		if r, ok := b.Get(rowAt{key: key}); ok {
			return t, r.addr
		}
	}
	return t, 0
}

// Load adds a row. Keys must ascend, and none may have been inserted before.
func (x *bufferedIndex) Load(key index.Key, row []uint64, head block.Header) error {
	x.s.mu.Lock()
	defer x.s.mu.Unlock()
	t := x.arrayAt(key.Num, 0)
	w := x.s.span(t.addr)
	slot, n := x.slot(w, key.Num)
	if !t.last || slot < n || t.g.buf != nil || t.g.old != nil {
		return fmt.Errorf("finestore: load key %d: keys must ascend, before any insert", key.Num)
	}
	addr, err := x.s.newRow(key.Num, head, row)
	if err != nil {
		return err
	}
	x.s.live++
	if n < x.s.fill {
		w.Put(x.s.lay.KeysAt+n, key.Num)
		w.Put(x.s.lay.HeadsAt+n, addr)
		w.Put(leaf.MetaWord, uint64(n+1))
		return nil
	}
	u := &trained{low: key.Num, last: true, g: t.g}
	if u.addr, err = x.s.arraySlab.Alloc(); err != nil {
		return full(err)
	}
	if len(t.g.arrays) == x.o.Arrays {
		u.g = &group{}
	}
	u.g.arrays = append(u.g.arrays, u)
	x.put(u.addr, []rowAt{{key.Num, addr}})
	t.high, t.last = u.low, false
	x.enrol(u)
	x.trainer.Changed(key, index.Key{}, false, u.addr, true)
	return nil
}

// LockWrite locks a key as Server.LockWrite does. LI+Δ merges here, if the key fills a buffer.
func (x *bufferedIndex) LockWrite(o index.Owner, key index.Key, hint uint64) (*index.Held, error) {
	x.s.mu.Lock()
	h, fills, err := x.lock(o, key.Num, hint)
	if fills == nil {
		x.s.mu.Unlock()
		return h, err
	}
	start := time.Now()
	if x.build(fills, fills.buf) == nil { // else there is no memory, and the buffer grows
		fills.old, fills.buf = fills.buf, nil
		x.install(fills)
	}
	x.s.mu.Unlock()
	x.trainer.Maintain(x.now, nil)
	x.blocked += time.Since(start)
	return h, err
}

// lock locks a key. fills is the group whose buffer the key has filled, if the insert must merge it.
func (x *bufferedIndex) lock(o index.Owner, key, hint uint64) (held *index.Held, fills *group, err error) {
	s := x.s
	if h := s.held[key]; h != nil {
		if h.Owner == o {
			return h, nil, nil
		}
		return nil, nil, index.ErrLocked
	}
	t, row := x.find(key, hint)
	if row != 0 && !s.locks.Empty() && s.locks.SharedByOther(row, o) {
		return nil, nil, index.ErrLocked
	}
	h := index.Held{Key: index.Num(key), Owner: o, Home: t.addr}
	if row != 0 {
		h.Existed, h.Addr = true, row
		w := s.a.Span(row, 1)
		h.Prev = block.Header(w.Load(block.HeaderWord))
		w.Store(block.HeaderWord, uint64(h.Prev.Lock()))
	} else {
		if h.Addr, err = s.newRow(key, block.Absent(block.CSN(s.a.NextVersion())).Lock(), nil); err != nil {
			return nil, nil, err
		}
		fills = x.insert(t.g, rowAt{key, h.Addr})
	}
	held = s.helds.New(h)
	s.held[key] = held
	return held, fills, nil
}

// insert adds a row to a buffer. It returns the group if the insert must merge it.
func (x *bufferedIndex) insert(g *group, r rowAt) (fills *group) {
	if g.buf == nil {
		g.buf = btree.NewWithFreeListG(bufferDegree, rowAt.before, x.free)
	}
	g.buf.ReplaceOrInsert(r)
	switch {
	case g.buf.Len() < x.o.Limit:
		return nil
	case x.o.Background:
		x.freeze(g)
		return nil
	}
	return g
}

// freeze makes a full buffer one that Maintain merges, unless there is one already.
func (x *bufferedIndex) freeze(g *group) {
	if g.old == nil && g.buf != nil && g.buf.Len() >= x.o.Limit {
		g.old, g.buf = g.buf, nil
		x.due = append(x.due, g)
	}
}

// Reserve is that of Server.
func (x *bufferedIndex) Reserve(h *index.Held, words int) error { return x.s.Reserve(h, words) }

// Publish is that of Server: rows do not move.
func (x *bufferedIndex) Publish(h *index.Held, row []uint64, head block.Header) {
	x.s.Publish(h, row, head)
}

// Lookup is that of Server, but the absence of a key is not proved.
func (x *bufferedIndex) Lookup(key index.Key, res *index.GetResult) {
	row := res.Row[:0]
	*res = index.GetResult{Status: index.NotFound, Proofs: res.Proofs[:0], Row: row}
	x.s.mu.RLock()
	defer x.s.mu.RUnlock()
	t, at := x.find(key.Num, 0)
	if res.Hint = t.addr; at == 0 {
		return
	}
	w := x.s.a.Span(at, x.s.lay.RowBlockWords)
	h := block.Header(w.Load(block.HeaderWord))
	if h.Locked() {
		res.Status = index.Locked
		return
	}
	n := x.s.lay.RowWords
	if cap(row) < n {
		row = make([]uint64, n)
	}
	res.Row = row[:n]
	w.Slice(leaf.RowWord, n).CopyOut(res.Row)
	res.Status, res.Header, res.Rests = index.Found, h, h.CSN()
	res.Proofs = append(res.Proofs, index.Proof{Addr: at, Word: uint64(h)})
}

// cursor goes through the rows of arrays, in order.
type cursor struct {
	x    *bufferedIndex
	rest []*trained // after the present array
	w    mem.Span
	i, n int // the next row of the present array, and its number of rows
}

// peek returns the next row. It does not move the cursor past it.
func (c *cursor) peek() (r rowAt, ok bool) {
	for c.i == c.n {
		if len(c.rest) == 0 {
			return rowAt{}, false
		}
		c.w = c.x.s.span(c.rest[0].addr)
		c.i, c.n = 0, leaf.CountOf(c.w.Load(leaf.MetaWord))
		c.rest = c.rest[1:]
	}
	return rowAt{c.w.Load(c.x.s.lay.KeysAt + c.i), c.w.Load(c.x.s.lay.HeadsAt + c.i)}, true
}

// bufferedScan is a range scan. It merges an array, its buffer, and a full buffer if there is one.
type bufferedScan struct {
	scan
	x   *bufferedIndex
	own cursor
	old []rowAt // rows of the full buffer that are still to come
	mem []rowAt // of old
}

// Scan is that of Server without proofs of gaps.
func (x *bufferedIndex) Scan(lo, hi index.Key, limit int, res *index.ScanResult, buf []uint64) []uint64 {
	*res = index.ScanResult{Status: index.Found, Entries: res.Entries[:0], Quick: res.Quick[:0], Gaps: res.Gaps[:0]}
	c := bufferedScan{scan: scan{s: x.s, lo: lo.Num, hi: hi.Num, limit: limit, res: res, buf: buf[:0]}, x: x}
	if lo.Num > hi.Num {
		return c.buf
	}
	x.s.mu.RLock()
	defer x.s.mu.RUnlock()
	x.arrays.AscendGreaterOrEqual(x.arrayAt(c.lo, 0), func(t *trained) bool { return t.low <= c.hi && c.array(t) })
	return c.buf
}

// array adds the rows between the fences of an array. It reports whether the scan goes on.
func (c *bufferedScan) array(t *trained) (goesOn bool) {
	lo := max(c.lo, t.low)
	w := c.x.s.span(t.addr)
	c.own = cursor{x: c.x, w: w}
	c.own.i, c.own.n = c.x.slot(w, lo)
	c.old = c.old[:0]
	if old := t.g.old; old != nil {
		c.old = c.mem[:0]
		old.AscendGreaterOrEqual(rowAt{key: lo}, func(r rowAt) bool {
			if !t.last && r.key >= t.high || c.limit > 0 && len(c.old) > c.limit-len(c.res.Entries) {
				return false
			}
			c.old = append(c.old, r)
			return true
		})
		c.mem = c.old
	}
	if t.g.buf != nil {
		goesOn = true
		t.g.buf.AscendGreaterOrEqual(rowAt{key: lo}, func(r rowAt) bool {
			if !t.last && r.key >= t.high {
				return false
			}
			goesOn = c.upTo(r.key, false) && c.row(r)
			return goesOn
		})
		if !goesOn {
			return false
		}
	}
	return c.upTo(0, true)
}

// upTo adds the rows of the array and of the full buffer that are below a key, or all.
func (c *bufferedScan) upTo(key uint64, all bool) (goesOn bool) {
	for {
		r, own := c.own.peek()
		older := len(c.old) > 0 && (!own || c.old[0].key < r.key)
		if older {
			r = c.old[0]
		}
		switch {
		case !own && !older || !all && r.key > key:
			return true
		case !c.row(r):
			return false
		case older:
			c.old = c.old[1:]
		default:
			c.own.i++
		}
	}
}

// build writes the new arrays of a merge but the first, which takes the place of the group's first
// one. What it reads does not change meanwhile, so XIndex calls it without a lock. On an error
// nothing has changed.
func (x *bufferedIndex) build(g *group, buf *btree.BTreeG[rowAt]) error {
	c := &x.s.scr
	c.rows, c.parts = c.rows[:0], c.parts[:0]
	own := cursor{x: x, rest: g.arrays}
	buf.Ascend(func(b rowAt) bool {
		for r, ok := own.peek(); ok && r.key < b.key; r, ok = own.peek() {
			c.rows = append(c.rows, r)
			own.i++
		}
		c.rows = append(c.rows, b)
		return true
	})
	for r, ok := own.peek(); ok; r, ok = own.peek() {
		c.rows = append(c.rows, r)
		own.i++
	}
	end := g.arrays[len(g.arrays)-1]
	least, _ := buf.Min()
	slot, n := x.slot(x.s.span(end.addr), least.key)
	rising := least.key >= end.low && slot == n // all rows of the buffer are above the arrays'
	x.s.divideRows(g.arrays[0].low, end.high, end.last, rising)
	for i := 1; i < len(c.parts); i++ {
		p := &c.parts[i]
		var err error
		if p.addr, err = x.s.arraySlab.Alloc(); err != nil {
			for _, p := range c.parts[1:i] {
				x.s.arraySlab.Free(p.addr)
			}
			return full(err)
		}
		x.put(p.addr, p.rows)
	}
	return nil
}

// install makes what build has written the arrays of a group, and forgets its full buffer. If there
// are too many arrays, it divides the group.
func (x *bufferedIndex) install(g *group) {
	c, first := &x.s.scr, g.arrays[0]
	for _, t := range g.arrays[1:] {
		x.arrays.Delete(t)
		delete(x.byAddr, t.addr)
		x.s.arraySlab.Free(t.addr)
		x.trainer.Changed(index.Num(t.low), index.Num(t.high), !t.last, 0, false)
	}
	x.put(first.addr, c.parts[0].rows)
	first.high, first.last = c.parts[0].high, c.parts[0].last
	arrays := []*trained{first}
	for _, p := range c.parts[1:] {
		t := &trained{low: p.low, high: p.high, last: p.last, addr: p.addr}
		x.enrol(t)
		arrays = append(arrays, t)
		x.trainer.Changed(index.Num(p.low), index.Num(p.high), !p.last, p.addr, false)
	}
	x.merges++
	x.copied += uint64(len(c.rows))
	g.old.Clear(true)
	buf := g.buf
	g.old, g.buf = nil, nil
	n := max(len(arrays)/x.o.Arrays, 1)
	for i := range n {
		h := g
		if i > 0 {
			h = &group{}
		}
		from, to := i*len(arrays)/n, (i+1)*len(arrays)/n
		h.arrays = arrays[from:to:to]
		for _, t := range h.arrays {
			t.g = h
		}
	}
	x.distribute(g, buf, n)
}

// distribute gives the rows that came during a merge to the n groups that it has made of g.
func (x *bufferedIndex) distribute(g *group, buf *btree.BTreeG[rowAt], n int) {
	if buf == nil {
		return
	}
	if n == 1 {
		g.buf = buf
		x.freeze(g)
		return
	}
	buf.Ascend(func(r rowAt) bool {
		x.insert(x.arrayAt(r.key, 0).g, r)
		return true
	})
	buf.Clear(true)
}

// mergesPerCall bounds the merges of one call of Maintain, as in Server.
const mergesPerCall = 4

// compact merges some of the full buffers. Only the last step keeps mutators and readers out.
func (x *bufferedIndex) compact(lock sync.Locker) (worked bool) {
	for range mergesPerCall {
		x.s.mu.Lock()
		if len(x.due) == 0 {
			x.due = nil
			x.s.mu.Unlock()
			return worked
		}
		g := x.due[0]
		x.due = x.due[1:]
		x.s.mu.Unlock()
		err := x.build(g, g.old)
		lock.Lock()
		x.s.mu.Lock()
		if err == nil {
			x.install(g)
		} else {
			x.due = append(x.due, g)
		}
		x.s.mu.Unlock()
		lock.Unlock()
		worked = err == nil
	}
	return worked
}

// Maintain lets XIndex merge and train. Inserts of LI+Δ do both themselves.
func (x *bufferedIndex) Maintain(now time.Duration, lock sync.Locker) (worked bool) {
	if !x.o.Background {
		x.now = now
		return false
	}
	if lock == nil {
		lock = new(sync.Mutex)
	}
	worked = x.compact(lock)
	return x.trainer.Maintain(now, lock) || worked
}

// MaintainAll trains also LI+Δ's models, after a load.
func (x *bufferedIndex) MaintainAll(now time.Duration, lock sync.Locker) (worked bool) {
	worked = x.Maintain(now, lock)
	return x.trainer.MaintainAll(now, lock) || worked
}

// check verifies the structure. It must not run beside a mutator.
func (x *bufferedIndex) check() error {
	var errs []error
	low, open, rows, groups := uint64(0), true, 0, map[*group][]*trained{}
	within := func(t *trained, r rowAt) bool { return r.key >= t.low && (t.last || r.key < t.high) }
	x.arrays.Ascend(func(t *trained) bool {
		if !open || t.low != low || x.byAddr[t.addr] != t {
			errs = append(errs, fmt.Errorf("array %#x begins at %d, want %d", t.addr, t.low, low))
		}
		groups[t.g] = append(groups[t.g], t)
		c, prev := cursor{x: x, rest: []*trained{t}}, rowAt{}
		for r, ok := c.peek(); ok; r, ok = c.peek() {
			if !within(t, r) || c.i > 0 && r.key <= prev.key {
				errs = append(errs, fmt.Errorf("array %#x of %d to %d has key %d after %d", t.addr, t.low, t.high, r.key, prev.key))
			}
			prev = r
			rows++
			c.i++
		}
		low, open = t.high, !t.last
		return true
	})
	for g, arrays := range groups {
		if len(arrays) != len(g.arrays) || arrays[0] != g.arrays[0] || len(arrays) >= 2*x.o.Arrays {
			errs = append(errs, fmt.Errorf("group of %d arrays has %d", len(g.arrays), len(arrays)))
		}
		for _, b := range [...]*btree.BTreeG[rowAt]{g.buf, g.old} {
			if b == nil {
				continue
			}
			rows += b.Len()
			least, _ := b.Min()
			most, _ := b.Max()
			span := &trained{low: arrays[0].low, high: arrays[len(arrays)-1].high, last: arrays[len(arrays)-1].last}
			if b.Len() > 0 && (!within(span, least) || !within(span, most)) {
				errs = append(errs, fmt.Errorf("group of %d to %d buffers keys %d to %d", span.low, span.high, least.key, most.key))
			}
		}
	}
	if uint64(rows) != x.s.live || open || len(x.byAddr) != x.arrays.Len() {
		errs = append(errs, fmt.Errorf("%d rows and %d arrays, want %d and %d; open: %v", rows, x.arrays.Len(), x.s.live, len(x.byAddr), open))
	}
	return errors.Join(errs...)
}

// trainedArrays are those of a rival as its trainer sees them.
type trainedArrays struct{ x *bufferedIndex }

// Layout implements train.Leaves.
func (a trainedArrays) Layout() leaf.Layout { return a.x.s.lay }

// First implements train.Leaves.
func (a trainedArrays) First() uint64 { return a.x.first.addr }

// Inner implements train.Leaves: there are no inner nodes.
func (a trainedArrays) Inner() uint64 { return 0 }

// Leaves implements train.Leaves.
func (a trainedArrays) Leaves() uint64 {
	a.x.s.mu.RLock()
	defer a.x.s.mu.RUnlock()
	return uint64(a.x.arrays.Len())
}

// Tidy implements train.Leaves: merges are made elsewhere.
func (a trainedArrays) Tidy(int) (worked bool) { return false }

// Walk implements train.Leaves.
func (a trainedArrays) Walk(from index.Key, f func(low index.Key, leaf uint64) bool) {
	a.x.s.mu.RLock()
	defer a.x.s.mu.RUnlock()
	a.x.arrays.AscendGreaterOrEqual(a.x.arrayAt(from.Num, 0), func(t *trained) bool { return f(index.Num(t.low), t.addr) })
}

// Keys implements train.Leaves.
func (a trainedArrays) Keys(addr uint64, dst []uint64) (words []uint64, prefix int, ok bool) {
	a.x.s.mu.RLock()
	defer a.x.s.mu.RUnlock()
	if a.x.byAddr[addr] == nil {
		return dst, 0, false
	}
	w := a.x.s.span(addr)
	for i := range leaf.CountOf(w.Load(leaf.MetaWord)) {
		dst = append(dst, w.Load(a.x.s.lay.KeysAt+i))
	}
	return dst, 0, true
}
