package tree

import (
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/internal/testseed"
)

// TestSearchOfNodes: a node of any number of children leads to the last one that
// does not begin above the word, whatever the word, also after it was truncated.
func TestSearchOfNodes(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 1))
	for range 2000 {
		nd, n := newNode(0, false), 1+r.IntN(fanout)
		words := make([]uint64, n)
		for i := range words {
			if words[i] = r.Uint64N(100); r.IntN(4) == 0 {
				words[i] = unused - words[i]
			}
		}
		slices.Sort(words)
		words = slices.Compact(words)
		for _, i := range r.Perm(len(words)) { // inserted in any order
			at := 0
			for at < int(nd.n.Load()) && nd.words[at].Load() < words[i] {
				at++
			}
			nd.insert(at, entry{f: &fences{low: index.Num(words[i])}, leaf: words[i]})
		}
		if r.IntN(2) == 0 {
			words = words[:1+r.IntN(len(words))]
			nd.truncate(len(words))
		}
		for range 20 {
			w := r.Uint64N(110)
			if r.IntN(3) == 0 {
				w = unused - w
			}
			want := 0
			for i, have := range words {
				if have <= w {
					want = i
				}
			}
			if got := nd.searchWord(w); got != want {
				t.Fatalf("%d is child %d of %d, want %d", w, got, words, want)
			}
		}
	}
}
