package model

import "sync/atomic"

// Model is a router with its sub-models, as a client caches them and a server
// publishes them. Lookup and Swap may be called by any number of goroutines; a
// sub-model handed to Swap must not be written while a goroutine may read it.
type Model struct {
	router *Router
	subs   []atomic.Pointer[SubModel]
}

// NewModel returns a model that routes but holds no sub-model yet.
func NewModel(r *Router) *Model {
	return &Model{router: r, subs: make([]atomic.Pointer[SubModel], r.Len())}
}

// Router returns the model's router.
func (m *Model) Router() *Router { return m.router }

// Len returns the number of sub-models.
func (m *Model) Len() int { return len(m.subs) }

// SubModel returns sub-model i, nil if it is not held.
func (m *Model) SubModel(i int) *SubModel { return m.subs[i].Load() }

// Swap replaces sub-model i, by nil to evict it, and returns the one before.
func (m *Model) Swap(i int, s *SubModel) *SubModel { return m.subs[i].Swap(s) }

// Lookup predicts the leaf of key as far as what is held allows, see
// [Knowledge]. It does not allocate.
func (m *Model) Lookup(key uint64) Prediction {
	i := m.router.Route(key)
	s := m.subs[i].Load()
	if s == nil {
		return Prediction{SubModel: i}
	}
	leaf, lo, hi, aln, knows := s.predict(key)
	return Prediction{SubModel: i, Leaf: leaf, Lo: lo, Hi: hi, ALN: aln, Knows: knows}
}

// Size sums up what a model holds, encoded, in bytes; the router counts as
// resident.
type Size struct {
	SubModels   int
	Leaves      int
	RouterBytes int
	ModelBytes  int
	TTBytes     int // of the sub-models whose TT is held
}

// Size walks all sub-models.
func (m *Model) Size() Size {
	z := Size{RouterBytes: m.router.Bytes()}
	for i := range m.subs {
		s := m.subs[i].Load()
		if s == nil {
			continue
		}
		z.SubModels++
		z.Leaves += s.Leaves()
		z.ModelBytes += s.ModelBytes()
		if s.HasTT() {
			z.TTBytes += s.TTBytes()
		}
	}
	return z
}
