package stree

import (
	"fmt"
	"testing"

	"drtmx/index"
	"drtmx/internal/block"
)

func newWorld(t testing.TB, f faults) *world {
	w := &world{t: newTree(t, 300, 4, true, nil), rows: map[string]version{}}
	w.t.faults = f
	return w
}

// reach looks for key as a client does, from a leaf it may have an old address
// of: it READs, accepts, and trusts the fences. It reports false only if a leaf
// that covers the key does not have it.
func (w *world) reach(leaf uint64, key string) bool {
	lay := w.t.Layout()
	buf := make([]uint64, lay.LeafWords)
	for range 64 {
		w.t.span(leaf).CopyOut(buf)
		if block.Accept(buf, buf[0], leaf, true) != block.OK {
			return true
		}
		v, ok := lay.View(buf)
		if !ok {
			return true // it knows that it is lost
		}
		f, _ := v.Fences()
		switch {
		case f.Below(key):
			return true
		case !f.Above(key):
			for i, d := range v.Digests() {
				if p := v.Pointer(i); p != 0 && d == DigestAt(key, v.Prefix()) && isRow(w.t.a.Span(p.Addr(), p.Words()), key) {
					return true
				}
			}
			return false
		}
		leaf = v.Right()
	}
	return true
}

// scenarioShrink splits leaves and at every step of it looks for all keys from
// all leaves.
func scenarioShrink(t *testing.T, f faults) error {
	w := newWorld(t, f)
	var bad error
	w.t.atStep = func(step string) {
		for key := range w.rows {
			for i := range w.t.leafs.Stats().Used {
				leaf := w.t.first + i*w.t.lay.LeafBytes()
				if !w.reach(leaf, key) {
					bad = fmt.Errorf("step %q: leaf %#x says that key %q is absent", step, leaf, key)
				}
			}
		}
	}
	for i := range 60 {
		w.put(fmt.Sprintf("%02d", i*37%61), i%3)
	}
	return bad
}

func scenarioGap(t *testing.T, f faults) error {
	w := newWorld(t, f)
	w.put("a", 1)
	if err := w.look("b"); err != nil {
		return err
	}
	if err := w.scan("a", "z", 0); err != nil {
		return err
	}
	w.put("b", 1)
	return w.judge()
}

// scenarioMove has rows move, and looks at every step and after.
func scenarioMove(t *testing.T, f faults) error {
	w := newWorld(t, f)
	var bad error
	w.t.atStep = func(step string) {
		var res index.GetResult
		w.t.Get("key", &res)
		switch v, err := seen(res.Row, res.Header); {
		case err != nil:
			bad = err
		case res.Status == index.NotFound:
			bad = fmt.Errorf("step %q: the row is neither here nor there", step)
		case res.Status == index.Found && v.words != 200:
			bad = fmt.Errorf("step %q: a row of %d words, which there never was", step, v.words)
		}
	}
	w.put("key", 2)
	if err := w.look("key"); err != nil {
		return err
	}
	w.put("key", 200)
	if bad != nil {
		return bad
	}
	return w.judge()
}

func scenarioTie(t *testing.T, f faults) error {
	w := newWorld(t, f)
	w.put("alike for long 1", 1)
	w.put("alike for long 3", 1)
	for _, k := range []string{"alike for long 1", "alike for long 2", "alike for long 3"} {
		if err := w.look(k); err != nil {
			return err
		}
	}
	return nil
}

// plantedBugs are the bugs that a scenario must catch when it is there, and only then.
var plantedBugs = []struct {
	name     string
	scenario func(t *testing.T, f faults) error
	bug      faults
}{
	{"shrink before link", scenarioShrink, faults{shrinkBeforeLink: true}},
	{"gap word kept by an insert", scenarioGap, faults{keepGapWord: true}},
	{"pointer swapped before the new block is complete", scenarioMove, faults{swapFirst: true}},
	{"old block left valid after a move", scenarioMove, faults{oldBlockValid: true}},
	{"digest tie resolved by first match", scenarioTie, faults{firstTie: true}},
}

func TestPlantedBugs(t *testing.T) {
	for _, p := range plantedBugs {
		t.Run(p.name, func(t *testing.T) {
			if err := p.scenario(t, faults{}); err != nil {
				t.Errorf("without the bug: %v", err)
			}
			if err := p.scenario(t, p.bug); err == nil {
				t.Error("the bug is not caught")
			} else {
				t.Logf("caught: %v", err)
			}
		})
	}
}
