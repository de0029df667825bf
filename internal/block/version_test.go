package block

import (
	"testing"

	"drtmx/internal/clock"
)

// Words of the rows here: older, and a body of two words.
const (
	testOlder = BodyWord
	testRow   = 5
)

// versioned is the history of a row and of its versions, store by store.
type versioned struct {
	rowHistory
	kept map[uint64][testRow]uint64 // versions, by address
}

// step is one Publish under way.
type step struct {
	e       Edit
	h, prev Header
	to      uint64
	body    [2]uint64
	a       *Arena
	w       *versioned
}

func (u *step) snap() { u.w.snap(u.a) }

func (u *step) copy() {
	u.e.CopyTo(u.a.Span(u.to, 8).Slice(0, testRow), u.to, u.prev)
	var v [testRow]uint64
	u.a.Span(u.to, 8).Slice(0, testRow).CopyOut(v[:])
	u.w.kept[u.to] = v
}

func (u *step) older()    { u.e.Set(testOlder, u.to); u.snap() }
func (u *step) announce() { u.e.Announce(u.h); u.snap() }
func (u *step) change() {
	for i, v := range u.body {
		u.e.Set(testOlder+1+i, v)
		u.snap()
	}
}

func (u *step) commit() { u.w.rowHistory.commit(u.a, &u.e, u.h) }

// publish is what an index does: see docs/versions.md.
func publish(u *step) {
	u.copy()
	u.older()
	u.announce()
	u.change()
	u.commit()
}

// newVersioned publishes a row at ticks 2, 4 and 6.
func newVersioned(tb testing.TB, publish func(*step)) *versioned {
	a := newArena(tb, ArenaOptions{Checksums: true, Tick: 1})
	rows := a.NewRows(64)
	alloc := func() uint64 {
		addr, err := rows.Alloc()
		if err != nil {
			tb.Fatal(err)
		}
		return addr
	}
	w := &versioned{
		rowHistory: rowHistory{addr: alloc(), since: map[clock.Tick]int{2: 0}, bodies: map[clock.Tick][2]uint64{}},
		kept:       map[uint64][testRow]uint64{},
	}
	prev := Present(NewCSN(2, 1))
	e := a.Create(w.addr, testRow)
	e.Write(testOlder+1, []uint64{20, 21})
	e.Commit(prev)
	w.bodies[2] = [2]uint64{20, 21}
	first := step{a: a, w: w}
	first.snap()
	for _, tick := range []clock.Tick{4, 6} {
		h := Present(NewCSN(tick, 1))
		a.Span(w.addr, 1).Store(0, uint64(prev.Lock()))
		first.snap()
		u := step{a: a, w: w, h: h, prev: prev, to: alloc(), body: [2]uint64{uint64(10 * tick), uint64(10*tick + 1)}, e: a.Begin(w.addr, testRow)}
		publish(&u)
		w.bodies[tick], prev = u.body, h
	}
	return w
}

// answer is an answerFunc.
func (w *versioned) answer(at clock.Tick, row []uint64, tail uint64, inOrder bool) (body [2]uint64, ok bool) {
	if AcceptVersion(row, tail, w.addr, inOrder) != OK {
		return body, false
	}
	for range len(w.kept) + 1 {
		if Header(row[HeaderWord]).CSN().Tick() <= at {
			return [2]uint64(row[testOlder+1:]), true
		}
		v := w.kept[row[testOlder]]
		row = v[:]
	}
	return body, true
}

// TestVersionsExhaustively: a reader of the past, whose loads fall between any
// two stores of a Publish, has the row of its tick or reads again. With the
// stores in any other order, it does not.
func TestVersionsExhaustively(t *testing.T) {
	for _, c := range []struct {
		name    string
		publish func(*step)
		wrong   bool // for a reader in order
	}{
		{"in order", publish, false},
		{"the copy last", func(u *step) { u.older(); u.announce(); u.change(); u.commit(); u.copy() }, true},
		{"the copy after the change", func(u *step) { u.older(); u.announce(); u.change(); u.copy(); u.commit() }, true},
		{"the link after the header", func(u *step) { u.copy(); u.announce(); u.older(); u.change(); u.commit() }, true},
		{"no announcement", func(u *step) { u.copy(); u.older(); u.change(); u.commit() }, true},
		{"the announcement after the change", func(u *step) { u.copy(); u.older(); u.change(); u.announce(); u.commit() }, true},
	} {
		w := newVersioned(t, c.publish)
		w.judge(t, c.name, w.answer, c.wrong)
	}
}

// TestRestIsNoTear: a row that is locked and not changed is accepted, and so is
// one whose change was announced and has not begun.
func TestRestIsNoTear(t *testing.T) {
	w := newVersioned(t, publish)
	for i, s := range w.states[:4] {
		if AcceptVersion(s, s[HeaderWord], w.addr, true) != OK {
			t.Errorf("state %d is torn: %v", i, Header(s[HeaderWord]))
		}
		if locked := i > 0; Header(s[HeaderWord]).Locked() != locked {
			t.Errorf("state %d: header %v", i, Header(s[HeaderWord]))
		}
		if i < 2 && AcceptVersion(s, 0, w.addr, false) != OK {
			t.Errorf("state %d is torn by its checksum", i)
		}
	}
}
