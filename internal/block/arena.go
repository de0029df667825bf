package block

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"drtmx/internal/mem"
)

// ControlAddr is the address of a partition's control block in its region, and
// firstAddr that of the first block. Address 0 is nil.
const (
	ControlAddr = mem.LineBytes
	firstAddr   = 4096
)

// ErrFull reports that the region is at its maximum size.
var ErrFull = errors.New("block: region is full")

// ArenaOptions configure an arena.
type ArenaOptions struct {
	// Checksums keeps a checksum in every block, for readers over a fabric that
	// does not read in order. Otherwise word 1 stays zero.
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
	csn       atomic.Uint64 // the last one taken or covered

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

// Region returns the region of the arena.
func (a *Arena) Region() *mem.Region { return a.r }

// Checksums reports whether blocks carry checksums.
func (a *Arena) Checksums() bool { return a.checksums }

// NextVersion takes a version for a gap word or a block header: 62 bits, above
// every version taken before in this region. Versions and CSNs have separate
// counters and are never compared with each other.
func (a *Arena) NextVersion() uint64 { return a.version.Add(1) }

// NextCSN takes the CSN of a commit: above every CSN taken or covered before.
func (a *Arena) NextCSN() CSN { return CSN(a.csn.Add(1)) }

// LastCSN returns the last CSN taken or covered. If all commits so far are
// durable, this is the durable horizon. The CSN on which an absence rests may
// be above that of the last commit, but is never above this one.
func (a *Arena) LastCSN() CSN { return CSN(a.csn.Load()) }

// CoverCSN ensures that CSNs taken from now on are above c.
func (a *Arena) CoverCSN(c CSN) {
	for {
		old := a.csn.Load()
		if uint64(c) <= old || a.csn.CompareAndSwap(old, uint64(c)) {
			return
		}
	}
}

// VersionsLeft returns how many versions and CSNs the arena can still take
// before either counter reaches the next epoch.
func (a *Arena) VersionsLeft() uint64 {
	used := max(a.version.Load()-a.first, a.csn.Load()-a.first)
	return MaxSeq - min(used, MaxSeq)
}

// Span returns the memory of a block that the caller owns.
func (a *Arena) Span(addr uint64, words int) mem.Span {
	return a.r.MustSpan(addr, uint64(words)*mem.WordBytes)
}

// Used returns the number of bytes carved so far.
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
		// The rest of the old segment stays unused: a block must not straddle
		// segments.
		a.mu.next, a.mu.end = off, off+a.r.SegmentBytes()
	}
}
