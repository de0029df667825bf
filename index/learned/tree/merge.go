package tree

import (
	"drtmx/index/learned/leaf"
	"drtmx/internal/invariants"
)

// Leaves that have lost rows are merged with their neighbours. A leaf is sparse if
// fewer than half of its slots are in use. A sparse leaf and neighbours that fit in
// three quarters of one leaf become one; a sparse leaf and its two neighbours that
// fit in three quarters of two leaves become two. So once all leaves are tidy, at
// least about half of all slots are in use. A new leaf splits only after inserts into
// a quarter of its slots, and is sparse only after as many deletions.
const (
	// runMax bounds the leaves that are merged at once.
	runMax = 16
	// untidyMax bounds the queue of sparse leaves. Beyond it, each deletion tidies
	// tidyShare of them.
	untidyMax = 64
	tidyShare = 2
)

// untidy is a queue of leaves that may be sparse.
type untidy struct {
	leaf []uint64
	head int
}

func (u *untidy) len() int { return len(u.leaf) - u.head }

func (u *untidy) put(addr uint64) { u.leaf = append(u.leaf, addr) }

func (u *untidy) take() uint64 {
	addr := u.leaf[u.head]
	if u.head++; u.head == len(u.leaf) {
		u.leaf, u.head = u.leaf[:0], 0
	} else if u.head >= untidyMax && u.head*2 >= len(u.leaf) {
		u.leaf, u.head = append(u.leaf[:0], u.leaf[u.head:]...), 0
	}
	return addr
}

func (t *Tree) sparse(live int) bool { return 2*live < t.lay.Slots }

// shrunk is called when a leaf has lost a row, and queues it when it becomes sparse,
// and then each time its rows have halved again. In between, a neighbour that becomes
// sparse may also merge it.
func (t *Tree) shrunk(addr uint64, live int) {
	if !t.sparse(live) || live&(live-1) != 0 && t.sparse(live+1) {
		return
	}
	t.untidy.put(addr)
	if t.untidy.len() > untidyMax {
		t.Tidy(tidyShare)
	}
}

// Tidy unlinks or merges sparse leaves; it examines at most limit of them. It reports
// whether it changed the tree.
func (t *Tree) Tidy(limit int) (worked bool) {
	for n := min(limit, t.untidy.len()); n > 0; n-- {
		worked = t.tidyLeaf(t.untidy.take()) || worked
	}
	return worked
}

func (t *Tree) liveOf(addr uint64) int { return leaf.Unpack(t.span(addr).Load(leaf.MetaWord)).Live }

func (t *Tree) rightOf(addr uint64) uint64 { return t.span(addr).Load(leaf.RightWord) }

// tidyLeaf unlinks or merges a leaf if it is still sparse, and reports whether it
// did.
func (t *Tree) tidyLeaf(addr uint64) bool {
	if !t.alive(addr) || !t.sparse(t.liveOf(addr)) {
		return false
	}
	if addr == t.first {
		// The first leaf stays where it is. What follows it may be merged.
		if addr = t.rightOf(addr); addr == 0 || !t.sparse(t.liveOf(addr)) {
			return false
		}
	}
	f := t.keys.of(addr)
	if t.liveOf(addr) == 0 {
		return t.unlink(f)
	}
	fit := t.lay.Slots * 3 / 4
	if run := t.neighbours(f, fit); len(run) > 1 {
		return t.repack(run, 1)
	}
	if left, right := t.before(f.low), t.rightOf(addr); left != t.first && right != 0 {
		run := []*fences{t.keys.of(left), f, t.keys.of(right)}
		if t.liveOf(left)+t.liveOf(addr)+t.liveOf(right) <= 2*fit {
			return t.repack(run, 2)
		}
	}
	return false
}

// neighbours returns f and the adjacent leaves whose rows fit in one leaf together,
// in key order.
func (t *Tree) neighbours(f *fences, fit int) []*fences {
	run, n := []*fences{f}, t.liveOf(f.addr)
	for len(run) < runMax {
		left := t.before(run[0].low)
		live := t.liveOf(left)
		if left == t.first || n+live > fit {
			break
		}
		run, n = append([]*fences{t.keys.of(left)}, run...), n+live
	}
	for len(run) < runMax {
		right := t.rightOf(run[len(run)-1].addr)
		if right == 0 || n+t.liveOf(right) > fit {
			break
		}
		run, n = append(run, t.keys.of(right)), n+t.liveOf(right)
	}
	return run
}

