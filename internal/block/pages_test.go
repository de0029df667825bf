package block

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"drtmx/internal/clock/clocktest"
	"drtmx/internal/mem"
	"drtmx/internal/testseed"
	"pgregory.net/rapid"
)

// checkPages verifies the heap's structures: every page is in one free run, or
// of one span, or of memory that is never freed; free neighbours are joined.
func checkPages(h *pageHeap) error {
	seg := h.region.SegmentBytes()
	isFree := map[uint64]bool{}
	free := uint64(0)
	for b, id := range h.bins {
		if (id != 0) != (h.nonEmpty[b/64]>>(b%64)&1 != 0) {
			return fmt.Errorf("bin %d: first run %d, marked otherwise", b, id)
		}
		for ; id != 0; id = h.span(id).next {
			sp := h.span(id)
			switch {
			case sp.owner != 0 || sp.pages == 0 || binOf(sp.pages) != b:
				return fmt.Errorf("run at %#x of %d pages, owner %d, in bin %d", sp.base, sp.pages, sp.owner, b)
			case sp.base < firstAddr || sp.base%pageBytes != 0 || sp.base/seg != (sp.end()-1)/seg:
				return fmt.Errorf("run at %#x of %d pages", sp.base, sp.pages)
			case *h.ownerOf(sp.base) != id || *h.ownerOf(sp.end() - pageBytes) != id:
				return fmt.Errorf("run at %#x of %d pages is not entered at its ends", sp.base, sp.pages)
			}
			for at := sp.base; at < sp.end(); at += pageBytes {
				if isFree[at] {
					return fmt.Errorf("page %#x is in two runs", at)
				}
				isFree[at] = true
				free++
			}
			if right := sp.end(); right%seg != 0 {
				if r := *h.ownerOf(right); r != 0 && h.span(r).owner == 0 && h.span(r).base == right {
					return fmt.Errorf("runs at %#x and %#x are not joined", sp.base, right)
				}
			}
		}
	}
	if free != h.free {
		return fmt.Errorf("%d free pages, counted %d", free, h.free)
	}
	return checkSpans(h, isFree)
}

// checkSpans verifies the spans of every Rows.
func checkSpans(h *pageHeap, isFree map[uint64]bool) error {
	spans, used := map[uint32]uint64{}, map[uint32]uint64{}
	for at := uint64(firstAddr); at < h.region.Size(); at += pageBytes {
		id := *h.ownerOf(at)
		if isFree[at] || id == 0 {
			continue
		}
		sp := h.span(id)
		if sp.owner == 0 || at < sp.base || at >= sp.end() {
			return fmt.Errorf("page %#x is of span %+v", at, *sp)
		}
		if at != sp.base {
			continue
		}
		s := h.rows[sp.owner]
		spans[s.id]++
		used[s.id] += uint64(sp.used)
		n := uint64(0)
		for i := range uint64(s.each) {
			n += ^sp.free >> i & 1
		}
		listed := sp.list != notListed
		if uint64(sp.used) != n || sp.free&^s.all != 0 || sp.pages != s.pages || listed == (id == s.current || sp.used == s.each) {
			return fmt.Errorf("span %+v: %d blocks used, current %d", *sp, n, s.current)
		}
	}
	for _, s := range h.rows[1:] {
		if s.spans != spans[s.id] || s.used != used[s.id] {
			return fmt.Errorf("rows %d: %d spans and %d blocks, counted %d and %d", s.id, spans[s.id], used[s.id], s.spans, s.used)
		}
	}
	return nil
}

// piece is memory that was handed out.
type piece struct {
	addr, bytes uint64
	kind        int // of blocks
	free        func()
}

// past is what a line of the region was last.
type past struct {
	kind  int
	freed time.Duration // never, if it is still in use
	turn  uint64        // when it was freed
}

// pagesModel is an arena under random changes, and what must hold of it.
type pagesModel struct {
	*rapid.T
	a     *Arena
	clock clocktest.Clock
	v     *Varied
	slabs []*Slab
	live  []piece
	lines map[uint64]past
}

const modelQuarantine = 20 * time.Second

