package train

import (
	"sync"
	"time"

	"drtmx/index/learned/model"
	"drtmx/internal/mem"
)

// hotChanges is how many changes between two trainings make a sub-model hot: the
// trainer does not keep up with it. A leaf for ascending keys counts as several
// changes, because more leaves will follow. A hot sub-model gets a tail list.
const (
	hotChanges    = 16
	risingChanges = 4
)

// tail is the tail list of a sub-model; see model.Tail. Splits append to it in
// the executor's goroutine, in constant time. Two generations may share it.
type tail struct {
	addr uint64
	refs int    // used by Maintain only
	next uint64 // the number of the next entry
	last uint64 // number, in Trainer.changes, of the change appended last
}

// place returns the tail list's place for the block of a sub-model that was just
// trained.
func (l *tail) place() model.Tail {
	if l == nil {
		return model.Tail{}
	}
	return model.Tail{Addr: l.addr, Next: l.next}
}

// split appends the leaf that a split has made to the tail list of a sub-model.
func (t *Trainer) split(st *subState, e *model.TailEntry) {
	l := st.tail
	if l == nil || l.last == t.changes {
		return
	}
	words, ok := t.root.AppendTailEntry(t.entry[:0], l.addr, l.next, st.prefix, e)
	if !ok {
		return
	}
	t.entry = words
	t.o.Arena.Span(t.root.TailSlot(l.addr, l.next), len(words)).CopyIn(words)
	l.next, l.last = l.next+1, t.changes
	// The next list in this memory must begin with higher numbers: see newTail.
	t.o.Arena.NextVersion()
}

// giveTail gives sub-model i of g a tail list if it is hot, or if it is the part of a
// hot one in which the last leaf was split off. Without memory for the list it has
// none.
func (t *Trainer) giveTail(g *generation, i int, lock sync.Locker) {
	st, l := &g.subs[i], (*tail)(nil)
	if st.tail != nil {
		return
	}
	lock.Lock()
	hot := st.hot()
	if old, same := t.before(g, i); old != nil && old.tail != nil {
		if same {
			l = old.tail
		}
		if same || g.router.Route(old.newest) == i {
			hot, st.newest = true, old.newest
		}
	}
	lock.Unlock()
	if l == nil && hot {
		l = t.newTail()
	}
	if l == nil {
		return
	}
	l.refs++
	lock.Lock()
	st.tail = l
	lock.Unlock()
}

// listHot gives a tail list to a sub-model of the current generation that has become hot,
// and publishes its block again with the list's place. That copies a block; training fits a
// model, and the trainer rests in proportion to its work: where rows are suddenly appended in
// many places, readers would follow a right link for each leaf until the last one is trained.
func (t *Trainer) listHot(lock sync.Locker) bool {
	if t.gen == nil {
		return false
	}
	g, st := t.gen, (*subState)(nil)
	lock.Lock()
	i, some := len(g.hot)-1, len(g.hot) > 0
	if some {
		i, g.hot = g.hot[i], g.hot[:i]
		st = &g.subs[i]
		some = st.tail == nil && st.hot() // not if it was trained meanwhile
	}
	lock.Unlock()
	if !some {
		return false
	}
	l := t.newTail()
	if l == nil {
		return false
	}
	old := st.blk
	b := make([]uint64, old.at.Words())
	t.o.Arena.Span(old.at.Addr(), len(b)).CopyOut(b)
	l.refs++
	lock.Lock()
	st.tail, st.from = l, l.next
	place := l.place()
	lock.Unlock()
	body, ok := t.root.WithTail(t.words[:0], b, g.router.Start(i), place)
	at, err := model.Pointer(0), error(nil)
	if ok {
		at, err = t.publish(body)
	}
	if !ok || err != nil {
		return true // readers learn of the list by the next training
	}
	blk := &published{at: at, refs: 1, modelBytes: old.modelBytes + model.TailWords*mem.WordBytes, ttBytes: old.ttBytes}
	t.account(st, st.quality, blk)
	st.blk = blk
	t.point(g, i)
	t.drop(old)
	return true
}

// before returns the sub-model of the current generation in which sub-model i of the
// next one begins, and whether both have the same keys; nil if there is none.
func (t *Trainer) before(g *generation, i int) (st *subState, same bool) {
	old := t.gen
	if g == old || old == nil {
		return nil, false
	}
	j := old.router.Route(g.router.Start(i))
	return &old.subs[j], old.router.Start(j) == g.router.Start(i) && old.end(j) == g.end(i)
}

// newTail makes an empty tail list, or returns nil without memory. Its numbers begin
// at a version of the arena, and each entry takes one version. So no two lists in the
// same memory ever have entries with the same number.
func (t *Trainer) newTail() *tail {
	addr, err := t.o.Mem.Alloc(model.TailWords * mem.WordBytes)
	if err != nil {
		return nil
	}
	return &tail{addr: addr, next: t.o.Arena.NextVersion()}
}

// dropTail drops a reference to a tail list.
func (t *Trainer) dropTail(l *tail) {
	if l == nil {
		return
	}
	if l.refs--; l.refs == 0 {
		t.garbage = append(t.garbage, &published{at: model.NewPointer(l.addr, model.TailWords)})
	}
}

// pastTails are the tail lists of the generation before the current one. Splits are
// appended to them for a while: a reader learns of a new generation by its misses, and
// needs some rounds to fetch it. Until then it finds new leaves as before, and not by a
// chain of right links that grows with every split.
type pastTails struct {
	of    *generation
	since time.Duration
}

// pastTailsFor is how long the lists of a generation outlive it, if the next one is not
// replaced earlier. It is longer than a reader that reads needs to notice and to fetch it.
const pastTailsFor = 10 * time.Second

// keepTails takes over the tail lists of a generation that was just replaced.
func (t *Trainer) keepTails(g *generation, now time.Duration, lock sync.Locker) {
	t.dropPast(lock)
	for i := range g.subs {
		if g.subs[i].tail != nil {
			lock.Lock()
			t.last = &pastTails{of: g, since: now}
			lock.Unlock()
			return
		}
	}
}

// endPast drops the lists of the generation before the current one once it was replaced
// long ago.
func (t *Trainer) endPast(now time.Duration, lock sync.Locker) {
	if t.last != nil && now-t.last.since >= pastTailsFor {
		t.dropPast(lock)
	}
}

func (t *Trainer) dropPast(lock sync.Locker) {
	p := t.last
	if p == nil {
		return
	}
	lock.Lock()
	t.last = nil
	lock.Unlock()
	for i := range p.of.subs {
		t.dropTail(p.of.subs[i].tail)
	}
}

// tell appends the leaf that a split has made to the lists of the generation before.
func (t *Trainer) tell(p *pastTails, e *model.TailEntry) {
	if g := p.of; e.Leaf != 0 {
		for i, end := g.covering(e); i < end; i++ {
			t.split(&g.subs[i], e)
		}
	}
}

// covering returns the sub-models, from i up to end, that have keys of a leaf.
func (g *generation) covering(e *model.TailEntry) (i, end int) {
	i = g.router.Route(e.Low)
	for end = i + 1; end < len(g.subs) && !(e.Bounded && g.router.Start(end).Compare(e.High) >= 0); end++ {
	}
	return i, end
}
