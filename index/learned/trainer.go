package learned

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"drtmx/index"
	"drtmx/index/learned/xmodel"
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
	planFactor = 3
	leastLeafs = 64
)

// trainer keeps the published models in step with the tree. Everything but
// sums is touched only in Maintain's goroutine, or under the caller's lock
// where both Maintain and mutators touch it: gen and next, and the dirty marks
// in them.
type trainer struct {
	s   *Server
	tr  *xmodel.Trainer
	sub xmodel.SubModel // scratch

	gen  *generation // published; nil before the first training
	next *generation // being trained
	plan *planning   // a partition being chosen
	turn bool        // alternates between the current and the next generation

	garbage     []*modelBlock
	large       []int // sub-models of gen found too large
	lows, addrs []uint64
	keys        []uint64
	words       []uint64
	version     uint32
	failures    atomic.Uint64 // trainings given up for want of memory

	mu struct {
		sync.Mutex
		modelBytes, ttBytes uint64
		subs, pending       uint64
		retrains, plans     uint64
		quality             xmodel.Quality // summed; ErrorMax is that of the worst
	}
}

// generation is one partition of the keys into sub-models.
type generation struct {
	number uint64
	addr   uint64
	words  int
	chunks []uint64
	router *xmodel.Router
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
	quality xmodel.Quality
}

// modelBlock is a published sub-model; two generations may share it.
type modelBlock struct {
	addr                uint64
	words               int
	refs                int
	modelBytes, ttBytes uint64
}

// planning collects the fences that a new partition is chosen from.
type planning struct {
	full   bool
	at     uint64
	fences []uint64
	cut    []int            // not full: the sub-models to cut, those done first
	starts map[int][]uint64 // not full: what they are cut at
}

func (t *trainer) init(s *Server) (err error) {
	t.s = s
	t.tr, err = xmodel.NewTrainer(xmodel.Options{Family: s.o.Family})
	return err
}

// changed marks the sub-models of a range of keys whose leaves have changed.
func (t *trainer) changed(low, high uint64) {
	if t.gen != nil {
		t.gen.mark(low, high)
	}
	if t.next != nil {
		t.next.mark(low, high)
	}
}

