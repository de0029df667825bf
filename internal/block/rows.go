package block

import (
	"fmt"
	"math/bits"
	"slices"

	"drtmx/internal/invariants"
	"drtmx/internal/mem"
)

// Rows allocates blocks of one size for rows, from spans of pages. A block is
// reused as it is; a span whose blocks are all free serves another size or use
// after its quarantine. Rows is safe for concurrent use.
type Rows struct {
	h     *pageHeap
	id    uint32
	bytes uint64
	pages uint32 // of a span
	each  uint8  // blocks of a span
	all   uint64 // mask of a span without used blocks
	loose bool

	// Under h.mu.
	current  spanID // blocks are taken from it; in no list
	lists    [occupancies]spanID
	nonEmpty uint16
	empty    spanID // spans without used blocks
	spans    uint64
	used     uint64 // blocks
}

const (
	blocksMax   = 64 // of a span: the bits of a word
	occupancies = 8  // lists of spans that are partly used
	spanMax     = 8  // pages of a span whose blocks fill it exactly
	pagesMax    = 32 // of a span with less than one part in wasteShare unused
	wasteShare  = 32

	notListed   = 0
	listedEmpty = 1
	listed      = 2 // plus the occupancy
)

// NewRows returns an allocator of blocks of the given size, a multiple of a
// line. Blocks lie at multiples of a line.
func (a *Arena) NewRows(blockBytes int) *Rows { return a.newRows(blockBytes, false) }

// newRows is NewRows. Spans of loose rows are free for all uses as soon as they
// are empty: nobody relies on an address in them. So the words of their blocks,
// the header too, are what an earlier use has left there, until the block is
// filled.
func (a *Arena) newRows(blockBytes int, loose bool) *Rows {
	if blockBytes <= 0 || blockBytes%mem.LineBytes != 0 {
		panic(fmt.Sprintf("block: rows in blocks of %d bytes; want whole lines", blockBytes))
	}
	h := a.pages
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &Rows{h: h, id: uint32(len(h.rows)), bytes: uint64(blockBytes), loose: loose}
	s.pages, s.each = spanOf(uint32(blockBytes/mem.LineBytes), uint32(h.region.SegmentBytes()/pageBytes))
	s.all = ^uint64(0) >> (blocksMax - s.each)
	h.rows = append(h.rows, s)
	return s
}

// spanOf chooses how many pages and blocks a span of blocks of so many lines has, in a
// segment of so many pages: few pages, with few of their lines unused.
func spanOf(lines, segment uint32) (pages uint32, blocks uint8) {
	const pageLines = pageBytes / mem.LineBytes
	least := (lines + pageLines - 1) / pageLines
	most := max(least, min(pagesMax, segment/4))
	best := 2.0
	for p := least; p <= most; p++ {
		n := min(p*pageLines/lines, blocksMax)
		waste := 1 - float64(n*lines)/float64(p*pageLines)
		if waste < best {
			pages, blocks, best = p, uint8(n), waste
		}
		if waste == 0 && p <= spanMax || p >= spanMax && best < 1.0/wasteShare {
			break
		}
	}
	return pages, blocks
}

// BlockBytes returns the size of each block.
func (s *Rows) BlockBytes() uint64 { return s.bytes }

// Alloc returns a block whose header is locked and absent; the other words have
// any values. Blocks allocated one after another are neighbours where possible.
func (s *Rows) Alloc() (uint64, error) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	return s.alloc()
}

// allocSome appends n blocks to dst, the one to use first at the end, or fewer if
// there is no memory. It returns an error if there is none at all.
func (s *Rows) allocSome(dst []uint64, n int) ([]uint64, error) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	had := len(dst)
	for range n {
		addr, err := s.alloc()
		if err != nil && len(dst) == had {
			return dst, err
		}
		if err != nil {
			break
		}
		dst = append(dst, addr)
	}
	slices.Reverse(dst[had:])
	return dst, nil
}

// alloc is Alloc for a caller that has the mutex.
func (s *Rows) alloc() (uint64, error) {
	if addr, ok := s.take(); ok {
		return addr, nil
	}
	if s.empty != 0 {
		s.takeBack()
	} else if err := s.newSpan(); err != nil {
		return 0, err
	}
	addr, _ := s.take()
	return addr, nil
}

// allocPartly is Alloc from a span that is in use already; it returns false if
// there is none with a free block.
func (s *Rows) allocPartly() (uint64, bool) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	return s.take()
}

// allocOwn is Alloc, but takes no memory from the heap.
func (s *Rows) allocOwn() (uint64, bool) {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	if addr, ok := s.take(); ok || s.empty == 0 {
		return addr, ok
	}
	s.takeBack()
	return s.take()
}

