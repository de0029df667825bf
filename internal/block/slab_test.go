package block

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"drtmx/internal/clock"
	"drtmx/internal/mem"
	"drtmx/internal/testseed"
	"pgregory.net/rapid"
)

// TestChecksumInStep: whatever edits do, the checksum they keep is the one
// computed from the words.
func TestChecksumInStep(t *testing.T) {
	a := newArena(t, ArenaOptions{Checksums: true, Tick: 3})
	slab := a.NewSlab(128)
	testseed.Check(t, func(t *rapid.T) {
		const words = 16
		addr, err := slab.Alloc()
		if err != nil {
			t.Fatal(err)
		}
		defer slab.Free(addr)
		span := a.Span(addr, words)
		e := a.Create(addr, words)
		for range rapid.IntRange(1, 6).Draw(t, "edits") {
			for range rapid.IntRange(0, 4).Draw(t, "stores") {
				i := rapid.IntRange(BodyWord, words-1).Draw(t, "word")
				if rapid.Bool().Draw(t, "one") {
					e.Set(i, rapid.Uint64().Draw(t, "value"))
				} else {
					e.Write(i, rapid.SliceOfN(rapid.Uint64(), 0, words-i).Draw(t, "values"))
				}
			}
			h := Present(CSN(a.NextVersion()))
			held := rapid.Bool().Draw(t, "held")
			if held {
				h = h.Lock()
			}
			e.Commit(h)
			buf := make([]uint64, words)
			span.CopyOut(buf)
			if buf[HeaderWord] != uint64(h) {
				t.Fatalf("header %v, want %v", Header(buf[HeaderWord]), h)
			}
			buf[HeaderWord] = uint64(h.Unlock())
			if Accept(buf, 0, addr, false) != OK {
				t.Fatalf("checksum %#x, want %#x", buf[ChecksumWord], Checksum(addr, buf))
			}
			e = a.Begin(addr, words)
			if !Header(span.Load(HeaderWord)).Locked() {
				t.Fatal("Begin leaves the block unlocked")
			}
		}
	})
}

func TestWithoutChecksumsTheWordStaysZero(t *testing.T) {
	a := newArena(t, ArenaOptions{})
	addr, err := a.NewSlab(64).Alloc()
	if err != nil {
		t.Fatal(err)
	}
	e := a.Create(addr, 8)
	e.Set(2, 5)
	e.Commit(Present(1))
	if got := a.Span(addr, 8).Load(ChecksumWord); got != 0 {
		t.Errorf("checksum word is %#x", got)
	}
}

// TestSlabsKeepTheirBlocks: a block freed is used again, by its own slab
// alone, and is locked from its Free until it is published again.
func TestSlabsKeepTheirBlocks(t *testing.T) {
	a := newArena(t, ArenaOptions{Tick: 1})
	testseed.Check(t, func(t *rapid.T) {
		slabs := []*Slab{a.NewSlab(64), a.NewSlab(64), a.NewSlab(192), a.NewSlab(4096)}
		owner := map[uint64]int{}
		live := make([][]uint64, len(slabs))
		defer func() {
			for i, l := range live {
				for _, addr := range l {
					slabs[i].Free(addr)
				}
			}
		}()
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			i := rapid.IntRange(0, len(slabs)-1).Draw(t, "slab")
			s := slabs[i]
			if n := len(live[i]); n > 0 && rapid.Bool().Draw(t, "free") {
				addr := live[i][n-1]
				live[i] = live[i][:n-1]
				s.Free(addr)
				if h := Header(a.Span(addr, 1).Load(0)); !h.Locked() || !h.IsAbsent() {
					t.Fatalf("header of a freed block: %v", h)
				}
				continue
			}
			addr, err := s.Alloc()
			if errors.Is(err, ErrFull) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			seg := a.Region().SegmentBytes()
			switch was, known := owner[addr]; {
			case known && was != i:
				t.Fatalf("block %#x moved from slab %d to slab %d", addr, was, i)
			case addr%s.BlockBytes() != 0 || addr < firstAddr:
				t.Fatalf("block of %d bytes at %#x", s.BlockBytes(), addr)
			case addr/seg != (addr+s.BlockBytes()-1)/seg:
				t.Fatalf("block of %d bytes at %#x straddles a segment", s.BlockBytes(), addr)
			case slices.Contains(live[i], addr):
				t.Fatalf("block %#x is handed out twice", addr)
			case !Header(a.Span(addr, 1).Load(0)).Locked():
				t.Fatalf("block %#x is handed out unlocked", addr)
			}
			owner[addr] = i
			live[i] = append(live[i], addr)
			e := a.Create(addr, 8)
			e.Commit(Present(CSN(a.NextVersion())))
		}
		for i, s := range slabs {
			if st := s.Stats(); st.Used != uint64(len(live[i])) || st.Bytes != (st.Used+st.Free)*s.BlockBytes() {
				t.Fatalf("slab %d: %+v with %d blocks live", i, st, len(live[i]))
			}
		}
	})
}

// TestVersionsNeverRepeat: taken by several goroutines, and across lives that
// begin at different ticks.
func TestVersionsNeverRepeat(t *testing.T) {
	const each, takers = 5000, 4
	seen := map[uint64]bool{}
	for tick := range clock.Tick(3) {
		a := newArena(t, ArenaOptions{Tick: tick})
		var wg sync.WaitGroup
		got := make([][]uint64, takers)
		for i := range got {
			wg.Add(1)
			go func() {
				defer wg.Done()
				for range each {
					got[i] = append(got[i], a.NextVersion())
				}
			}()
		}
		wg.Wait()
		for _, vs := range got {
			if !slices.IsSorted(vs) {
				t.Fatal("the versions one goroutine takes do not ascend")
			}
			for _, v := range vs {
				if seen[v] || v == 0 || Header(v).Locked() || Header(v).IsAbsent() {
					t.Fatalf("version %v", Header(v))
				}
				seen[v] = true
			}
		}
	}
}

