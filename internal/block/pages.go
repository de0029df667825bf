package block

import (
	"cmp"
	"fmt"
	"math/bits"
	"sync"

	"drtmx/internal/clock"
	"drtmx/internal/invariants"
	"drtmx/internal/mem"
)

// pageBytes is the unit in which memory passes from one use to another.
const pageBytes = 4096

// spanID names a span of the heap; 0 is none.
type spanID uint32

// span is a run of pages within one segment: a free run, or blocks of one size.
type span struct {
	base         uint64
	free         uint64 // of blocks: a bit for each free one
	prev, next   spanID // in a list of its owner, or of free runs
	pages        uint32
	owner        uint32 // number of the Rows it belongs to, 0 for a free run
	used         uint8  // blocks in use
	list         uint8  // of its owner, where it is
	dirty        bool   // a free run that is not all zeros
	older, newer spanID // in quarantine
	batch        uint32 // of the quarantine
}

func (sp *span) end() uint64 { return sp.base + uint64(sp.pages)*pageBytes }

// Bins of free runs: one for each length up to binsExact pages, above that
// eight for each doubling.
const (
	binsExact    = 64
	binsDoubling = 8
	binCount     = 256
	// binScanMax bounds the runs of a bin that are looked at, if some of the bin
	// are too short.
	binScanMax = 64
)

func binOf(pages uint32) int {
	if pages < binsExact {
		return int(pages)
	}
	top := bits.Len32(pages) - 1
	return min(binsExact+(top-6)*binsDoubling+int(pages>>(top-3)&(binsDoubling-1)), binCount-1)
}

// pageHeap hands out runs of pages, and joins free neighbours. Its mutex guards
// also the spans and lists of every Rows.
type pageHeap struct {
	region       *mem.Region
	segmentShift uint
	mu           sync.Mutex

	spans    [][]span // in pieces of fixed length, by number
	unused   spanID   // span structures to use again, linked by next
	owner    [][]spanID
	bins     [binCount]spanID
	nonEmpty [binCount / 64]uint64
	rows     []*Rows // by number, from 1
	free     uint64  // pages in free runs
	reclaim  quarantine
}

const spansInPiece = 512

func newPageHeap(r *mem.Region, o ArenaOptions) *pageHeap {
	h := &pageHeap{
		region: r, segmentShift: uint(bits.TrailingZeros64(r.SegmentBytes())),
		rows: []*Rows{nil}, spans: [][]span{make([]span, spansInPiece)},
		reclaim: quarantine{clock: o.Clock.Or(clock.Now), length: cmp.Or(o.Quarantine, Quarantine)},
	}
	h.addSpans(1)
	h.addSegment(0, firstAddr)
	return h
}

// addSpans makes the structures of the last piece usable.
func (h *pageHeap) addSpans(from int) {
	first := (len(h.spans) - 1) * spansInPiece
	for i := spansInPiece - 1; i >= from; i-- {
		h.spans[len(h.spans)-1][i].next = h.unused
		h.unused = spanID(first + i)
	}
}

func (h *pageHeap) span(id spanID) *span { return &h.spans[id/spansInPiece][id%spansInPiece] }

func (h *pageHeap) newSpan() (spanID, *span) {
	if h.unused == 0 {
		h.spans = append(h.spans, make([]span, spansInPiece))
		h.addSpans(0)
	}
	id := h.unused
	sp := h.span(id)
	h.unused = sp.next
	*sp = span{}
	return id, sp
}

func (h *pageHeap) dropSpan(id spanID) {
	h.span(id).next = h.unused
	h.unused = id
}

// addSegment makes the segment at off free, except what lies below from.
func (h *pageHeap) addSegment(off, from uint64) {
	h.owner = append(h.owner, make([]spanID, h.region.SegmentBytes()/pageBytes))
	if pages := (off + h.region.SegmentBytes() - from) / pageBytes; pages > 0 {
		id, sp := h.newSpan()
		sp.base, sp.pages = from, uint32(pages)
		h.free += pages
		h.putRun(id)
	}
}

// ownerOf is the entry of the page that has addr.
func (h *pageHeap) ownerOf(addr uint64) *spanID {
	return &h.owner[addr>>h.segmentShift][addr&(1<<h.segmentShift-1)/pageBytes]
}

// putRun enters a free run in its bin, and at its first and last page.
func (h *pageHeap) putRun(id spanID) {
	sp := h.span(id)
	b := binOf(sp.pages)
	h.push(&h.bins[b], id)
	h.nonEmpty[b/64] |= 1 << (b % 64)
	*h.ownerOf(sp.base), *h.ownerOf(sp.end() - pageBytes) = id, id
}

// takeRun takes a free run out of its bin.
func (h *pageHeap) takeRun(id spanID) {
	sp := h.span(id)
	b := binOf(sp.pages)
	h.remove(&h.bins[b], id)
	if h.bins[b] == 0 {
		h.nonEmpty[b/64] &^= 1 << (b % 64)
	}
}

// push enters a span at the head of a list, remove takes it out.
func (h *pageHeap) push(head *spanID, id spanID) {
	sp := h.span(id)
	sp.prev, sp.next = 0, *head
	if *head != 0 {
		h.span(*head).prev = id
	}
	*head = id
}

func (h *pageHeap) remove(head *spanID, id spanID) {
	sp := h.span(id)
	if sp.next != 0 {
		h.span(sp.next).prev = sp.prev
	}
	if sp.prev != 0 {
		h.span(sp.prev).next = sp.next
	} else {
		*head = sp.next
	}
	sp.prev, sp.next = 0, 0
}

