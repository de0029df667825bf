package block

import (
	"errors"
	"strings"
	"testing"
	"time"

	"drtmx/internal/clock/clocktest"
	"drtmx/internal/mem"
)

// clockedArena is an arena of at most so many bytes, whose time stands still.
func clockedArena(t *testing.T, limit uint64) (*Arena, *clocktest.Clock) {
	t.Helper()
	r, err := mem.New(mem.Options{MaxBytes: limit, SegmentBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	c := &clocktest.Clock{}
	return NewArena(r, ArenaOptions{Tick: 1, Clock: c.Now}), c
}

// pass lets time pass, in which a server calls Tidy every second.
func pass(a *Arena, now *clocktest.Clock, d time.Duration) {
	for ; d > 0; d -= time.Second {
		now.Advance(min(d, time.Second))
		a.Tidy()
	}
}

// TestEmptiedRegionServesOtherSizes: a region of 64 MiB is filled with blocks of
// all sizes up to 4 KiB, and emptied. After the quarantine, and not before, it
// holds blocks of 30 KB, about as many as if it were new.
func TestEmptiedRegionServesOtherSizes(t *testing.T) {
	r := seeded(t)
	a, now := clockedArena(t, 64<<20)
	v := a.NewVaried(10000)
	var live []benchBlock
	for refused := 0; refused < 100; {
		c := ClassFor(2 + r.IntN(510))
		addr, err := v.Alloc(c)
		if err != nil {
			refused++
			continue
		}
		live = append(live, benchBlock{addr, c})
		if r.IntN(100) == 0 {
			now.Advance(time.Millisecond)
		}
	}
	for _, b := range live {
		v.Free(b.addr, b.c)
	}
	large := ClassFor(30 << 10 / mem.WordBytes)
	_, err := v.Alloc(large)
	full := (*FullError)(nil)
	if !errors.As(err, &full) || full.Memory.Quarantined < 60<<20 || full.Bytes < large.Bytes() {
		t.Fatalf("before the quarantine: %v", err)
	}
	if full.Wait < Quarantine || full.Wait > Quarantine+batchEveryFull {
		t.Errorf("the memory that was just freed is said to be in quarantine for %v", full.Wait)
	}
	for _, want := range []string{"32768 bytes", "limit 67108864 bytes", "in quarantine", "free in at most 3"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not say %q", err, want)
		}
	}
	pass(a, now, Quarantine-time.Millisecond)
	if _, err := v.Alloc(large); err == nil {
		t.Error("a block of 30 KB within the quarantine")
	}
	pass(a, now, full.Wait-(Quarantine-time.Millisecond))
	for a.Tidy() { // frees a part in each call
	}
	if m := a.Memory(); m.Quarantined > 0 {
		t.Errorf("after %v, for which memory was said to be in quarantine, it is %+v", full.Wait, m)
	}
	n := uint64(0)
	for {
		if _, err := v.Alloc(large); err != nil {
			break
		}
		n++
	}
	if n*large.Bytes() < 60<<20 {
		t.Errorf("%d blocks of %d bytes in %+v", n, large.Bytes(), a.Memory())
	}
	if err := checkPages(a.pages); err != nil {
		t.Error(err)
	}
}

// TestFallingSizes: 30 MB of blocks are allocated and freed, at sizes from 64
// KiB down to a line. Their memory is never more than twice that.
func TestFallingSizes(t *testing.T) {
	a, now := clockedArena(t, 1<<30)
	v := a.NewVaried(10000)
	total := uint64(30 << 20)
	if testing.Short() {
		total /= 8
	}
	most := uint64(0)
	for c := ClassFor(8192); c > 0; c-- {
		var live []uint64
		for n := uint64(0); n < total; n += c.Bytes() {
			addr, err := v.Alloc(c)
			if err != nil {
				t.Fatal(err)
			}
			live = append(live, addr)
		}
		most = max(most, a.Used())
		for _, addr := range live {
			v.Free(addr, c)
		}
		pass(a, now, Quarantine+batchEvery)
	}
	t.Logf("at most %d MiB in use", most>>20)
	if most > 2*total {
		t.Errorf("at most %d bytes in use for %d", most, total)
	}
	if m := a.Memory(); m.Mapped > 2*total+2<<20 {
		t.Errorf("%+v", m)
	}
}

// TestTurnsAreRare: blocks that come and go raise the turn only every now and
// then, and not at all while few spans are empty.
func TestTurnsAreRare(t *testing.T) {
	a, now := clockedArena(t, 1<<30)
	s := a.NewRows(1024)
	turn := func() uint64 { return a.Span(TurnAddr, 1).Load(0) }
	var live []uint64
	blocks := 10_000
	if testing.Short() {
		blocks /= 5
	}
	for range blocks {
		addr, err := s.Alloc()
		if err != nil {
			t.Fatal(err)
		}
		live = append(live, addr)
	}
	for range 20 * 60 { // seconds
		for _, addr := range live[:blocks/100] {
			s.Free(addr)
		}
		for i := range live[:blocks/100] {
			live[i], _ = s.Alloc()
		}
		now.Advance(time.Second)
		a.Tidy()
	}
	if n := turn(); n != 0 {
		t.Errorf("turn %d, with a hundredth of the blocks free at a time", n)
	}
	for range 10 * 60 {
		for _, addr := range live {
			s.Free(addr)
		}
		for i := range live {
			live[i], _ = s.Alloc()
		}
		now.Advance(time.Second)
	}
	if n, most := turn(), uint64(10*time.Minute/batchEvery)+1; n == 0 || n > most {
		t.Errorf("turn %d in ten minutes, at most %d", n, most)
	}
}
