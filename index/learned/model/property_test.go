package model

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/internal/keysets"
	"drtmx/internal/testseed"

	"pgregory.net/rapid"
)

// drawLeaves draws a leaf level with steps between keys from 1 to enormous,
// starting anywhere, with fences at or below their leaf's first key, and leaf
// numbers contiguous, with a few strays, or at random.
func drawLeaves(t *rapid.T, maxLeaves int) leafSet {
	n := rapid.IntRange(1, maxLeaves).Draw(t, "leaves")
	scale := rapid.SampledFrom([]int{0, 1, 4, 20, 40, 60}).Draw(t, "step bits")
	at := rapid.SampledFrom([]uint64{0, 1, 1<<53 - 40, 1 << 53, 1<<63 - 40, math.MaxUint64 - 5000}).Draw(t, "first key")
	strays := rapid.SampledFrom([]float64{0, 0.02, 1}).Draw(t, "strays")
	r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
	var l leafSet
	step := func() bool {
		bits := scale
		if r.IntN(30) == 0 {
			bits = r.IntN(62)
		}
		d := 1 + r.Uint64N(1<<bits)
		if at > math.MaxUint64-d {
			return false
		}
		at += d
		return true
	}
	for i := range n {
		l.fences = append(l.fences, at)
		aln := uint32(1000 + i)
		if r.Float64() < strays {
			aln = r.Uint32()
		}
		l.alns = append(l.alns, aln)
		var keys []uint64
		ok := true
		if r.IntN(3) > 0 {
			keys = append(keys, at)
		}
		for range r.IntN(8) {
			if ok = step(); !ok {
				break
			}
			keys = append(keys, at)
		}
		l.keys = append(l.keys, keys)
		if !ok || !step() {
			break
		}
	}
	if rapid.Bool().Draw(t, "starts at 0") {
		l.fences[0] = 0
	}
	return l
}

func drawOptions(t *rapid.T) Options {
	return Options{
		Family:           rapid.SampledFrom([]Family{0, RMI, PLR}).Draw(t, "family"),
		CorrectionBits:   rapid.SampledFrom([]int{-1, 0, 1, 3, 8, 16}).Draw(t, "correction bits"),
		CorrectionStep:   rapid.SampledFrom([]int{0, 1, 64, 1024}).Draw(t, "correction step"),
		ErrorLeaves:      rapid.SampledFrom([]int{0, 1, 16, 64}).Draw(t, "error leaves"),
		LeavesPerSegment: rapid.SampledFrom([]int{0, 1, 100}).Draw(t, "leaves per segment"),
	}
}

