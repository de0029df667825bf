package tree

import (
	"testing"
	"time"

	"drtmx/index/learned/leaf"
	"drtmx/internal/testseed"
)

// TestHintsCostTheSame: whether a hint names a live leaf is seen without a look at any
// other leaf, however many there are. First no way leads to the leaf but its own bit.
// Then there are so many bits that hints would take an hour if each looked at them all.
func TestHintsCostTheSame(t *testing.T) {
	for _, kind := range allKinds {
		t.Run(kindName(kind), func(t *testing.T) {
			w := simple(t, kind)
			for k := range uint64(400) {
				w.put(w.key(k), 1)
			}
			key := w.key(200)
			hint := w.t.locate(key, 0)
			known := w.t.isLeaf
			root := w.t.root.Load()
			right := w.t.span(w.t.first).Load(leaf.RightWord)
			w.t.isLeaf = make([]uint64, 1<<22)
			w.t.isLeaf[w.t.lay.ALN(hint)/64] = 1 << (w.t.lay.ALN(hint) % 64)
			w.t.root.Store(newNode(0, kind == leaf.Strings))
			w.t.span(w.t.first).Store(leaf.RightWord, 0)
			w.t.finger = 0
			if !w.t.alive(hint) || w.t.locate(key, hint) != hint {
				t.Error("the leaf is looked for among the others")
			}
			if w.t.alive(w.t.first) {
				t.Error("a leaf is alive whose bit says that it is not")
			}
			hints := 1 << 20
			if kind != allKinds[0] {
				hints = 1 // for the keys make no difference
			}
			for end, i := time.Now().Add(testseed.Patience()), 0; i < hints && !t.Failed(); i++ {
				w.t.alive(hint + uint64(i)*w.t.lay.LeafBytes())
				if i%64 == 0 && time.Now().After(end) {
					t.Errorf("%d hints in %v beside %d leaves", i, testseed.Patience(), 64*len(w.t.isLeaf))
				}
			}
			w.t.isLeaf = known
			w.t.root.Store(root)
			w.t.span(w.t.first).Store(leaf.RightWord, right)
			if err := w.t.Check(); err != nil {
				t.Error(err)
			}
		})
	}
}