// pagesProperty: whatever is allocated and freed, in spans and for good, nothing
// overlaps, straddles a segment or lies outside; blocks are of whole lines and
// locked; memory changes its use only if the turn was raised after it was freed
// and the quarantine has passed since, and is zero then.
func pagesProperty(t *rapid.T) {
	seg := uint64(1) << rapid.IntRange(14, 18).Draw(t, "segment")
	r, err := mem.New(mem.Options{SegmentBytes: seg, MaxBytes: seg * uint64(rapid.IntRange(1, 40).Draw(t, "segments")), Kind: mem.Heap})
	if err != nil {
		t.Fatal(err)
	}
	m := &pagesModel{T: t, lines: map[uint64]past{}}
	m.a = NewArena(r, ArenaOptions{Tick: 1, Clock: m.clock.Now, Quarantine: modelQuarantine})
	m.v = m.a.NewVaried(int(seg / 4 / mem.WordBytes))
	m.slabs = []*Slab{m.a.NewSlab(64), m.a.NewSlab(960), m.a.NewSlab(192)}
	few := rapid.Bool().Draw(t, "few sizes")
	for range rapid.IntRange(1, 300).Draw(t, "steps") {
		switch op := rapid.IntRange(0, 19).Draw(t, "op"); {
		case op == 0:
			m.clock.Advance(time.Duration(rapid.IntRange(0, 25).Draw(t, "seconds")) * time.Second)
		case op == 1:
			m.a.Tidy()
		case op == 2:
			for len(m.live) > 0 {
				m.free(len(m.live) - 1)
			}
		case op < 10 && len(m.live) > 0:
			m.free(rapid.IntRange(0, len(m.live)-1).Draw(t, "which"))
		default:
			m.alloc(few)
		}
	}
	if err := checkPages(m.a.pages); err != nil {
		t.Fatal(err)
	}
	now, sum := m.a.Memory(), uint64(0)
	for _, p := range m.live {
		sum += p.bytes
	}
	if now.Used+now.Free+now.Quarantined != now.Mapped || now.Used < sum || now.Limit < now.Mapped {
		t.Fatalf("%+v with %d bytes live", now, sum)
	}
}

func (m *pagesModel) turn() uint64 { return m.a.Span(TurnAddr, 1).Load(0) }

func (m *pagesModel) free(i int) {
	p, turn := m.live[i], m.turn()
	p.free()
	if h := Header(m.a.Span(p.addr, 1).Load(0)); !h.Locked() || !h.IsAbsent() {
		m.Fatalf("header of a freed block: %v", h)
	}
	m.live = append(m.live[:i], m.live[i+1:]...)
	for at := p.addr; at < p.addr+p.bytes; at += mem.LineBytes {
		m.lines[at] = past{p.kind, m.clock.Now(), turn}
	}
}

func (m *pagesModel) alloc(few bool) {
	p, err := m.allocate(few)
	r := m.a.Region()
	if errors.Is(err, ErrFull) {
		if f := (*FullError)(nil); !errors.As(err, &f) || f.Bytes == 0 || f.Memory.Limit != r.MaxBytes() {
			m.Fatalf("error %v", err)
		}
		return
	}
	if err != nil {
		m.Fatal(err)
	}
	if p.addr < firstAddr || p.addr%mem.LineBytes != 0 || p.addr/r.SegmentBytes() != (p.addr+p.bytes-1)/r.SegmentBytes() || p.addr+p.bytes > r.Size() {
		m.Fatalf("block of %d bytes at %#x", p.bytes, p.addr)
	}
	span := m.a.Span(p.addr, int(p.bytes/mem.WordBytes))
	if !Header(span.Load(0)).Locked() {
		m.Fatalf("block %#x is handed out unlocked", p.addr)
	}
	for at := p.addr; at < p.addr+p.bytes; at += mem.LineBytes {
		was, used := m.lines[at]
		switch now := m.clock.Now(); {
		case used && was.freed == inUse:
			m.Fatalf("block of %d bytes at %#x overlaps another at %#x", p.bytes, p.addr, at)
		case used && was.kind != p.kind && now-was.freed < modelQuarantine:
			m.Fatalf("line %#x is of kind %d, and was of kind %d until %v ago", at, p.kind, was.kind, now-was.freed)
		case used && was.kind != p.kind && was.turn >= m.turn():
			m.Fatalf("line %#x is of kind %d, and was of kind %d in the same turn", at, p.kind, was.kind)
		}
		m.lines[at] = past{kind: p.kind, freed: inUse}
		for i := range lineWords {
			if at > p.addr && (!used || was.kind != p.kind) && span.Load(int(at-p.addr)/mem.WordBytes+i) != 0 {
				m.Fatalf("new memory at %#x is not zero", at)
			}
		}
	}
	m.live = append(m.live, p)
	e := m.a.CreateOf(p.addr, ones[:p.bytes/mem.WordBytes-BodyWord])
	e.Commit(Present(CSN(m.a.NextVersion())))
}

// inUse stands for the time at which a line in use was freed.
const inUse = -1

