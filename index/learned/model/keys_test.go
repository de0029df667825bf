package model

import (
	"math/rand/v2"
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
