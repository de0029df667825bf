package block

import (
	"math/rand/v2"
	"testing"

	"drtmx/internal/clock"
)

// patchHead is where the payload begins, in the rows here and in their patches.
const patchHead = testOlder + 1

// patched is the history of a row whose writes change one word each, and of its
// versions, of which some are patches.
type patched struct {
	rowHistory
	kept map[Older][]uint64
}

// patchWrite is one Publish under way: of word i of the payload.
type patchWrite struct {
	e       Edit
	a       *Arena
	w       *patched
	h, prev Header
	i       int
	v, room uint64 // the new word, and memory for a version
	leaves  bool   // a version
	whole   bool
	to      Older
}

func (u *patchWrite) snap() { u.w.snap(u.a) }

func (u *patchWrite) copy() {
	if !u.leaves {
		return
	}
	u.to = NewOlder(u.room, 1)
	size := testRow
	if u.whole {
		u.e.CopyTo(u.a.Span(u.room, size), u.room, u.prev)
	} else {
		size, u.to = patchHead+1, u.to.Patching(u.i)
		u.e.PatchTo(u.a.Span(u.room, size), u.room, patchHead, patchHead+u.i, u.prev)
	}
	v := make([]uint64, size)
	u.a.Span(u.room, size).CopyOut(v)
	u.w.kept[u.to] = v
}

func (u *patchWrite) older() {
	if u.leaves {
		u.e.Set(testOlder, uint64(u.to))
		u.snap()
	}
}

func (u *patchWrite) announce() {
	if u.leaves { // the index of rows that are hashed does so always
		u.e.Announce(u.h)
		u.snap()
	}
}

func (u *patchWrite) change() { u.e.Set(patchHead+u.i, u.v); u.snap() }

func (u *patchWrite) commit() { u.w.rowHistory.commit(u.a, &u.e, u.h) }

// newPatched publishes a row at tick 2, at tick 4 word 0 of it, then word 1, and
// word 0 again, and at tick 6 word 1.
func newPatched(tb testing.TB, publish func(*patchWrite)) *patched {
	a := newArena(tb, ArenaOptions{Checksums: true, Tick: 1})
	rows := a.NewRows(64)
	alloc := func() uint64 {
		addr, err := rows.Alloc()
		if err != nil {
			tb.Fatal(err)
		}
		return addr
	}
	body := [2]uint64{20, 21}
	w := &patched{
		rowHistory: rowHistory{addr: alloc(), since: map[clock.Tick]int{2: 0}, bodies: map[clock.Tick][2]uint64{2: body}},
		kept:       map[Older][]uint64{},
	}
	prev := Present(NewCSN(2, 1))
	e := a.Create(w.addr, testRow)
	e.Write(patchHead, body[:])
	e.Commit(prev)
	(&patchWrite{a: a, w: w}).snap()
	for seq, c := range []struct {
		tick          clock.Tick
		i             int
		leaves, whole bool
	}{{4, 0, true, false}, {4, 1, true, true}, {4, 0, false, false}, {6, 1, true, false}} {
		h := Present(NewCSN(c.tick, uint64(seq+1)))
		a.Span(w.addr, 1).Store(0, uint64(prev.Lock()))
		body[c.i] = uint64(10*seq + 100)
		u := &patchWrite{
			e: a.Begin(w.addr, testRow), a: a, w: w, h: h, prev: prev,
			i: c.i, v: body[c.i], room: alloc(), leaves: c.leaves, whole: c.whole,
		}
		u.snap()
		publish(u)
		w.bodies[c.tick], prev = body, h
	}
	return w
}

// answer is an answerFunc.
func (w *patched) answer(at clock.Tick, row []uint64, tail uint64, inOrder bool) (body [2]uint64, ok bool) {
	if AcceptVersion(row, tail, w.addr, inOrder) != OK {
		return body, false
	}
	copy(body[:], row[patchHead:])
	for range len(w.kept) + 1 {
		if Header(row[HeaderWord]).CSN().Tick() <= at {
			return body, true
		}
		to := Older(row[testOlder])
		row = w.kept[to]
		switch first, _ := to.Extent(patchHead); {
		case row == nil:
			return body, true
		case to.IsPatch():
			body[first] = row[patchHead]
		default:
			copy(body[:], row[patchHead:])
		}
	}
	return body, true
}

// TestPatchesExhaustively: a reader of the past, whose loads fall between any two
// stores of Publish, has the row of its tick or reads again, if versions are
// patches. It does not if the stores come in another order, or if later writes of a
// tick leave no version although they change other words than the first.
func TestPatchesExhaustively(t *testing.T) {
	inOrder := func(u *patchWrite) { u.copy(); u.older(); u.announce(); u.change(); u.commit() }
	for _, c := range []struct {
		name    string
		publish func(*patchWrite)
		wrong   bool // for a reader in order
	}{
		{"in order", inOrder, false},
		{"the copy after the change", func(u *patchWrite) {
			u.older()
			u.announce()
			u.change()
			u.copy()
			u.older()
			u.commit()
		}, true},
		{"the link after the header", func(u *patchWrite) { u.copy(); u.announce(); u.older(); u.change(); u.commit() }, true},
		{"no announcement", func(u *patchWrite) { u.copy(); u.older(); u.change(); u.commit() }, true},
		{"one version a tick", func(u *patchWrite) { u.leaves = u.leaves && !u.whole; inOrder(u) }, true},
	} {
		w := newPatched(t, c.publish)
		w.judge(t, c.name, w.answer, c.wrong)
	}
}

// TestPatchFor: a patch is smaller than a whole version, lies within the payload,
// has the words asked for, and restores them.
func TestPatchFor(t *testing.T) {
	r, patches := rand.New(rand.NewPCG(1, 2)), 0
	for range 20000 {
		head, words := 3+r.IntN(4), 1+r.IntN(300)
		lo := r.IntN(words)
		hi := lo + r.IntN(min(words-lo, 1+r.IntN(40))+1)
		whole := head + words + r.IntN(20)
		first, c, ok := PatchFor(head, lo, hi, words, whole)
		if !ok {
			continue
		}
		patches++
		o := NewOlder(64, c).Patching(first)
		if from, n := o.Extent(head); !o.IsPatch() || !o.Valid() || from != first || from < 0 || from+n > words ||
			!o.Spans(head, lo, hi) || n < words && o.Spans(head, 0, words) || c.Words() >= ClassFor(whole).Words() {
			t.Fatalf("payload of %d words, of %d whole, words %d to %d: %d words from %d", words, whole, lo, hi, n, from)
		}
		row, block := make([]uint64, words), make([]uint64, c.Words())
		for i := range block {
			block[i] = uint64(i)
		}
		if !o.Apply(head, row, block) || row[first] != uint64(head) || row[first+c.Words()-head-1] != uint64(c.Words()-1) {
			t.Fatalf("%v from %d: %v", block, first, row)
		}
		if o.Apply(head, row[:first+c.Words()-head-1], block) || o.Apply(head, row, block[1:]) || NewOlder(64, c).Apply(head, row, block) {
			t.Fatal("a patch that cannot be is applied")
		}
	}
	if patches < 1000 {
		t.Errorf("%d patches", patches)
	}
}