// trainOne makes one sub-model of all leaves.
func trainOne(t interface{ Fatal(...any) }, opt Options, l leafSet) *SubModel {
	tr, err := NewTrainer(opt)
	if err != nil {
		t.Fatal(err)
	}
	tr.Begin(l.fences[0])
	for i := range l.fences {
		tr.Add(l.fences[i], l.alns[i], l.keys[i])
	}
	s := new(SubModel)
	if _, err := tr.Train(s, 7); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestBoundsAndMonotony: for any leaves, every key between a leaf's fences,
// present or absent, is predicted within bounds that contain the leaf, and a
// higher key never gets a lower leaf or bound.
func TestBoundsAndMonotony(t *testing.T) {
	testseed.Check(t, func(t *rapid.T) {
		l := drawLeaves(t, 120)
		s := trainOne(t, drawOptions(t), l)
		r := rand.New(rand.NewPCG(1, 1))
		bare := *s
		bare.DropTT()
		wide := unpackedCopy(s)
		var last, lastBare Prediction
		check := func(key uint64, leaf int) {
			p, q := s.Predict(key), bare.Predict(key)
			if got := wide.Predict(key); got != p || wide.ALN(leaf) != s.ALN(leaf) {
				t.Fatalf("key %d: with an unpacked TT %+v, else %+v", key, got, p)
			}
			for _, x := range []Prediction{p, q} {
				if x.Lo > leaf || x.Hi < leaf || x.Leaf < x.Lo || x.Leaf > x.Hi {
					t.Fatalf("key %d is in leaf %d, predicted %+v", key, leaf, x)
				}
			}
			if p.Leaf < last.Leaf || p.Lo < last.Lo || p.Hi < last.Hi || q.Leaf < lastBare.Leaf || q.Lo < lastBare.Lo || q.Hi < lastBare.Hi {
				t.Fatalf("key %d: %+v and %+v after %+v and %+v", key, p, q, last, lastBare)
			}
			if p.ALN != l.alns[p.Leaf] || s.ALN(leaf) != l.alns[leaf] {
				t.Fatalf("key %d: ALN %d, want %d", key, p.ALN, l.alns[p.Leaf])
			}
			last, lastBare = p, q
		}
		for i, low := range l.fences {
			high := uint64(math.MaxUint64)
			if i+1 < len(l.fences) {
				high = l.fences[i+1] - 1
			}
			keys := append([]uint64{low, high, low + (high-low)/2}, l.keys[i]...)
			for range 3 {
				if w := high - low + 1; w != 0 {
					keys = append(keys, low+r.Uint64N(w))
				}
			}
			slices.Sort(keys)
			for _, k := range keys {
				check(k, i)
			}
		}
	})
}

// TestQualityIsExact compares Train's count of misses with lookups.
func TestQualityIsExact(t *testing.T) {
	testseed.Check(t, func(t *rapid.T) {
		l, opt := drawLeaves(t, 200), drawOptions(t)
		tr, err := NewTrainer(opt)
		if err != nil {
			t.Fatal(err)
		}
		tr.Begin(l.fences[0])
		for i := range l.fences {
			tr.Add(l.fences[i], l.alns[i], l.keys[i])
		}
		var s SubModel
		got, err := tr.Train(&s, 0)
		if err != nil {
			t.Fatal(err)
		}
		want := Quality{Leaves: len(l.fences)}
		for i, keys := range l.keys {
			for _, k := range keys {
				want.Keys++
				p := s.Predict(k)
				want.miss(max(p.Leaf-i, i-p.Leaf))
			}
		}
		if got != want {
			t.Fatalf("Train says %+v, lookups %+v", got, want)
		}
	})
}

// TestEncodingRoundTrip decodes into a used sub-model and expects the same
// words and answers, with the TT, without it, and with it fetched in parts.
func TestEncodingRoundTrip(t *testing.T) {
	var used SubModel
	testseed.Check(t, func(t *rapid.T) {
		l := drawLeaves(t, 150)
		s := trainOne(t, drawOptions(t), l)
		block := s.AppendTo(nil)
		if len(block) != s.EncodedWords() || len(block) > MaxEncodedWords(s.Leaves()) {
			t.Fatalf("%d words, EncodedWords %d, at most %d", len(block), s.EncodedWords(), MaxEncodedWords(s.Leaves()))
		}
		if err := used.Decode(block); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(used.AppendTo(nil), block) {
			t.Fatal("decoded sub-model encodes differently")
		}
		if used.Start() != l.fences[0] || used.Version() != 7 || used.Leaves() != len(l.fences) {
			t.Fatalf("decoded start %d, version %d, %d leaves", used.Start(), used.Version(), used.Leaves())
		}
		var head SubModel
		if err := head.DecodeHead(block[:s.HeadWords()]); err != nil {
			t.Fatal(err)
		}
		for i := range l.fences {
			for _, k := range append([]uint64{l.fences[i], l.fences[i] - 1}, l.keys[i]...) {
				p := used.Predict(k)
				if want := s.Predict(k); p != want {
					t.Fatalf("key %d: %+v, want %+v", k, p, want)
				}
				q := head.Predict(k)
				off, n := head.TTWindow(q.Lo, q.Hi)
				if got, err := head.Resolve(k, q, block[off:off+n]); err != nil || got != p {
					t.Fatalf("key %d: resolved %+v, %v, want %+v", k, got, err, p)
				}
			}
		}
		if !slices.Equal(head.AppendTo(nil), block[:s.HeadWords()]) {
			t.Fatal("dropping the TT does not leave the head")
		}
	})
}

// TestSearchFew compares with a search one by one.
func TestSearchFew(t *testing.T) {
	for n := 1; n <= 40; n++ {
		keys := make([]uint64, n)
		for i := range keys {
			keys[i] = uint64(3*i + 3)
		}
		for key := range uint64(3*n + 6) {
			if got, want := searchFew(keys, key), min(max(int(key)/3-1, 0), n-1); got != want {
				t.Fatalf("key %d of %d: %d, want %d", key, n, got, want)
			}
		}
	}
}

// TestRouteIsExact compares with a search over starts of every spacing.
func TestRouteIsExact(t *testing.T) {
	testseed.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 300).Draw(t, "starts")
		scales := rapid.SliceOfN(rapid.IntRange(0, 58), 1, 4).Draw(t, "step bits")
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		starts := []uint64{r.Uint64N(1 << 40)}
		for len(starts) < n {
			at := starts[len(starts)-1]
			d := 1 + r.Uint64N(1<<scales[len(starts)*len(scales)/n])
			if at > math.MaxUint64-d {
				break
			}
			starts = append(starts, at+d)
		}
		router, err := NewRouter(starts)
		if err != nil {
			t.Fatal(err)
		}
		check := func(key uint64) {
			want, found := slices.BinarySearch(starts, key)
			if !found {
				want = max(want-1, 0)
			}
			if got := router.Route(key); got != want {
				t.Fatalf("key %d routed to %d, want %d", key, got, want)
			}
		}
		for i, k := range starts {
			check(k)
			check(k - 1)
			check(k + 1)
			if i > 0 {
				check(k - (k-starts[i-1])/2)
			}
		}
		check(0)
		check(math.MaxUint64)
	})
}

