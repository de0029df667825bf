package model

import (
	"math/rand/v2"
	"sync"
	"testing"

	"drtmx/internal/keysets"
)

// TestNoAllocation: lookups never allocate; training and decoding do not once
// their memory has grown.
func TestNoAllocation(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	l := fillLeaves(r, keysets.Clustered(r, 20_000))
	m, _, err := build(Options{}, l, 100)
	if err != nil {
		t.Fatal(err)
	}
	s := m.SubModel(m.Len() / 2)
	block := s.AppendTo(nil)
	var into, head SubModel
	if err := head.DecodeHead(block); err != nil {
		t.Fatal(err)
	}
	tr, err := NewTrainer(Options{})
	if err != nil {
		t.Fatal(err)
	}
	retrain := func() {
		at := 0
		for i := range m.Len() {
			at = addLeaves(tr, m.Router(), i, l, at)
			if _, err := tr.Train(&into, 1); err != nil {
				t.Fatal(err)
			}
		}
	}
	// The largest of everything comes by once here.
	retrain()
	for name, f := range map[string]func(){
		"lookup": func() { sink += m.Lookup(r.Uint64()).Leaf },
		"train":  retrain,
		"decode": func() {
			if err := into.Decode(block); err != nil {
				t.Fatal(err)
			}
		},
		"encode": func() { block = s.AppendTo(block[:0]) },
		"resolve": func() {
			k := s.Start() + r.Uint64N(1<<50)
			p := head.Predict(k)
			off, n := head.TTWindow(p.Lo, p.Hi)
			if _, err := head.Resolve(k, p, block[off:off+n]); err != nil {
				t.Fatal(err)
			}
		},
	} {
		if n := testing.AllocsPerRun(20, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

// TestSwapWhileLookingUp is for the race detector: sub-models are replaced and
// evicted under lookups.
func TestSwapWhileLookingUp(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	l := fillLeaves(r, keysets.Uniform(r, 5000))
	m, _, err := build(Options{}, l, 50)
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := build(Options{Family: RMI}, l, 50)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for g := range 2 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			r := rand.New(rand.NewPCG(4, uint64(g)))
			for range 20_000 {
				if p := m.Lookup(r.Uint64()); p.Knows == KnowsALN && p.ALN == 0 {
					t.Error("no leaf has number 0")
					return
				}
			}
		}()
	}
	for i := range 2000 {
		at := i % m.Len()
		switch i % 3 {
		case 0:
			m.Swap(at, nil)
		case 1:
			m.Swap(at, other.SubModel(at))
		case 2:
			head := new(SubModel)
			if err := head.DecodeHead(other.SubModel(at).AppendTo(nil)); err != nil {
				t.Fatal(err)
			}
			m.Swap(at, head)
		}
	}
	wg.Wait()
}
