package xtree

import (
	"fmt"
	"testing"
	"time"

	"drtmx/index"
	"drtmx/internal/block"
	"drtmx/internal/clock/clocktest"
)

// world is a tree, what it should hold, and the answers given so far with
// their proofs.
type world struct {
	t     *Tree
	rows  map[uint64]uint64 // key to version
	csn   uint64
	watch []answer
	clock *clocktest.Clock
}

// answer is what a lookup or scan said, and for how long it says so.
type answer struct {
	lo, hi uint64
	rows   map[uint64]uint64
	proofs []index.Proof
	born   time.Duration
}

func newWorld(t testing.TB, inline bool, f faults) *world {
	w := &world{t: newTree(t, 1, 4, inline, true), rows: map[uint64]uint64{}}
	w.quarantine(0)
	w.t.faults = f
	return w
}

// newTimedWorld has inline rows, a quarantine, and a clock that tick moves.
func newTimedWorld(t testing.TB, quarantine time.Duration) (w *world, tick func(time.Duration)) {
	w = newWorld(t, true, faults{})
	w.quarantine(quarantine)
	return w, w.clock.Advance
}

// quarantine gives the tree a quarantine and a clock that stands still.
func (w *world) quarantine(d time.Duration) {
	w.clock = new(clocktest.Clock)
	w.t.freed.quarantine, w.t.freed.clock = d, w.clock.Now
	if d == 0 {
		w.t.freed.quarantine = -1 // none: freed leaves are used again at once
	}
}

func (w *world) put(key uint64) {
	h, err := w.t.LockWrite(1, key, 0)
	if err != nil {
		panic(err)
	}
	w.csn++
	w.t.Publish(h, []uint64{w.csn}, block.Present(block.NewCSN(1, w.csn)))
	w.rows[key] = w.csn
}

func (w *world) del(key uint64) {
	h, err := w.t.LockWrite(1, key, 0)
	if err != nil {
		panic(err)
	}
	w.csn++
	w.t.PublishDelete(h, block.Absent(block.NewCSN(1, w.csn)))
	delete(w.rows, key)
}

// look gets key and keeps the answer.
func (w *world) look(key uint64) {
	var res index.GetResult
	if w.t.Get(key, &res); res.Status == index.Locked {
		return
	}
	a := answer{lo: key, hi: key, rows: map[uint64]uint64{}, proofs: res.Proofs, born: w.clock.Now()}
	if res.Status == index.Found {
		a.rows[key] = res.Row[0]
	}
	w.watch = append(w.watch, a)
}

// scan scans a range and keeps the answer, with either kind of proof.
func (w *world) scan(lo, hi uint64) {
	var res index.ScanResult
	if w.t.Scan(lo, hi, 0, &res, nil); res.Status == index.Locked {
		return
	}
	rows := map[uint64]uint64{}
	exact := res.Gaps
	for _, e := range res.Entries {
		rows[e.Key.Num] = e.Row[0]
		exact = append(exact, index.Proof{Addr: e.Addr, Word: uint64(e.Header)})
	}
	w.watch = append(w.watch, answer{lo, hi, rows, exact, w.clock.Now()}, answer{lo, hi, rows, res.Quick, w.clock.Now()})
}

// judge returns an error if an answer whose proofs hold is not what the rows are.
func (w *world) judge() error {
	for _, a := range w.watch {
		holds := w.t.freed.quarantine < 0 || w.clock.Now()-a.born <= w.t.freed.quarantine
		for _, p := range a.proofs {
			holds = holds && w.t.a.Span(p.Addr, 1).Load(0) == p.Word
		}
		if !holds {
			continue
		}
		n := 0
		for k, v := range w.rows {
			if k >= a.lo && k <= a.hi {
				if n++; a.rows[k] != v {
					return fmt.Errorf("proofs of [%d, %d] hold, but key %d is at %d, not %d", a.lo, a.hi, k, v, a.rows[k])
				}
			}
		}
		if n != len(a.rows) {
			return fmt.Errorf("proofs of [%d, %d] hold for %d rows, but there are %d", a.lo, a.hi, len(a.rows), n)
		}
	}
	return nil
}