// repack moves the rows of adjacent leaves to one or two new ones. The tree's first
// leaf must not be among them. If it returns false nothing has changed.
//
// Readers may run at any moment. The new leaves are complete before a link points to
// them. From then until the old leaves are killed, both give correct answers, because
// no other mutator runs. A reader that holds the address of a dead leaf notices, and
// searches for its key from the root. Inline rows move to other addresses: no proof
// refers to the memory of the new leaves, and the old slots prove nothing from now
// on. Locks follow their rows to the new leaves.
func (t *Tree) repack(run []*fences, into int) bool {
	if t.crowded(run...) {
		return false
	}
	t.sorted = t.sorted[:0]
	ends := make([]int, len(run)) // where the rows of each leaf end
	for i, f := range run {
		if invariants.Enabled && i > 0 && run[i-1].high != f.low {
			invariants.Failf("tree: leaves to be merged do not follow one another: %v and %v", run[i-1].high, f.low)
		}
		t.sorted = t.appendLive(t.sorted, t.span(f.addr))
		ends[i] = len(t.sorted)
	}
	end := run[len(run)-1]
	to := []*fences{t.newFences(0, run[0].low, end.high, end.last)}
	cut := len(t.sorted)
	if into == 2 {
		cut = len(t.sorted) / 2
		fence := t.between(t.sorted, cut)
		to = []*fences{t.newFences(0, run[0].low, fence, false), t.newFences(0, fence, end.high, end.last)}
	}
	for i, f := range to {
		if t.newLeaf(forMoved, f) != nil {
			for _, f := range to[:i] {
				t.kill(f, 0)
			}
			return false
		}
	}
	t.divide(t.gather(run...), to...)
	right := t.rightOf(end.addr)
	if into == 2 {
		t.fillFrom(to[1], right, run, ends, cut, len(t.sorted))
		right = to[1].addr
	}
	t.fillFrom(to[0], right, run, ends, 0, cut)
	t.step("filled")
	left := t.before(run[0].low)
	e := t.a.Begin(left, t.lay.LeafWords)
	e.Set(leaf.RightWord, to[0].addr)
	t.commitLeaf(&e)
	t.step("linked")
	for _, f := range run {
		if into == 2 && f.low.Compare(to[1].low) >= 0 {
			t.kill(f, to[1].addr)
		} else {
			t.kill(f, to[0].addr)
		}
	}
	t.step("killed")
	t.moveLocks(run, ends, to, cut)
	t.replaceLeaf(to[0])
	for _, f := range run[1:] {
		t.removeLeaf(f.low)
	}
	if into == 2 {
		t.addLeaf(to[1])
	}
	t.mirror.flush()
	t.merges.Add(1)
	t.changed(run[0].low, end.high, !end.last, 0, false)
	return true
}

// fillFrom writes a new leaf with the rows t.sorted[from:to], which are in the leaves
// of the run. ends has where in t.sorted the rows of each leaf end.
func (t *Tree) fillFrom(f *fences, right uint64, run []*fences, ends []int, from, to int) {
	e := t.blank(f)
	deleted := uint64(0)
	for _, old := range run {
		deleted = max(deleted, t.span(old.addr).Load(t.lay.DeleteAt))
	}
	at := 0
	for i := from; i < to; i++ {
		for i >= ends[at] {
			at++
		}
		e.Set(t.lay.KeysAt+i-from, t.keys.carried(t.sorted[i], run[at], f))
		e = t.rows.carry(e, i-from, t.span(run[at].addr), t.sorted[i].slot)
	}
	m := leaf.Meta{Last: f.last, Newest: leaf.NoNewest, Live: to - from, Count: to - from}
	e.Set(leaf.MetaWord, t.lay.Pack(m))
	e.Set(leaf.RightWord, right)
	e.Set(t.lay.DeleteAt, deleted)
	e.Set(t.lay.GravesAt, t.gravesWord(f.addr))
	t.commitLeaf(&e)
}

// moveLocks moves held and shared locks after a repack. A shared lock on the gap of
// an old leaf becomes one on the gap of every new leaf that may cover its keys.
func (t *Tree) moveLocks(run []*fences, ends []int, to []*fences, cut int) {
	begin := 0
	for i, f := range run {
		if !t.locks.Empty() {
			for _, f2 := range to[1:] {
				t.locks.Copy(leaf.GapAddr(f.addr), leaf.GapAddr(f2.addr))
			}
			t.locks.Move(leaf.GapAddr(f.addr), leaf.GapAddr(to[0].addr))
		}
		mid := min(max(cut, begin), ends[i])
		t.followLocks(f.addr, to[0].addr, t.sorted[begin:mid], begin)
		if len(to) > 1 {
			t.followLocks(f.addr, to[1].addr, t.sorted[mid:ends[i]], mid-cut)
		}
		begin = ends[i]
	}
}

// unlink removes an empty leaf, which is not the first, and gives its range to
// its left sibling.
func (t *Tree) unlink(f *fences) bool {
	old := t.keys.of(t.before(f.low))
	if t.crowded(old, f) {
		return false
	}
	left := t.newFences(old.addr, old.low, f.high, f.last)
	if t.keys.reserve(left) != nil {
		return false // no memory: the leaf stays until its neighbour changes
	}
	t.divide(t.gather(old, f), left)
	s := t.span(f.addr)
	right, deleted := s.Load(leaf.RightWord), s.Load(t.lay.DeleteAt)
	t.kill(f, left.addr)
	t.step("killed")
	t.sorted = t.appendLive(t.sorted[:0], t.span(left.addr))
	e := t.a.Begin(left.addr, t.lay.LeafWords)
	m := leaf.Unpack(e.Load(leaf.MetaWord))
	m.Last = f.last
	t.recarry(&e, t.sorted, old, left)
	t.setFences(&e, left)
	e.Set(leaf.RightWord, right)
	e.Set(t.lay.DeleteAt, max(e.Load(t.lay.DeleteAt), deleted))
	e.Set(t.lay.GravesAt, t.gravesWord(left.addr))
	e.Set(leaf.MetaWord, t.lay.Pack(m))
	t.commitLeaf(&e)
	if !t.locks.Empty() {
		t.locks.Move(leaf.GapAddr(f.addr), leaf.GapAddr(left.addr))
	}
	t.removeLeaf(f.low)
	t.mirror.flush()
	t.keys.replace(old, left)
	t.unlinks.Add(1)
	t.changed(f.low, f.high, !f.last, 0, false)
	if m.Live == 0 && left.addr != t.first {
		t.untidy.put(left.addr)
	}
	return true
}
