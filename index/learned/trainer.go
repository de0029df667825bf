package learned

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// Bounds of one step of Maintain.
const (
	tidyPerStep    = 16
	fencesPerStep  = 2048
	releasePerStep = 64
	sharedPerStep  = 256
	// growFactor is how much leaves may grow or shrink before all is partitioned anew.
	growFactor = 2
	// planFactor is how much larger than planned a sub-model may be.
	planFactor  = 3
	leastLeaves = 64
)

// keyKind is what training needs to know of a kind of keys and of the tree
// that has them. The zero key is the lowest; as an end it means that there is none.
type keyKind[K cmp.Ordered] interface {
	tidy(limit int) bool
	leaves() uint64
	// fences is Fences of the tree.
	fences(from, to K, bounded bool, limit int, lows []K, addrs []uint64) (l []K, a []uint64, next K, more bool)
	// partition chooses the starts of sub-models from the low fences of leaves.
	partition(lows []K, leaves int) []K
	// cut chooses further starts for the leaves of one sub-model that is too large or crowded.
	cut(lows []K, leaves int) []K
	newRouter(starts []K) (keyRouter[K], error)
	// reaches reports whether a change up to high touches a sub-model that begins at start.
	reaches(high, start K) bool
	// train fits the leaves to dst; prefix is what a sub-model block says beside it.
	train(tr *model.Trainer, start, end K, lows []K, addrs []uint64, dst *model.SubModel, version uint32) (q model.Quality, prefix []uint64, err error)
	// crowded reports whether the sub-model trained last does not tell its leaves apart well enough, and is to be cut.
	crowded() bool
	// magics are those of sub-model blocks and chunks.
	magics() (sub, chunk uint32)
	// appendChunk appends the body of a chunk: starts and pointers.
	appendChunk(dst []uint64, starts []K, pointers []uint64) []uint64
	// pointerWord is where the pointer of sub-model i of n is in a chunk.
	pointerWord(n, i int) int
	// chunkEntry is what the generation block says of a chunk.
	chunkEntry(c chunkBlock) uint64
}

// keyRouter finds the sub-model of a key.
type keyRouter[K cmp.Ordered] interface {
	Route(key K) int
	Start(i int) K
	Bytes() int
}

// chunkBlock is a published chunk.
type chunkBlock struct {
	addr  uint64
	words int
}

// training is a trainer of either kind of keys.
type training interface {
	maintain(now time.Duration, lock sync.Locker) bool
	stats(st *index.ServerStats)
	quality() (q model.Quality, generations uint64)
	check() error
}

// trainer keeps the published models in step with the tree. A call of maintain
// takes one turn, which is one bounded piece of the first work there is:
//
//	release     free blocks that no generation names any more: memory first
//	retrain     train one sub-model of gen whose leaves have changed
//	next        train one sub-model of the generation that will replace gen
//	plan        collect fences, or cut one sub-model that has become too large
//	due         begin a plan, if the partition does not fit the tree any more
//
// A new generation takes many turns, and gen serves meanwhile, so gen must not
// go stale: every other turn (turn) tries retrain before next and plan. Without
// that, retraining would starve a plan under a steady load of splits, or a plan
// would leave clients to chase right links until it is done. A plan is a state
// of its own because the fences of a large tree do not fit into one section
// under the lock. Splits while a generation is planned or trained mark its
// sub-models dirty, and these are trained again once it is published.
//
// Everything but sums is touched only in Maintain's goroutine, or under the
// caller's lock where both Maintain and mutators touch it: gen and next, and
// the dirty marks in them.
type trainer[K cmp.Ordered] struct {
	s   *Server
	k   keyKind[K]
	id  uint32
	tr  *model.Trainer
	sub model.SubModel // scratch

	gen  *generation[K] // published; nil before the first training
	next *generation[K] // being trained
	plan *planning[K]   // a partition being chosen
	turn bool           // alternates between the current and the next generation

	garbage  []*modelBlock
	large    []int // sub-models of gen found too large
	lows     []K
	addrs    []uint64
	words    []uint64
	version  uint32
	failures atomic.Uint64 // trainings given up for want of memory

	mu struct {
		sync.Mutex
		modelBytes, ttBytes uint64
		subs, pending       uint64
		retrains, plans     uint64
		quality             model.Quality // summed; ErrorMax is that of the worst
	}
}

