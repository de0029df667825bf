package model

import (
	"math"
	"math/rand/v2"
	"slices"
)

// leafSet is the leaf level of a tree, in key order.
type leafSet struct {
	fences []uint64
	alns   []uint32
	keys   [][]uint64
}

// fillLeaves cuts ascending keys into leaves the way random inserts into a
// B-tree of 32-slot leaves do: between half and completely full, 22 on
// average. Leaves are numbered in key order, as after a bulk load.
func fillLeaves(r *rand.Rand, keys []uint64) leafSet {
	var l leafSet
	for len(keys) > 0 {
		n := min(len(keys), int(16/(1-r.Float64()/2)))
		if len(keys)-n < 16 {
			n = min(len(keys), 32)
		}
		low := keys[0]
		if len(l.fences) == 0 {
			low = 0
		}
		l.fences = append(l.fences, low)
		l.alns = append(l.alns, uint32(len(l.alns)+1))
		l.keys = append(l.keys, keys[:n])
		keys = keys[n:]
	}
	return l
}

func sortedUnique(keys []uint64) []uint64 {
	slices.Sort(keys)
	return slices.Compact(keys)
}

// distributions are the key sets that figures are given for.
var distributions = []struct {
	name string
	make func(r *rand.Rand, n int) []uint64
}{
	{"uniform", uniformKeys},
	{"lognormal", lognormalKeys},
	{"clustered", clusteredKeys},
	{"tpcc", tpccKeys},
}

func uniformKeys(r *rand.Rand, n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = r.Uint64()
	}
	return sortedUnique(keys)
}

// lognormalKeys follows the learned-index literature: exp of N(0, 2), scaled to
// integers.
func lognormalKeys(r *rand.Rand, n int) []uint64 {
	keys := make([]uint64, n)
	for i := range keys {
		keys[i] = uint64(min(math.Exp(2*r.NormFloat64())*1e13, 1<<63))
	}
	return sortedUnique(keys)
}

// clusteredKeys is 1 cluster for 10,000 keys, normal within, of widths that
// differ by orders of magnitude, at random places.
func clusteredKeys(r *rand.Rand, n int) []uint64 {
	clusters := max(1, n/10000)
	keys := make([]uint64, 0, n)
	for c := range clusters {
		at := r.Uint64()>>1 + 1<<62
		width := math.Exp(r.Float64()*14) * 1e6
		for range n/clusters + min(1, max(0, n%clusters-c)) {
			keys = append(keys, at+uint64(int64(r.NormFloat64()*width)))
		}
	}
	return sortedUnique(keys)
}

// tpccKeys is ORDER-LINE: (w<<36 | d<<32 | o<<4 | ol), 10 districts, 3,000
// orders of 5 to 15 lines.
func tpccKeys(r *rand.Rand, n int) []uint64 {
	keys := make([]uint64, 0, n)
	for w := uint64(1); ; w++ {
		for d := uint64(1); d <= 10; d++ {
			for o := uint64(1); o <= 3000; o++ {
				for ol := range 5 + r.Uint64N(11) {
					keys = append(keys, w<<36|d<<32|o<<4|(ol+1)&15)
					if len(keys) == n {
						return sortedUnique(keys)
					}
				}
			}
		}
	}
}

// build trains a model over all leaves.
func build(opt Options, l leafSet, target int) (*Model, Quality, error) {
	t, err := NewTrainer(opt)
	if err != nil {
		return nil, Quality{}, err
	}
	starts := Partition(l.fences, target)
	if opt.Family != RMI {
		starts = Join(l.fences, starts, target)
	}
	router, err := NewRouter(starts)
	if err != nil {
		return nil, Quality{}, err
	}
	m := NewModel(router)
	var sum Quality
	at := 0
	for i := range m.Len() {
		at = addLeaves(t, router, i, l, at)
		s := new(SubModel)
		q, err := t.Train(s, 1)
		if err != nil {
			return nil, sum, err
		}
		sum.Add(q)
		m.Swap(i, s)
	}
	return m, sum, nil
}

// addLeaves offers sub-model i's leaves, of which l.fences[at] is the first.
func addLeaves(t *Trainer, r *Router, i int, l leafSet, at int) int {
	t.Begin(r.Start(i))
	for ; at < len(l.fences) && (i+1 == r.Len() || l.fences[at] < r.Start(i+1)); at++ {
		t.Add(l.fences[at], l.alns[at], l.keys[at])
	}
	return at
}
