package model

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/index"
)

// clusters are the leaves of some clusters of 3000 keys.
func clusters(n int) leafSet {
	r := rand.New(rand.NewPCG(12, 1))
	var keys []uint64
	for c := range uint64(n) {
		for range 3000 {
			keys = append(keys, (c+1)<<56+uint64(int64(r.NormFloat64()*float64(uint64(1)<<(20+8*c%30)))))
		}
	}
	slices.Sort(keys)
	return fillLeaves(r, slices.Compact(keys))
}

// TestRefinements: a sub-model of several clusters has a segment each, and finds
// first leaves by its refinements; the TT without them is of no use.
func TestRefinements(t *testing.T) {
	l := clusters(5)
	tr, err := NewTrainer(Options{})
	if err != nil {
		t.Fatal(err)
	}
	tr.Begin(0)
	for i := range l.fences {
		tr.Add(l.fences[i], l.alns[i], l.keys[i])
	}
	var s SubModel
	q, err := tr.Train(&s, 1)
	if err != nil {
		t.Fatal(err)
	}
	if s.Segments() != 5 || s.front() < 10 || q.FirstLeafWrong*40 > q.Keys || q.ErrorMax > 4 {
		t.Fatalf("%d segments, %d words of refinements, %+v", s.Segments(), s.front(), q)
	}
	for i, keys := range l.keys {
		for _, k := range append([]uint64{l.fences[i]}, keys...) {
			p := s.Predict(k)
			if p.Lo > i || p.Hi < i || p.Hi-p.Lo > 3 || p.ALN != l.alns[p.Leaf] {
				t.Fatalf("key %d of leaf %d: %+v", k, i, p)
			}
			checkWithoutTT(t, &s, k, p)
		}
	}
	// Training anew, of keys that one line fits, leaves nothing of them.
	for i := range l.fences {
		l.fences[i], l.keys[i] = uint64(i)<<20, nil
	}
	if s := trainOne(t, Options{}, l); s.front() != 0 || s.Segments() != 1 {
		t.Errorf("%d segments, %d words of refinements of even keys", s.Segments(), s.front())
	}
	// The zero shift and the steepest slope are within the form.
	for _, g := range []segment{{5, quantise(1e9, 0, 1)}, {5, quantise(1e-9, 1<<20, 1<<24)}, {1 << 40, 0}, {0, makeLine(1, 0, -5)}} {
		w := g.refinement()
		if refinedTo(w) < g.line.base()-one || refine([]uint64{w}, 4) != refinedTo(w) {
			t.Errorf("%v encoded as %#x", g, w)
		}
	}
}

// TestHostileRefinements: damaged ones are refused, or harmless.
func TestHostileRefinements(t *testing.T) {
	good := trainOne(t, Options{}, clusters(3)).AppendTo(nil)
	var s SubModel
	if err := s.Decode(good); err != nil || s.front() == 0 {
		t.Fatalf("%v, %d words of refinements", err, s.front())
	}
	at := s.HeadWords()
	for name, damage := range map[string]func([]uint64){
		"no refinement": func(b []uint64) {
			b[0] = b[0]&^(127<<(segmentBits+listBits)) | 1<<(segmentBits+listBits)
		},
		"of no corrections": func(b []uint64) { b[4] &^= 0xff << 8 },
		"residuals":         func(b []uint64) { b[at] = 1<<63 - 1 },
		"one more":          func(b []uint64) { b[0] += 1 << (segmentBits + listBits) },
	} {
		b := slices.Clone(good)
		damage(b)
		if err := s.Decode(b); !errors.Is(err, index.ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
	}
	head := s
	head.DropTT()
	bad := slices.Clone(good[at:])
	bad[0] = 1<<63 - 1
	key := s.anchor + 1
	if _, err := head.Resolve(key, head.Predict(key), bad); !errors.Is(err, index.ErrCorrupt) {
		t.Errorf("resolving with bad residuals: %v", err)
	}
	r := rand.New(rand.NewPCG(12, 2))
	for range 300 {
		b := slices.Clone(good)
		for range 1 + r.IntN(8) {
			b[at+1+r.IntN(s.front()-1)] = r.Uint64() >> r.IntN(64)
		}
		var d SubModel
		if err := d.Decode(b); err != nil {
			t.Fatal(err)
		}
		probeSubModel(t, &d, b[:at+2])
	}
}

// TestJoin: clusters share sub-models of up to twice the target.
func TestJoin(t *testing.T) {
	l := clusters(6)
	starts := Partition(l.fences, 150)
	n := len(starts)
	joined := Join(l.fences, slices.Clone(starts), 150)
	if n < 6 || len(joined) > 4 || joined[0] != starts[0] {
		t.Fatalf("%d sub-models of %d leaves joined to %d", n, len(l.fences), len(joined))
	}
	for _, s := range joined {
		if !slices.Contains(starts, s) {
			t.Errorf("start %d is none of the partition", s)
		}
	}
	even := make([]uint64, 1000)
	for i := range even {
		even[i] = uint64(i) << 20
	}
	starts = Partition(even, 100)
	if n := len(starts); len(Join(even, starts, 100)) != n {
		t.Error("even sub-models joined")
	}
}
