package train

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
)

// Bounds of one step of Maintain.
const (
	tidyPerStep    = 16
	fencesPerStep  = 2048
	releasePerStep = 64
	sharedPerStep  = 256
	dirtyExamined  = 64 // sub-models that must wait, before the search for a due one ends
)

// Options configure a trainer. All fields are required.
type Options struct {
	Arena *block.Arena
	Mem   *block.Sized // for published blocks
	Root  uint64       // address of the root block, of model.RootWords words in Mem
	Tree  Leaves
	// Family of the models, for native keys.
	Family model.Family
	// LeavesPerSubModel is the size of a sub-model when a generation is planned.
	LeavesPerSubModel int
	// RetrainInterval is the least time between two trainings of a sub-model.
	RetrainInterval time.Duration
}

// Leaves are the leaves of an index, as the trainer sees them: a tree.Tree, or leaves that
// clients write.
type Leaves interface {
	// Layout is the geometry of leaves and rows.
	Layout() leaf.Layout
	// First is the leftmost leaf, which never changes.
	First() uint64
	// Inner is the published root of the inner nodes, 0 if they are not published.
	Inner() uint64
	// Leaves is the number of leaves.
	Leaves() uint64
	// Tidy does a bounded part of what the leaves need from time to time. It reports whether it
	// changed anything, or has left something to try. The caller keeps mutators out.
	Tidy(limit int) (worked bool)
	// Walk calls f for the leaves from the one that covers from on, with low fence and
	// address, until f returns false. Fences rise. The caller keeps mutators out. A low fence
	// is valid as long as the leaves.
	Walk(from index.Key, f func(low index.Key, leaf uint64) bool)
	// Keys appends the keys of a leaf's rows, or the digests of string keys, in ascending
	// order. prefix is the length in bytes of the prefix that the digests follow. ok is false
	// if the leaf was being changed.
	Keys(addr uint64, dst []uint64) (words []uint64, prefix int, ok bool)
}

// keyKind has the steps of training that depend on the kind of key. The zero
// key is the lowest; as an end it means that there is none.
type keyKind interface {
	// partition chooses the starts of sub-models from the low fences of leaves.
	partition(lows []index.Key, leaves int) []index.Key
	// cut chooses further starts for the leaves of one sub-model that is too large or crowded.
	cut(lows []index.Key, leaves int) []index.Key
	// train fits the leaves to dst. prefix is the common prefix after which the
	// inputs of the model are taken.
	train(tr *model.Trainer, start, end index.Key, lows []index.Key, addrs []uint64, dst *model.SubModel, version uint32) (q model.Quality, prefix string, err error)
	// crowded reports whether the sub-model trained last does not distinguish its
	// leaves well enough, and must be cut.
	crowded() bool
}

// Trainer keeps the published models in step with the tree. A call of Maintain takes
// one turn, which is one bounded piece of the first of these that has work:
//
//	release     free blocks that no generation names any more: memory first
//	listHot     give a tail list to a sub-model that has become hot
//	retrain     train one sub-model of gen whose leaves have changed
//	next        train one sub-model of the generation that will replace gen
//	plan        collect fences, or cut one sub-model that has become too large
//	due         begin a plan, if the partition does not fit the tree any more
//
// A new generation takes many turns, and gen serves meanwhile, so gen must not go
// stale: every other turn (turn) tries retrain before next and plan. Without that,
// retraining would starve a plan under a steady load of splits, or clients would
// chase right links until a plan is done. A plan is a separate state because
// collecting the fences of a large tree takes too long for one section under the
// lock. Splits while a generation is planned or trained mark its sub-models dirty,
// and these are trained again once it is published.
//
// All fields but sums are used only in Maintain's goroutine, or under the caller's
// lock if both Maintain and mutators use them: gen, next and last, and the dirty marks
// in them.
type Trainer struct {
	o    Options
	k    keyKind
	root model.Root
	tr   *model.Trainer
	sub  model.SubModel // scratch

	gen  *generation // published; nil before the first training
	next *generation // being trained
	last *pastTails  // of the generation that gen has replaced; nil if it had none
	plan *planning   // a partition being chosen
	turn bool        // alternates between the current and the next generation

	garbage  []*published
	large    []int // sub-models of gen that are too large
	lows     []index.Key
	addrs    []uint64
	words    []uint64
	version  uint32
	changes  uint64        // calls of Changed
	entry    []uint64      // scratch of Changed
	failures atomic.Uint64 // trainings that failed for lack of memory

	mu struct {
		sync.Mutex
		modelBytes, ttBytes uint64
		subs, pending       uint64
		retrains, plans     uint64
		quality             model.Quality // summed; ErrorMax is the maximum
	}
}

