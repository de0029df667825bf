package block

import "fmt"

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

// CSN is a commit sequence number: epoch in the high bits, sequence in the
// low. It orders the commits of one partition, across its epochs.
type CSN uint64

// Widths of a CSN's parts.
const (
	SeqBits   = 42
	EpochBits = 20
	MaxSeq    = 1<<SeqBits - 1
	MaxEpoch  = 1<<EpochBits - 1
)

// NewCSN returns the CSN of an epoch and a sequence number.
func NewCSN(epoch uint32, seq uint64) CSN { return CSN(uint64(epoch)<<SeqBits | seq&MaxSeq) }

// Epoch returns the high part.
func (c CSN) Epoch() uint32 { return uint32(c >> SeqBits) }

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
	s := fmt.Sprintf("%d.%d", h.CSN().Epoch(), h.CSN().Seq())
	if h.IsAbsent() {
		s += " absent"
	}
	if h.Locked() {
		s += " locked"
	}
	return s
}
