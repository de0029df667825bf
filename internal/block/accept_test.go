package block

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"

	"drtmx/internal/mem"
	"drtmx/internal/testseed"
)

func seeded(tb testing.TB) *rand.Rand {
	tb.Helper()
	seed := testseed.Of(tb)
	return rand.New(rand.NewPCG(seed, 1))
}

func newArena(tb testing.TB, o ArenaOptions) *Arena {
	tb.Helper()
	r, err := mem.New(mem.Options{SegmentBytes: 1 << 16, MaxBytes: 1 << 24})
	if err != nil {
		tb.Fatal(err)
	}
	return NewArena(r, o)
}

// script is the history of a block, word by word: states[t] is the block after
// t stores of the writer. Reading a word at time t gives states[t][word].
type script struct {
	addr   uint64
	states [][]uint64
	whole  map[uint64][]uint64 // header → the only block that may be accepted under it
}

// newScript lets the writer change a block of n words the given number of
// times, recording after every single store.
func newScript(tb testing.TB, words, updates int, r *rand.Rand) *script {
	a := newArena(tb, ArenaOptions{Checksums: true, Tick: 1})
	addr, err := a.NewSlab((words*8 + 63) &^ 63).Alloc()
	if err != nil {
		tb.Fatal(err)
	}
	s := &script{addr: addr, whole: map[uint64][]uint64{}}
	snap := func() []uint64 {
		w := make([]uint64, words)
		a.Span(addr, words).CopyOut(w)
		s.states = append(s.states, w)
		return w
	}
	commit := func(e *Edit) {
		// Commit stores the checksum, then the header: take the state between apart.
		before := a.Span(addr, 1).Load(HeaderWord)
		e.Commit(Present(CSN(a.NextVersion())))
		after := snap()
		between := append([]uint64(nil), after...)
		between[HeaderWord] = before
		s.states = append(s.states[:len(s.states)-1], between, after)
		s.whole[after[HeaderWord]] = after
	}
	e := a.Create(addr, words)
	for i := BodyWord; i < words; i++ {
		e.Set(i, r.Uint64())
	}
	e.Commit(Present(CSN(a.NextVersion())))
	first := snap()
	s.whole[first[HeaderWord]] = first
	for range updates {
		e := a.Begin(addr, words)
		snap()
		for _, i := range r.Perm(words - BodyWord) {
			e.Set(BodyWord+i, r.Uint64())
			snap()
		}
		commit(&e)
	}
	return s
}

// torn reports whether an accepted copy is not the block of its header.
func (s *script) torn(buf []uint64) bool {
	want := s.whole[buf[HeaderWord]]
	for i := range buf {
		if i != ChecksumWord && (want == nil || buf[i] != want[i]) {
			return true
		}
	}
	return false
}

// read makes the copy in which word i arrived at time at[i].
func (s *script) read(buf []uint64, at []int) {
	for i, t := range at {
		buf[i] = s.states[t][i]
	}
}

// eachOrder calls f with every way to give n words times from 0 to last.
func eachOrder(n, last int, f func(at []int)) {
	at := make([]int, n)
	for {
		f(at)
		i := 0
		for i < n && at[i] == last {
			at[i], i = 0, i+1
		}
		if i == n {
			return
		}
		at[i]++
	}
}

// eachAscending calls f with every way to give n words times that do not fall.
func eachAscending(n, last int, f func(at []int)) {
	at := make([]int, n)
	var rec func(i, from int)
	rec = func(i, from int) {
		if i == n {
			f(at)
			return
		}
		for t := from; t <= last; t++ {
			at[i] = t
			rec(i+1, t)
		}
	}
	rec(0, 0)
}

