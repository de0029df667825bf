package tree

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/index/indextest"
	"drtmx/index/learned/leaf"
)

// only is the order of the first leaf, of all slots.
func (w *world) only() []byte { return slices.Clone(w.t.loadOrder(w.t.span(w.t.First()))) }

// TestOrderOfSlots: inserts take slots that were never used first and then the one that
// was freed first, and the slots in use come first, in the order of their keys.
func TestOrderOfSlots(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kindName(kind), func(t *testing.T) {
			w := newWorld(t, kind, 6, true, 1)
			steps := []struct {
				put, del uint64
				want     []byte
			}{
				{put: 50, want: []byte{0, 1, 2, 3, 4, 5}},
				{put: 60, want: []byte{0, 1, 2, 3, 4, 5}}, // it ascends
				{put: 40, want: []byte{2, 0, 1, 3, 4, 5}},
				{put: 55, want: []byte{2, 0, 3, 1, 4, 5}},
				{del: 50, want: []byte{2, 3, 1, 4, 5, 0}},
				{del: 40, want: []byte{3, 1, 4, 5, 0, 2}},
				{put: 58, want: []byte{3, 4, 1, 5, 0, 2}}, // not slot 0: slot 4 was never used
				{put: 70, want: []byte{3, 4, 1, 5, 0, 2}},
				{put: 10, want: []byte{0, 3, 4, 1, 5, 2}},
				{put: 90, want: []byte{0, 3, 4, 1, 5, 2}},
				{put: 20, want: []byte{0, 1, 3, 4, 5, 2}}, // a split: 60, 70 and 90 move
			}
			for i, s := range steps {
				if s.put != 0 {
					w.put(w.key(s.put), 1)
				} else {
					w.del(w.key(s.del))
				}
				if got := w.only(); !slices.Equal(got, s.want) {
					t.Fatalf("step %d, %+v: order %v", i, s, got)
				}
				if err := w.t.Check(); err != nil {
					t.Fatalf("step %d, %+v: %v", i, s, err)
				}
			}
			for k := range w.rows {
				w.del(k)
			}
			if got, want := w.only(), []byte{0, 1, 2, 3, 4, 5}; !slices.Equal(got, want) {
				t.Errorf("order %v of an empty leaf", got)
			}
		})
	}
}

// TestOrderOfChurn: after each of many changes, splits and merges among them, the order
// of every leaf is right, and scans find every row in the order of their keys.
func TestOrderOfChurn(t *testing.T) {
	for _, kind := range allKinds {
		for _, slots := range []int{4, 7, 8, 9, 31, 40} {
			t.Run(fmt.Sprintf("%s/%d", kindName(kind), slots), func(t *testing.T) {
				r := rand.New(rand.NewPCG(indextest.Seed(t), uint64(slots)))
				w := newWorld(t, kind, slots, true, 1)
				high := w.key(1 << 40)
				for i := range 1500 {
					key := w.key(r.Uint64N(uint64(12 * slots)))
					if _, there := w.rows[key]; there && r.IntN(1000) < 300+i/3 {
						w.del(key)
					} else {
						w.put(key, 1)
					}
					w.t.Tidy(r.IntN(2))
					if i%8 > 0 {
						continue
					}
					if err := w.t.Check(); err != nil {
						t.Fatal(err)
					}
					if err := w.scan(index.Key{}, high, r.IntN(3)*slots); err != nil {
						t.Fatal(err)
					}
					w.watch = w.watch[:0]
				}
				for k := range w.rows {
					if r.IntN(8) > 0 {
						w.del(k)
					}
				}
				for w.t.Tidy(10) || w.t.untidy.len() > 0 {
				}
				if err := w.t.Check(); err != nil {
					t.Fatal(err)
				}
				if w.t.splits.Load() == 0 || w.t.merges.Load() == 0 {
					t.Errorf("%d splits, %d merges", w.t.splits.Load(), w.t.merges.Load())
				}
			})
		}
	}
}

// TestOrderOfTies: string keys of equal digests are in the order of the whole keys.
func TestOrderOfTies(t *testing.T) {
	w := newWorld(t, leaf.Strings, 12, true, 1)
	for _, n := range []int{5, 1, 9, 3, 7, 0, 8, 2, 6, 4} {
		w.put(index.Str(fmt.Sprintf("alike for long %d", n)), 1)
		if err := w.t.Check(); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := w.only()[:10], []byte{5, 1, 7, 3, 9, 0, 8, 4, 6, 2}; !slices.Equal(got, want) {
		t.Errorf("order %v, want %v", got, want)
	}
}