// generation is one partition of the keys into sub-models.
type generation struct {
	model.Generation
	at     model.Pointer
	router model.KeyRouter
	subs   []subState
	dirty  []int // sub-models to be trained again, in the order they became so
	hot    []int // sub-models that have become hot and have no tail list yet
	leaves uint64
	done   int // while in training: sub-models finished
	// checked is how many sub-models need not be trained again before the generation is
	// published: one pass over all, so that it is published however fast leaves split.
	checked int
	behind  int // one more than the hot sub-model from which readers lack most; 0: none
}

// subState is the server's knowledge of a sub-model.
type subState struct {
	blk     *published
	dirty   bool
	trained time.Duration
	quality model.Quality
	uncut   bool      // crowded or too large: it must be cut
	hollow  bool      // no leaf begins in it
	changes uint32    // since the last training; see hotChanges
	heated  bool      // it is in generation.hot, or was since the last training
	tail    *tail     // nil unless the sub-model is hot
	from    uint64    // the number of the tail list's next entry at the last training
	newest  index.Key // the low fence of the leaf that was split off last
	prefix  string    // of string keys
}

// published is the block of a sub-model, which two generations may share, or of
// a directory.
type published struct {
	at                  model.Pointer
	refs                int
	modelBytes, ttBytes uint64
}

// New makes the trainer of a tree, and publishes the root of its index, without
// models. From then on the tree must call Changed for its changes.
func New(o Options) (t *Trainer, err error) {
	t = &Trainer{o: o, root: model.NewRoot(o.Tree.Layout(), o.Tree.First())}
	t.root.Inner = o.Tree.Inner()
	if t.tr, err = model.NewTrainer(model.Options{Family: o.Family}); err != nil {
		return nil, err
	}
	if o.Tree.Layout().Kind == leaf.Strings {
		t.k = &stringKeys{t: o.Tree}
	} else {
		t.k = &nativeKeys{t: o.Tree, family: o.Family}
	}
	e := o.Arena.CreateOf(o.Root, t.root.Body(nil))
	t.commit(&e)
	return t, nil
}

// Changed marks the sub-models of a range of keys as dirty, and appends the leaf that
// a split has made to their tail lists; see tree.Options.
func (t *Trainer) Changed(low, high index.Key, bounded bool, leaf uint64, rising bool) {
	t.changes++
	e := model.TailEntry{Low: low, High: high, Bounded: bounded, Rising: rising, Leaf: leaf}
	for _, g := range [...]*generation{t.gen, t.next} {
		if g != nil {
			t.mark(g, &e)
		}
	}
	if t.last != nil {
		t.tell(t.last, &e)
	}
}

func (t *Trainer) mark(g *generation, e *model.TailEntry) {
	for i, end := g.covering(e); i < end; i++ {
		st := &g.subs[i]
		if !st.dirty {
			st.dirty = true
			g.dirty = append(g.dirty, i)
		}
		st.changes++
		if e.Leaf != 0 {
			t.split(st, e)
			st.newest = e.Low.Clone()
		}
		if e.Rising {
			st.changes += risingChanges - 1
		}
		if st.tail == nil && !st.heated && st.hot() {
			st.heated = true
			g.hot = append(g.hot, i)
		}
		if st.hot() && (g.behind == 0 || st.lacks() >= g.subs[g.behind-1].lacks()) {
			g.behind = i + 1
		}
	}
}

// Maintain does one bounded unit of background work: unlinking empty leaves, training
// one sub-model, or a step of a new partition of all. now is the time since some
// fixed moment. lock keeps mutators out; Maintain takes it for short sections. It may
// be nil if the caller keeps mutators out. Maintain reports whether there was
// anything to do. It reads no clock: the caller decides which share of a core
// training may take by how long it waits between calls. A call takes up to a
// millisecond for a sub-model of the default size, of which a few tens of
// microseconds are under the lock. Training follows XStore §5.3; unlike there, splits
// of one sub-model are merged into one task, and a sub-model is trained at most once
// in RetrainInterval.
func (t *Trainer) Maintain(now time.Duration, lock sync.Locker) (worked bool) {
	return t.maintain(now, lock, whenRested)
}

// MaintainAll is Maintain, but no sub-model rests.
func (t *Trainer) MaintainAll(now time.Duration, lock sync.Locker) (worked bool) {
	return t.maintain(now, lock, atOnce)
}

// MaintainLazily is Maintain, but a sub-model from which readers lack much comes first,
// and one from which they lack little rests for longer. Training it takes as long as
// training one from which they lack much.
func (t *Trainer) MaintainLazily(now time.Duration, lock sync.Locker) (worked bool) {
	return t.maintain(now, lock, lazily)
}

// urgency says how long sub-models rest between two trainings.
type urgency uint8

