package clock

import (
	"math/rand/v2"
	"testing"
)

// TestLogical: closed lies below the present tick and below every vote in
// doubt, and is as high as that allows.
func TestLogical(t *testing.T) {
	const seed = 1
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		var l Logical
		var doubts []Tick
		for range 300 {
			before := l.Tick()
			switch at := Tick(rng.IntN(60)); {
			case rng.IntN(3) > 0 && len(doubts) > 0:
				i := rng.IntN(len(doubts))
				l.Settle(doubts[i])
				doubts = append(doubts[:i], doubts[i+1:]...)
			case rng.IntN(2) == 0:
				if rose := l.Adopt(at); rose != (at > before) || l.Tick() != max(at, before) {
					t.Fatalf("at %d, %d was adopted: now %d, rose %v", before, at, l.Tick(), rose)
				}
			default:
				v := l.Vote()
				if v != before {
					t.Fatalf("a vote of tick %d at %d", v, before)
				}
				doubts = append(doubts, v)
			}
			want := l.Tick()
			for _, v := range doubts {
				want = min(want, v)
			}
			if want = max(want, 1) - 1; l.Closed() != want {
				t.Fatalf("closed %d at tick %d with votes %v in doubt, want %d", l.Closed(), l.Tick(), doubts, want)
			}
		}
	}
}

// TestLogicalAllocatesNothing in steady state.
func TestLogicalAllocatesNothing(t *testing.T) {
	var l Logical
	tick := Tick(0)
	turn := func() {
		for range 10 {
			tick++
			l.Adopt(tick)
			l.Vote()
			l.Vote()
			if tick > 4 {
				l.Settle(tick - 4)
				l.Settle(tick - 4)
			}
		}
	}
	turn()
	if n := testing.AllocsPerRun(100, turn); n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTicks: ticks follow the wall clock, and do not go back.
func TestTicks(t *testing.T) {
	clock := NewTicks()
	first := clock.Now()
	behind := clock
	behind.wall = 0
	if now := behind.Now(); now == 0 || now > first {
		t.Errorf("a clock at the origin shows tick %d, another %d", now, first)
	}
	if now := (Ticks{boot: Now() + TickLength}).Now(); now != 1 {
		t.Errorf("a clock before its beginning shows tick %d", now)
	}
	ahead := clock
	ahead.wall += 7 * TickLength
	if now := ahead.Now(); now < first+6 || now > first+1000 {
		t.Errorf("a clock that is 7 ticks ahead shows %d, the other %d before", now, first)
	}
}
