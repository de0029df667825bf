package block

import (
	"fmt"

	"drtmx/internal/clock"
)

// Header is word 0 of every block, and the word that precedes every inline
// row: lock(1) | absent(1) | CSN(62). A CSN is never taken twice in a
// partition, so a header value never repeats at an address, neither when a row
// changes back nor when its block is freed and used again.
//
// The writer stores the locked header before its first change, and the new,
// unlocked header after its last. To a reader, locked means changed.
type Header uint64

// Bits of a Header.
const (
	LockBit   Header = 1 << 63
	AbsentBit Header = 1 << 62
	csnMask   Header = AbsentBit - 1
)

// CSN is a commit sequence number: the tick of the commit in the high bits, a
// sequence number in the low. A transaction has the same tick in all its
// partitions; the sequence number orders the commits of one partition and tick.
type CSN uint64

// Widths of a CSN's parts. The ticks last for 21 years from their origin.
const (
	SeqBits  = 26
	TickBits = 36
	MaxSeq   = 1<<SeqBits - 1
	MaxTick  = 1<<TickBits - 1
)

// lateSeq is the first of the sequence numbers for commits at a tick that the
// partition has already left: see [Arena.CSNAt].
const lateSeq = 1 << (SeqBits - 1)

// NewCSN returns the CSN of a tick and a sequence number.
func NewCSN(tick clock.Tick, seq uint64) CSN { return CSN(uint64(tick)<<SeqBits | seq&MaxSeq) }

// Tick returns the high part.
func (c CSN) Tick() clock.Tick { return clock.Tick(c >> SeqBits) }

// Seq returns the low part.
func (c CSN) Seq() uint64 { return uint64(c) & MaxSeq }

// Present returns the header of a row committed at c.
func Present(c CSN) Header { return Header(c) & csnMask }

// Absent returns the header of a row that is deleted, or was never inserted, as
// of c.
func Absent(c CSN) Header { return Header(c)&csnMask | AbsentBit }

// CSN returns the version in the header.
func (h Header) CSN() CSN { return CSN(h & csnMask) }

// Locked reports whether a writer holds the row or block.
func (h Header) Locked() bool { return h&LockBit != 0 }

// IsAbsent reports that there is no row.
func (h Header) IsAbsent() bool { return h&AbsentBit != 0 }

// Lock returns the header with the lock bit.
func (h Header) Lock() Header { return h | LockBit }

// Unlock returns the header without the lock bit.
func (h Header) Unlock() Header { return h &^ LockBit }

func (h Header) String() string {
	s := fmt.Sprintf("%d.%d", h.CSN().Tick(), h.CSN().Seq())
	if h.IsAbsent() {
		s += " absent"
	}
	if h.Locked() {
		s += " locked"
	}
	return s
}