// generation is one partition of the keys into sub-models.
type generation[K cmp.Ordered] struct {
	number uint64
	addr   uint64
	words  int
	chunks []chunkBlock
	router keyRouter[K]
	subs   []subState
	dirty  []int // sub-models to be trained again, in the order they became so
	leaves uint64
	done   int // while in training: sub-models finished
}

// subState is the server's knowledge of a sub-model.
type subState struct {
	blk     *modelBlock
	dirty   bool
	trained time.Duration
	quality model.Quality
	crowded bool // to be cut
}

// modelBlock is a published sub-model; two generations may share it.
type modelBlock struct {
	addr                uint64
	words               int
	refs                int
	modelBytes, ttBytes uint64
}

// planning collects the fences that a new partition is chosen from.
type planning[K cmp.Ordered] struct {
	full   bool
	at     K
	fences []K
	cut    []int       // not full: the sub-models to cut, those done first
	starts map[int][]K // not full: what they are cut at
}

func newTrainer[K cmp.Ordered](s *Server) (t *trainer[K], err error) {
	t = &trainer[K]{s: s, id: indexID(s.root)}
	t.tr, err = model.NewTrainer(model.Options{Family: s.o.Family})
	return t, err
}

// changed marks the sub-models of a range of keys whose leaves have changed.
func (t *trainer[K]) changed(low, high K) {
	if t.gen != nil {
		t.gen.mark(t.k, low, high)
	}
	if t.next != nil {
		t.next.mark(t.k, low, high)
	}
}

func (g *generation[K]) mark(kind keyKind[K], low, high K) {
	for i := g.router.Route(low); ; {
		if st := &g.subs[i]; !st.dirty {
			st.dirty = true
			g.dirty = append(g.dirty, i)
		}
		if i++; i == len(g.subs) || !kind.reaches(high, g.router.Start(i)) {
			return
		}
	}
}

// Maintain does one bounded unit of background work: unlinking empty leaves,
// training one sub-model, or a step of a new partition of all. now is the time
// since some fixed moment. lock keeps mutators out; Maintain takes it for short
// sections, and nil if they are kept out anyway. It reports whether there was
// anything to do. It knows no clock: the caller decides which share of a core
// training may take by how long it waits between calls; a call takes up to a
// millisecond for a sub-model of the default size, of which locked a few tens of
// microseconds. Training follows XStore §5.3; unlike it, splits of one
// sub-model are merged into one task, and a sub-model is trained at most once
// in RetrainInterval.
func (s *Server) Maintain(now time.Duration, lock sync.Locker) (worked bool) {
	if lock == nil {
		lock = noLock{}
	}
	return s.t.maintain(now, lock)
}

func (t *trainer[K]) maintain(now time.Duration, lock sync.Locker) (worked bool) {
	lock.Lock()
	worked = t.k.tidy(tidyPerStep)
	leaves, pending := t.k.leaves(), 0
	if t.gen != nil {
		pending = len(t.gen.dirty)
	}
	lock.Unlock()
	t.note(pending)
	t.turn = !t.turn
	switch {
	case t.release():
		worked = true
	case t.turn && t.retrain(now, lock):
		worked = true
	case t.next != nil:
		worked = t.trainNext(now, lock) || worked
	case t.plan != nil:
		worked = t.planStep(lock) || worked
	case t.due(leaves):
		worked = true
	case !t.turn && t.retrain(now, lock):
		worked = true
	}
	return worked
}

// note publishes the number of waiting tasks for Stats.
func (t *trainer[K]) note(pending int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.pending = uint64(pending); t.gen != nil {
		t.mu.subs = uint64(len(t.gen.subs))
	}
}