// take takes a block of the current span, or makes the fullest span current
// that has a free one. The caller has the mutex.
func (s *Rows) take() (uint64, bool) {
	if s.current == 0 || s.h.span(s.current).free == 0 {
		if s.nonEmpty == 0 {
			return 0, false
		}
		at := bits.Len16(s.nonEmpty) - 1
		s.current = s.lists[at]
		s.unlist(s.current)
	}
	sp := s.h.span(s.current)
	i := bits.TrailingZeros64(sp.free)
	sp.free &^= 1 << i
	sp.used++
	s.used++
	return sp.base + uint64(i)*s.bytes, true
}

// takeBack makes an empty span current, out of quarantine.
func (s *Rows) takeBack() {
	id := s.empty
	s.unlist(id)
	s.h.leaveQuarantine(id)
	s.current = id
}

// newSpan makes pages of the heap the current span.
func (s *Rows) newSpan() error {
	base, err := s.h.allocOrGrow(s.pages)
	if err != nil {
		s.h.tidy(true, 0)
		return err
	}
	id, sp := s.h.newSpan()
	sp.base, sp.pages, sp.owner, sp.free = base, s.pages, s.id, s.all
	s.h.setOwner(base, s.pages, id)
	for i := range uint64(s.each) {
		if s.loose {
			break
		}
		s.h.region.MustSpan(base+i*s.bytes, mem.WordBytes).Store(0, uint64(LockBit|AbsentBit))
	}
	s.spans++
	s.current = id
	return nil
}

// Free frees a block. It makes the header locked and absent at once, and the
// header stays so until the block is published again, so no reader accepts it.
func (s *Rows) Free(addr uint64) {
	header := s.h.region.MustSpan(addr, mem.WordBytes)
	if !s.loose {
		header.Prefetch() // while the span is looked up
	}
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	s.freeIn(*s.h.ownerOf(addr), addr, header)
}

// FreeRow is Rows.Free for a block of any Rows of the arena.
func (a *Arena) FreeRow(addr uint64) {
	header := a.Span(addr, 1)
	h := a.pages
	h.mu.Lock()
	defer h.mu.Unlock()
	id := *h.ownerOf(addr)
	h.rows[h.span(id).owner].freeIn(id, addr, header)
}

// freeIn frees a block of the span. The caller has the mutex.
func (s *Rows) freeIn(id spanID, addr uint64, header mem.Span) {
	sp := s.h.span(id)
	i := uint64(uint32(addr-sp.base) / uint32(s.bytes))
	if invariants.Enabled && (id == 0 || sp.owner != s.id || sp.base+i*s.bytes != addr || sp.free>>i&1 != 0) {
		invariants.Failf("rows in blocks of %d bytes: block %d is freed, and is free already or no block", s.bytes, addr)
	}
	if !s.loose {
		header.Store(0, uint64(LockBit|AbsentBit))
	}
	sp.free |= 1 << i
	sp.used--
	s.used--
	if id != s.current {
		s.relist(id, sp)
		if sp.used == 0 {
			s.h.emptied()
		}
	}
}

// relist puts a span that is not current into the list for its occupancy.
func (s *Rows) relist(id spanID, sp *span) {
	to := uint8(listedEmpty)
	if sp.used > 0 {
		to = listed + uint8((int(sp.used)-1)*occupancies/int(s.each))
	}
	if to == sp.list {
		return
	}
	if sp.list != notListed {
		s.unlist(id)
	}
	if to == listedEmpty && s.loose {
		sp.list = notListed
		s.drop(id)
		return
	}
	sp.list = to
	if to == listedEmpty {
		s.h.push(&s.empty, id)
		s.h.enterQuarantine(id)
		return
	}
	s.h.push(&s.lists[to-listed], id)
	s.nonEmpty |= 1 << (to - listed)
}

// unlist takes a span out of the list of s in which it is.
func (s *Rows) unlist(id spanID) {
	sp := s.h.span(id)
	if at := sp.list; at == listedEmpty {
		s.h.remove(&s.empty, id)
	} else {
		s.h.remove(&s.lists[at-listed], id)
		if s.lists[at-listed] == 0 {
			s.nonEmpty &^= 1 << (at - listed)
		}
	}
	sp.list = notListed
}

// Stats returns a snapshot.
func (s *Rows) Stats() SlabStats {
	s.h.mu.Lock()
	defer s.h.mu.Unlock()
	return SlabStats{
		Used: s.used, Free: s.spans*uint64(s.each) - s.used,
		Bytes: s.spans * uint64(s.pages) * pageBytes,
	}
}
