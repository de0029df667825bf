package tree

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"drtmx/index"
	"drtmx/index/learned/leaf"
	"drtmx/internal/block"
	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/internal/testseed"
)

// past is a tree with versions, and a model of what every key was at every tick.
type pastWorld struct {
	t      *Tree
	a      *block.Arena
	tick   clock.Tick // of commits; those below are closed
	retain clock.Tick
	rows   map[index.Key][]state // by key, CSNs rising
	locked map[index.Key]*index.Held
	words  int
}

// state is a row, or nil for a key that is absent, from a CSN on.
type state struct {
	csn block.CSN
	row []uint64
}

func newPast(tb testing.TB, kind leaf.Kind, slots, words int, sums bool, retain clock.Tick, bytes uint64) *pastWorld {
	tb.Helper()
	w := newPastless(tb, kind, slots, words, sums)
	w.retain = retain
	w.a.History().Keep(retain, bytes, w.tick)
	return w
}

// newPastless is newPast without a history.
func newPastless(tb testing.TB, kind leaf.Kind, slots, words int, sums bool) *pastWorld {
	tb.Helper()
	r, err := mem.New(mem.Options{Kind: mem.Heap, SegmentBytes: 1 << 20, MaxBytes: 1 << 30})
	if err != nil {
		tb.Fatal(err)
	}
	w := &pastWorld{
		a: block.NewArena(r, block.ArenaOptions{Checksums: sums, Tick: 1}), tick: 2, words: words,
		rows: map[index.Key][]state{}, locked: map[index.Key]*index.Held{},
	}
	lay, err := leaf.NewLayout(7, kind, words, slots)
	if err != nil {
		tb.Fatal(err)
	}
	if w.t, err = New(w.a, Options{Layout: lay, Mirror: true}); err != nil {
		tb.Fatal(err)
	}
	w.a.CoverCSN(block.NewCSN(2, 0))
	return w
}

func (w *pastWorld) key(n int) index.Key {
	if w.t.lay.Kind == leaf.Strings {
		return index.Str(fmt.Sprintf("key %06d", n))
	}
	return index.Num(uint64(n))
}

// pass closes ticks.
func (w *pastWorld) pass(ticks clock.Tick) {
	w.tick += ticks
	w.a.CoverCSN(block.NewCSN(w.tick, 0))
	w.a.History().Close(w.tick - 1)
}

func (w *pastWorld) floor() clock.Tick { return w.a.History().Floor() }

// row is the row of a commit: if its length is that of the row before, a few words
// of it change.
func (w *pastWorld) row(key index.Key, words int, c block.CSN) []uint64 {
	if w.t.lay.Kind != leaf.Strings {
		words = w.words
	}
	row, from, to := make([]uint64, words), 0, words
	if last := w.was(key, block.MaxTick).row; last != nil && len(last) == words && words > 0 {
		copy(row, last)
		from = int(7 * c % block.CSN(words))
		to = min(words, from+int(5*c%7))
	}
	for i := from; i < to; i++ {
		row[i] = uint64(c)
	}
	return row
}

func (w *pastWorld) lock(key index.Key) *index.Held {
	h, err := w.t.LockWrite(1, key, 0)
	if err != nil {
		panic(err)
	}
	return h
}

// put writes a row of so many words, if its size may vary.
func (w *pastWorld) put(key index.Key, words int) {
	h, c := w.lock(key), w.a.NextCSN()
	w.publish(h, c, w.row(key, words, c))
}

// set changes words from up to to of a row.
func (w *pastWorld) set(key index.Key, from, to int) {
	h, c := w.lock(key), w.a.NextCSN()
	row := slices.Clone(w.was(key, block.MaxTick).row)
	for i := from; i < to; i++ {
		row[i] = uint64(c)
	}
	w.publish(h, c, row)
}

func (w *pastWorld) publish(h *index.Held, c block.CSN, row []uint64) {
	key := h.Key
	if err := w.t.Reserve(h, len(row)); err != nil {
		panic(err)
	}
	w.rows[key] = append(w.rows[key], state{c, row})
	w.t.Publish(h, row, block.Present(c))
}

func (w *pastWorld) del(key index.Key) {
	h, c := w.lock(key), w.a.NextCSN()
	w.rows[key] = append(w.rows[key], state{csn: c})
	w.t.PublishDelete(h, block.Absent(c))
}

// was is what a key was at the end of a tick.
func (w *pastWorld) was(key index.Key, at clock.Tick) (s state) {
	for _, v := range w.rows[key] {
		if v.csn.Tick() <= at {
			s = v
		}
	}
	return s
}

