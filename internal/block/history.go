package block

import (
	"math"

	"drtmx/internal/clock"
	"drtmx/internal/invariants"
	"drtmx/internal/mem"
)

// Words of the partition's control block that History publishes.
const (
	// FloorAddr has the floor: for ticks below it, versions may be gone.
	FloorAddr = ControlAddr + 4*mem.WordBytes
	// RetainAddr and RetainBytesAddr have the two bounds of what is retained:
	// ticks, and bytes.
	RetainAddr      = ControlAddr + 5*mem.WordBytes
	RetainBytesAddr = ControlAddr + 6*mem.WordBytes
	// UntilAddr has the last tick at which an overwritten row leaves a version, as far
	// as readers have asked for.
	UntilAddr = ControlAddr + 7*mem.WordBytes
)

// NoFloor is the floor of a partition that keeps no versions.
const NoFloor clock.Tick = math.MaxUint64

// always is the tick until which a history keeps versions that does not wait for
// readers.
const always clock.Tick = math.MaxUint64

// History keeps the versions of rows that were overwritten or deleted, until no
// reader of the retained past needs them. A version serves readers of ticks
// below the one at which it was overwritten, so it may be freed once the floor
// has reached that tick. The floor is published before anything is freed: a
// reader that finds the floor at or below its tick, after it has read a
// version, knows that the version was still there.
//
// A write is never refused for history. If memory is out, or above the bound,
// the floor rises and the oldest versions are freed.
//
// A history on demand keeps versions only while readers are expected. At other times
// an overwritten row leaves none, and raises the floor instead.
//
// The caller serialises all methods: they belong to the partition's executor.
type History struct {
	a       *Arena
	keeps   bool
	retain  clock.Tick
	limit   uint64 // bytes of versions
	floor   clock.Tick
	until   clock.Tick             // commits of later ticks leave no versions of the rows that they overwrite
	rows    [MaxClass + 1]*Rows    // of version blocks, made when first needed
	spare   [MaxClass + 1][]uint64 // free version blocks of rows, for the next Reserve
	queue   versions
	bytes   uint64 // of the queue
	forced  uint64
	foreign uint64 // blocks of rows of indexes in the queue
}

// HistoryStats describe what a History keeps.
type HistoryStats struct {
	Blocks uint64     // versions
	Bytes  uint64     // of them
	Rows   uint64     // versions in blocks that were an index's: see RetainRow
	Oldest clock.Tick // at which the oldest version was overwritten; 0 if there is none
	Floor  clock.Tick // NoFloor if no versions are kept
	Forced uint64     // versions that were freed before their time, or not kept, for want of memory
}

// spareBytes bounds the free blocks of a class that History keeps for itself.
const spareBytes = 32 << 10

// reserveAhead is how many blocks of a class are taken at a time: the memory of
// the next version is on its way into the processor's cache while a version is
// written.
const reserveAhead = 16

// For each version that is retained, one is freed: its block is the next to be used. A
// second one is freed if the oldest has been due for more than backlogTicks, so that a
// backlog goes away.
const backlogTicks = 4

// closeFrees bounds the versions that one Close frees, and yieldFrees those
// that one Yield frees.
const (
	closeFrees = 256
	yieldFrees = 256
)

// History returns the history of the arena's partition. It keeps nothing before
// Keep.
func (a *Arena) History() *History { return a.history }

func newHistory(a *Arena) *History {
	h := &History{a: a}
	h.raise(NoFloor)
	return h
}

// Keep switches the history on, at tick now: it keeps versions for retain ticks, in at
// most the given number of bytes.
func (h *History) Keep(retain clock.Tick, bytes uint64, now clock.Tick) {
	h.keeps, h.retain, h.limit, h.floor = true, retain, bytes, 0
	h.a.Span(RetainAddr, 1).Store(0, uint64(retain))
	h.a.Span(RetainBytesAddr, 1).Store(0, bytes)
	h.keepUntil(always)
	h.raise(now)
}

