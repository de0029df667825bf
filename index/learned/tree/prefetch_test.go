package tree

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/testseed"
)

// TestPrefetchBesideAMutator: Prefetch runs wherever Lookup may, beside splits and
// unlinks, and changes nothing.
func TestPrefetchBesideAMutator(t *testing.T) {
	seed := testseed.Of(t)
	for _, kind := range allKinds {
		t.Run(kindName(kind), func(t *testing.T) {
			w := simple(t, kind)
			const keys = 2000
			var stop atomic.Bool
			var done sync.WaitGroup
			done.Go(func() {
				r := rand.New(rand.NewPCG(seed, 2))
				for !stop.Load() {
					k := w.key(r.Uint64N(keys))
					for stage := range index.PrefetchStages {
						w.t.Prefetch(k, stage)
					}
				}
			})
			r := rand.New(rand.NewPCG(seed, 1))
			for range 3 * keys {
				if k := w.key(r.Uint64N(keys)); r.IntN(3) > 0 {
					w.put(k, 1)
				} else {
					w.del(k)
				}
				w.t.Tidy(1)
			}
			stop.Store(true)
			done.Wait()
			if err := w.t.Check(); err != nil {
				t.Fatal(err)
			}
			var res index.GetResult
			for n := range uint64(keys) {
				k := w.key(n)
				want := index.NotFound
				if _, ok := w.rows[k]; ok {
					want = index.Found
				}
				if w.t.Lookup(k, &res); res.Status != want {
					t.Fatalf("key %v: %v, want %v", k, res.Status, want)
				}
			}
		})
	}
}

// TestPrefetchedWords: of every leaf at least keys and heads are prefetched, as far
// as the bound goes, and never more than there is.
func TestPrefetchedWords(t *testing.T) {
	for kind := range leaf.Strings + 1 {
		for _, words := range []int{0, 1, 8, 12, 100} {
			for _, slots := range []int{leaf.MinSlots, leaf.AutoSlots(kind, words), 32} {
				l, err := leaf.NewLayout(7, kind, words, slots)
				if err != nil {
					t.Fatal(err)
				}
				if n := nearWords(&l); n > l.PresentWords || n > nearWordsMax || n < min(l.RowsAt, nearWordsMax) {
					t.Errorf("%s, %d slots of %d words: %d of %d words, rows from %d on", kindName(kind), slots, words, n, l.PresentWords, l.RowsAt)
				}
			}
		}
	}
}
