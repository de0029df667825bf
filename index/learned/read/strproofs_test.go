package read

import (
	"fmt"
	"strings"
	"testing"

	"drtmx/index"
	"drtmx/index/learned"
	"drtmx/internal/block"
	"drtmx/rdma/inproc"
)

// TestTiedDigests looks for keys whose digests tie with those of others, all
// with one tag.
func TestTiedDigests(t *testing.T) {
	g := newRig(t, learned.Options{Strings: true, RowWords: 1}, Options{}, inproc.Options{}, false)
	keys := sameTag(3)
	g.putStr(keys[0], 1)
	g.putStr(keys[1], 1)
	g.train()
	g.refresh()
	get := g.c.NewGet()
	for i, want := range []index.Status{index.Found, index.Found, index.NotFound} {
		get.Start(index.Str(keys[i]))
		g.do(get)
		r := get.Result()
		if r.Status != want {
			t.Fatalf("key %q: %v, want %v", keys[i], r.Status, want)
		}
		if want == index.Found && r.Header != block.Present(block.NewCSN(1, uint64(i+1))) {
			t.Fatalf("key %q: row of %v", keys[i], r.Header)
		}
	}
}

// TestAbsenceBehindFences has keys in leaves that were split off since the models were
// trained, behind fences that their leaves do not hold.
func TestAbsenceBehindFences(t *testing.T) {
	g := newRig(t, learned.Options{Strings: true, RowWords: 1, SlotsPerLeaf: 4, LeavesPerSubModel: 8}, Options{}, inproc.Options{}, false)
	long := strings.Repeat("x", 200)
	key := func(i int) string { return fmt.Sprintf("%s%06d", long, i) }
	for i := 0; i < 400; i += 10 {
		g.putStr(key(i), 1)
	}
	g.train()
	g.refresh()
	for i := 5; i < 400; i += 10 {
		g.putStr(key(i), 1)
		for j := range 4 {
			g.putStr(key(i-j), 1)
		}
	}
	get := g.c.NewGet()
	for i := 5; i < 400; i += 10 {
		get.Start(index.Str(key(i)))
		if g.do(get); get.Result().Status != index.Found && get.Result().Status != index.Fallback {
			t.Fatalf("key %q: %v", key(i), get.Result().Status)
		}
	}
}

// TestFencesOfAnotherLeaf has lookups start at a leaf left of the key's, which the
// models do not know yet, and gives that leaf's fence block to the key's leaf
// before it is READ. The keys looked for are there all the time.
func TestFencesOfAnotherLeaf(t *testing.T) {
	g := newRig(t, learned.Options{Strings: true, RowWords: 1, SlotsPerLeaf: 4}, Options{}, inproc.Options{}, false)
	long := strings.Repeat("x", 200)
	key := func(i int) string { return fmt.Sprintf("%s%06d", long, i) }
	for i := range 40 {
		g.putStr(key(i*100), 1)
	}
	g.train()
	for i := range 39 {
		at := i * 100
		for j := 10; j < 80; j += 10 {
			g.putStr(key(at+j), 1) // splits
		}
		for j := 10; j < 80; j += 10 {
			g.c = New(g.s.Root(), g.key, Options{InOrder: true, Strings: true}) // without patches
			g.refresh()
			get := g.c.NewGet()
			get.Start(index.Str(key(at + j)))
			b := newSteps(g, get)
			finished := b.round() // the leaf
			for k := range 1 + i%4 {
				g.putStr(key(at+1+k+j/10), 1) // splits the leaf READ
			}
			for k := range 1 + i%5 {
				g.putStr(key(at+j+1+k), 1) // splits the key's
				g.putStr(key(at+j-1-k), 1)
			}
			for !finished {
				finished = b.round()
			}
			if r := get.Result(); r.Status == index.NotFound {
				t.Fatalf("key %q is there and said to be absent", key(at+j))
			}
		}
	}
}

// sameTag returns n keys with one digest and one hash tag.
func sameTag(n int) []string {
	byTag := map[uint16][]string{}
	for i := 0; ; i++ {
		k := fmt.Sprintf("alike for long %d", i)
		t := tagOf(k)
		if byTag[t] = append(byTag[t], k); len(byTag[t]) == n {
			return byTag[t]
		}
	}
}