// look compares what a key was with what the tree says.
func (w *pastWorld) look(key index.Key, at clock.Tick) error {
	var res index.GetResult
	w.t.LookupAt(key, at, &res)
	want := w.was(key, at)
	switch {
	case at < w.floor():
		return nil
	case res.Status == index.NotFound && want.row == nil:
		return nil
	case res.Status == index.Found && want.row != nil && slices.Equal(res.Row, want.row) && res.Header == block.Present(want.csn):
		return nil
	}
	return fmt.Errorf("key %v at tick %d of %d, floor %d: %v %v %v, want %v", key, at, w.tick, w.floor(), res.Status, res.Header, res.Row, want)
}

// scan compares a range.
func (w *pastWorld) scan(lo, hi index.Key, limit int, at clock.Tick) error {
	var res index.ScanResult
	w.t.ScanAt(lo, hi, limit, at, &res, nil)
	if at < w.floor() {
		return nil
	}
	var want []index.Key
	for key := range w.rows {
		if key.Compare(lo) >= 0 && key.Compare(hi) <= 0 && w.was(key, at).row != nil {
			want = append(want, key)
		}
	}
	slices.SortFunc(want, index.Key.Compare)
	more := limit > 0 && len(want) > limit
	if more {
		want = want[:limit]
	}
	if res.Status != index.Found || len(res.Entries) != len(want) || more && !res.More || limit <= 0 && res.More {
		return fmt.Errorf("[%v, %v] limit %d at tick %d of %d, floor %d: %v, %d rows, more %v; want %d, more %v",
			lo, hi, limit, at, w.tick, w.floor(), res.Status, len(res.Entries), res.More, len(want), more)
	}
	for i, e := range res.Entries {
		if s := w.was(want[i], at); e.Key != want[i] || !slices.Equal(e.Row, s.row) || e.Header != block.Present(s.csn) {
			return fmt.Errorf("[%v, %v] at tick %d: entry %d is %v %v %v, want %v %v", lo, hi, at, i, e.Key, e.Header, e.Row, want[i], s)
		}
	}
	return nil
}

func eachPast(t *testing.T, f func(t *testing.T, kind leaf.Kind, sums bool)) {
	for _, kind := range allKinds {
		for _, sums := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/sums=%v", kindName(kind), sums), func(t *testing.T) { f(t, kind, sums) })
		}
	}
}