// OnDemand makes the history keep versions only while Expect has announced readers.
func (h *History) OnDemand() { h.keepUntil(0) }

// Expect announces readers of ticks from now on, the partition's present tick. A reader
// that finds the floor at or below its tick after Expect has all versions that it needs
// until the retention ends: they are kept for twice as long, so that not every reader
// has to ask.
func (h *History) Expect(now clock.Tick) {
	if to := now + 2*h.retain; h.keeps && to > h.until {
		h.keepUntil(to)
	}
}

func (h *History) keepUntil(tick clock.Tick) {
	h.until = tick
	h.a.Span(UntilAddr, 1).Store(0, uint64(tick))
}

// Keeps reports whether rows leave versions behind. If not, indexes write
// neither versions nor traces of deletions.
func (h *History) Keeps() bool { return h.keeps }

// Floor returns the floor: for ticks below it, versions may be gone.
func (h *History) Floor() clock.Tick { return h.floor }

// Begin prepares for changes of rows at a tick that leave no versions, such as bulk
// loads: it raises the floor. The rows must not change before.
func (h *History) Begin(tick clock.Tick) { h.raise(tick) }

// raise publishes the floor. What it was raised past may be freed after that.
func (h *History) raise(to clock.Tick) {
	if to > h.floor {
		h.floor = to
		h.a.Span(FloorAddr, 1).Store(0, uint64(to))
	}
}

// Reserve returns a block of at least so many words for a version. If memory is out, it
// frees older versions; it returns false if none is left.
func (h *History) Reserve(words int) (Older, bool) {
	c := ClassFor(words)
	if c == 0 {
		return 0, false
	}
	for {
		if n := len(h.spare[c]); n > 0 {
			addr := h.spare[c][n-1]
			h.spare[c] = h.spare[c][:n-1]
			return NewOlder(addr, c), true
		}
		if h.rows[c] == nil {
			h.rows[c] = h.a.newRows(int(c.Bytes()), true)
		}
		var err error
		ahead := min(reserveAhead, max(1, int(spareBytes/c.Bytes())))
		if h.spare[c], err = h.rows[c].allocSome(h.spare[c], ahead); err != nil && !h.Yield() {
			return 0, false
		}
	}
}

// Retain hands over a version in a reserved block. It was overwritten or deleted
// at the given tick. The block is freed when no reader needs it any more.
func (h *History) Retain(o Older, overwritten clock.Tick) {
	h.push(version{block: o.Block(), tick: overwritten})
}

// RetainRow is Retain for a row block of an index, from which the row has moved.
func (h *History) RetainRow(o Older, overwritten clock.Tick) {
	h.foreign++
	h.push(version{block: o | foreign, tick: overwritten})
}

func (h *History) push(v version) {
	if invariants.Enabled && (!h.keeps || !(v.block &^ foreign).Valid()) {
		invariants.Failf("history: version %#x is retained, history on: %v", uint64(v.block), h.keeps)
	}
	h.queue.push(v)
	h.bytes += v.block.Class().Bytes()
	h.freeDue(1, h.floor)
	if h.floor > backlogTicks {
		h.freeDue(1, h.floor-backlogTicks)
	}
	for h.bytes > h.limit {
		h.freeOldest()
	}
	if spare := h.spare[v.block.Class()]; len(spare) > 0 { // the next version goes there
		h.a.Span(spare[len(spare)-1], v.block.Words()).Prefetch()
	}
}

// Lose raises the floor, because the version overwritten at a tick is not kept. The row
// must not change before.
func (h *History) Lose(overwritten clock.Tick) {
	if h.keeps {
		h.forced++
		h.raise(overwritten)
	}
}