// fit returns a free run of at least so many pages, or 0.
func (h *pageHeap) fit(pages uint32) spanID {
	b := binOf(pages)
	from := b
	if pages > binsExact {
		from++ // a run of bin b may be too short
	}
	for w := from / 64; w < len(h.nonEmpty); w++ {
		set := h.nonEmpty[w]
		if w == from/64 {
			set &= ^uint64(0) << (from % 64)
		}
		if set != 0 {
			return h.bins[w*64+bits.TrailingZeros64(set)]
		}
	}
	id := h.bins[b]
	for range binScanMax {
		if id == 0 || h.span(id).pages >= pages {
			break
		}
		id = h.span(id).next
	}
	if id != 0 && h.span(id).pages < pages {
		return 0
	}
	return id
}

// alloc takes a run of zeroed pages out of the free ones. It returns the base.
func (h *pageHeap) alloc(pages uint32) (base uint64, ok bool) {
	id := h.fit(pages)
	if id == 0 {
		return 0, false
	}
	h.takeRun(id)
	sp := h.span(id)
	base, dirty := sp.base, sp.dirty
	if sp.pages > pages {
		sp.base += uint64(pages) * pageBytes
		sp.pages -= pages
		h.putRun(id)
	} else {
		h.dropSpan(id)
	}
	h.free -= uint64(pages)
	h.setOwner(base, pages, 0)
	if dirty {
		for at := base; at < base+uint64(pages)*pageBytes; at += pageBytes {
			h.region.MustSpan(at, pageBytes).CopyIn(zeroPage[:])
		}
	}
	return base, true
}

var zeroPage [pageBytes / mem.WordBytes]uint64

// allocOrGrow is alloc, but frees what is out of quarantine, and then grows the
// region, if nothing fits.
func (h *pageHeap) allocOrGrow(pages uint32) (uint64, error) {
	for {
		if base, ok := h.alloc(pages); ok {
			return base, nil
		}
		if uint64(pages)*pageBytes > h.region.SegmentBytes() {
			return 0, h.full(uint64(pages) * pageBytes)
		}
		if h.tidy(false, releaseMax) {
			continue
		}
		off, err := h.region.Grow()
		if err != nil {
			return 0, fmt.Errorf("%w: %w", h.full(uint64(pages)*pageBytes), err)
		}
		h.addSegment(off, off)
	}
}

// setOwner enters a span at all its pages.
func (h *pageHeap) setOwner(base uint64, pages uint32, id spanID) {
	seg := h.region.SegmentBytes()
	of := h.owner[base/seg]
	for i := range pages {
		of[base%seg/pageBytes+uint64(i)] = id
	}
}

// release frees a run of pages, and joins it with its free neighbours in the
// segment.
func (h *pageHeap) release(base uint64, pages uint32, dirty bool) {
	if pages == 0 {
		return
	}
	h.free += uint64(pages)
	id, sp := h.newSpan()
	seg := h.region.SegmentBytes()
	end := base + uint64(pages)*pageBytes
	if base%seg != 0 && base > firstAddr {
		base, dirty = h.join(*h.ownerOf(base - pageBytes), base, dirty)
	}
	if end%seg != 0 {
		if right := *h.ownerOf(end); right != 0 && h.span(right).owner == 0 {
			end = h.span(right).end()
			_, dirty = h.join(right, base, dirty)
		}
	}
	sp.base, sp.pages, sp.dirty = base, uint32((end-base)/pageBytes), dirty
	h.putRun(id)
}

// join takes a neighbour out of its bin, if it is a free run, and returns the
// base of both together.
func (h *pageHeap) join(id spanID, base uint64, dirty bool) (uint64, bool) {
	if id == 0 || h.span(id).owner != 0 {
		return base, dirty
	}
	sp := h.span(id)
	base, dirty = min(base, sp.base), dirty || sp.dirty
	h.takeRun(id)
	h.dropSpan(id)
	return base, dirty
}

// carve takes memory for blocks of n bytes each, at multiples of align, that is
// never freed: as many blocks as fit in about want bytes, at least one. It
// returns where the first begins and the memory ends.
func (h *pageHeap) carve(n, want, align uint64) (start, end uint64, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	slack := uint64(0)
	if pageBytes%align != 0 {
		slack = align - mem.LineBytes
	}
	pagesFor := func(bytes uint64) uint64 { return (bytes + slack + pageBytes - 1) / pageBytes }
	if pagesFor(n) > h.region.SegmentBytes()/pageBytes {
		return 0, 0, h.full(n)
	}
	pages := uint32(min(pagesFor(max(n, want)), h.region.SegmentBytes()/pageBytes))
	base, err := h.allocOrGrow(pages)
	if least := uint32(pagesFor(n)); err != nil && least < pages {
		pages = least
		base, err = h.allocOrGrow(pages)
	}
	if err != nil {
		h.tidy(true, 0)
		return 0, 0, err
	}
	end = base + uint64(pages)*pageBytes
	start = (base + align - 1) / align * align
	h.release(base, uint32((start-base)/pageBytes), false)
	if invariants.Enabled && start+n > end {
		invariants.Failf("block: no room for %d bytes at a multiple of %d in [%d, %d)", n, align, start, end)
	}
	last := start + (end-start)/n*n
	spare := uint32((end - last) / pageBytes)
	h.release(end-uint64(spare)*pageBytes, spare, false)
	return start, end - uint64(spare)*pageBytes, nil
}
