package block

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"drtmx/internal/mem"
)

// ControlAddr is where a partition's control block lies in its region, and
// firstAddr where blocks begin. Address 0 is nil.
const (
	ControlAddr = mem.LineBytes
	firstAddr   = 4096
)

// ErrFull reports that the region is at its maximum size.
var ErrFull = errors.New("block: region is full")

// ArenaOptions configure an arena.
type ArenaOptions struct {
	// Checksums keeps a checksum in every block, which readers over a fabric
	// that does not read in order need. Without it word 1 stays zero.
	Checksums bool
	// Epoch is the high part of the versions and CSNs taken; each incarnation
	// of the memory has a higher one.
	Epoch uint32
}

// Arena hands out the memory of one partition's region, the versions that
// never repeat in it, and the CSNs of its commits. Safe for concurrent use.
type Arena struct {
	r         *mem.Region
	checksums bool
	first     uint64        // version and CSN with which the epoch begins
	version   atomic.Uint64 // taken last
	csn       atomic.Uint64 // taken last, or covered

	mu struct {
		sync.Mutex
		next, end uint64 // unused rest of the newest segment
	}
}

// NewArena takes over an empty region.
func NewArena(r *mem.Region, o ArenaOptions) *Arena {
	a := &Arena{r: r, checksums: o.Checksums, first: uint64(NewCSN(o.Epoch, 0))}
	a.version.Store(a.first)
	a.csn.Store(a.first)
	a.mu.next, a.mu.end = firstAddr, r.Size()
	return a
}

// Region is the memory behind the arena.
func (a *Arena) Region() *mem.Region { return a.r }

// Checksums reports whether blocks carry checksums.
func (a *Arena) Checksums() bool { return a.checksums }

// NextVersion takes a version for a gap word or a block header: 62 bits, above
// every version taken before in this region. Versions and CSNs are counted
// apart, and not compared with each other.
func (a *Arena) NextVersion() uint64 { return a.version.Add(1) }

// NextCSN takes the CSN of a commit: above every CSN taken or covered before.
func (a *Arena) NextCSN() CSN { return CSN(a.csn.Add(1)) }

// LastCSN is the CSN that was taken or covered last. Once all commits so far
// are durable, this is the durable horizon: what an absence rests on may be
// above the CSN of the last commit, and is never above this.
func (a *Arena) LastCSN() CSN { return CSN(a.csn.Load()) }

// CoverCSN makes sure that CSNs taken from now on are above c.
func (a *Arena) CoverCSN(c CSN) {
	for {
		old := a.csn.Load()
		if uint64(c) <= old || a.csn.CompareAndSwap(old, uint64(c)) {
			return
		}
	}
}

// VersionsLeft is how many versions and how many CSNs the arena can still give
// out before they reach those of the next epoch.
func (a *Arena) VersionsLeft() uint64 {
	used := max(a.version.Load()-a.first, a.csn.Load()-a.first)
	return MaxSeq - min(used, MaxSeq)
}

// Span is the memory of a block that the caller owns.
func (a *Arena) Span(addr uint64, words int) mem.Span {
	return a.r.MustSpan(addr, uint64(words)*mem.WordBytes)
}

// Used is the number of bytes carved so far.
func (a *Arena) Used() uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.next
}

// carve takes n bytes, aligned to align (a multiple of a line), within one segment.
func (a *Arena) carve(n, align uint64) (uint64, error) {
	if n > a.r.SegmentBytes()-align {
		return 0, fmt.Errorf("%w: a block of %d bytes does not fit a segment of %d", ErrFull, n, a.r.SegmentBytes())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		start := (a.mu.next + align - 1) / align * align
		if start+n <= a.mu.end {
			a.mu.next = start + n
			return start, nil
		}
		off, err := a.r.Grow()
		if err != nil {
			return 0, fmt.Errorf("%w: %v", ErrFull, err)
		}
		// The rest of the old segment is given up: a block may not straddle.
		a.mu.next, a.mu.end = off, off+a.r.SegmentBytes()
	}
}