// TestAcceptInOrderExhaustively: a READ that loads words in ascending order,
// and the header again at the end, at every choice of moments.
func TestAcceptInOrderExhaustively(t *testing.T) {
	r := seeded(t)
	for words := 3; words <= 6; words++ {
		s := newScript(t, words, 2, r)
		last := len(s.states) - 1
		buf := make([]uint64, words)
		cases, accepted := 0, 0
		eachAscending(words+1, last, func(at []int) {
			cases++
			s.read(buf, at[:words])
			tail := s.states[at[words]][HeaderWord]
			if Accept(buf, tail, s.addr, true) == OK {
				accepted++
				if s.torn(buf) {
					t.Fatalf("%d words loaded at %v: torn and accepted", words, at)
				}
			}
			if at[0] == at[words] && !Header(buf[0]).Locked() && Accept(buf, tail, s.addr, true) != OK {
				t.Fatalf("a copy of the block at rest is refused")
			}
		})
		t.Logf("%d words: %d orders, %d accepted", words, cases, accepted)
	}
}

// TestAcceptChecksumExhaustively: every word at every moment, in any order.
func TestAcceptChecksumExhaustively(t *testing.T) {
	r := seeded(t)
	for words := 3; words <= 5; words++ {
		s := newScript(t, words, 2, r)
		buf := make([]uint64, words)
		cases, accepted := 0, 0
		eachOrder(words, len(s.states)-1, func(at []int) {
			cases++
			s.read(buf, at)
			if Accept(buf, 0, s.addr, false) == OK {
				accepted++
				if s.torn(buf) {
					t.Fatalf("%d words at %v: torn and accepted", words, at)
				}
			}
			if Accept(buf, 0, s.addr+64, false) == OK {
				t.Fatalf("a block of %#x is accepted at %#x", s.addr, s.addr+64)
			}
		})
		if accepted < 3 {
			t.Errorf("%d words: only %d of %d orders accepted", words, accepted, cases)
		}
		t.Logf("%d words: %d orders, %d accepted", words, cases, accepted)
	}
}

// TestAcceptLargeBlocksAtRandom draws arrival orders of large blocks, most of
// them with few words out of step, which is where a weak sum would fail.
func TestAcceptLargeBlocksAtRandom(t *testing.T) {
	r := seeded(t)
	for _, words := range []int{8, 16, 64, 256} {
		s := newScript(t, words, 3, r)
		last := len(s.states) - 1
		buf, at := make([]uint64, words), make([]int, words)
		for range 20000 {
			base := r.IntN(last + 1)
			for i := range at {
				at[i] = base
			}
			for range 1 + r.IntN(4) {
				at[r.IntN(words)] = r.IntN(last + 1)
			}
			s.read(buf, at)
			if Accept(buf, 0, s.addr, false) == OK && s.torn(buf) {
				t.Fatalf("%d words at %v: torn and accepted", words, at)
			}
			inOrder(at)
			s.read(buf, at)
			tail := s.states[at[words-1]+r.IntN(last+1-at[words-1])][HeaderWord]
			if Accept(buf, tail, s.addr, true) == OK && s.torn(buf) {
				t.Fatalf("%d words in order at %v: torn and accepted", words, at)
			}
		}
	}
}

// inOrder makes the times of a READ ascend, by their running maximum.
func inOrder(at []int) {
	for i := 1; i < len(at); i++ {
		at[i] = max(at[i], at[i-1])
	}
}

