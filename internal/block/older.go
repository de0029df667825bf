package block

import "drtmx/internal/mem"

// Older is the word of a row that leads to its next older version:
// extent(16) | line(42) | size class(6). 0 says that the key was absent before.
//
// If the extent is 0, the version is whole: it has the layout of a row block of
// its index. Otherwise it is a patch of the row, or version, that has the word.
// A patch has the first words of a row block, up to where the payload begins or
// the key of a row with a string key. Words of the payload fill the rest of its
// block: those from word extent - 1 of the payload on. The others are those of
// the row that leads there.
type Older uint64

const (
	olderBits   = 48 // of the block; of them the low ClassBits are the class
	olderMask   = 1<<olderBits - 1
	patchFirsts = 1<<16 - 1 // words of the payload where a patch may begin
)

// NewOlder points to a block of the class.
func NewOlder(addr uint64, c Class) Older { return Older(addr | uint64(c)) }

// Addr is the address of the block.
func (o Older) Addr() uint64 { return uint64(o) & olderMask &^ (1<<ClassBits - 1) }

// Class is the size class of the block.
func (o Older) Class() Class { return Class(o & (1<<ClassBits - 1)) }

// Words is the size of the block.
func (o Older) Words() int { return o.Class().Words() }

// Block is o without the extent.
func (o Older) Block() Older { return o & olderMask }

// Patching is o for a block that is a patch from a word of the payload on.
func (o Older) Patching(first int) Older { return o.Block() | Older(first+1)<<olderBits }

// IsPatch reports whether the version is a patch.
func (o Older) IsPatch() bool { return o>>olderBits != 0 }

// Extent returns which words of the payload a patch has that has head first words of
// its own. A word that was read while its memory was reused may give any result.
func (o Older) Extent(head int) (first, n int) {
	return int(o>>olderBits) - 1, o.Words() - head
}

// Spans reports whether o leads to a whole version, or to a patch that has words lo
// up to hi, which is not of it, of the payload.
func (o Older) Spans(head, lo, hi int) bool {
	first, n := o.Extent(head)
	return !o.IsPatch() || lo >= hi || first <= lo && hi <= first+n
}

// Apply turns payload, that of the row that leads to a patch by o, into the payload of
// the patch. block is a copy of the patch's block. It returns false if there can be no
// such patch.
func (o Older) Apply(head int, payload, block []uint64) bool {
	first, n := o.Extent(head)
	if !o.IsPatch() || n <= 0 || first+n > len(payload) || len(block) != head+n {
		return false
	}
	copy(payload[first:], block[head:])
	return true
}

// ApplySpan is Apply for the block itself, which may change meanwhile.
func (o Older) ApplySpan(head int, payload []uint64, block mem.Span) bool {
	first, n := o.Extent(head)
	if !o.IsPatch() || n <= 0 || first+n > len(payload) || block.Words() != head+n {
		return false
	}
	block.Slice(head, n).CopyOut(payload[first : first+n])
	return true
}

// Valid reports whether o can lead to a block. A word that was read while its
// memory was reused may be anything.
func (o Older) Valid() bool { return o.Addr() != 0 && o.Class() != 0 }

// PatchFor chooses the patch of a payload of so many words that has words lo up to
// hi of it. head is as in Extent, and whole is the size of a whole version. It
// returns false if a patch would not be smaller.
func PatchFor(head, lo, hi, payload, whole int) (first int, c Class, ok bool) {
	if lo >= hi { // any words do
		lo, hi = 0, 1
	}
	c = ClassFor(head + hi - lo)
	first = min(lo, payload-(c.Words()-head))
	ok = c != 0 && c < ClassFor(whole) && first >= 0 && first < patchFirsts
	return first, c, ok
}
