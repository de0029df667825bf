package block

import (
	"sync/atomic"
	"time"

	"drtmx/internal/clock"
	"drtmx/internal/mem"
)

// ControlAddr is the address of a partition's control block in its region, and
// firstAddr that of the first block. Address 0 is nil.
const (
	ControlAddr = mem.LineBytes
	firstAddr   = 4096
)

// ArenaOptions configure an arena.
type ArenaOptions struct {
	// Checksums keeps a checksum in every block, for readers over a fabric that
	// does not read in order. Otherwise word 1 stays zero.
	Checksums bool
	// Tick is the tick of the first versions and CSNs taken. It must be above
	// every tick of an earlier life of the memory.
	Tick clock.Tick
	// Clock tells how long empty spans of rows have been in quarantine; nil
	// means clock.Now. Quarantine is how long that lasts; 0 means the constant.
	Clock      clock.Source
	Quarantine time.Duration
}

// Arena hands out the memory of one partition's region, the versions that
// never repeat in it, and the CSNs of its commits. Safe for concurrent use.
type Arena struct {
	r         *mem.Region
	checksums bool
	version   atomic.Uint64 // taken last
	csn       atomic.Uint64 // the last one taken or covered, other than late ones
	late      atomic.Uint64 // late CSNs taken
	pages     *pageHeap
	history   *History
}

// NewArena takes over an empty region.
func NewArena(r *mem.Region, o ArenaOptions) *Arena {
	a := &Arena{r: r, checksums: o.Checksums, pages: newPageHeap(r, o)}
	a.version.Store(uint64(NewCSN(o.Tick, 0)))
	a.csn.Store(uint64(NewCSN(o.Tick, 0)))
	a.history = newHistory(a)
	return a
}

// Region returns the region of the arena.
func (a *Arena) Region() *mem.Region { return a.r }

// Checksums reports whether blocks carry checksums.
func (a *Arena) Checksums() bool { return a.checksums }

// NextVersion takes a version for a gap word or a block header: 62 bits, above
// every version taken before in this region. Versions and CSNs have separate
// counters and are never compared with each other.
func (a *Arena) NextVersion() uint64 { return a.version.Add(1) }

// NextCSN takes the CSN of a commit: above every CSN taken or covered before,
// other than late ones. A tick whose sequence numbers are used up is followed
// by the next.
func (a *Arena) NextCSN() CSN {
	for {
		old := CSN(a.csn.Load())
		c := old + 1
		if c.Seq() >= lateSeq {
			c = NewCSN(old.Tick()+1, 1)
		}
		if a.csn.CompareAndSwap(uint64(old), uint64(c)) {
			return c
		}
	}
}

// CSNAt takes a CSN of the given tick, which the caller has covered. If
// commits of later ticks have been taken, or none of this tick is left, it is a
// late one: it is above every other CSN of the tick, and below those of later
// ones. The rows of the commit must have been locked since the tick, or an
// earlier one, so that no header falls at its address.
//
// Late CSNs of a tick begin to repeat after 2^25 of them, which is more than
// the transactions that can be in doubt at once.
func (a *Arena) CSNAt(tick clock.Tick) CSN {
	for {
		old := CSN(a.csn.Load())
		c := old + 1
		if c.Tick() != tick || c.Seq() >= lateSeq {
			return NewCSN(tick, lateSeq|a.late.Add(1)%lateSeq)
		}
		if a.csn.CompareAndSwap(uint64(old), uint64(c)) {
			return c
		}
	}
}

// CoverLate ensures that late CSNs taken from now on are above c among those of
// its tick. c is of a former life of the partition: a row may have it still, and a
// transaction of that life that is in doubt may commit at the same tick.
func (a *Arena) CoverLate(c CSN) {
	if c.Seq() < lateSeq {
		return
	}
	for to := c.Seq() - lateSeq; ; {
		old := a.late.Load()
		if old >= to || a.late.CompareAndSwap(old, to) {
			return
		}
	}
}

// LastCSN returns the highest CSN taken or covered. The CSN on which an absence
// rests may be above that of the last commit, but is never above this one.
func (a *Arena) LastCSN() CSN { return CSN(a.csn.Load()) }

// CoverCSN ensures that CSNs taken from now on, other than late ones, are above
// c.
func (a *Arena) CoverCSN(c CSN) {
	for {
		old := a.csn.Load()
		if uint64(c) <= old || a.csn.CompareAndSwap(old, uint64(c)) {
			return
		}
	}
}

// Exhausted reports that versions or CSNs have reached the last tick. Its
// sequence numbers are for transactions that are already running.
func (a *Arena) Exhausted() bool {
	return CSN(max(a.version.Load(), a.csn.Load())).Tick() >= MaxTick
}

// Span returns the memory of a block that the caller owns.
func (a *Arena) Span(addr uint64, words int) mem.Span {
	return a.r.MustSpan(addr, uint64(words)*mem.WordBytes)
}

// Used returns the number of bytes that are not free for every use.
func (a *Arena) Used() uint64 {
	a.pages.mu.Lock()
	defer a.pages.mu.Unlock()
	return a.r.Size() - a.pages.free*pageBytes
}
