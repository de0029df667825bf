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
	// Epoch is the high part of the versions taken; each incarnation of the
	// memory has a higher one.
	Epoch uint32
}

// Arena hands out the memory of one partition's region and the versions that
// never repeat in it. Safe for concurrent use.
type Arena struct {
	r         *mem.Region
	checksums bool
	epoch     uint32
	version   atomic.Uint64

	mu struct {
		sync.Mutex
		next, end uint64 // unused rest of the newest segment
	}
}

// NewArena takes over an empty region.
func NewArena(r *mem.Region, o ArenaOptions) *Arena {
	a := &Arena{r: r, checksums: o.Checksums, epoch: o.Epoch}
	a.mu.next, a.mu.end = firstAddr, r.Size()
	return a
}

// Region is the memory behind the arena.
func (a *Arena) Region() *mem.Region { return a.r }

// Checksums reports whether blocks carry checksums.
func (a *Arena) Checksums() bool { return a.checksums }

// NextVersion takes a version for a gap word or a block header: 62 bits,
// never taken before in this region, whichever epoch.
func (a *Arena) NextVersion() uint64 { return uint64(NewCSN(a.epoch, a.version.Add(1))) }

// VersionsLeft is how many versions the arena can still give out before they
// would repeat.
func (a *Arena) VersionsLeft() uint64 { return MaxSeq - min(a.version.Load(), MaxSeq) }

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
