package learned

import (
	"testing"
	"time"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/internal/block"
)

// plainServer makes a server half for rows of one word, with sub-models of a given size.
func plainServer(t *testing.T, leavesPerSub, slots int) (*indextest.Env, *Server) {
	t.Helper()
	return variantServer(t, indextest.Variants()[0], leavesPerSub, slots)
}

func variantServer(t *testing.T, v indextest.Variant, leavesPerSub, slots int) (*indextest.Env, *Server) {
	t.Helper()
	e, err := indextest.NewEnv(v, 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	s, err := NewServer(e.Arena, Options{RowWords: 1, Inline: Yes, SlotsPerLeaf: slots, LeavesPerSubModel: leavesPerSub})
	if err != nil {
		t.Fatal(err)
	}
	return e, s
}

// loader returns a function that loads the row of a key.
func loader(t *testing.T, e *indextest.Env, s *Server) func(key uint64) {
	return func(key uint64) {
		t.Helper()
		if err := s.Load(index.Num(key), []uint64{key}, block.Present(e.Arena.NextCSN())); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAllAreTrainedAtOnce: when loading ends, a sub-model that was trained just before,
// and has changed since, is trained too.
func TestAllAreTrainedAtOnce(t *testing.T) {
	const leaves, slots, gap = 200, 8, 1 << 20
	e, s := plainServer(t, 16, slots)
	load := loader(t, e, s)
	for i := range uint64(leaves * slots) {
		load(i * gap)
	}
	now := time.Second
	for s.Maintain(now, nil) {
	}
	for l := range uint64(leaves) {
		load(l*slots*gap + 1)
	}
	for s.Maintain(now, nil) {
	}
	if n := s.Stats().Pending; n == 0 {
		t.Error("sub-models do not rest: this test shows nothing")
	}
	for s.MaintainAll(now, nil) {
	}
	if n := s.Stats().Pending; n != 0 {
		t.Errorf("%d sub-models are still to be trained", n)
	}
}

// TestLazyTrainingWaitsForChanges: a sub-model with few new leaves is trained lazily
// only after it has rested, one with many as soon as any other. Many sub-models that
// rest do not hold up one that has many new leaves.
func TestLazyTrainingWaitsForChanges(t *testing.T) {
	const subs, leavesPerSub, slots, gap = 200, 16, 8, 1 << 20
	e, s := plainServer(t, leavesPerSub, slots)
	load := loader(t, e, s)
	for i := range uint64(subs * leavesPerSub * slots) {
		load(i * gap)
	}
	now := time.Second
	for s.Maintain(now, nil) {
	}
	trained := func(maintain func(time.Duration) bool) uint64 {
		before := s.Stats().Retrains
		for maintain(now) {
		}
		return s.Stats().Retrains - before
	}
	lazy := func(now time.Duration) bool { return s.MaintainLazily(now, nil) }
	all := func(now time.Duration) bool { return s.Maintain(now, nil) }
	// change splits n leaves in the middle of what sub-model i was at first.
	change := func(i, n uint64) {
		for l := range n {
			load((i*leavesPerSub+4+l)*slots*gap + 1)
		}
	}
	now += time.Second // all have rested
	for i := range uint64(subs) {
		change(i, 1)
	}
	if n := trained(lazy); n < subs*9/10 {
		t.Errorf("%d of about %d changed sub-models were trained after a rest", n, subs)
	}
	now += 10 * time.Millisecond
	for i := range uint64(subs - 1) {
		load((i*leavesPerSub+2)*slots*gap + 1)
	}
	if n := trained(lazy); n != 0 {
		t.Errorf("%d sub-models with one new leaf were trained at once", n)
	}
	change(subs-1, 10)
	n := uint64(0)
	for range 1 + subs/64 { // it comes after those that were examined before it
		n += trained(lazy)
	}
	if n < 1 || n > 3 {
		t.Errorf("%d sub-models were trained at once, want the one with ten new leaves", n)
	}
	if n := trained(all); n < subs*9/10 {
		t.Errorf("%d of about %d sub-models with one new leaf were trained when all were due", n, subs)
	}
}

// TestFarBehindIsTrainedFirst: of many sub-models that are due, the one of whose splits
// readers lack most is trained first, if it is trained lazily.
func TestFarBehindIsTrainedFirst(t *testing.T) {
	const subs, leavesPerSub, slots, gap = 20, 512, 8, 1 << 20
	e, s := plainServer(t, leavesPerSub, slots)
	load := loader(t, e, s)
	for i := range uint64(subs * leavesPerSub * slots) {
		load(i * gap)
	}
	split := func(sub, from, to uint64) { // leaves of what the sub-model was at first
		for l := from; l < to; l++ {
			load((sub*leavesPerSub+l)*slots*gap + 1)
		}
	}
	now := time.Second
	rest := func() { // until all have been trained
		for s.Maintain(now, nil) {
		}
		now += time.Second
	}
	rest()
	split(subs-2, 4, 40)
	rest() // now it has a tail list
	if n := s.Behind(nil); n != 0 {
		t.Fatalf("%d splits are lacking after the training", n)
	}
	for sub := range uint64(subs - 2) {
		split(sub, 4, 20)
	}
	split(subs-2, 40, 400)
	if n := s.Behind(nil); n < 300 {
		t.Fatalf("%d splits are lacking, want some 360", n)
	}
	for before := s.Stats().Retrains; s.Stats().Retrains == before; {
		if !s.MaintainLazily(now, nil) {
			t.Fatal("nothing was trained")
		}
	}
	if n := s.Behind(nil); n != 0 {
		t.Errorf("%d splits are lacking after the first training", n)
	}
}
