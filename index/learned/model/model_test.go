package model

import (
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/internal/keysets"
)

// TestBoundsHold looks up present keys, both edges of every leaf and random
// absent keys of every distribution.
func TestBoundsHold(t *testing.T) {
	const seed = 7
	t.Logf("seed %d", seed)
	for _, d := range keysets.All {
		for _, opt := range []Options{{Family: RMI}, {Family: PLR}, {Family: RMI, CorrectionBits: -1}, {Family: PLR, CorrectionBits: -1}, {CorrectionBits: 3}} {
			r := rand.New(rand.NewPCG(seed, 1))
			l := fillLeaves(r, d.Draw(r, 60_000))
			m, q, err := build(opt, l, 200)
			if err != nil {
				t.Fatal(d.Name, opt, err)
			}
			checkModel(t, m, l, r)
			t.Logf("%s %v: %+v %+v", d.Name, opt, q, m.Size())
		}
	}
}

// firstLeaves returns the number of leaves before each sub-model.
func firstLeaves(m *Model) []int {
	n, sum := make([]int, m.Len()), 0
	for i := range n {
		n[i] = sum
		sum += m.SubModel(i).Leaves()
	}
	return n
}

func checkModel(t *testing.T, m *Model, l leafSet, r *rand.Rand) {
	t.Helper()
	base := firstLeaves(m)
	check := func(key uint64, leaf int) {
		t.Helper()
		p := m.Lookup(key)
		b := base[p.SubModel]
		if b+p.Lo > leaf || b+p.Hi < leaf || p.Leaf < p.Lo || p.Leaf > p.Hi {
			t.Fatalf("key %d is in leaf %d, predicted %d+%+v", key, leaf, b, p)
		}
		if p.ALN != l.alns[b+p.Leaf] || m.SubModel(p.SubModel).ALN(p.Leaf) != p.ALN {
			t.Fatalf("key %d: ALN %d, want %d", key, p.ALN, l.alns[b+p.Leaf])
		}
		checkWithoutTT(t, m.SubModel(p.SubModel), key, p)
	}
	for i, keys := range l.keys {
		end := ^uint64(0)
		if i+1 < len(l.fences) {
			end = l.fences[i+1] - 1
		}
		check(l.fences[i], i)
		check(end, i)
		if w := end - l.fences[i]; w > 0 && w < ^uint64(0) {
			check(l.fences[i]+r.Uint64N(w+1), i)
		}
		for _, k := range keys {
			check(k, i)
		}
	}
}

// checkWithoutTT resolves key as a client without TT does, and expects p.
func checkWithoutTT(t *testing.T, s *SubModel, key uint64, p Prediction) {
	t.Helper()
	bare := *s
	bare.DropTT()
	q := bare.Predict(key)
	block := s.AppendTo(nil)
	off, n := bare.TTWindow(q.Lo, q.Hi)
	within := q.Lo <= p.Lo && q.Hi >= p.Hi
	if s.flags&flagRefined != 0 { // bounds of two kinds, that have the leaf in common
		within = q.Lo <= p.Hi && q.Hi >= p.Lo
	}
	if q.Knows != KnowsLeaf || !within {
		t.Fatalf("key %d: without TT %+v, with it %+v", key, q, p)
	}
	q.SubModel = p.SubModel
	got, err := bare.Resolve(key, q, block[off:off+n])
	if err != nil || got != p {
		t.Fatalf("key %d: resolved %+v, %v, want %+v", key, got, err, p)
	}
}

// unpackedCopy returns a copy of s that holds its TT unpacked.
func unpackedCopy(s *SubModel) *SubModel {
	c := *s
	c.body = slices.Clone(s.body)
	c.Unpack()
	return &c
}

// DropTT forgets the TT, as a client does to free memory. Exceptions stay: they
// are part of the head.
func (s *SubModel) DropTT() {
	if s.HasTT() {
		s.body = slices.Clone(s.body[:s.ttAt])
		s.flags &^= flagTT
		r := s.lineResiduals()
		s.residualMin, s.residualMax = int32(r>>32), int32(r)
	}
}
