package rolex

import "fmt"

// Owner is the number of a writer in one index. 0 is the data server.
type Owner uint16

// Widths of a header's parts.
const (
	ownerBits   = 13
	versionBits = 49

	heldBit = 1 << 63
	deadBit = 1 << 62
	// MaxOwner is the greatest number of a writer.
	MaxOwner   = 1<<ownerBits - 1
	maxVersion = 1<<versionBits - 1
)

// Header is the header of a leaf: see the package documentation.
type Header uint64

// free returns the header of a leaf that nobody holds.
func free(version uint64) Header { return Header(version & maxVersion) }

// dead returns the header of a leaf that is not part of the index.
func dead(version uint64) Header { return free(version) | deadBit }

// Held reports whether a writer holds the leaf.
func (h Header) Held() bool { return h&heldBit != 0 }

// Dead reports whether the leaf is not part of the index: not yet, or no longer.
func (h Header) Dead() bool { return h&deadBit != 0 }

// Owner returns who holds the leaf.
func (h Header) Owner() Owner { return Owner(h >> versionBits & MaxOwner) }

// Version returns the version.
func (h Header) Version() uint64 { return uint64(h & maxVersion) }

// hold returns the header of the leaf when a writer holds it.
func (h Header) hold(o Owner) Header { return h | heldBit | Header(o)<<versionBits }

// release returns the header before hold.
func (h Header) release() Header { return h &^ (heldBit | MaxOwner<<versionBits) }

// next returns the header of the leaf after a change.
func (h Header) next() Header { return free(h.Version() + 1) }

func (h Header) String() string {
	s := fmt.Sprintf("version %d", h.Version())
	if h.Dead() {
		s += ", dead"
	}
	if h.Held() {
		s += fmt.Sprintf(", held by %d", h.Owner())
	}
	return s
}
