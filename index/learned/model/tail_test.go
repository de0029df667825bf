package model

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/testseed"
)

// tailSample is a random entry, whose keys go with the prefix.
func tailSample(r *rand.Rand, kind leaf.Kind, prefix string) TailEntry {
	a, b := r.Uint64N(1000), 1000+r.Uint64N(1000)
	e := TailEntry{Low: index.Num(a), High: index.Num(b), Bounded: r.IntN(4) > 0, Rising: r.IntN(2) == 0, Leaf: r.Uint64N(1<<42) * 64}
	if kind == leaf.Strings {
		p := prefix[:r.IntN(len(prefix)+1)]
		e.Low, e.High = index.Str(fmt.Sprintf("%s%04d", p, a)), index.Str(fmt.Sprintf("%s%04d%s", p, b, strings.Repeat("z", r.IntN(40))))
	}
	if !e.Bounded {
		e.High = index.Key{}
	}
	return e
}

// TestTailEntries: a reader takes an entry as it was written or not at all,
// whatever other words are in its place: torn, of other numbers, of other places.
func TestTailEntries(t *testing.T) {
	r := rand.New(rand.NewPCG(testseed.Of(t), 0))
	prefix := strings.Repeat("p", 90)
	for _, kind := range []leaf.Kind{leaf.Inline, leaf.Strings} {
		lay, err := leaf.NewLayout(1, kind, 4, 8)
		if err != nil {
			t.Fatal(err)
		}
		root := NewRoot(lay, 64)
		size, laps := root.TailEntryWords(), root.TailEntries()
		for range 3000 {
			list, number := r.Uint64N(1<<20)*64, r.Uint64N(1<<50)
			want := tailSample(r, kind, prefix)
			words, ok := root.AppendTailEntry(nil, list, number, prefix, &want)
			if !ok || len(words) != size {
				t.Fatalf("%+v: %d words, %v", want, len(words), ok)
			}
			lap := r.Uint64N(3) * laps
			got, found, ok := root.TailEntryOf(words, list, number-min(lap, number/laps*laps), prefix)
			if !ok || found != number || got != want {
				t.Fatalf("entry %d is %+v, number %d, %v; want %+v", number, got, found, ok, want)
			}
			none := func(what string, words []uint64, list, number uint64, prefix string) {
				t.Helper()
				if e, n, ok := root.TailEntryOf(words, list, number, prefix); ok {
					t.Fatalf("%s: taken as %+v, number %d", what, e, n)
				}
			}
			none("another list", words, list+TailWords*8, number, prefix)
			none("another place", words, list, number+1, prefix)
			none("older than what is sought", words, list, number+laps, prefix)
			none("a list of long ago", words, list, number+laps<<20, prefix)
			other := tailSample(r, kind, prefix)
			late, _ := root.AppendTailEntry(nil, list, number+laps, prefix, &other)
			torn, mixed := append([]uint64(nil), words...), false
			for i := range torn {
				if r.IntN(2) == 0 && torn[i] != late[i] {
					torn[i], mixed = late[i], true
				}
			}
			if e, _, ok := root.TailEntryOf(torn, list, number, prefix); ok && mixed && e != other {
				t.Fatalf("torn: taken as %+v", e)
			}
			torn = append(torn[:0], words...)
			torn[r.IntN(size)] ^= 1 << r.IntN(64)
			none("a flipped bit", torn, list, number, prefix)
			if kind == leaf.Strings && !strings.HasPrefix(want.Low.Str, "pp") {
				continue
			}
			if kind == leaf.Strings {
				none("another prefix", words, list, number, "q"+prefix[1:])
			}
		}
	}
}

// FuzzTail: no words make a reader of tail lists panic, or give it keys out of order.
func FuzzTail(f *testing.F) {
	f.Add(make([]byte, 128), uint64(1))
	f.Fuzz(func(t *testing.T, data []byte, number uint64) {
		for _, kind := range []leaf.Kind{leaf.Inline, leaf.Strings} {
			lay, err := leaf.NewLayout(1, kind, 4, 8)
			if err != nil {
				t.Fatal(err)
			}
			root := NewRoot(lay, 64)
			words := append(wordsOf(data), make([]uint64, strEntryWords)...)
			var e TailEntry
			if root.keys.tailKeys(words[:root.TailEntryWords()], "prefix", &e) && e.Low.Compare(e.High) >= 0 && e.Bounded {
				t.Fatalf("%+v", e)
			}
			root.TailEntryOf(words, 64, number, "prefix")
		}
	})
}

// TestWithTail: a block that gets a tail list is as if it had been made with one.
func TestWithTail(t *testing.T) {
	at := Tail{Addr: 1 << 20, Next: 77}
	for _, kind := range []leaf.Kind{leaf.Inline, leaf.Strings} {
		s := newSample(t, kind)
		blocks := s.blocks()
		b := blocks[len(blocks)-1]
		got, ok := s.root.WithTail([]uint64{5}, b, s.starts[0], at)
		s.head.Tail = at
		if want := s.root.SubBody([]uint64{5}, &s.head, s.starts[0], &s.sub); !ok || !slices.Equal(got, want) {
			t.Errorf("%v, %x, want %x", ok, got, want)
		}
		blocks = s.blocks()
		for i, other := range [][]uint64{nil, b[:4], b[:8], blocks[0], blocks[len(blocks)-1]} {
			if got, ok := s.root.WithTail(nil, other, s.starts[0], at); ok {
				t.Errorf("block %d: %x", i, got)
			}
		}
	}
}
