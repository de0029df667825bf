package block

import (
	"math/rand/v2"
	"testing"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/internal/testseed"
)

func newHistoryArena(t testing.TB, bytes uint64) *Arena {
	r, err := mem.New(mem.Options{Name: "history", MaxBytes: bytes, SegmentBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return NewArena(r, ArenaOptions{})
}

func (a *Arena) floorWord() clock.Tick { return clock.Tick(a.Span(FloorAddr, 1).Load(0)) }

// TestHistoryOff: before Keep nothing is kept, and no tick can be read.
func TestHistoryOff(t *testing.T) {
	a := newHistoryArena(t, 1<<20)
	h := a.History()
	h.Close(100)
	h.Lose(5)
	if h.Keeps() || h.Floor() != NoFloor || a.floorWord() != NoFloor {
		t.Errorf("keeps %v, floor %d, published %d", h.Keeps(), h.Floor(), a.floorWord())
	}
}

// TestHistoryOnDemand: versions are kept for twice the retention after a reader was
// expected, and not otherwise. The floor is above the tick of a version that is not
// kept before the row changes.
func TestHistoryOnDemand(t *testing.T) {
	a := newHistoryArena(t, 1<<20)
	h := a.History()
	until := func() clock.Tick { return clock.Tick(a.Span(UntilAddr, 1).Load(0)) }
	h.Expect(5) // nothing is kept yet
	h.Keep(10, 1<<20, 5)
	if until() != always {
		t.Errorf("a history that is always on keeps versions until %d", until())
	}
	h.OnDemand()
	for _, x := range []struct {
		expect, tick clock.Tick
		kept         bool
		until        clock.Tick
	}{
		{0, 8, false, 0}, {20, 21, true, 40}, {15, 40, true, 40}, {0, 41, false, 40}, {0, 39, true, 40}, {60, 80, true, 80}, {0, 81, false, 80},
	} {
		if x.expect != 0 {
			h.Expect(x.expect)
		}
		floor := a.floorWord()
		o := h.ReserveVersion(VersionWords{OlderWord: 3, PatchWord: 4}, 8, Change{Hi: 2, Words: 4}, false, x.tick)
		want := floor
		if !x.kept {
			want = max(floor, x.tick)
		}
		if (o != 0) != x.kept || until() != x.until || a.floorWord() != want {
			t.Errorf("tick %d, readers expected at %d: kept %v, until %d, floor %d; want %v, %d, %d",
				x.tick, x.expect, o != 0, until(), a.floorWord(), x.kept, x.until, want)
		}
	}
	if s := h.Stats(); s.Forced != 0 {
		t.Errorf("%d versions count as lost for want of memory", s.Forced)
	}
}

// TestHistoryFollowsAModel retains, closes and loses at random. A version
// overwritten at a tick is there for readers of every tick below it that is not
// below the floor, and freed soon after.
func TestHistoryFollowsAModel(t *testing.T) {
	seed := testseed.Of(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	a := newHistoryArena(t, 64<<20)
	rows := a.NewVaried(64)
	h := a.History()
	const retain, limit = 5, 1 << 20
	h.Keep(retain, limit, 10)
	kept := map[uint64]clock.Tick{} // by address of a version: when it was overwritten
	now := clock.Tick(10)
	for range 200_000 {
		switch rng.IntN(10) {
		case 0:
			now++
			h.Close(now - 1)
		case 1:
			if rng.IntN(500) == 0 {
				h.Lose(now)
			}
		case 2:
			c := Class(1 + rng.IntN(4))
			addr, err := rows.Alloc(c)
			if err != nil {
				t.Fatal(err)
			}
			kept[addr] = now
			h.RetainRow(NewOlder(addr, c), now)
		default:
			o, ok := h.Reserve(1 + rng.IntN(40))
			if !ok || !o.Valid() {
				t.Fatalf("no block for a version, or %#x", uint64(o))
			}
			if tick, was := kept[o.Addr()]; was && tick > a.floorWord() {
				t.Fatalf("the version at %d, overwritten at %d, was freed at floor %d", o.Addr(), tick, a.floorWord())
			}
			delete(kept, o.Addr())
			if rng.IntN(4) == 0 {
				h.free(version{block: o}) // it is not used
				continue
			}
			tick := now - clock.Tick(rng.IntN(3)) // a late commit
			kept[o.Addr()] = tick
			h.Retain(o, tick)
		}
		if h.Floor() != a.floorWord() || h.Floor() > now {
			t.Fatalf("floor %d, published %d, now %d", h.Floor(), a.floorWord(), now)
		}
		if st := h.Stats(); st.Bytes > limit {
			t.Fatalf("%d bytes are kept, limit %d", st.Bytes, limit)
		}
	}
	for range 1000 {
		h.Close(now + retain)
	}
	if st := h.Stats(); st.Blocks != 0 || st.Bytes != 0 {
		t.Errorf("after everything has passed: %+v", st)
	}
}

// TestHistoryServesAReaderAtTheFloor: a version that was overwritten at tick 8 is
// for readers of ticks up to 7. It outlives floor 7, and not floor 8.
func TestHistoryServesAReaderAtTheFloor(t *testing.T) {
	a := newHistoryArena(t, 1<<20)
	h := a.History()
	h.Keep(3, 1<<20, 5)
	o, _ := h.Reserve(8)
	h.Retain(o, 8)
	if h.Close(10); h.Floor() != 7 || h.Stats().Blocks != 1 {
		t.Errorf("ticks up to 10 closed: floor %d, %d versions; a reader of tick 7 needs the one overwritten at 8", h.Floor(), h.Stats().Blocks)
	}
	if h.Close(11); h.Floor() != 8 || h.Stats().Blocks != 0 {
		t.Errorf("ticks up to 11 closed: floor %d, %d versions, want 8 and none", h.Floor(), h.Stats().Blocks)
	}
}

// TestFloorIsPublishedBeforeMemoryIsFreed holds the allocator's lock, so that
// the free has to wait: the floor must rise nevertheless.
func TestFloorIsPublishedBeforeMemoryIsFreed(t *testing.T) {
	for name, raise := range map[string]func(*History){
		"retention":     func(h *History) { h.Close(50) },
		"out of memory": func(h *History) { h.Yield() },
		"bound":         func(h *History) { h.limit = 0; o, _ := h.Reserve(8); h.Retain(o, 30) },
	} {
		t.Run(name, func(t *testing.T) {
			a := newHistoryArena(t, 1<<20)
			rows := a.NewVaried(8)
			h := a.History()
			h.Keep(3, 1<<20, 5)
			spare, _ := h.Reserve(8)
			h.free(version{block: spare})
			if name == "out of memory" {
				h.spare[1] = nil // their free would wait before the floor rises
			}
			addr, err := rows.Alloc(1)
			if err != nil {
				t.Fatal(err)
			}
			h.RetainRow(NewOlder(addr, 1), 20)
			a.pages.mu.Lock()
			done := make(chan struct{})
			go func() { defer close(done); raise(h) }()
			deadline := time.Now().Add(testseed.Patience())
			for a.floorWord() < 20 && time.Now().Before(deadline) {
				time.Sleep(100 * time.Microsecond)
			}
			floor := a.floorWord()
			a.pages.mu.Unlock()
			<-done
			if floor < 20 {
				t.Errorf("floor %d while a version overwritten at 20 is being freed", floor)
			}
		})
	}
}

// TestHistoryGivesWayToWrites: with memory out, versions are freed and the floor
// rises. Only when none is left is a block refused.
func TestHistoryGivesWayToWrites(t *testing.T) {
	a := newHistoryArena(t, 1<<20)
	h := a.History()
	h.Keep(1000, 1<<30, 5)
	tick := clock.Tick(5)
	for range 100_000 {
		o, ok := h.Reserve(64)
		if !ok {
			t.Fatalf("no block at tick %d, with %+v", tick, h.Stats())
		}
		tick++
		h.Retain(o, tick)
	}
	if st := h.Stats(); st.Forced == 0 || st.Floor <= 5 || st.Floor >= tick || st.Bytes < 1<<19 {
		t.Errorf("after 100,000 versions in 1 MiB: %+v", st)
	}
	held := 0
	for ; ; held++ { // blocks reserved by transactions in doubt
		if _, ok := h.Reserve(64); !ok {
			break
		}
	}
	if st := h.Stats(); st.Blocks != 0 || held < 1000 {
		t.Errorf("a block was refused after %d, with %+v left", held, st)
	}
	h.Lose(tick + 1)
	if a.floorWord() != tick+1 {
		t.Errorf("floor %d after a version of tick %d was lost", a.floorWord(), tick+1)
	}
}

// TestVersionsGoToOtherSizes: freed memory of versions serves rows at once.
func TestVersionsGoToOtherSizes(t *testing.T) {
	a := newHistoryArena(t, 1<<20)
	h := a.History()
	h.Keep(1000, 1<<30, 5)
	for i := range clock.Tick(20_000) {
		o, _ := h.Reserve(8)
		h.Retain(o, 6+i)
	}
	rows := a.NewRows(2048)
	for n := 0; ; n++ {
		if _, err := rows.Alloc(); err == nil {
			continue
		}
		if !h.Yield() {
			if n < 1<<20/2048*9/10 {
				t.Errorf("rows of 2 KiB have %d blocks of 1 MiB when no version is left", n)
			}
			return
		}
	}
}

// TestLastVersionsMakeRoom: the memory of the last versions that are given up serves a
// version of another size.
func TestLastVersionsMakeRoom(t *testing.T) {
	a := newHistoryArena(t, 1<<20)
	h := a.History()
	h.Keep(1000, 1<<30, 5)
	for i := range clock.Tick(yieldFrees) {
		o, _ := h.Reserve(8)
		h.Retain(o, 6+i)
	}
	rows := a.NewRows(pageBytes)
	for err := error(nil); err == nil; {
		_, err = rows.Alloc()
	}
	if _, ok := h.Reserve(64); !ok {
		t.Errorf("no block for a version after others were freed: %+v", h.Stats())
	}
}

func TestHistoryAllocatesNothing(t *testing.T) {
	a := newHistoryArena(t, 4<<20)
	h := a.History()
	h.Keep(2, 1<<20, 5)
	tick := clock.Tick(5)
	step := func() {
		tick++
		for range 100 {
			o, _ := h.Reserve(16)
			h.Retain(o, tick)
		}
		h.Close(tick)
	}
	for range 1000 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n > 0 {
		t.Errorf("%v allocations for 100 versions", n)
	}
}

func BenchmarkHistory(b *testing.B) {
	a := newHistoryArena(b, 256<<20)
	h := a.History()
	h.Keep(300, 128<<20, 5)
	tick, n := clock.Tick(5), 0
	for b.Loop() {
		o, _ := h.Reserve(8)
		h.Retain(o, tick)
		if n++; n%1000 == 0 {
			tick++
			h.Close(tick)
		}
	}
}
