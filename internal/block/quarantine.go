package block

import (
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// A span whose blocks are all free may serve another size or use once no reader relies
// on an address in it any more. Two kinds of reader have such addresses. A transaction
// has read one from a slot or leaf; the transaction is refused if it is older than
// index.MaxProofAge. A client's cache has one from an earlier transaction; the address
// is used only if the client has seen, at most index.MaxLocationAge before the
// transaction began, that the partition's turn is still the one under which the cache
// was filled.
//
// So empty spans gather in a batch. The batch is closed by raising the turn, and
// Quarantine later its spans are freed. During all that time they serve blocks of their
// size, as before. docs/invariants.md has the proof.

// Quarantine is how long memory keeps its use after the partition's turn was raised.
// Package index relates it to the ages of proofs and locations.
const Quarantine = 30 * time.Second

// TurnAddr is the address of the partition's turn, the first word of the second line of
// its control block. It is raised before the quarantine of empty spans begins.
const TurnAddr = ControlAddr + mem.LineBytes

// When batches are closed, and how much work one call does.
const (
	// Clients forget their locations when the turn is raised, so a batch is
	// closed only if it has one page in batchShare of those in use, and
	// batchEvery after the batch before. If an allocation fails otherwise, or
	// the batch has more pages than are in use, batchEveryFull is enough.
	batchShare     = 16
	batchEvery     = 15 * time.Second
	batchEveryFull = time.Second
	batchesMax     = 64 // closed ones whose spans are not yet freed

	releaseMax = 32   // spans freed by one allocation
	tidyMax    = 1024 // by one Tidy
	emptiesMax = 64   // spans that become empty between two looks at the clock
)

// quarantine lists the empty spans of all Rows, in the order in which they
// became empty.
type quarantine struct {
	clock  clock.Source
	length time.Duration

	oldest, newest spanID
	pages          uint64 // of all
	openPages      uint64 // of those in the batch that is open
	turn           uint32 // number of that batch
	closed         time.Duration
	ends           [batchesMax]time.Duration // of the quarantine of a batch, by its number
	empties        int
}

// enterQuarantine adds an empty span.
func (h *pageHeap) enterQuarantine(id spanID) {
	q, sp := &h.reclaim, h.span(id)
	sp.batch, sp.older, sp.newer = q.turn, q.newest, 0
	if q.newest != 0 {
		h.span(q.newest).newer = id
	} else {
		q.oldest = id
	}
	q.newest = id
	q.pages += uint64(sp.pages)
	q.openPages += uint64(sp.pages)
	q.empties++
}

// leaveQuarantine removes a span that is used again, or freed.
func (h *pageHeap) leaveQuarantine(id spanID) {
	q, sp := &h.reclaim, h.span(id)
	if sp.older != 0 {
		h.span(sp.older).newer = sp.newer
	} else {
		q.oldest = sp.newer
	}
	if sp.newer != 0 {
		h.span(sp.newer).older = sp.older
	} else {
		q.newest = sp.older
	}
	q.pages -= uint64(sp.pages)
	if sp.batch == q.turn {
		q.openPages -= uint64(sp.pages)
	}
}

// Tidy frees spans whose quarantine is over, and begins that of others. The
// allocator does both itself when it needs memory or much of it is empty; Tidy
// is for times without changes. It reports whether it has freed any.
func (a *Arena) Tidy() (freed bool) {
	a.pages.mu.Lock()
	defer a.pages.mu.Unlock()
	h := a.pages
	return h.tidy(h.reclaim.openPages > h.inUse(), tidyMax)
}

// emptied follows each Free that made a span empty.
func (h *pageHeap) emptied() {
	q := &h.reclaim
	if q.empties >= emptiesMax || h.batchIsLarge() {
		q.empties = 0
		h.tidy(false, releaseMax)
	}
}

func (h *pageHeap) batchIsLarge() bool {
	return h.reclaim.openPages*batchShare >= h.inUse()
}

// inUse returns the number of pages that are neither free nor empty.
func (h *pageHeap) inUse() uint64 { return h.region.Size()/pageBytes - h.free - h.reclaim.pages }

// tidy frees at most limit spans, and closes the open batch if it is time: soon
// if pressed. It reports whether it has freed any.
func (h *pageHeap) tidy(pressed bool, limit int) (freed bool) {
	q := &h.reclaim
	now := q.clock()
	for ; limit > 0 && q.oldest != 0; limit-- {
		sp := h.span(q.oldest)
		if sp.batch == q.turn || q.ends[sp.batch%batchesMax] > now {
			break
		}
		h.rows[sp.owner].giveUp(q.oldest)
		freed = true
	}
	every := batchEvery
	if pressed {
		every = batchEveryFull
	}
	switch {
	case q.turn > 0 && now-q.closed < min(every, q.length):
	case q.oldest != 0 && q.turn-h.span(q.oldest).batch >= batchesMax-1:
	default:
		for _, s := range h.rows[1:] {
			s.retire()
		}
		if q.openPages > 0 && (pressed || h.batchIsLarge()) {
			h.closeBatch()
		}
	}
	return freed
}

// untilEmpty returns how long it takes at most until all spans of now are freed, if
// allocations go on, which close the open batch when they fail.
func (h *pageHeap) untilEmpty() time.Duration {
	q := &h.reclaim
	now := q.clock()
	switch {
	case q.newest == 0:
		return 0
	case h.span(q.newest).batch == q.turn:
		return max(q.closed+batchEveryFull-now, 0) + q.length
	}
	return max(q.ends[h.span(q.newest).batch%batchesMax]-now, 0)
}

// closeBatch raises the turn, and then lets the quarantine of the open batch
// begin: no client reads the old turn after that moment.
func (h *pageHeap) closeBatch() {
	q := &h.reclaim
	h.region.MustSpan(TurnAddr, mem.WordBytes).Store(0, uint64(q.turn)+1)
	q.closed = q.clock()
	q.ends[q.turn%batchesMax] = q.closed + q.length
	q.turn++
	q.openPages = 0
}

// giveUp frees the pages of an empty span.
func (s *Rows) giveUp(id spanID) {
	s.unlist(id)
	s.h.leaveQuarantine(id)
	s.drop(id)
}

// drop frees the pages of an empty span, which is in no list.
func (s *Rows) drop(id spanID) {
	sp := s.h.span(id)
	base, pages := sp.base, sp.pages
	s.spans--
	s.h.dropSpan(id)
	s.h.setOwner(base, pages, 0)
	s.h.release(base, pages, true)
}

// retire lists the current span if it is empty.
func (s *Rows) retire() {
	if id := s.current; id != 0 && s.h.span(id).used == 0 {
		s.current = 0
		s.relist(id, s.h.span(id))
	}
}