// Close raises the floor as far as the retention allows when ticks up to closed
// are closed. It frees a bounded number of versions.
func (h *History) Close(closed clock.Tick) {
	if !h.keeps {
		return
	}
	if closed > h.retain {
		h.raise(closed - h.retain)
	}
	h.freeDue(closeFrees, h.floor)
}

// Yield gives memory back before its time: it raises the floor and frees some of
// the oldest versions. It returns false if it has freed nothing: there are no versions,
// and no spare blocks that the last ones have left.
func (h *History) Yield() bool {
	spared := false
	for c, spare := range h.spare {
		spared = spared || len(spare) > 0
		for _, addr := range spare {
			h.rows[c].Free(addr)
		}
		h.spare[c] = spare[:0]
	}
	if h.queue.n == 0 {
		return spared
	}
	for i := 0; i < yieldFrees && h.queue.n > 0; i++ {
		h.freeOldest()
	}
	return true
}

// freeDue frees versions that no reader of ticks from floor on needs, at most most of
// them.
func (h *History) freeDue(most int, floor clock.Tick) {
	for ; most > 0 && h.queue.n > 0 && h.queue.first().tick <= floor; most-- {
		h.freeFirst()
	}
}

// freeOldest frees the oldest version, needed or not.
func (h *History) freeOldest() {
	if tick := h.queue.first().tick; tick > h.floor {
		h.forced++
		h.raise(tick)
	}
	h.freeFirst()
}

func (h *History) freeFirst() {
	v := h.queue.pop()
	h.bytes -= v.block.Class().Bytes()
	h.free(v)
}

func (h *History) free(v version) {
	c := v.block.Class()
	addr := (v.block &^ foreign).Addr()
	switch {
	case v.block&foreign != 0:
		h.foreign--
		h.a.FreeRow(addr)
	case uint64(len(h.spare[c])+1)*c.Bytes() <= spareBytes:
		h.spare[c] = append(h.spare[c], addr)
	default:
		h.rows[c].Free(addr)
	}
}

// Stats returns a snapshot.
func (h *History) Stats() HistoryStats {
	s := HistoryStats{Blocks: uint64(h.queue.n), Bytes: h.bytes, Rows: h.foreign, Floor: h.floor, Forced: h.forced}
	if h.queue.n > 0 {
		s.Oldest = h.queue.first().tick
	}
	return s
}

// version is a retained block, and the tick at which it was overwritten.
type version struct {
	block Older
	tick  clock.Tick
}

// foreign marks a block that is not of History's own rows.
const foreign Older = 1 << 63

// versions is a queue. It keeps its memory in pieces, which it uses again: no
// piece is copied, and in steady state none is allocated.
type versions struct {
	pieces []*[versionsPiece]version // in a ring, of which all are in use between head and tail; a power of two
	head   int                       // place of the first version
	n      int
}

const versionsPiece = 4096

func (q *versions) at(i int) *version {
	i += q.head
	return &q.pieces[i/versionsPiece&(len(q.pieces)-1)][i%versionsPiece]
}

func (q *versions) first() *version { return q.at(0) }

func (q *versions) push(v version) {
	if q.head%versionsPiece+q.n == len(q.pieces)*versionsPiece {
		q.grow()
	}
	*q.at(q.n) = v
	q.n++
}

// grow adds pieces, as many as there are. The first one in use becomes the first
// of the ring.
func (q *versions) grow() {
	n := max(len(q.pieces), 1)
	pieces := make([]*[versionsPiece]version, 0, 2*n)
	for i := range q.pieces {
		pieces = append(pieces, q.pieces[(q.head/versionsPiece+i)%len(q.pieces)])
	}
	for len(pieces) < 2*n {
		pieces = append(pieces, new([versionsPiece]version))
	}
	q.pieces, q.head = pieces, q.head%versionsPiece
}

func (q *versions) pop() version {
	v := *q.first()
	q.n--
	if q.head++; q.head == len(q.pieces)*versionsPiece {
		q.head = 0
	}
	return v
}
