package block

import (
	"testing"

	"drtmx/internal/clock"
)

// rowHistory is what a row was after each store of each Publish.
type rowHistory struct {
	addr   uint64
	states [][]uint64
	since  map[clock.Tick]int       // the state in which the last row of a tick became visible
	bodies map[clock.Tick][2]uint64 // of that row
}

// answerFunc is a reader of the past: what it takes for the body at a tick, given a
// copy of the row. ok is false if it has to read again.
type answerFunc func(at clock.Tick, row []uint64, tail uint64, inOrder bool) (body [2]uint64, ok bool)

func (w *rowHistory) snap(a *Arena) {
	s := make([]uint64, testRow)
	a.Span(w.addr, testRow).CopyOut(s)
	w.states = append(w.states, s)
}

// commit ends a Publish, whose last two stores are two states.
func (w *rowHistory) commit(a *Arena, e *Edit, h Header) {
	before := a.Span(w.addr, 1).Load(HeaderWord)
	e.Commit(h)
	w.snap(a)
	n := len(w.states)
	between := append([]uint64(nil), w.states[n-1]...) // the checksum is stored before the header
	between[HeaderWord] = before
	w.states = append(w.states[:n-1], between, w.states[n-1])
	w.since[h.CSN().Tick()] = n
}

// check runs a reader at each tick over each choice of moments after the tick
// was closed. It returns the first wrong answer, or how many of all were given.
func (w *rowHistory) check(answer answerFunc, inOrder bool) (wrong []int, tick clock.Tick, answers int) {
	each, loads := eachOrder, testRow
	if inOrder {
		each, loads = eachAscending, testRow+1
	}
	buf := make([]uint64, testRow)
	for _, at := range []clock.Tick{2, 3, 4, 5, 6} {
		want, from := w.bodies[at&^1], w.since[at&^1]
		each(loads, len(w.states)-1-from, func(moments []int) {
			for i := range buf {
				buf[i] = w.states[from+moments[i]][i]
			}
			tail := buf[HeaderWord]
			if inOrder {
				tail = w.states[from+moments[testRow]][HeaderWord]
			}
			body, ok := answer(at, buf, tail, inOrder)
			if ok {
				answers++
			}
			if ok && body != want && wrong == nil {
				wrong, tick = append([]int(nil), moments...), at
			}
		})
	}
	return wrong, tick, answers
}

// judge checks the answers of readers in order, some of which are to be wrong or
// none, and then those of readers by checksum, none of which may be.
func (w *rowHistory) judge(t *testing.T, name string, answer answerFunc, wrong bool) {
	t.Helper()
	at, tick, answers := w.check(answer, true)
	if (at != nil) != wrong || answers == 0 {
		t.Errorf("%s: of %d answers, wrong is one at tick %d by loads at %v; want one: %v", name, answers, tick, at, wrong)
	}
	if wrong {
		return
	}
	if at, tick, answers := w.check(answer, false); at != nil || answers == 0 {
		t.Errorf("%s, checksums: of %d answers, wrong is one at tick %d by loads at %v", name, answers, tick, at)
	}
}
