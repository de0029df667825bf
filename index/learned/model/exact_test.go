package model

import (
	"fmt"
	"math"
	"testing"
)

// hardSets are keys whose neighbours float64 cannot tell apart, or whose range
// is all of uint64.
func hardSets() map[string][]uint64 {
	dense := func(from uint64, step uint64, n int) []uint64 {
		keys := make([]uint64, n)
		for i := range keys {
			keys[i] = from + uint64(i)*step
		}
		return keys
	}
	sets := map[string][]uint64{
		"around 2^53":       dense(1<<53-2000, 1, 4000),
		"above 2^60":        dense(1<<60+1, 1, 4000),
		"around 2^63":       dense(1<<63-2000, 1, 4000),
		"up to MaxUint64":   dense(math.MaxUint64-3999, 1, 4000),
		"step 3 above 2^62": dense(1<<62, 3, 4000),
	}
	var composite []uint64
	for o := uint64(1); o <= 300; o++ {
		for ol := uint64(1); ol <= 10; ol++ {
			composite = append(composite, 1<<60|7<<36|3<<32|o<<4|ol)
		}
	}
	sets["composite"] = composite
	return sets
}

// preciseEverywhere is the property: the first leaf chosen is right for 98 % of
// present keys, and no bounds span more than three leaves.
func preciseEverywhere(keys []uint64, perLeaf int, predict func(uint64) Prediction) error {
	wrong := 0
	for i, k := range keys {
		p, leaf := predict(k), i/perLeaf
		if p.Lo > leaf || p.Hi < leaf {
			return fmt.Errorf("key %d is in leaf %d, bounds %d to %d", k, leaf, p.Lo, p.Hi)
		}
		if p.Hi-p.Lo > 2 {
			return fmt.Errorf("key %d: bounds %d to %d", k, p.Lo, p.Hi)
		}
		if p.Leaf != leaf {
			wrong++
		}
	}
	if wrong*50 > len(keys) {
		return fmt.Errorf("%d of %d first leaves wrong", wrong, len(keys))
	}
	return nil
}

// absoluteFloat is the classic mistake: regression over float64(key), with
// error bounds measured honestly.
func absoluteFloat(keys []uint64, perLeaf int) func(uint64) Prediction {
	var mx, my, sxx, sxy float64
	n := float64(len(keys))
	for i, k := range keys {
		mx += float64(k) / n
		my += float64(i) / n
	}
	for i, k := range keys {
		sxx += (float64(k) - mx) * (float64(k) - mx)
		sxy += (float64(k) - mx) * (float64(i) - my)
	}
	a := sxy / sxx
	b := my - a*mx
	at := func(k uint64) int { return int((a*float64(k) + b) / float64(perLeaf)) }
	lo, hi := 0, 0
	for i, k := range keys {
		lo, hi = max(lo, at(k)-i/perLeaf), max(hi, i/perLeaf-at(k))
	}
	return func(k uint64) Prediction {
		return Prediction{Leaf: at(k), Lo: at(k) - lo, Hi: at(k) + hi}
	}
}

// TestAbsoluteFloatIsCaught: all hard sets are predicted precisely, and the
// test that says so would catch a model over float64 of the key itself.
func TestAbsoluteFloatIsCaught(t *testing.T) {
	const perLeaf = 20
	for name, keys := range hardSets() {
		var l leafSet
		for i := 0; i < len(keys); i += perLeaf {
			l.fences = append(l.fences, keys[i])
			l.alns = append(l.alns, uint32(i))
			l.keys = append(l.keys, keys[i:i+perLeaf])
		}
		for _, f := range []Family{RMI, PLR} {
			s := trainOne(t, Options{Family: f}, l)
			if err := preciseEverywhere(keys, perLeaf, s.Predict); err != nil {
				t.Errorf("%s, %v: %v", name, f, err)
			}
		}
		if preciseEverywhere(keys, perLeaf, absoluteFloat(keys, perLeaf)) == nil {
			t.Errorf("%s: the planted bug was not caught", name)
		}
	}
}

// TestFullRange has 0 and MaxUint64 in one sub-model, beside dense runs at both
// ends, so that one line must span distances of 1 and of 2^64.
func TestFullRange(t *testing.T) {
	var l leafSet
	add := func(k uint64) {
		l.fences = append(l.fences, k)
		l.alns = append(l.alns, uint32(len(l.alns)))
		l.keys = append(l.keys, []uint64{k})
	}
	for k := range uint64(100) {
		add(k)
	}
	for k := range uint64(100) {
		add(math.MaxUint64 - 99 + k)
	}
	for _, f := range []Family{RMI, PLR} {
		s := trainOne(t, Options{Family: f, LeavesPerSegment: 8}, l)
		for i, k := range l.fences {
			p := s.Predict(k)
			if p.Lo > i || p.Hi < i {
				t.Errorf("%v: key %d is leaf %d, predicted %+v", f, k, i, p)
			}
			if f == PLR && p.Leaf != i {
				t.Errorf("%v: key %d is leaf %d, first choice %d", f, k, i, p.Leaf)
			}
		}
		if p := s.Predict(1 << 63); p.Lo > 99 || p.Hi < 99 {
			t.Errorf("%v: the gap is in leaf 99, predicted %+v", f, p)
		}
	}
}

func TestSmallest(t *testing.T) {
	for _, key := range []uint64{0, 1, math.MaxUint64} {
		for _, l := range []leafSet{
			{[]uint64{key}, []uint32{9}, [][]uint64{{key}}},
			{[]uint64{0}, []uint32{9}, [][]uint64{{key}}},
			{[]uint64{0}, []uint32{9}, [][]uint64{nil}},
		} {
			for _, f := range []Family{RMI, PLR} {
				s := trainOne(t, Options{Family: f}, l)
				for _, k := range []uint64{0, key, math.MaxUint64} {
					if p := s.Predict(k); p != (Prediction{ALN: 9, Knows: KnowsALN}) {
						t.Errorf("one leaf, key %d: %+v", k, p)
					}
				}
			}
		}
	}
	var zero SubModel
	if p := zero.Predict(5); p != (Prediction{Knows: KnowsLeaf}) {
		t.Errorf("zero sub-model: %+v", p)
	}
	var r Router
	if r.Route(0) != 0 || r.Route(math.MaxUint64) != 0 || r.Len() != 1 {
		t.Error("zero router has not one sub-model")
	}
	if p := NewModel(&r).Lookup(3); p.Knows != KnowsSubModel {
		t.Errorf("empty model: %+v", p)
	}
}