func (g *generation) mark(low, high uint64) {
	for i := g.router.Route(low); ; {
		if st := &g.subs[i]; !st.dirty {
			st.dirty = true
			g.dirty = append(g.dirty, i)
		}
		if i++; i == len(g.subs) || g.router.Start(i) > high {
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
	t := &s.t
	lock.Lock()
	worked = s.Tidy(now, tidyPerStep)
	leaves, pending := s.Leaves(), 0
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
func (t *trainer) note(pending int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.mu.pending = uint64(pending); t.gen != nil {
		t.mu.subs = uint64(len(t.gen.subs))
	}
}

// due starts planning if the partition does not fit the tree any more.
func (t *trainer) due(leaves uint64) bool {
	g := t.gen
	switch {
	case g == nil, leaves > growFactor*max(g.leaves, leastLeafs), leaves*growFactor < g.leaves && g.leaves > leastLeafs:
		t.plan = &planning{full: true}
		return true
	}
	if len(t.large) == 0 {
		return false
	}
	// Only the sub-models that have become too large are cut.
	t.plan, t.large = &planning{cut: t.large}, nil
	return true
}

// planStep collects some more fences, and at the end makes the next generation.
func (t *trainer) planStep(lock sync.Locker) bool {
	p := t.plan
	if !p.full {
		return t.cutStep(lock)
	}
	lock.Lock()
	var more bool
	p.fences, t.addrs, p.at, more = t.s.Fences(p.at, 0, false, fencesPerStep, p.fences, t.addrs[:0])
	lock.Unlock()
	if !more {
		t.begin(xmodel.Partition(p.fences, t.s.o.LeavesPerSubModel), uint64(len(p.fences)), lock)
	}
	return true
}

// cutStep cuts one of the sub-models that have become too large.
func (t *trainer) cutStep(lock sync.Locker) bool {
	p, g := t.plan, t.gen
	if len(p.cut) > 0 {
		i := p.cut[0]
		p.cut = p.cut[1:]
		end := g.end(i)
		lock.Lock()
		t.lows, t.addrs, _, _ = t.s.Fences(g.router.Start(i), end, end != 0, 4*xmodel.MaxLeaves, t.lows[:0], t.addrs[:0])
		lock.Unlock()
		if p.starts == nil {
			p.starts = make(map[int][]uint64)
		}
		p.starts[i] = xmodel.Partition(t.lows, t.s.o.LeavesPerSubModel)[1:]
		return true
	}
	var starts []uint64
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
func (t *trainer) begin(starts []uint64, leaves uint64, lock sync.Locker) {
	t.plan = nil
	starts[0] = 0
	router, err := xmodel.NewRouter(starts)
	if err != nil {
		panic(err) // fences rise
	}
	next := &generation{router: router, subs: make([]subState, len(starts)), leaves: leaves}
	lock.Lock()
	t.next = next
	lock.Unlock()
}

// trainNext trains the next sub-model of the generation in the making; after
// the last it publishes the generation.
func (t *trainer) trainNext(now time.Duration, lock sync.Locker) bool {
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
func (t *trainer) shared(i int) bool {
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

// end is the start of the sub-model after i; 0 if i is the last.
func (g *generation) end(i int) uint64 {
	if i+1 == len(g.subs) {
		return 0
	}
	return g.router.Start(i + 1)
}

// abandon drops the generation in the making.
func (t *trainer) abandon(lock sync.Locker) {
	lock.Lock()
	g := t.next
	t.next = nil
	lock.Unlock()
	for i := range g.subs {
		t.drop(g.subs[i].blk)
	}
}

// drop gives up a reference to a block.
func (t *trainer) drop(b *modelBlock) {
	if b == nil {
		return
	}
	if b.refs--; b.refs == 0 {
		t.garbage = append(t.garbage, b)
	}
}

// release frees some of the blocks given up.
func (t *trainer) release() bool {
	n := min(len(t.garbage), releasePerStep)
	for _, b := range t.garbage[:n] {
		t.s.mem.Free(b.addr, b.words*mem.WordBytes)
	}
	t.garbage = append(t.garbage[:0], t.garbage[n:]...)
	return n == releasePerStep
}

// takeDirty takes a sub-model off the list that was trained no later than
// interval ago; -1 if there is none among the first.
func (g *generation) takeDirty(now, interval time.Duration) int {
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
func (t *trainer) retrain(now time.Duration, lock sync.Locker) bool {
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
func (t *trainer) tooLarge(i int) {
	if !slices.Contains(t.large, i) {
		t.large = append(t.large, i)
	}
}

// train fits sub-model i of g to the leaves as they are now and writes a new
// block. The reference to an old one is the caller's.
func (t *trainer) train(g *generation, i int, now time.Duration, lock sync.Locker) error {
	start, end := g.router.Start(i), g.end(i)
	lock.Lock()
	st := &g.subs[i]
	st.dirty = false // a split from here on marks it again
	var more bool
	t.lows, t.addrs, _, more = t.s.Fences(start, end, end != 0, xmodel.MaxLeaves, t.lows[:0], t.addrs[:0])
	lock.Unlock()
	if more && len(t.lows) == xmodel.MaxLeaves {
		return fmt.Errorf("learned: more than %d leaves from key %#x", xmodel.MaxLeaves, start)
	}
	lay := t.s.Layout()
	low, high := uint32(math.MaxUint32), uint32(0)
	t.tr.Begin(start)
	for k, addr := range t.addrs {
		aln := lay.ALN(addr)
		low, high = min(low, aln), max(high, aln)
		t.tr.Add(t.lows[k], aln, t.leafKeys(k, end))
	}
	t.version++
	q, err := t.tr.Train(&t.sub, t.version)
	if err != nil {
		return err
	}
	blk, err := t.write(low, high)
	if err != nil {
		return err
	}
	t.account(st, q, blk)
	st.blk, st.trained, st.quality = blk, now, q
	if g == t.gen && len(t.lows) > planFactor*t.s.o.LeavesPerSubModel {
		t.tooLarge(i)
	}
	return nil
}

// leafKeys reads the keys of the k-th leaf of the snapshot. The leaf may have
// changed since, or be another one by now: only keys of its range count.
func (t *trainer) leafKeys(k int, end uint64) []uint64 {
	var ok bool
	if t.keys, ok = t.s.Keys(t.addrs[k], t.keys[:0]); !ok {
		return nil
	}
	if k+1 < len(t.lows) {
		end = t.lows[k+1]
	}
	keys := t.keys
	for len(keys) > 0 && keys[0] < t.lows[k] {
		keys = keys[1:]
	}
	for len(keys) > 0 && end != 0 && keys[len(keys)-1] >= end {
		keys = keys[:len(keys)-1]
	}
	return keys
}

// write publishes t.sub as a block.
func (t *trainer) write(low, high uint32) (*modelBlock, error) {
	n := t.sub.EncodedWords()
	words := lines(subWords+n) * lineWords
	addr, err := t.s.mem.Alloc(words * mem.WordBytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %v", index.ErrFull, err)
	}
	t.words = t.sub.AppendTo(t.words[:0])
	e := t.s.a.Create(addr, words)
	e.Set(idWord, tag(magicSub, t.s.Layout().ID))
	e.Set(subVersion, uint64(t.version)<<32|uint64(n))
	e.Set(subALNs, uint64(low)<<32|uint64(high))
	e.Write(subWords, t.words)
	e.Commit(block.Header(t.s.a.NextVersion()))
	return &modelBlock{
		addr: addr, words: words, refs: 1,
		modelBytes: uint64(t.sub.ModelBytes()), ttBytes: uint64(t.sub.TTBytes()),
	}, nil
}

// point swaps the pointer of sub-model i of the published generation.
func (t *trainer) point(g *generation, i int) {
	c, k := i/chunkSubs, i%chunkSubs
	n := chunkLen(len(g.subs), c)
	e := t.s.a.Begin(g.chunks[c], chunkWords(n))
	e.Set(chunkStarts+n+k, uint64(newPointer(g.subs[i].blk.addr, g.subs[i].blk.words)))
	e.Commit(block.Header(t.s.a.NextVersion()))
}

// publish writes the directory of the next generation and swaps the root's
// pointer to it.
func (t *trainer) publish(lock sync.Locker) {
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
	if old != nil {
		for i := range old.subs {
			t.drop(old.subs[i].blk)
		}
		t.dropDirectory(old)
	}
	t.sum(g)
}

func (t *trainer) writeDirectory(g *generation) error {
	id := t.s.Layout().ID
	for c := 0; c*chunkSubs < len(g.subs); c++ {
		n := chunkLen(len(g.subs), c)
		words := chunkWords(n)
		addr, err := t.s.mem.Alloc(words * mem.WordBytes)
		if err != nil {
			t.dropDirectory(g)
			return err
		}
		g.chunks = append(g.chunks, addr)
		e := t.s.a.Create(addr, words)
		e.Set(idWord, tag(magicChunk, id))
		e.Set(chunkNumber, uint64(uint32(g.number))<<32|uint64(c))
		e.Set(chunkCount, uint64(n))
		for k := range n {
			i := c*chunkSubs + k
			e.Set(chunkStarts+k, g.router.Start(i))
			e.Set(chunkStarts+n+k, uint64(newPointer(g.subs[i].blk.addr, g.subs[i].blk.words)))
		}
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
	e.Set(idWord, tag(magicGen, id))
	e.Set(genNumber, g.number)
	e.Set(genCounts, uint64(len(g.subs))<<32|uint64(len(g.chunks)))
	for c, a := range g.chunks {
		e.Set(genChunks+c, a)
	}
	e.Commit(block.Header(t.s.a.NextVersion()))
	return nil
}

// dropDirectory frees the chunks and the generation block.
func (t *trainer) dropDirectory(g *generation) {
	for c, a := range g.chunks {
		t.garbage = append(t.garbage, &modelBlock{addr: a, words: chunkWords(chunkLen(len(g.subs), c))})
	}
	g.chunks = nil
	if g.addr != 0 {
		t.garbage = append(t.garbage, &modelBlock{addr: g.addr, words: g.words})
		g.addr = 0
	}
}