const (
	whenRested urgency = iota // RetrainInterval
	lazily                    // longer, if readers lack little
	atOnce                    // not at all
)

func (t *Trainer) maintain(now time.Duration, lock sync.Locker, u urgency) (worked bool) {
	if lock == nil {
		lock = noLock{}
	}
	lock.Lock()
	worked = t.o.Tree.Tidy(tidyPerStep)
	leaves, pending := t.o.Tree.Leaves(), 0
	if t.gen != nil {
		pending = len(t.gen.dirty)
	}
	lock.Unlock()
	t.note(pending)
	t.endPast(now, lock)
	t.turn = !t.turn
	switch {
	case t.release():
		worked = true
	case t.listHot(lock):
		worked = true
	case t.turn && t.retrain(now, lock, u):
		worked = true
	case t.next != nil:
		worked = t.trainNext(now, lock) || worked
	case t.plan != nil:
		worked = t.planStep(lock) || worked
	case t.due(leaves):
		worked = true
	case !t.turn && t.retrain(now, lock, u):
		worked = true
	}
	return worked
}

// noLock is the lock if the caller keeps mutators out.
type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}

// note publishes the number of waiting tasks for Stats.
func (t *Trainer) note(pending int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.pending = uint64(pending); t.gen != nil {
		t.mu.subs = uint64(len(t.gen.subs))
	}
}

// trainNext trains one more sub-model of the next generation. After the last it
// publishes the generation.
func (t *Trainer) trainNext(now time.Duration, lock sync.Locker) bool {
	g := t.next
	if g.done == len(g.subs) {
		if !t.trainAgain(now, lock) {
			t.publishNext(now, lock)
		}
		return true
	}
	lock.Lock()
	for n := 0; g.done < len(g.subs) && n < sharedPerStep && t.shared(g.done); n++ {
		g.done++
	}
	lock.Unlock()
	if g.done == len(g.subs) {
		return true
	}
	if err := t.train(g, g.done, now, lock); err != nil {
		// The tree has outgrown the plan, or there is no memory: begin again.
		t.abandon(lock)
		if errors.Is(err, index.ErrFull) {
			t.failures.Add(1)
			return false
		}
		return true
	}
	g.done++
	return true
}

// trainAgain trains a sub-model of the next generation again if its tail list has
// become half full since, while the others were trained: a list that is full when readers
// begin to use it has lost the leaves that they lack. It reports whether it did.
func (t *Trainer) trainAgain(now time.Duration, lock sync.Locker) bool {
	g := t.next
	for ; g.checked < len(g.subs); g.checked++ {
		st := &g.subs[g.checked]
		lock.Lock()
		full := st.tail != nil && !st.fresh(t.root.TailEntries())
		lock.Unlock()
		if !full {
			continue
		}
		old := st.blk
		st.blk = nil // not a published one
		err := t.train(g, g.checked, now, lock)
		if err == nil {
			t.drop(old)
			g.checked++
			return true
		}
		lock.Lock()
		st.blk, st.dirty = old, true
		g.dirty = append(g.dirty, g.checked)
		lock.Unlock()
		st.uncut = st.uncut || !errors.Is(err, index.ErrFull)
	}
	return false
}

// shared makes sub-model i of the next generation share the block of the current one,
// if that has the same keys, and reports whether it did. If its leaves have changed
// since, the sub-model waits for its training as before: a generation that cuts a few
// large sub-models does not train the others, and so is soon there.
func (t *Trainer) shared(i int) bool {
	g, old := t.next, t.gen
	if old == nil {
		return false
	}
	j := old.router.Route(g.router.Start(i))
	if old.router.Start(j) != g.router.Start(i) || g.end(i) != old.end(j) {
		return false
	}
	if old.subs[j].dirty && !g.subs[i].dirty {
		g.dirty = append(g.dirty, i)
	}
	g.subs[i] = old.subs[j]
	g.subs[i].blk.refs++
	if g.subs[i].heated && g.subs[i].tail == nil {
		g.hot = append(g.hot, i)
	}
	if l := g.subs[i].tail; l != nil {
		l.refs++
	}
	return true
}

// Bounds on what readers lack from a sub-model that is trained lazily. A leaf that it
// does not name costs them one right link, once for each client, because clients
// remember it. A leaf in a tail list costs them a READ in a round that they need anyway.
const (
	fewChanges   = 8
	tailShare    = 2 // one part in tailShare of the entries of a tail list
	lazyInterval = 400 * time.Millisecond
)

// fresh reports whether readers lack little from a sub-model. A tail list has room for
// so many entries.
func (st *subState) fresh(entries uint64) bool {
	if st.tail != nil {
		return st.lacks() < entries/tailShare
	}
	return st.lacks() < fewChanges
}