func TestSizedSplitsByPowersOfTwo(t *testing.T) {
	a := newArena(t, ArenaOptions{})
	z := a.NewSized()
	x, err := z.Alloc(100)
	if err != nil || x%128 != 0 {
		t.Fatal(x, err)
	}
	z.Free(x, 100)
	if y, _ := z.Alloc(128); y != x {
		t.Errorf("block %#x of the same class is not used again: %#x", x, y)
	}
	if y, _ := z.Alloc(129); y == x || y%256 != 0 {
		t.Errorf("block at %#x", y)
	}
	if y, _ := z.Alloc(1); y%64 != 0 {
		t.Errorf("block at %#x", y)
	}
	if st := z.Stats(); st.Used != 3 {
		t.Errorf("%+v", st)
	}
	if _, err := z.Alloc(int(a.Region().SegmentBytes()) + 1); !errors.Is(err, ErrFull) {
		t.Errorf("too large a block: %v", err)
	}
}

func TestHeaderWord(t *testing.T) {
	c := NewCSN(MaxTick, MaxSeq)
	for _, h := range []Header{Present(c), Absent(c), Present(c).Lock(), Absent(c).Lock(), Present(0)} {
		if h.CSN() != c && h != Present(0) || h.Lock().Unlock() != h.Unlock() || h.Lock().CSN() != h.CSN() {
			t.Errorf("%v", h)
		}
	}
	if c.Tick() != MaxTick || c.Seq() != MaxSeq || NewCSN(2, 0) <= NewCSN(1, MaxSeq) {
		t.Error("a CSN does not order by tick, then sequence")
	}
	if s := Absent(NewCSN(2, 3)).Lock().String(); s != "2.3 absent locked" {
		t.Error(s)
	}
	if mem.LineBytes%mem.WordBytes != 0 {
		t.Error("a line is not whole words")
	}
}

// TestCSNs: CSNs rise, whatever the order of ticks covered, and a tick that has
// no sequence numbers left is followed by the next. Late ones are above all
// others of their tick, below those of the next, and differ.
func TestCSNs(t *testing.T) {
	a := newArena(t, ArenaOptions{Tick: 7})
	seen := map[CSN]bool{}
	last := CSN(0)
	take := func(c CSN, tick clock.Tick, late bool) {
		t.Helper()
		if c.Tick() != tick || seen[c] || late != (c.Seq() >= lateSeq) || !late && c <= last {
			t.Fatalf("CSN %v after %v, seen before %v: want tick %d, late %v", Present(c), Present(last), seen[c], tick, late)
		}
		seen[c] = true
		if !late {
			last = c
		}
	}
	take(a.NextCSN(), 7, false)
	a.CoverCSN(NewCSN(9, 0))
	take(a.NextCSN(), 9, false)
	take(a.CSNAt(9), 9, false)
	a.CoverCSN(NewCSN(8, 5)) // has no effect
	take(a.CSNAt(7), 7, true)
	take(a.CSNAt(7), 7, true)
	take(a.CSNAt(8), 8, true)
	take(a.NextCSN(), 9, false)
	a.CoverCSN(NewCSN(9, lateSeq-2))
	take(a.CSNAt(9), 9, false)
	take(a.CSNAt(9), 9, true) // no other is left
	take(a.NextCSN(), 10, false)
	take(a.CSNAt(9), 9, true)
	if a.Exhausted() {
		t.Error("exhausted at tick 10")
	}
	if a.CoverCSN(NewCSN(MaxTick-1, lateSeq-1)); a.Exhausted() {
		t.Error("exhausted before the last tick")
	}
	take(a.NextCSN(), MaxTick, false)
	if !a.Exhausted() {
		t.Error("not exhausted at the last tick")
	}
}

// TestAllocRun: runs are aligned and disjoint from all else, and what they skip
// is not lost.
func TestAllocRun(t *testing.T) {
	a := newArena(t, ArenaOptions{})
	s := a.NewSlab(192)
	used := map[uint64]bool{}
	take := func(addr uint64) {
		t.Helper()
		if used[addr] || addr%192 != 0 || !Header(a.Span(addr, 1).Load(0)).Locked() {
			t.Fatalf("block %#x: used %v, header %#x", addr, used[addr], a.Span(addr, 1).Load(0))
		}
		used[addr] = true
	}
	for i := range 300 {
		if i%3 == 0 {
			run, err := s.AllocRun(8)
			if err != nil || run%(8*192) != 0 {
				t.Fatalf("%#x, %v", run, err)
			}
			for k := range uint64(8) {
				take(run + k*192)
			}
		}
		addr, err := s.Alloc()
		if err != nil {
			t.Fatal(err)
		}
		take(addr)
	}
	if st := s.Stats(); st.Used != uint64(len(used)) || st.Free > 64 {
		t.Errorf("%d blocks in use: %+v", len(used), st)
	}
	if _, err := s.AllocRun(1 << 20); !errors.Is(err, ErrFull) {
		t.Errorf("a run larger than a segment: %v", err)
	}
}