// due starts planning if the partition does not fit the tree any more.
func (t *trainer[K]) due(leaves uint64) bool {
	g := t.gen
	switch {
	case g == nil, leaves > growFactor*max(g.leaves, leastLeaves), leaves*growFactor < g.leaves && g.leaves > leastLeaves:
		t.plan = &planning[K]{full: true}
		return true
	}
	if len(t.large) == 0 {
		return false
	}
	// Only the sub-models that have become too large are cut.
	t.plan, t.large = &planning[K]{cut: t.large}, nil
	return true
}

// planStep collects some more fences, and at the end makes the next generation.
func (t *trainer[K]) planStep(lock sync.Locker) bool {
	p := t.plan
	if !p.full {
		return t.cutStep(lock)
	}
	lock.Lock()
	var more bool
	p.fences, t.addrs, p.at, more = t.k.fences(p.at, *new(K), false, fencesPerStep, p.fences, t.addrs[:0])
	lock.Unlock()
	if !more {
		t.begin(t.k.partition(p.fences, t.s.o.LeavesPerSubModel), uint64(len(p.fences)), lock)
	}
	return true
}

// cutStep cuts one of the sub-models that have become too large.
func (t *trainer[K]) cutStep(lock sync.Locker) bool {
	p, g := t.plan, t.gen
	if len(p.cut) > 0 {
		i := p.cut[0]
		p.cut = p.cut[1:]
		end := g.end(i)
		lock.Lock()
		t.lows, t.addrs, _, _ = t.k.fences(g.router.Start(i), end, end != *new(K), 4*model.MaxLeaves, t.lows[:0], t.addrs[:0])
		lock.Unlock()
		if p.starts == nil {
			p.starts = make(map[int][]K)
		}
		p.starts[i] = t.k.cut(t.lows, t.s.o.LeavesPerSubModel)
		return true
	}
	var starts []K
	for i := range g.subs {
		starts = append(starts, g.router.Start(i))
		for _, f := range p.starts[i] {
			if f > starts[len(starts)-1] {
				starts = append(starts, f)
			}
		}
	}
	t.begin(starts, g.leaves, lock)
	return true
}

// begin starts to train a generation.
func (t *trainer[K]) begin(starts []K, leaves uint64, lock sync.Locker) {
	t.plan = nil
	starts[0] = *new(K)
	router, err := t.k.newRouter(starts)
	if err != nil {
		panic(err) // fences rise
	}
	next := &generation[K]{router: router, subs: make([]subState, len(starts)), leaves: leaves}
	lock.Lock()
	t.next = next
	lock.Unlock()
}

