package train

import (
	"fmt"
	"math"
	"sync"
	"time"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
	"drtmx/internal/mem"
)

// train fits sub-model i of g to its present leaves and publishes a new block. The
// caller drops the reference to the old one.
func (t *Trainer) train(g *generation, i int, now time.Duration, lock sync.Locker) error {
	start, end := g.router.Start(i), g.end(i)
	t.giveTail(g, i, lock)
	lock.Lock()
	st := &g.subs[i]
	st.dirty, st.changes, st.heated = false, 0, false // a later split marks it again
	tail := st.tail.place()
	st.from = tail.Next
	var more bool
	t.lows, t.addrs, _, more = t.fences(start, end, model.MaxLeaves, t.lows[:0], t.addrs[:0])
	lock.Unlock()
	if more && len(t.lows) == model.MaxLeaves {
		return fmt.Errorf("learned: more than %d leaves from key %v", model.MaxLeaves, start)
	}
	t.version++
	head := model.SubHead{Version: t.version, Low: math.MaxUint32, Tail: tail}
	for _, addr := range t.addrs {
		aln := t.root.Layout.ALN(addr)
		head.Low, head.High = min(head.Low, aln), max(head.High, aln)
	}
	var q model.Quality
	var err error
	if q, head.Prefix, err = t.k.train(t.tr, start, end, t.lows, t.addrs, &t.sub, t.version); err != nil {
		return err
	}
	at, err := t.publish(t.root.SubBody(t.words[:0], &head, start, &t.sub))
	if err != nil {
		return err
	}
	blk := &published{at: at, refs: 1, modelBytes: uint64(t.sub.ModelBytes()), ttBytes: uint64(t.sub.TTBytes())}
	if tail != (model.Tail{}) {
		blk.modelBytes += model.TailWords * mem.WordBytes
	}
	t.account(st, q, blk)
	if st.prefix != head.Prefix {
		lock.Lock()
		st.prefix = head.Prefix
		lock.Unlock()
	}
	st.blk, st.trained, st.quality = blk, now, q
	st.hollow = len(t.lows) == 1 && t.lows[0].Compare(start) < 0
	st.uncut = t.k.crowded() || len(t.lows) > planFactor*t.o.LeavesPerSubModel
	if g == t.gen && st.uncut {
		t.tooLarge(i)
	}
	return nil
}

// publish writes a new block and returns its pointer. It keeps the memory of body for
// reuse.
func (t *Trainer) publish(body []uint64) (model.Pointer, error) {
	words := leaf.WholeLines(block.BodyWord + len(body))
	for len(body) < words-block.BodyWord {
		body = append(body, 0)
	}
	t.words = body
	addr, err := t.o.Mem.Alloc(words * mem.WordBytes)
	if err != nil {
		return 0, fmt.Errorf("%w: %v", index.ErrFull, err)
	}
	e := t.o.Arena.CreateOf(addr, body)
	t.commit(&e)
	return model.NewPointer(addr, words), nil
}

func (t *Trainer) commit(e *block.Edit) { e.Commit(block.Header(t.o.Arena.NextVersion())) }

// point swaps the pointer of sub-model i of the published generation.
func (t *Trainer) point(g *generation, i int) {
	chunk, word := g.PointerAt(i)
	e := t.o.Arena.Begin(chunk.Addr(), chunk.Words())
	e.Set(word, uint64(g.subs[i].blk.at))
	t.commit(&e)
}

// publishNext publishes the directory of the next generation, and swaps the
// root's pointer to it.
func (t *Trainer) publishNext(now time.Duration, lock sync.Locker) {
	g, old := t.next, t.gen
	if err := t.publishDirectory(g); err != nil {
		t.failures.Add(1)
		t.abandon(lock)
		return
	}
	lock.Lock()
	// Sub-models whose leaves changed before they were trained are fresh.
	t.gen, t.next, t.large = g, nil, nil
	t.root.Gen, t.root.Number = g.at, g.Number
	e := t.o.Arena.Begin(t.o.Root, model.RootWords)
	e.Write(block.BodyWord, t.root.Body(t.words[:0]))
	t.commit(&e)
	lock.Unlock()
	for i := range g.subs {
		if g.subs[i].uncut { // it became so after this generation was planned
			t.large = append(t.large, i)
		}
	}
	if old != nil {
		for i := range old.subs {
			t.drop(old.subs[i].blk)
		}
		t.keepTails(old, now, lock)
		t.dropDirectory(old)
	}
	t.sum(g)
}

func (t *Trainer) publishDirectory(g *generation) (err error) {
	for c := 0; c*model.ChunkSubs < g.Subs; c++ {
		n := g.ChunkLen(c)
		starts, pointers := make([]index.Key, n), make([]model.Pointer, n)
		for k := range n {
			i := c*model.ChunkSubs + k
			starts[k], pointers[k] = g.router.Start(i), g.subs[i].blk.at
		}
		at, err := t.publish(t.root.ChunkBody(t.words[:0], &g.Generation, c, pointers, starts))
		if err != nil {
			t.dropDirectory(g)
			return err
		}
		g.Chunks = append(g.Chunks, at)
	}
	if g.at, err = t.publish(g.Body(t.words[:0], t.root.Layout.ID)); err != nil {
		t.dropDirectory(g)
	}
	return err
}

// dropDirectory frees the chunks and the generation block.
func (t *Trainer) dropDirectory(g *generation) {
	for _, c := range append(g.Chunks, g.at) {
		if c != 0 {
			t.garbage = append(t.garbage, &published{at: c})
		}
	}
	g.Chunks, g.at = nil, 0
}

// drop gives up a reference to a block.
func (t *Trainer) drop(b *published) {
	if b == nil {
		return
	}
	if b.refs--; b.refs == 0 {
		t.garbage = append(t.garbage, b)
	}
}

// release frees some of the dropped blocks, and reports whether there were any.
func (t *Trainer) release() bool {
	n := min(len(t.garbage), releasePerStep)
	for _, b := range t.garbage[:n] {
		t.o.Mem.Free(b.at.Addr(), b.at.Words()*mem.WordBytes)
	}
	t.garbage = append(t.garbage[:0], t.garbage[n:]...)
	return n == releasePerStep
}