// hot reports whether the sub-model has a tail list, or gets one when it is trained.
func (st *subState) hot() bool { return st.tail != nil || st.changes >= hotChanges }

// lacks returns how many changes readers lack from the sub-model's block: the splits, if
// it has a tail list.
func (st *subState) lacks() uint64 {
	if st.tail != nil {
		return st.tail.next - st.from
	}
	return uint64(st.changes)
}

// Behind returns how many changes readers lack from the hot sub-model that lacks most; 0 if
// they lack little. Clients remember a bounded number of them, and without a tail list they
// find them by right links.
func (t *Trainer) Behind(lock sync.Locker) uint64 {
	if lock != nil {
		lock.Lock()
		defer lock.Unlock()
	}
	if t.gen == nil || t.gen.behind == 0 {
		return 0
	}
	st := &t.gen.subs[t.gen.behind-1]
	if st.fresh(t.root.TailEntries()) {
		return 0
	}
	return st.lacks()
}

// takeBehind removes the hot sub-model from which readers lack most, if it is dirty, and
// returns it. It returns -1 if they lack little, or if it has to rest.
func (g *generation) takeBehind(now, rest time.Duration, entries uint64) int {
	i := g.behind - 1
	if i < 0 || !g.subs[i].dirty || g.subs[i].fresh(entries) || now-g.subs[i].trained < rest {
		return -1
	}
	g.behind = 0
	if at := slices.Index(g.dirty, i); at >= 0 {
		g.dirty = slices.Delete(g.dirty, at, at+1)
	}
	return i
}

// end returns the start of the sub-model after i, the zero key if i is the last.
func (g *generation) end(i int) index.Key {
	if i+1 == len(g.subs) {
		return index.Key{}
	}
	return g.router.Start(i + 1)
}

// abandon drops the next generation.
func (t *Trainer) abandon(lock sync.Locker) {
	lock.Lock()
	g := t.next
	t.next = nil
	lock.Unlock()
	for i := range g.subs {
		t.drop(g.subs[i].blk)
		t.dropTail(g.subs[i].tail)
	}
}

// takeDirty removes a dirty sub-model that was last trained at least as long ago as it
// has to rest, and returns it. It returns -1 if there is none among the first ones of
// the list, and moves those to its end. Entries that are no longer dirty, since they
// were trained outside retrain, are removed in the same pass.
func (g *generation) takeDirty(now time.Duration, rest func(*subState) time.Duration) int {
	kept := 0
	for k, i := range g.dirty {
		st := &g.subs[i]
		if !st.dirty {
			continue
		}
		if kept == dirtyExamined {
			waiting := [dirtyExamined]int(g.dirty)
			g.dirty = append(g.dirty[:copy(g.dirty, g.dirty[k:])], waiting[:]...)
			return -1
		}
		if st.trained == 0 || now-st.trained >= rest(st) {
			g.dirty = append(g.dirty[:kept], g.dirty[k+1:]...)
			return i
		}
		g.dirty[kept] = i
		kept++
	}
	g.dirty = g.dirty[:kept]
	return -1
}

// retrain trains one sub-model of the current generation whose leaves have
// changed, if one is due.
func (t *Trainer) retrain(now time.Duration, lock sync.Locker, u urgency) bool {
	g := t.gen
	if g == nil {
		return false
	}
	rest := func(st *subState) time.Duration {
		switch {
		case u == atOnce:
			return 0
		case u == lazily && st.fresh(t.root.TailEntries()):
			return max(t.o.RetrainInterval, lazyInterval)
		}
		return t.o.RetrainInterval
	}
	lock.Lock()
	i := -1
	if u == lazily {
		i = g.takeBehind(now, t.o.RetrainInterval, t.root.TailEntries())
	}
	if i < 0 {
		i = g.takeDirty(now, rest)
	}
	lock.Unlock()
	if i < 0 {
		return false
	}
	old := g.subs[i].blk
	if err := t.train(g, i, now, lock); err != nil {
		lock.Lock()
		g.subs[i].trained, g.subs[i].dirty = now, true
		g.dirty = append(g.dirty, i)
		lock.Unlock()
		if errors.Is(err, index.ErrFull) {
			t.failures.Add(1)
			return false
		}
		g.subs[i].uncut = true
		t.tooLarge(i)
		return true
	}
	t.point(g, i)
	t.drop(old)
	t.mu.Lock()
	t.mu.retrains++
	t.mu.Unlock()
	return true
}

// tooLarge requests that sub-model i of the current generation be cut.
func (t *Trainer) tooLarge(i int) {
	if !slices.Contains(t.large, i) {
		t.large = append(t.large, i)
	}
}