// trainNext trains the next sub-model of the generation in the making; after
// the last it publishes the generation.
func (t *trainer[K]) trainNext(now time.Duration, lock sync.Locker) bool {
	g := t.next
	if g.done == len(g.subs) {
		t.publish(lock)
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
		// The tree has outgrown the plan, or memory is out: begin again.
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

// shared takes over sub-model i of the next generation from the current one,
// if it covers the same keys and is fresh.
func (t *trainer[K]) shared(i int) bool {
	g, old := t.next, t.gen
	if old == nil {
		return false
	}
	j := old.router.Route(g.router.Start(i))
	if old.router.Start(j) != g.router.Start(i) || old.subs[j].dirty || g.end(i) != old.end(j) {
		return false
	}
	g.subs[i] = old.subs[j]
	g.subs[i].blk.refs++
	return true
}

// end is the start of the sub-model after i; the zero key if i is the last.
func (g *generation[K]) end(i int) K {
	if i+1 == len(g.subs) {
		return *new(K)
	}
	return g.router.Start(i + 1)
}

// abandon drops the generation in the making.
func (t *trainer[K]) abandon(lock sync.Locker) {
	lock.Lock()
	g := t.next
	t.next = nil
	lock.Unlock()
	for i := range g.subs {
		t.drop(g.subs[i].blk)
	}
}

// drop gives up a reference to a block.
func (t *trainer[K]) drop(b *modelBlock) {
	if b == nil {
		return
	}
	if b.refs--; b.refs == 0 {
		t.garbage = append(t.garbage, b)
	}
}

// release frees some of the blocks given up.
func (t *trainer[K]) release() bool {
	n := min(len(t.garbage), releasePerStep)
	for _, b := range t.garbage[:n] {
		t.s.mem.Free(b.addr, b.words*mem.WordBytes)
	}
	t.garbage = append(t.garbage[:0], t.garbage[n:]...)
	return n == releasePerStep
}

// takeDirty takes a sub-model off the list that was trained no later than
// interval ago; -1 if there is none among the first.
func (g *generation[K]) takeDirty(now, interval time.Duration) int {
	for k := 0; k < len(g.dirty) && k < 64; k++ {
		i := g.dirty[k]
		st := &g.subs[i]
		if st.dirty && now-st.trained < interval && st.trained != 0 {
			continue
		}
		g.dirty = append(g.dirty[:k], g.dirty[k+1:]...)
		if st.dirty {
			return i
		}
		k-- // trained since by other means
	}
	return -1
}

// retrain trains one sub-model of the current generation whose leaves have
// changed, if one is due.
func (t *trainer[K]) retrain(now time.Duration, lock sync.Locker) bool {
	g := t.gen
	if g == nil {
		return false
	}
	lock.Lock()
	i := g.takeDirty(now, t.s.o.RetrainInterval)
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

// tooLarge asks for sub-model i of the current generation to be cut.
func (t *trainer[K]) tooLarge(i int) {
	if !slices.Contains(t.large, i) {
		t.large = append(t.large, i)
	}
}

// train fits sub-model i of g to the leaves as they are now and writes a new
// block. The reference to an old one is the caller's.
func (t *trainer[K]) train(g *generation[K], i int, now time.Duration, lock sync.Locker) error {
	start, end := g.router.Start(i), g.end(i)
	lock.Lock()
	st := &g.subs[i]
	st.dirty = false // a split from here on marks it again
	var more bool
	t.lows, t.addrs, _, more = t.k.fences(start, end, end != *new(K), model.MaxLeaves, t.lows[:0], t.addrs[:0])
	lock.Unlock()
	if more && len(t.lows) == model.MaxLeaves {
		return fmt.Errorf("learned: more than %d leaves from key %v", model.MaxLeaves, start)
	}
	low, high := uint32(math.MaxUint32), uint32(0)
	for _, addr := range t.addrs {
		aln := uint32(addr / t.s.leafBytes)
		low, high = min(low, aln), max(high, aln)
	}
	t.version++
	q, prefix, err := t.k.train(t.tr, start, end, t.lows, t.addrs, &t.sub, t.version)
	if err != nil {
		return err
	}
	blk, err := t.write(low, high, prefix)
	if err != nil {
		return err
	}
	t.account(st, q, blk)
	st.blk, st.trained, st.quality, st.crowded = blk, now, q, t.k.crowded()
	if g == t.gen && (len(t.lows) > planFactor*t.s.o.LeavesPerSubModel || st.crowded) {
		t.tooLarge(i)
	}
	return nil
}

// write publishes t.sub as a block; prefix comes before its encoding.
func (t *trainer[K]) write(low, high uint32, prefix []uint64) (*modelBlock, error) {
	n := t.sub.EncodedWords()
	at := subWords + len(prefix)
	words := lines(at+n) * lineWords
	addr, err := t.s.mem.Alloc(words * mem.WordBytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", index.ErrFull, err)
	}
	t.words = t.sub.AppendTo(t.words[:0])
	e := t.s.a.Create(addr, words)
	magic, _ := t.k.magics()
	e.Set(idWord, tag(magic, t.id))
	e.Set(subVersion, uint64(t.version)<<32|uint64(n))
	e.Set(subALNs, uint64(low)<<32|uint64(high))
	e.Write(subWords, prefix)
	e.Write(at, t.words)
	e.Commit(block.Header(t.s.a.NextVersion()))
	return &modelBlock{
		addr: addr, words: words, refs: 1,
		modelBytes: uint64(t.sub.ModelBytes()), ttBytes: uint64(t.sub.TTBytes()),
	}, nil
}

// point swaps the pointer of sub-model i of the published generation.
func (t *trainer[K]) point(g *generation[K], i int) {
	c, k := i/chunkSubs, i%chunkSubs
	n := chunkLen(len(g.subs), c)
	e := t.s.a.Begin(g.chunks[c].addr, g.chunks[c].words)
	e.Set(t.k.pointerWord(n, k), uint64(newPointer(g.subs[i].blk.addr, g.subs[i].blk.words)))
	e.Commit(block.Header(t.s.a.NextVersion()))
}

// publish writes the directory of the next generation and swaps the root's
// pointer to it.
func (t *trainer[K]) publish(lock sync.Locker) {
	g, old := t.next, t.gen
	g.number = 1
	if old != nil {
		g.number = old.number + 1
	}
	if err := t.writeDirectory(g); err != nil {
		t.failures.Add(1)
		t.abandon(lock)
		return
	}
	lock.Lock()
	// Sub-models that were untrained when their leaves changed are fresh.
	t.gen, t.next, t.large = g, nil, nil
	e := t.s.a.Begin(t.s.root, rootWords)
	e.Set(rootGen, g.addr)
	e.Set(rootGenWords, uint64(g.words))
	e.Set(rootNumber, g.number)
	e.Commit(block.Header(t.s.a.NextVersion()))
	lock.Unlock()
	for i := range g.subs {
		if g.subs[i].crowded {
			t.large = append(t.large, i)
		}
	}
	if old != nil {
		for i := range old.subs {
			t.drop(old.subs[i].blk)
		}
		t.dropDirectory(old)
	}
	t.sum(g)
}

func (t *trainer[K]) writeDirectory(g *generation[K]) error {
	_, magic := t.k.magics()
	for c := 0; c*chunkSubs < len(g.subs); c++ {
		n := chunkLen(len(g.subs), c)
		starts, pointers := make([]K, n), make([]uint64, n)
		for k := range n {
			i := c*chunkSubs + k
			starts[k] = g.router.Start(i)
			pointers[k] = uint64(newPointer(g.subs[i].blk.addr, g.subs[i].blk.words))
		}
		t.words = t.k.appendChunk(t.words[:0], starts, pointers)
		words := lines(chunkCount+len(t.words)) * lineWords
		addr, err := t.s.mem.Alloc(words * mem.WordBytes)
		if err != nil {
			t.dropDirectory(g)
			return err
		}
		g.chunks = append(g.chunks, chunkBlock{addr, words})
		e := t.s.a.Create(addr, words)
		e.Set(idWord, tag(magic, t.id))
		e.Set(chunkNumber, uint64(uint32(g.number))<<32|uint64(c))
		e.Write(chunkCount, t.words)
		e.Commit(block.Header(t.s.a.NextVersion()))
	}
	words := lines(genChunks+len(g.chunks)) * lineWords
	addr, err := t.s.mem.Alloc(words * mem.WordBytes)
	if err != nil {
		t.dropDirectory(g)
		return err
	}
	g.addr, g.words = addr, words
	e := t.s.a.Create(addr, words)
	e.Set(idWord, tag(magicGen, t.id))
	e.Set(genNumber, g.number)
	e.Set(genCounts, uint64(len(g.subs))<<32|uint64(len(g.chunks)))
	for c, blk := range g.chunks {
		e.Set(genChunks+c, t.k.chunkEntry(blk))
	}
	e.Commit(block.Header(t.s.a.NextVersion()))
	return nil
}

// dropDirectory frees the chunks and the generation block.
func (t *trainer[K]) dropDirectory(g *generation[K]) {
	for _, c := range g.chunks {
		t.garbage = append(t.garbage, &modelBlock{addr: c.addr, words: c.words})
	}
	g.chunks = nil
	if g.addr != 0 {
		t.garbage = append(t.garbage, &modelBlock{addr: g.addr, words: g.words})
		g.addr = 0
	}
}