// TestPartition: starts are fences, the first is the first, and no sub-model
// is too large to train.
func TestPartition(t *testing.T) {
	testseed.Check(t, func(t *rapid.T) {
		l := drawLeaves(t, 400)
		target := rapid.SampledFrom([]int{0, 1, 2, 10, 64, 1 << 20}).Draw(t, "target")
		starts := Partition(l.fences, target)
		if starts[0] != l.fences[0] {
			t.Fatalf("first start %d, first fence %d", starts[0], l.fences[0])
		}
		last := 0
		for _, s := range append(starts[1:], math.MaxUint64) {
			i, found := slices.BinarySearch(l.fences, s)
			if s != math.MaxUint64 && !found {
				t.Fatalf("start %d is no fence", s)
			}
			if i <= last && s != math.MaxUint64 || i-last > max(2*max(target, 1), 4) {
				t.Fatalf("sub-model of %d leaves, target %d", i-last, target)
			}
			last = i
		}
	})
	if Partition(nil, 10) != nil {
		t.Fatal("starts without fences")
	}
}

func TestTrainerRefusesBadLeaves(t *testing.T) {
	tr, err := NewTrainer(Options{})
	if err != nil {
		t.Fatal(err)
	}
	var s SubModel
	for name, add := range map[string]func(){
		"none":           func() {},
		"above start":    func() { tr.Add(6, 1, nil) },
		"duplicate":      func() { tr.Add(5, 1, nil); tr.Add(9, 2, nil); tr.Add(9, 3, nil) },
		"falling":        func() { tr.Add(5, 1, nil); tr.Add(9, 2, nil); tr.Add(8, 3, nil) },
		"second ≤ start": func() { tr.Add(1, 1, nil); tr.Add(5, 2, nil) },
		"too many": func() {
			for i := range MaxLeaves + 1 {
				tr.Add(uint64(5+i), 1, nil)
			}
		},
	} {
		tr.Begin(5)
		add()
		if _, err := tr.Train(&s, 1); !errors.Is(err, ErrBadLeaves) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.Leaves() != 1 || s.HasTT() {
		t.Error("a failed Train changed the sub-model")
	}
	_, err = NewTrainer(Options{Family: 9, CorrectionBits: 99, ErrorLeaves: -1})
	if e, ok := err.(interface{ Unwrap() []error }); !ok || len(e.Unwrap()) != 3 {
		t.Errorf("three bad options: %v", err)
	}
}

// TestStaleKeys: keys that lie outside their leaf, as in a torn copy, neither
// panic nor change what fences prove.
func TestStaleKeys(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	l := fillLeaves(r, keysets.Uniform(r, 2000))
	for i := range l.keys {
		if i%3 == 0 {
			l.keys[i] = []uint64{r.Uint64(), r.Uint64(), 0, math.MaxUint64}
		}
	}
	for _, f := range []Family{RMI, PLR} {
		s := trainOne(t, Options{Family: f}, l)
		for i, k := range l.fences {
			if p := s.Predict(k); p.Lo > i || p.Hi < i {
				t.Fatalf("fence %d of leaf %d: %+v", k, i, p)
			}
		}
	}
}

func TestErrorClasses(t *testing.T) {
	for leaves, class := range map[int]int{1: 0, 2: 1, 3: 2, 4: 2, 5: 3, 8: 3, 9: 4, 64: 6, 65: 7, 1 << 20: 7} {
		var q Quality
		q.miss(leaves)
		if q.Errors[class] != 1 || q.FirstLeafWrong != 1 || q.ErrorSum != leaves {
			t.Errorf("an error of %d leaves: %+v, want class %d", leaves, q, class)
		}
	}
	var q Quality
	q.miss(0)
	if q != (Quality{}) {
		t.Errorf("no error: %+v", q)
	}
}
