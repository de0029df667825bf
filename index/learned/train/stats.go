package train

import (
	"fmt"

	"drtmx/index"
	"drtmx/index/learned/model"
	"drtmx/internal/block"
)

// account replaces a sub-model's share of the published sums.
func (t *Trainer) account(st *subState, q model.Quality, b *published) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if st.blk == nil {
		return // a block of the next generation: sum adds it when that is published
	}
	t.mu.modelBytes += b.modelBytes - st.blk.modelBytes
	t.mu.ttBytes += b.ttBytes - st.blk.ttBytes
	t.mu.quality.Keys += q.Keys - st.quality.Keys
	t.mu.quality.FirstLeafWrong += q.FirstLeafWrong - st.quality.FirstLeafWrong
	t.mu.quality.ErrorSum += q.ErrorSum - st.quality.ErrorSum
	t.mu.quality.Leaves += q.Leaves - st.quality.Leaves
	for i := range q.Errors {
		t.mu.quality.Errors[i] += q.Errors[i] - st.quality.Errors[i]
	}
	t.mu.quality.ErrorMax = max(t.mu.quality.ErrorMax, q.ErrorMax)
}

// sum computes the sums of a generation that was just published.
func (t *Trainer) sum(g *generation) {
	var q model.Quality
	model, tt := uint64(g.router.Bytes()), uint64(0)
	for i := range g.subs {
		q.Add(g.subs[i].quality)
		model += g.subs[i].blk.modelBytes
		tt += g.subs[i].blk.ttBytes
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.mu.modelBytes, t.mu.ttBytes, t.mu.quality = model, tt, q
	t.mu.plans++
}

// Stats fills in what the trainer knows of an index's statistics.
func (t *Trainer) Stats(s *index.ServerStats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s.SubModels, s.ModelBytes, s.TTBytes = t.mu.subs, t.mu.modelBytes, t.mu.ttBytes
	s.Retrains, s.Pending = t.mu.retrains, t.mu.pending
	s.Generations, s.TrainFailures = t.mu.plans, t.failures.Load()
	s.MaxError = uint64(t.mu.quality.ErrorMax)
	s.TrainedKeys = uint64(t.mu.quality.Keys)
	for i, n := range t.mu.quality.Errors {
		s.ErrorKeys[i] = uint64(n)
	}
	if t.mu.quality.Keys > 0 {
		s.MeanError = float64(t.mu.quality.ErrorSum) / float64(t.mu.quality.Keys)
	}
}

// Quality returns how well the published models find the keys on which they were
// trained, and how many generations there were.
func (t *Trainer) Quality() (q model.Quality, generations uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.mu.quality, t.mu.plans
}

// Check decodes everything published, as a client would. No Maintain and no mutator
// may run.
func (t *Trainer) Check() error {
	if t.gen == nil {
		return nil
	}
	read := func(p model.Pointer) ([]uint64, error) {
		buf := make([]uint64, p.Words())
		t.o.Arena.Span(p.Addr(), p.Words()).CopyOut(buf)
		if v := block.Accept(buf, buf[0], p.Addr(), !t.o.Arena.Checksums()); v != block.OK {
			return nil, fmt.Errorf("%w: block at %#x is %v", index.ErrCorrupt, p.Addr(), v)
		}
		return buf, nil
	}
	b, err := read(model.NewPointer(t.o.Root, model.RootWords))
	if err != nil {
		return err
	}
	root, err := model.RootOf(t.o.Root, b)
	if err != nil {
		return err
	}
	if b, err = read(root.Gen); err != nil {
		return err
	}
	g, err := model.GenerationOf(&root, b)
	if err != nil {
		return err
	}
	if g.Subs != len(t.gen.subs) || root.Number != t.gen.Number {
		return fmt.Errorf("%w: generation %d of %d sub-models, want %d of %d",
			index.ErrCorrupt, root.Number, g.Subs, t.gen.Number, len(t.gen.subs))
	}
	d, pointers, err := model.NewDirectory(&root, g, read)
	if err != nil {
		return err
	}
	for i, p := range pointers {
		if b, err = read(model.Pointer(p)); err != nil {
			return err
		}
		var s model.SubModel
		if _, err := d.Sub(i, b, &s); err != nil {
			return err
		}
	}
	return nil
}