// ones fill blocks.
var ones = func() (w [1 << 17]uint64) {
	for i := range w {
		w[i] = ^uint64(0)
	}
	return w
}()

// allocate allocates a block of a random kind.
func (m *pagesModel) allocate(few bool) (piece, error) {
	if i := rapid.IntRange(0, 5*len(m.slabs)).Draw(m.T, "kind"); i < len(m.slabs) {
		s := m.slabs[i]
		addr, err := s.Alloc()
		return piece{addr, s.BlockBytes(), -1 - i, func() { s.Free(addr) }}, err
	}
	c := Class(rapid.IntRange(1, int(m.v.Max())).Draw(m.T, "class"))
	if few {
		c = max(1, m.v.Max()/2*(c%3))
	}
	got, addr, err := c, uint64(0), error(nil)
	if rapid.Bool().Draw(m.T, "near") {
		addr, got, err = m.v.AllocNear(c)
		if err == nil && (got < c || got > c && got.Words() >= 2*c.Words()) {
			m.Fatalf("class %d for %d", got, c)
		}
	} else {
		addr, err = m.v.Alloc(c)
	}
	return piece{addr, got.Bytes(), int(got), func() { m.v.Free(addr, got) }}, err
}

func TestPagesAgainstModel(t *testing.T) { testseed.Check(t, pagesProperty) }

func FuzzPages(f *testing.F) { f.Fuzz(rapid.MakeFuzz(pagesProperty)) }

// TestBlocksKeepTheirSpans: blocks freed are used again before new memory is
// taken, the fullest spans first, so that others become empty.
func TestBlocksKeepTheirSpans(t *testing.T) {
	r := seeded(t)
	a := newArena(t, ArenaOptions{Tick: 1})
	s := a.NewRows(192)
	var live []uint64
	for range 4096 {
		addr, err := s.Alloc()
		if err != nil {
			t.Fatal(err)
		}
		live = append(live, addr)
	}
	used := a.Used()
	for range 100_000 {
		i := r.IntN(len(live))
		s.Free(live[i])
		addr, err := s.Alloc()
		if err != nil {
			t.Fatal(err)
		}
		live[i] = addr
	}
	if now := a.Used(); now != used {
		t.Errorf("%d bytes used, %d before", now, used)
	}
	// Of a span in which one block stays, all others are taken first.
	r.Shuffle(len(live), func(i, j int) { live[i], live[j] = live[j], live[i] })
	for _, addr := range live[1024:] {
		s.Free(addr)
	}
	live = live[:1024]
	for range 20_000 { // rows come and go
		i := r.IntN(len(live))
		addr, err := s.Alloc()
		if err != nil {
			t.Fatal(err)
		}
		s.Free(live[i])
		live[i] = addr
	}
	if m := a.Memory(); m.Quarantined < 2*m.Used {
		t.Errorf("a quarter of the blocks is live: %+v", m)
	}
	if err := checkPages(a.pages); err != nil {
		t.Error(err)
	}
}

// TestSpanSizes: spans fit segments and waste little.
func TestSpanSizes(t *testing.T) {
	for lines := uint32(1); lines < 2000; lines++ {
		pages, blocks := spanOf(lines, 4096)
		if blocks < 1 || blocks > blocksMax || uint32(blocks)*lines*mem.LineBytes > pages*pageBytes {
			t.Fatalf("%d lines: %d blocks in %d pages", lines, blocks, pages)
		}
		if waste := 1 - float64(blocks)*float64(lines)*mem.LineBytes/(float64(pages)*pageBytes); waste > 0.06 {
			t.Errorf("%d lines: %d blocks in %d pages waste %.2f", lines, blocks, pages, waste)
		}
	}
	for c := Class(1); c <= ClassFor(10000); c++ {
		if pages, blocks := spanOf(uint32(c.Words()/lineWords), 4096); pages > pagesMax || 33*uint64(blocks)*c.Bytes() < 32*uint64(pages)*pageBytes {
			t.Errorf("class %d of %d bytes: %d blocks in %d pages", c, c.Bytes(), blocks, pages)
		}
	}
}

// TestAllocDoesNotAllocate: the allocator takes no memory of the Go heap in
// steady state.
func TestAllocDoesNotAllocate(t *testing.T) {
	a := newArena(t, ArenaOptions{})
	v := a.NewVaried(1000)
	n := testing.AllocsPerRun(1000, func() {
		for c := Class(1); c < 12; c++ {
			addr, got, err := v.AllocNear(c)
			if err != nil {
				t.Fatal(err)
			}
			v.Free(addr, got)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
