package train

import (
	"sync"

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
	hot := st.changes >= hotChanges
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