// reach looks for key as a client does, from a leaf it may have an old address
// of: it READs, accepts, and trusts the fences. It reports false only if a leaf
// that covers the key does not have it.
func (w *world) reach(leaf, key uint64) bool {
	lay := w.t.Layout()
	buf := make([]uint64, lay.LeafWords)
	for range 64 {
		w.t.span(leaf).CopyOut(buf)
		if block.Accept(buf, buf[0], leaf, true) != block.OK {
			return true
		}
		v, ok := lay.View(buf)
		switch {
		case !ok || key < v.Low():
			return true // it knows that it is lost
		case !v.Above(key):
			return v.Find(key) >= 0
		}
		leaf = v.Right()
	}
	return true
}

// leafs are the addresses of all leaves there ever were.
func (w *world) leafs() []uint64 {
	var all []uint64
	for i := range w.t.leafs.Stats().Used {
		all = append(all, w.t.first+i*w.t.lay.LeafBytes())
	}
	return all
}

// scenarioShrink splits leaves and at every step of it looks for all keys from
// all leaves.
func scenarioShrink(t *testing.T, inline bool, f faults) error {
	w := newWorld(t, inline, f)
	var bad error
	w.t.atStep = func(step string) {
		for key := range w.rows {
			for _, leaf := range w.leafs() {
				if !w.reach(leaf, key) {
					bad = fmt.Errorf("step %q: leaf %#x says that key %d is absent", step, leaf, key)
				}
			}
		}
	}
	for i := range uint64(60) {
		w.put(i * 37 % 61)
	}
	return bad
}

func scenarioStaleCopy(t *testing.T, inline bool, f faults) error {
	w := newWorld(t, inline, f)
	for _, k := range []uint64{10, 40, 30, 20} {
		w.put(k)
	}
	for _, k := range []uint64{10, 20, 30, 40} {
		w.look(k)
	}
	w.put(35) // splits
	for _, k := range []uint64{10, 20, 30, 40} {
		w.put(k)
	}
	return w.judge()
}

func scenarioReuse(t *testing.T, inline bool, f faults) error {
	w := newWorld(t, inline, f)
	for _, k := range []uint64{10, 40, 20, 30} {
		w.put(k)
	}
	w.del(40)
	w.look(25)
	w.scan(21, 29)
	w.put(25) // takes the slot of 40
	return w.judge()
}

func scenarioWrap(t *testing.T, inline bool, f faults) error {
	w := newWorld(t, inline, f)
	w.put(10)
	w.look(25)
	w.put(25)
	for range 1024 {
		w.put(30)
		if err := w.judge(); err != nil {
			return err
		}
		w.del(30)
	}
	return nil
}

// planted are the bugs that a scenario must catch when it is there, and only then.
var planted = []struct {
	name     string
	scenario func(t *testing.T, inline bool, f faults) error
	bug      faults
	apart    bool // the bug exists with rows apart, too
}{
	{"shrink before link", scenarioShrink, faults{shrinkBeforeLink: true}, true},
	{"stale copy left valid", scenarioStaleCopy, faults{staleCopyValid: true}, false},
	{"membership not bumped on tombstone reuse", scenarioReuse, faults{gapNotBumpedReuse: true}, true},
	{"narrow incarnation", scenarioWrap, faults{narrowVersions: true}, true},
}

func TestPlantedBugs(t *testing.T) {
	for _, p := range planted {
		for _, inline := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/inline=%v", p.name, inline), func(t *testing.T) {
				if err := p.scenario(t, inline, faults{}); err != nil {
					t.Errorf("without the bug: %v", err)
				}
				if err := p.scenario(t, inline, p.bug); err == nil && (inline || p.apart) {
					t.Error("the bug is not caught")
				} else {
					t.Logf("caught: %v", err)
				}
			})
		}
	}
}
