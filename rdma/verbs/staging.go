//go:build verbs

package verbs

// #include "native.h"
import "C"

import (
	"math/bits"

	"drtmx/internal/mem"
	"drtmx/rdma"
)

const (
	// stagingBytesMax bounds the registered memory of a client connection
	// into which READs land. One READ always fits.
	stagingBytesMax = 4 * rdma.MaxReadBytes
	stagingBytesMin = 64 << 10
)

// staging is the memory into which the device writes, used as a ring: work
// requests complete in the order they were posted in. Positions only grow.
type staging struct {
	mem        *pinned
	head, tail uint64 // allocated up to, freed up to
}

func (s *staging) size() uint64 { return uint64(s.mem.span.Words()) * mem.WordBytes }

// alloc finds room for n bytes in one piece and returns its offset and the
// position to free it at.
func (s *staging) alloc(n uint64) (off, end uint64, ok bool) {
	n = (n + mem.LineBytes - 1) &^ (mem.LineBytes - 1)
	if s.empty() {
		s.head, s.tail = 0, 0
	}
	at, size := s.head, s.size()
	if at%size+n > size {
		at += size - at%size // not around the end
	}
	if at+n-s.tail > size {
		return 0, 0, false
	}
	s.head = at + n
	return at % size, s.head, true
}

func (s *staging) empty() bool { return s.head == s.tail }

// grow makes room for a batch of n bytes if that is more than there is room
// for, within bounds; the staging must be empty.
func (s *staging) grow(pd *C.struct_ibv_pd, n uint64) error {
	want := uint64(1) << bits.Len64(min(max(n, stagingBytesMin), stagingBytesMax)-1)
	if want <= s.size() {
		return nil
	}
	return s.resize(pd, want)
}

// resize replaces the memory; the staging must be empty.
func (s *staging) resize(pd *C.struct_ibv_pd, bytes uint64) error {
	m, err := pin(pd, "verbs-staging", bytes)
	if err != nil {
		return err
	}
	s.mem.close()
	*s = staging{mem: m}
	return nil
}