// TestPast: what a key or a range was at any tick that is retained is what the
// model says, whatever splits, merges, moves and inserts over deletions came after.
func TestPast(t *testing.T) {
	eachPast(t, func(t *testing.T, kind leaf.Kind, sums bool) {
		r := rand.New(rand.NewPCG(testseed.Of(t), 3))
		bytes := uint64(1 << 30)
		if r.IntN(3) == 0 {
			bytes = 8 << 10
		}
		w := newPast(t, kind, 4+r.IntN(12), r.IntN(4), sums, clock.Tick(1+r.IntN(40)), bytes)
		keys := 20 + r.IntN(200)
		var dead float64
		for i := range 6000 {
			if i%500 == 0 {
				dead = []float64{0.1, 0.5, 0.9}[r.IntN(3)]
				if err := w.t.Check(); err != nil {
					t.Fatal(err)
				}
			}
			w.change(r, w.key(r.IntN(keys)), dead)
			if r.IntN(4) == 0 {
				w.pass(clock.Tick(1 + r.IntN(2)))
			}
			if r.IntN(8) == 0 {
				w.t.Tidy(2)
				w.t.Bury(w.floor(), 1+r.IntN(20))
			}
			at := w.floor()
			if at < w.tick {
				at += clock.Tick(r.IntN(int(w.tick - at)))
			}
			if err := w.look(w.key(r.IntN(keys)), at); err != nil {
				t.Fatal(err)
			}
			if lo := r.IntN(keys); i%7 == 0 {
				if err := w.scan(w.key(lo), w.key(lo+r.IntN(keys)), r.IntN(2)*(1+r.IntN(20)), at); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, h := range w.locked {
			w.t.Release(h)
		}
		w.pass(w.retain + 1)
		for w.t.Bury(w.floor(), 100) > 0 {
		}
		if n := w.t.yard.total.load(); n != 0 || len(w.t.yard.all) != 0 {
			t.Errorf("%d graves of %d leaves are left", n, len(w.t.yard.all))
		}
		if err := w.t.Check(); err != nil {
			t.Fatal(err)
		}
	})
}

// change puts or deletes a row, or locks or releases a key.
func (w *pastWorld) change(r *rand.Rand, key index.Key, dead float64) {
	if h := w.locked[key]; h != nil {
		w.t.Release(h)
		delete(w.locked, key)
		return
	}
	switch exists := w.was(key, block.MaxTick).row != nil; {
	case r.IntN(20) == 0:
		w.locked[key] = w.lock(key)
	case exists && r.Float64() < dead:
		w.del(key)
	case exists || r.Float64() > dead/2:
		w.put(key, r.IntN(w.words+1))
	}
}

// all compares all keys and the whole range at a tick.
func (w *pastWorld) all(at clock.Tick) error {
	lo, hi := w.key(0), w.key(999999)
	for key := range w.rows {
		if err := w.look(key, at); err != nil {
			return err
		}
	}
	return w.scan(lo, hi, 0, at)
}

// TestPastAtEveryStep: a reader of a closed tick finds the row of that tick at
// every step of an update, a move and a deletion, locked or not.
func TestPastAtEveryStep(t *testing.T) {
	eachPast(t, func(t *testing.T, kind leaf.Kind, sums bool) {
		w := newPast(t, kind, 4, 40, sums, 100, 1<<30)
		key, steps := w.key(1), 0
		var bad error
		w.t.atStep = func(step string) {
			steps++
			for at := w.floor(); at < w.tick && bad == nil; at++ {
				if err := w.all(at); err != nil {
					bad = fmt.Errorf("step %q: %w", step, err)
				}
			}
		}
		for i, change := range []func(){
			func() { w.put(key, 1) }, func() { w.put(key, 2) }, func() { w.put(key, 40) }, func() { w.put(key, 39) },
			func() { w.del(key) }, func() { w.put(key, 3) }, func() { w.del(key) }, func() { w.put(w.key(2), 1) },
		} {
			w.pass(1)
			change()
			w.t.atStep("end")
			h := w.lock(key)
			w.t.atStep("locked")
			w.t.Release(h)
			if err := w.t.Check(); err != nil || bad != nil {
				t.Fatalf("change %d: %v %v", i, bad, err)
			}
		}
		if steps < 20 {
			t.Errorf("%d steps", steps)
		}
	})
}

// TestPastBeforeInsert: nothing was there before the insert of a key, whatever the
// placeholder of its lock had.
func TestPastBeforeInsert(t *testing.T) {
	eachPast(t, func(t *testing.T, kind leaf.Kind, sums bool) {
		w := newPast(t, kind, 4, 3, sums, 100, 1<<30)
		for i := range 20 {
			w.put(w.key(i), 3)
			w.pass(1)
			for at := w.floor(); at < w.tick; at++ {
				if err := w.all(at); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}

// TestPastOfOneTick: of the writes of a tick only the last is seen, and none hides
// what was there before the tick. A late commit has an earlier tick than others
// that came before it.
func TestPastOfOneTick(t *testing.T) {
	eachPast(t, func(t *testing.T, kind leaf.Kind, sums bool) {
		w := newPast(t, kind, 4, 30, sums, 100, 1<<30)
		key, other := w.key(1), w.key(2)
		w.put(key, 1)
		w.put(other, 1)
		w.pass(2)
		for _, words := range []int{1, 1, 30, 30} {
			w.put(key, words)
		}
		late := w.lock(other)
		tick := w.tick
		w.tick += 3
		w.a.CoverCSN(block.NewCSN(w.tick, 0))
		w.put(key, 1)
		c := w.a.CSNAt(tick)
		row := w.row(other, 1, c)
		if err := w.t.Reserve(late, len(row)); err != nil {
			t.Fatal(err)
		}
		w.rows[other] = append(w.rows[other], state{c, row})
		w.t.Publish(late, row, block.Present(c))
		w.put(other, 1)
		w.pass(1)
		for at := clock.Tick(2); at < w.tick; at++ {
			if err := w.all(at); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// TestPatchesOfOneTick: the first write of a tick leaves a patch of the words that it
// changes. What later ones of the tick change, and what becomes of the row in that
// tick, loses nothing of what it was before.
func TestPatchesOfOneTick(t *testing.T) {
	eachPast(t, func(t *testing.T, kind leaf.Kind, sums bool) {
		w := newPast(t, kind, 8, 30, sums, 100, 1<<30)
		var bad error
		check := func(step string) {
			for at := w.floor(); at < w.tick && bad == nil; at++ {
				if err := w.all(at); err != nil {
					bad = fmt.Errorf("step %q: %w", step, err)
				}
			}
		}
		w.t.atStep = check
		for i, later := range []func(key index.Key){
			func(key index.Key) { w.set(key, 9, 10) },
			func(key index.Key) { w.set(key, 20, 25); w.set(key, 0, 3); w.set(key, 29, 30) },
			func(key index.Key) { w.del(key) },
			func(key index.Key) { w.set(key, 0, 3); w.del(key); w.put(key, 30) },
			func(key index.Key) { w.put(key, 2); w.put(key, 30) },
			func(key index.Key) { w.put(key, 29); w.set(key, 0, 3) },
			func(key index.Key) { w.del(key); w.put(key, 30); w.set(key, 0, 3); w.del(key) },
		} {
			key := w.key(i)
			w.put(key, 30)
			w.pass(1)
			blocks, bytes := w.a.History().Stats().Blocks, w.a.History().Stats().Bytes
			w.set(key, 8, 10)
			if st := w.a.History().Stats(); st.Blocks != blocks+1 || st.Bytes != bytes+mem.LineBytes {
				t.Errorf("a patch of two words takes %d bytes", st.Bytes-bytes)
			}
			later(key)
			if n := w.a.History().Stats().Blocks - blocks; i == 0 && n != 1 || i == 1 && n != 2 {
				t.Errorf("case %d: %d versions of one tick", i, n)
			}
			w.pass(1)
			check("end")
			if err := w.t.Check(); err != nil || bad != nil {
				t.Fatalf("case %d: %v %v", i, bad, err)
			}
			if w.was(key, w.tick).row != nil {
				w.set(key, 1, 3)
				w.pass(1)
				check("another tick")
			}
			if bad != nil {
				t.Fatalf("case %d: %v", i, bad)
			}
		}
	})
}

// TestPastGoesWithRows: rows that splits, merges and moves have carried elsewhere
// keep their versions, and graves outlive the leaves that had the rows.
func TestPastGoesWithRows(t *testing.T) {
	eachPast(t, func(t *testing.T, kind leaf.Kind, sums bool) {
		w := newPast(t, kind, 4, 20, sums, 1000, 1<<30)
		check := func(what string) {
			t.Helper()
			for at := w.floor(); at < w.tick; at++ {
				if err := w.all(at); err != nil {
					t.Fatalf("after %s: %v", what, err)
				}
			}
			if err := w.t.Check(); err != nil {
				t.Fatalf("after %s: %v", what, err)
			}
		}
		for i := range 40 {
			w.put(w.key(i*10), 1)
		}
		w.pass(1)
		for i := range 40 {
			w.put(w.key(i*10), 1)
		}
		w.pass(1)
		for i := range 40 {
			for range 2 { // the second move is of the same tick
				w.put(w.key(i*10+5), 1)
				w.put(w.key(i*10), 1+19*(i%2))
			}
		}
		check("splits and moves")
		w.pass(1)
		for i := range 80 {
			if i%8 != 0 || i > 40 {
				w.del(w.key(i * 5))
			}
		}
		check("deletions")
		for w.t.Tidy(1) || w.t.untidy.len() > 0 {
			check("merges")
		}
		if splits, merges, unlinks := w.t.splits.Load(), w.t.merges.Load(), w.t.unlinks.Load(); splits == 0 || merges == 0 || unlinks == 0 {
			t.Fatalf("%d splits, %d merges, %d unlinks", splits, merges, unlinks)
		}
		w.pass(1)
		for i := range 80 {
			w.put(w.key(i*5), 1)
		}
		w.pass(1)
		check("second lives")
	})
}

// TestNoPast: without a history nothing is kept of what was.
func TestNoPast(t *testing.T) {
	for _, kind := range allKinds {
		w := newWorld(t, kind, 4, false, 3)
		for i := range uint64(200) {
			w.put(w.key(i%20), 3)
			if i%3 == 0 {
				w.del(w.key(i % 20))
			}
		}
		if s := w.t.a.History().Stats(); s.Blocks != 0 || w.t.yard.total.load() != 0 {
			t.Errorf("%s: %+v, %d graves", kindName(kind), s, w.t.yard.total.load())
		}
	}
}

// TestGravesLastAsLongAsRead: deletions that leave no grave lead readers to those
// of earlier ones, which are there, although nobody needs them.
func TestGravesLastAsLongAsRead(t *testing.T) {
	eachPast(t, func(t *testing.T, kind leaf.Kind, sums bool) {
		w := newPast(t, kind, 8, 10, sums, 10, 1<<30)
		w.put(w.key(1), 1)
		w.put(w.key(3), 8)
		w.pass(1)
		w.del(w.key(1))
		reused := false
		for range 60 {
			w.pass(1)
			w.put(w.key(2), 1)
			w.del(w.key(2))
			w.t.Bury(w.floor(), 10)
			if len(w.t.yard.all) == 0 && !reused { // a whole version takes the memory that became free
				w.set(w.key(3), 0, len(w.was(w.key(3), w.tick).row))
				reused = true
			}
			for at := w.floor(); at < w.tick; at++ {
				if err := w.all(at); err != nil {
					t.Fatal(err)
				}
			}
		}
	})
}