// TestWeakerRulesAcceptTornBlocks plants the rules that this package does not
// use: each accepts a torn copy for some arrival order, which is also what
// shows that these tests can fail.
func TestWeakerRulesAcceptTornBlocks(t *testing.T) {
	s := newScript(t, 4, 2, seeded(t))
	last := len(s.states) - 1
	unlocked := func(buf []uint64) bool { return !Header(buf[HeaderWord]).Locked() }
	for _, rule := range []struct {
		name   string
		accept func(buf []uint64, at []int) bool
	}{
		{"header somewhere in the body, and again later", func(buf []uint64, at []int) bool {
			return unlocked(buf) && s.states[last][HeaderWord] == buf[HeaderWord]
		}},
		{"header unlocked, once", func(buf []uint64, _ []int) bool { return unlocked(buf) }},
		{"header first, not again", func(buf []uint64, at []int) bool {
			for _, t := range at {
				if t < at[HeaderWord] {
					return false
				}
			}
			return unlocked(buf)
		}},
		{"the in-order rule without order", func(buf []uint64, at []int) bool {
			// The tail is loaded last, all else in any order before it.
			return Accept(buf, s.states[last][HeaderWord], s.addr, true) == OK
		}},
	} {
		torn := 0
		buf := make([]uint64, 4)
		eachOrder(4, last, func(at []int) {
			s.read(buf, at)
			if rule.accept(buf, at) && s.torn(buf) {
				torn++
			}
		})
		if torn == 0 {
			t.Errorf("%q accepts no torn block: the tests do not tell it from the rule", rule.name)
		}
		t.Logf("%q: %d torn copies accepted", rule.name, torn)
	}
}

// TestLineTagsAcceptTornBlocks: two lines of a tag and a word each, the tag
// raised in both lines by every change, before and after it. If the words of a
// line do not arrive together, equal tags prove nothing.
func TestLineTagsAcceptTornBlocks(t *testing.T) {
	var states [][]uint64
	state := []uint64{2, 100, 2, 100}
	snap := func() { states = append(states, append([]uint64(nil), state...)) }
	snap()
	for v := uint64(2); v < 6; v += 2 {
		for _, st := range [][2]uint64{{0, v + 1}, {2, v + 1}, {1, 100 + v}, {3, 100 + v}, {0, v + 2}, {2, v + 2}} {
			state[st[0]] = st[1]
			snap()
		}
	}
	torn := 0
	eachOrder(4, len(states)-1, func(at []int) {
		var b [4]uint64
		for i, t := range at {
			b[i] = states[t][i]
		}
		if b[0] == b[2] && b[0]%2 == 0 && b[1] != b[3] {
			torn++
		}
	})
	if torn == 0 {
		t.Error("line tags accept no torn block")
	}
	t.Logf("%d torn copies accepted", torn)
}

// TestAcceptBesideAWriter reads a block through memory while it is changed.
func TestAcceptBesideAWriter(t *testing.T) {
	r := seeded(t)
	for _, words := range []int{8, 40} {
		a := newArena(t, ArenaOptions{Checksums: true, Tick: 1})
		addr, err := a.NewSlab(words * 8).Alloc()
		if err != nil {
			t.Fatal(err)
		}
		write := func(e Edit) {
			v := a.NextVersion()
			for i := BodyWord; i < words; i++ {
				e.Set(i, v*uint64(i))
			}
			e.Commit(Present(CSN(v)))
		}
		write(a.Create(addr, words))
		var stop atomic.Bool
		done := make(chan struct{})
		go func() {
			defer close(done)
			for i := 0; !stop.Load(); i++ {
				write(a.Begin(addr, words))
				if i%64 == 0 {
					runtime.Gosched()
				}
			}
		}()
		buf := make([]uint64, words)
		span := a.Span(addr, words)
		verdicts := [2][3]int{}
		for i := range 20000 {
			ordered := i%2 == 0
			if ordered {
				span.CopyOut(buf)
			} else {
				for _, w := range r.Perm(words) {
					buf[w] = span.Load(w)
				}
			}
			v := Accept(buf, span.Load(HeaderWord), addr, ordered)
			verdicts[i%2][v]++
			for j := BodyWord; v == OK && j < words; j++ {
				if buf[j] != buf[HeaderWord]*uint64(j) {
					t.Fatalf("in order %v: word %d of version %d is %d", ordered, j, buf[HeaderWord], buf[j])
				}
			}
			if i%16 == 0 {
				runtime.Gosched()
			}
		}
		stop.Store(true)
		<-done
		t.Logf("%d words: ok, busy, torn: in order %v, by checksum %v", words, verdicts[0], verdicts[1])
	}
}
