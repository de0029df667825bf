package leaf

import (
	"slices"
	"testing"

	"drtmx/internal/block"
	"drtmx/internal/mem"
	"drtmx/internal/testseed"

	"pgregory.net/rapid"
)

// TestArrays: every key is one of an array's keys, or in the interval between two of them, and an
// array whose keys do not ascend is not searched.
func TestArrays(t *testing.T) {
	testseed.Check(t, func(rt *rapid.T) {
		l, err := NewLayout(7, Frozen, rapid.IntRange(0, 20).Draw(rt, "words"), rapid.IntRange(MinSlots, MaxSlots).Draw(rt, "slots"))
		if err != nil {
			rt.Fatal(err)
		}
		low := rapid.Uint64Range(0, 100).Draw(rt, "low")
		keys := rapid.SliceOfNDistinct(rapid.Uint64Range(low, low+200), 0, l.Slots, rapid.ID).Draw(rt, "keys")
		slices.Sort(keys)
		words := make([]uint64, l.LeafWords)
		words[MetaWord] = l.Pack(Meta{Last: true, Newest: NoNewest, Live: len(keys), Count: len(keys)})
		words[LowWord] = low
		copy(words[l.KeysAt:], keys)
		v, ok := l.View(words)
		if !ok || !v.Ascending() || v.HasOrder() {
			rt.Fatalf("%v: not an array", keys)
		}
		k := rapid.Uint64Range(low, low+201).Draw(rt, "key")
		i, found := v.Interval(k)
		if want, there := slices.BinarySearch(keys, k); i != want || found != there {
			rt.Fatalf("key %d of %v: %d, %v, want %d, %v", k, keys, i, found, want, there)
		}
		if l.BelowAt+l.Slots+1 > l.LeafWords || l.HeadsAt+l.Slots > l.BelowAt {
			rt.Fatalf("%+v", l)
		}
		if len(keys) > 1 {
			at := rapid.IntRange(1, len(keys)-1).Draw(rt, "at")
			words[l.KeysAt+at] = words[l.KeysAt+at-1]
			if v.Ascending() {
				rt.Fatal("equal keys are said to ascend")
			}
		}
	})
	for slots, want := range map[int]int{MinSlots: MinSlots, 6: MinSlots, 16: 8, 39: BinSlots} {
		b := (&Layout{ID: 7, Kind: Frozen, RowWords: 3, Slots: slots}).Bins()
		if b.Slots != want || b.LeafBytes() != uint64(64+16*want) || b.Kind != Bin {
			t.Errorf("bins of an array of %d slots: %+v, want %d slots", slots, b, want)
		}
	}
}

// TestRoots: a root that was written is read, its children cover its interval, and what is none is
// refused.
func TestRoots(t *testing.T) {
	r, err := mem.New(mem.Options{MaxBytes: 1 << 20, SegmentBytes: 1 << 16, Kind: mem.Private})
	if err != nil {
		t.Fatal(err)
	}
	a := block.NewArena(r, block.ArenaOptions{Tick: 1})
	addr, err := a.NewSlab(RootBlockWords * mem.WordBytes).Alloc()
	if err != nil {
		t.Fatal(err)
	}
	l, err := NewLayout(7, Frozen, 1, 8)
	if err != nil {
		t.Fatal(err)
	}
	testseed.Check(t, func(rt *rapid.T) {
		fences := rapid.SliceOfNDistinct(rapid.Uint64Range(10, 99), 1, RootChildren, rapid.ID).Draw(rt, "fences")
		slices.Sort(fences)
		kids := make([]uint64, len(fences))
		for i := range kids {
			kids[i] = uint64(i+1) * 320
		}
		last := rapid.Bool().Draw(rt, "last")
		e := a.Create(addr, RootBlockWords)
		l.SetRoot(&e, fences[0], 100, last, fences, kids)
		e.Commit(block.Header(a.NextVersion()))
		buf := make([]uint64, RootBlockWords)
		a.Span(addr, RootBlockWords).CopyOut(buf)
		v, ok := l.ViewRoot(buf)
		if !ok || v.Len() != len(fences) || !v.Is(fences[0], 100, last) || v.Is(fences[0], 100, !last) || v.Is(fences[0]+1, 100, last) {
			rt.Fatalf("%v to 100, last %v: %v", fences, last, buf)
		}
		k := rapid.Uint64Range(0, 120).Draw(rt, "key")
		if want := k >= fences[0] && (last || k < 100); v.Covers(k) != want {
			rt.Fatalf("covers %d: %v", k, !want)
		}
		if v.Covers(k) {
			i := v.Find(k)
			if j, bin := ChildOf(a.Span(addr, RootBlockWords), k); j != i || bin != kids[i] || v.Child(i) != bin {
				rt.Fatalf("key %d: child %d and %d", k, i, j)
			}
			if k < fences[i] || i+1 < len(fences) && k >= fences[i+1] {
				rt.Fatalf("key %d: child %d of %v", k, i, fences)
			}
		}
		other := l
		other.ID++
		if _, ok := other.ViewRoot(buf); ok {
			rt.Fatal("a root of another index is taken")
		}
		at := rapid.IntRange(MetaWord, RootBlockWords-1).Draw(rt, "at")
		buf[at] = rapid.Uint64().Draw(rt, "word")
		if v, ok := l.ViewRoot(buf); ok { // then it can be followed
			for i := range v.Len() {
				if v.Child(i)%mem.LineBytes != 0 || !ToBin(v.Child(i)).Valid() {
					rt.Fatalf("child %#x", v.Child(i))
				}
			}
		}
	})
	for _, b := range []Below{ToBin(0), ToRoot(0), Below(64), Below(64 + 3), Below(1<<48 + 1)} {
		if b.Valid() {
			t.Errorf("%#x can be followed", uint64(b))
		}
	}
	if b := ToRoot(640); !b.Valid() || b.Addr() != 640 || b.IsBin() {
		t.Errorf("%#x", uint64(b))
	}
}
